"""What a commit's outcome is taken for, on the thread that writes; and that threads which hang hold up nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from unittest.mock import Mock

import pytest

from semel.errors import CommitInDoubt, SemelError, StoreBroken, StoreError, StoreRefused, StoreUnavailable
from semel.kernel.group import CommitGroup
from semel.kernel.interpreter import Interpreter
from semel.kernel.store import Store
from semel.runtime.host.threads import Readers, Writer, hand_over, run_in_thread
from semel.testing.limits import scaled

UNAVAILABLE = StoreUnavailable("gone", fix="look")
GROUP = Mock(spec=CommitGroup, units=(), members=())


class Writing:
    def __init__(self, doubt_s: float = 30.0) -> None:
        self.store, self.interpreter, self.trouble = Mock(spec=Store), Mock(spec=Interpreter), Mock()
        self.done: asyncio.Queue[tuple[str, SemelError | None]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self.writer = Writer(
            self.store, loop, self.interpreter, self._done, doubt_s=doubt_s, trouble=self.trouble
        )  # fmt: skip

    def _done(self, group: CommitGroup, report: Callable[[], None], error: SemelError | None) -> None:
        assert isinstance(report, partial)
        names = ("committed", "refused", "failed", "resolved", "unknown")
        name = next(name for name in names if report.func is getattr(self.interpreter, name))
        self.done.put_nowait((name, error))

    async def commit(self, outcome: object) -> tuple[str, SemelError | None]:
        self.store.commit.side_effect = [outcome]
        self.writer.put(GROUP)
        async with asyncio.timeout(scaled(10.0)):
            return await self.done.get()


@pytest.fixture
async def writing() -> AsyncIterator[Writing]:
    made = Writing()
    yield made
    assert made.writer.stop(scaled(10.0))


async def test_what_the_store_took_is_committed(writing: Writing) -> None:
    assert await writing.commit([]) == ("committed", None)


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (StoreRefused("no", fix="change it"), "refused"),
        (ValueError("an odd value"), "refused"),
        (TypeError("no type"), "refused"),
        (UNAVAILABLE, "failed"),
        (StoreError("odd", fix="look"), "failed"),
        (ZeroDivisionError("after the commit?"), "unknown"),
    ],
)
async def test_an_error_is_the_data_s_fault_the_store_s_or_nobody_knows(
    writing: Writing, error: Exception, report: str
) -> None:
    name, told = await writing.commit(error)
    assert (name, told is not None) == (report, True)


async def test_a_doubt_is_resolved_by_asking_the_store_until_it_answers(writing: Writing) -> None:
    writing.store.resolve.side_effect = [UNAVAILABLE, []]
    assert await writing.commit(CommitInDoubt("lost", marker="m", fix="")) == ("resolved", None)
    writing.trouble.assert_called_once()


async def test_a_store_that_is_another_one_cannot_resolve_a_doubt(writing: Writing) -> None:
    writing.store.resolve.side_effect = StoreBroken("another store", fix="look")
    name, error = await writing.commit(CommitInDoubt("lost", marker="m", fix=""))
    assert name == "unknown"
    assert isinstance(error, StoreBroken)


async def test_a_doubt_that_lasts_too_long_is_given_up() -> None:
    made = Writing(doubt_s=0.0)
    made.store.resolve.side_effect = UNAVAILABLE
    name, error = await made.commit(CommitInDoubt("lost", marker="m", fix=""))
    assert (name, type(error)) == ("unknown", CommitInDoubt)
    assert made.writer.stop(scaled(10.0))


async def test_a_reader_answers_on_the_loop_and_hides_what_nobody_knows() -> None:
    readers = Readers(asyncio.get_running_loop(), 1)
    heard: asyncio.Queue[object] = asyncio.Queue()
    for job in (
        lambda: threading.current_thread().name,
        Mock(side_effect=UNAVAILABLE),
        Mock(side_effect=KeyError("k")),
    ):
        readers.submit(job, heard.put_nowait, heard.put_nowait)
    async with asyncio.timeout(scaled(10.0)):
        found = [await heard.get() for _ in range(3)]
    assert found[:2] == ["semel-reader-0", UNAVAILABLE]
    assert isinstance(found[2], StoreError)
    readers.stop(scaled(10.0))


async def test_work_aside_has_a_thread_of_its_own_and_its_outcome_comes_to_the_loop() -> None:
    loop, hangs = asyncio.get_running_loop(), threading.Event()
    first = run_in_thread(loop, hangs.wait)
    assert await asyncio.wait_for(run_in_thread(loop, lambda: 7), scaled(10.0)) == 7
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(run_in_thread(loop, Mock(side_effect=UNAVAILABLE)), scaled(10.0))
    first.cancel()
    hangs.set()


def test_a_loop_that_has_closed_wants_to_hear_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    hand_over(loop, Mock())
