"""Lanes run what they are given, tell of it on the loop, and give back what they have not begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from semel.kernel.effects import Deliver, Delivered, DeliverFailed, DeliverLost, DeliverUntouched, Event, OwnTransaction
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow, WorkState
from semel.runtime.inbox.handling import Answer
from semel.runtime.inbox.lanes import HandlerLanes, LaneEnd, LaneRunner
from semel.testing import limits

FINISHED = LaneEnd(OwnTransaction.FINISHED)


class Store:
    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self.woken.set)


class FakePerformer:
    """As much of a performer as lanes need."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.store = Store()
        self.tasks: list[asyncio.Task[None]] = []

    def take_part(self, job: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self.loop.create_task(job))

    def told(self) -> None: ...


def row(id: str) -> WorkRow:
    return WorkRow("inbox/orders", id, None, 1, WorkState.CLAIMED, 0, 1, 1, "w", Envelope(id))


async def never(row: WorkRow) -> Answer:
    raise AssertionError("nothing is left to the loop here")


def cut_off(row: WorkRow) -> Answer:
    return OwnTransaction.LOST


async def run(
    ids: Sequence[str],
    together: Callable[[Sequence[WorkRow]], Sequence[LaneEnd]],
    *,
    may_begin: bool = True,
    share: int = 1,
    aside: Callable[[WorkRow], Coroutine[Any, Any, Answer]] = never,
) -> tuple[list[Event], FakePerformer]:
    performer: Any = FakePerformer()
    lanes = HandlerLanes(performer, LaneRunner("orders", together, aside, lambda token: may_begin, cut_off, share), 1)
    told: list[Event] = []
    for token, id in enumerate(ids):
        lanes.take(Deliver(row(id), token), told.append)
    async with asyncio.timeout(limits.scaled(10)):
        while pending := [task for task in performer.tasks if not task.done()]:
            await asyncio.wait(pending)
    lanes.close()
    return told, performer


@pytest.mark.asyncio
async def test_each_is_run_and_told_in_order() -> None:
    seen: list[str] = []

    def together(rows: Sequence[WorkRow]) -> Sequence[LaneEnd]:
        seen.extend(row.identity for row in rows)
        return [FINISHED]

    told, _ = await run(["a", "b", "c"], together)
    assert seen == ["a", "b", "c"]
    assert told == [Delivered(token, finished=True) for token in range(3)]


@pytest.mark.asyncio
async def test_what_must_not_begin_is_given_back_untouched() -> None:
    told, _ = await run(["a"], lambda rows: pytest.fail("it ran"), may_begin=False)
    assert told == [DeliverUntouched(0)]


@pytest.mark.asyncio
async def test_an_exception_is_the_end_of_its_own_message() -> None:
    def together(rows: Sequence[WorkRow]) -> Sequence[LaneEnd]:
        if rows[0].identity == "a":
            raise ValueError("no")
        return [FINISHED]

    told, _ = await run(["a", "b"], together)
    assert isinstance(told[0], DeliverFailed)
    assert told[1] == Delivered(1, finished=True)


@pytest.mark.asyncio
async def test_others_are_woken_when_there_is_something_for_them() -> None:
    _, performer = await run(["a"], lambda rows: [LaneEnd(OwnTransaction.FINISHED, has_news=True)])
    async with asyncio.timeout(limits.scaled(10)):
        await performer.store.woken.wait()


@pytest.mark.asyncio
async def test_what_needs_the_loop_is_left_to_it() -> None:
    async def aside(row: WorkRow) -> Answer:
        return OwnTransaction.FINISHED

    told, _ = await run(["a"], lambda rows: [LaneEnd(None)], aside=aside)
    assert told == [Delivered(0, finished=True)]


@pytest.mark.asyncio
async def test_a_handler_that_exits_on_the_loop_has_failed_and_ends_nothing_else() -> None:
    async def aside(row: WorkRow) -> Answer:
        raise SystemExit(3)

    [told], _ = await run(["a"], lambda rows: [LaneEnd(None)], aside=aside)
    assert isinstance(told, DeliverFailed)
    assert "SystemExit" in told.error


@pytest.mark.asyncio
async def test_when_nobody_waits_any_longer_only_what_has_begun_is_cut_off() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def together(rows: Sequence[WorkRow]) -> Sequence[LaneEnd]:
        begun.set()
        go_on.wait(limits.scaled(10))
        return [FINISHED]

    performer: Any = FakePerformer()
    lanes = HandlerLanes(performer, LaneRunner("orders", together, never, lambda token: True, cut_off), 1)
    told: list[Event] = []
    for token, id in enumerate(["a", "b"]):
        lanes.take(Deliver(row(id), token), told.append)
    assert await asyncio.to_thread(begun.wait, limits.scaled(10))
    [stays] = performer.tasks
    stays.cancel()
    await asyncio.wait([stays])
    assert told == [DeliverLost(0), DeliverUntouched(1)]
    go_on.set()
    lanes.close()
