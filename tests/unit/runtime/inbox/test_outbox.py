"""What a handler or a caller sends: ids, destinations, times, and cancels that take nothing with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from semel.errors import InputError, StaleFence
from semel.inbox.identity import Identity
from semel.inbox.outbox import OutboxCalls
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Enqueue, Finish, Op, Result
from semel.runtime.inbox.outbox import Outbox, apply_outbox, apply_outbox_async

HANDLED = Identity("inbox/shop", "inbox/orders", "a")


@dataclass
class Receipt:
    id: str


def make(handled: Identity | None = HANDLED, **routes: str) -> Outbox:
    return Outbox(OutboxCalls("shop", "handle", handled), routes, lambda: 1_000_000, lambda: "minted")


def enqueued(outbox: Outbox) -> Enqueue:
    [op] = outbox.ops
    assert isinstance(op, Enqueue)
    return op


def test_a_handlers_ids_are_the_same_when_it_runs_again() -> None:
    first, again = [[outbox.publish(Receipt("r"), "stream:s") for _ in range(2)] for outbox in (make(), make())]
    assert first == again
    assert len(set(first)) == 2


def test_a_caller_gets_a_new_id() -> None:
    assert make(None).publish(Receipt("r"), "stream:s") == "minted"
    assert make(None).schedule(Receipt("r"), "stream:s", after_s=1) == "minted"


def test_a_route_says_where_a_type_goes() -> None:
    outbox = make(Receipt="stream:receipts", note="stream:notes")
    outbox.publish(Receipt("r"))
    outbox.publish(Envelope("n", type="note"))
    outbox.publish(Receipt("r"), "stream:elsewhere")
    assert [op.envelope.headers["semel-destination"] for op in outbox.ops if isinstance(op, Enqueue)] == [
        "stream:receipts", "stream:notes", "stream:elsewhere",
    ]  # fmt: skip


def test_a_message_that_goes_nowhere_is_refused() -> None:
    with pytest.raises(InputError, match="nobody said where messages of type 'Receipt' go") as refused:
        make().publish(Receipt("r"))
    assert "app.route(Receipt, to=...)" in refused.value.fix


def test_the_time_of_a_scheduled_message() -> None:
    later, then = make(), make()
    later.schedule(Receipt("r"), "stream:s", after_s=2)
    then.schedule(Receipt("r"), "stream:s", at=datetime(1970, 1, 2, tzinfo=UTC))
    assert [enqueued(later).due, enqueued(then).due] == [3_000_000, 86_400_000_000]


@pytest.mark.parametrize(
    ("times", "problem", "fix"),
    [
        ({}, "needs a time", "either at= or after_s="),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC), "after_s": 1}, "needs a time", "either at= or after_s="),
        ({"at": datetime(2026, 1, 1)}, "has no time zone", "UTC"),
    ],
    ids=["none", "both", "naive"],
)
def test_a_time_that_says_nothing_is_refused(times: dict[str, Any], problem: str, fix: str) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        make().schedule(Receipt("r"), "stream:s", **times)
    assert fix in refused.value.fix


class Recorder:
    """A transaction in which every cancel comes too late."""

    def __init__(self) -> None:
        self.applied: list[list[Op]] = []

    def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        if isinstance(ops[0], Finish):
            raise StaleFence("too late", fix="none")
        self.applied.append(list(ops))
        return ()


class AwaitedRecorder(Recorder):
    async def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:  # type: ignore[override]
        return Recorder.apply(self, ops)


async def test_a_cancel_that_comes_too_late_takes_nothing_with_it() -> None:
    outbox, tx, awaited = make(), Recorder(), AwaitedRecorder()
    outbox.publish(Receipt("r"), "stream:s")
    outbox.cancel("gone", "stream:s")
    apply_outbox(tx, outbox)
    await apply_outbox_async(awaited, outbox)  # type: ignore[arg-type]
    assert tx.applied == awaited.applied == [list(outbox.ops)]


async def test_nothing_to_write_is_not_written() -> None:
    tx, awaited = Recorder(), AwaitedRecorder()
    assert apply_outbox(tx, make()) == await apply_outbox_async(awaited, make()) == ()  # type: ignore[arg-type]
    assert tx.applied == awaited.applied == []
