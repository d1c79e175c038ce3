"""What a service does when the store is the trouble, or the user's own functions are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from semel import App, on
from semel.errors import StoreUnavailable
from semel.inbox.messages import envelope_of
from semel.inbox.reservation import reservation_of
from semel.kernel.effects import OwnTransaction
from semel.kernel.ops import WorkRow, WorkState
from semel.runtime.inbox import service
from semel.runtime.inbox.definition import Periodic
from semel.runtime.inbox.row_handler import RowHandler
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


@pytest.mark.asyncio
async def test_an_end_that_is_cut_off_is_no_attempt_of_the_handler() -> None:
    """The process ends while the store does not answer: the claim runs out, and it is decided again."""
    app = App(MemoryStore(), name="shop")
    mail = app.endpoint("mail", mode="inline")
    mail.on(Mail, idempotency="reserved")(lambda message: None)

    class Hangs:
        begun = asyncio.Event()

        async def commit(self, ops: object) -> None:
            self.begun.set()
            await asyncio.Event().wait()

    committer: Any = Hangs()
    threads: Any = None
    rows = RowHandler(app, mail, app.context, committer, threads)
    envelope = reservation_of(envelope_of(Mail("a"), "a"))
    row = WorkRow("inbox/mail", "a", None, 1, WorkState.CLAIMED, 0, 1, 1, "w", envelope)
    task = asyncio.create_task(rows.deliver(row))
    await asyncio.wait_for(committer.begun.wait(), scaled(30))
    task.cancel()
    assert await task is OwnTransaction.LOST


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
