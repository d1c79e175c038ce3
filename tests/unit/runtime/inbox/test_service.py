"""What a service does when the store is the trouble, or the user's own functions are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from semel import App, on
from semel.errors import StoreUnavailable
from semel.runtime.inbox import service
from semel.runtime.inbox.definition import Periodic
from semel.runtime.inbox.service import InboxService
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled


@dataclass
class Mail:
    id: str


@pytest.mark.parametrize(("on_crash", "runs", "last"), [("retry", 2, "HANDLED"), ("drop", 1, "DISCARDED")])
def test_trouble_of_the_store_is_no_failure_of_the_handler(on_crash: str, runs: int, last: str) -> None:
    """Its effect may have happened: a retry by the rules would make it happen twice where it may at most once."""
    calls: list[str] = []
    app = App(MemoryStore(), name="shop")
    mail = app.endpoint("mail", on_crash=on_crash, lease_s=scaled(0.2), errors=[on(Exception).retry_now(3)])

    @mail.on(Mail)
    def send(message: Mail) -> None:
        calls.append(message.id)
        if len(calls) == 1:
            raise StoreUnavailable("the connection broke", fix="try again")

    app.send(Mail("a"), to="mail", id="a")
    app.drain()
    assert len(calls) == runs
    assert [entry.event.kind.name for entry in app.store.history("a")] == ["ACCEPTED", last]


class Ticks:
    """A schedule that is due all the time."""

    name = "tick"

    def next_after(self, after: int) -> int:
        return after + 1_000


@pytest.mark.asyncio
async def test_a_periodic_message_that_cannot_be_made_does_not_end_its_schedule(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "PERIODIC_S_MIN", 0.002)
    asked: list[int] = []

    def make() -> Mail:
        asked.append(len(asked))
        if len(asked) < 4:
            raise ValueError("no figures yet")
        return Mail("a")

    app = App(MemoryStore(), name="shop")
    schedule: Any = Ticks()
    app.periodic.append(Periodic(schedule, make, "stream:mails"))
    async with InboxService(app), asyncio.timeout(scaled(30)):
        while not app.store.work_counts("outbox/shop"):  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.01)
    assert "the periodic message 'tick' of" in caplog.text
