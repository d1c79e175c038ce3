"""What a worker's handler answers when the store, and not the handler, is the trouble."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from semel import App, on
from semel.errors import StoreUnavailable
from semel.stores.memory import MemoryStore


@dataclass
class Mail:
    id: str


@pytest.mark.parametrize(("on_crash", "runs", "last"), [("retry", 2, "HANDLED"), ("drop", 1, "DISCARDED")])
def test_trouble_of_the_store_is_no_failure_of_the_handler(on_crash: str, runs: int, last: str) -> None:
    """Its effect may have happened: a retry by the rules would make it happen twice where it may at most once."""
    calls: list[str] = []
    app = App(MemoryStore(), name="shop")
    mail = app.endpoint("mail", on_crash=on_crash, lease_s=0.2, errors=[on(Exception).retry_now(3)])

    @mail.on(Mail)
    def send(message: Mail) -> None:
        calls.append(message.id)
        if len(calls) == 1:
            raise StoreUnavailable("the connection broke", fix="try again")

    app.send(Mail("a"), to="mail", id="a")
    app.drain()
    assert len(calls) == runs
    assert [entry.event.kind.name for entry in app.store.history("a")] == ["ACCEPTED", last]
