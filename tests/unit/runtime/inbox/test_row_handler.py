"""Which handler a claimed row gets, and what becomes of one that gets none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from semel import App
from semel.errors import HandlerCutOff, MessageRefused, StoreUnavailable
from semel.inbox.messages import envelope_of
from semel.inbox.reservation import reservation_of
from semel.kernel.effects import OwnTransaction
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow, WorkState
from semel.runtime.inbox.endpoint import InboxEndpoint
from semel.runtime.inbox.lanes import LaneEnd
from semel.runtime.inbox.row_handler import RowHandler
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled


@dataclass
class Mail:
    id: str


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


def row_of(envelope: Envelope) -> WorkRow:
    return WorkRow("inbox/mail", envelope.id, None, 1, WorkState.CLAIMED, 0, 1, 1, "w", envelope)


def rows_of(app: App, endpoint: InboxEndpoint) -> RowHandler:
    committer: Any = None
    threads: Any = None
    return RowHandler(app, endpoint, app.context, committer, threads)


async def test_a_type_that_no_handler_knows_is_refused() -> None:
    app = App(MemoryStore(), name="shop")
    rows = rows_of(app, app.endpoint("mail"))
    with pytest.raises(MessageRefused, match="knows messages of type 'other'"):
        await rows.deliver(row_of(Envelope("a", type="other")))
    assert rows.in_lane([row_of(Envelope("a", type="other"))]) == [LaneEnd(None)], "in a lane it is left to the loop"


def test_rows_in_a_lane_end_one_by_one() -> None:
    app = App(MemoryStore(), name="shop")
    mail = app.endpoint("mail")

    @mail.on(Mail)
    def send(message: Mail) -> None:
        if message.id == "bad":
            raise ZeroDivisionError
        if message.id == "away":
            raise StoreUnavailable("it is away", fix="wait")

    ends = rows_of(app, mail).in_lane([row_of(envelope_of(Mail(id), id)) for id in ("good", "bad", "away")])
    assert ends[0] == LaneEnd(())
    assert isinstance(ends[1].answer, ZeroDivisionError)
    assert ends[2] == LaneEnd(OwnTransaction.LOST), "nobody knows whether its effect has happened"


@pytest.mark.parametrize(("style", "is_known"), [("reserved", False), ("none", True)])
def test_what_a_process_cuts_off_is_given_back_unless_its_effect_may_have_happened(style: str, is_known: bool) -> None:
    app = App(MemoryStore(), name="shop")
    mail = app.endpoint("mail", mode="inline")
    mail.on(Mail, idempotency=style)(lambda message: None)
    end = rows_of(app, mail).cut_off(row_of(envelope_of(Mail("a"), "a")))
    assert isinstance(end, HandlerCutOff) if is_known else end is OwnTransaction.LOST
