"""Threads that run the handlers of one endpoint, one message after the other.

To hand a single message from the loop to a thread and its end back again takes more of the processor than to handle
it. So the loop hands over more than the threads can begin at once, and collects the ends in groups: at once when the
threads are about to run out of messages, else a few milliseconds later. What no thread has begun when the endpoint is
paused or the process closes is given back. What one still has when the process waits no longer is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from semel.kernel.effects import Deliver, DeliverFailed, Event, OwnTransaction, delivered
from semel.kernel.ops import WorkRow
from semel.runtime.host.log_fields import about_item
from semel.runtime.host.performer import Performer, failure_event
from semel.runtime.inbox.handling import Answer

log = logging.getLogger(__name__)

RUN_AHEAD = 32
"""So many more messages than threads are handed over."""
COLLECT_S = 0.005
WAKE_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """What became of a message: its handler's answer or exception; None leaves it to `aside`. `has_news`: others may
    find something to do now."""

    answer: Answer | BaseException | None
    has_news: bool = False


UNTOUCHED = LaneEnd(OwnTransaction.UNTOUCHED)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    row: WorkRow
    token: int
    report: Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class LaneRunner:
    """What the lanes of an endpoint run: `together` gets one message, or up to `share` of them; `aside` is a coroutine
    for those that need the loop. `may_begin` is asked before each, with its token. `cut_off` says how a message ends
    whose handler is still at it when the process waits no longer."""

    name: str
    together: Callable[[Sequence[WorkRow]], Sequence[LaneEnd]]
    aside: Callable[[WorkRow], Coroutine[Any, Any, Answer]]
    may_begin: Callable[[int], bool]
    cut_off: Callable[[WorkRow], Answer | BaseException]
    share: int = 1


class HandlerLanes:
    """`take` is a taker for `Performer.add`."""

    def __init__(self, performer: Performer, runner: LaneRunner, threads: int) -> None:
        self._performer = performer
        self._runner = runner
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._given: dict[int, _Job] = {}
        self._begun: set[int] = set()
        self._ends: deque[tuple[_Job, LaneEnd]] = deque()
        self._is_collecting = False
        self._low = RUN_AHEAD // 4
        self._idle = asyncio.Event()
        self._wake_due = False
        self._woken_at = 0.0
        self.handled = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"semel-inbox-{runner.name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Threads end after what they have begun."""
        for _ in self._threads:
            self._jobs.put(None)

    # -- on the loop

    def take(self, effect: Deliver, report: Callable[[Event], None]) -> None:
        assert isinstance(effect.item, WorkRow), "an endpoint is a queue of work"
        job = _Job(effect.item, effect.token, report)
        if not self._given:
            self._idle.clear()
            self._performer.take_part(self._stay())
        self._given[job.token] = job
        self._jobs.put(job)

    async def _stay(self) -> None:
        try:
            await self._idle.wait()
        except asyncio.CancelledError:
            self._leave_all()
            raise

    def _leave_all(self) -> None:
        """The process waits no longer. By now nothing more may begin, so what has not begun is as it was."""
        for job, ended in self._take_ended():
            self._report(job, ended if ended.answer is not None else UNTOUCHED)
        jobs, self._given = self._given, {}
        for token, job in jobs.items():
            self._report(job, LaneEnd(self._runner.cut_off(job.row)) if token in self._begun else UNTOUCHED)
        self._performer.reported()

    def _take_ended(self) -> Iterator[tuple[_Job, LaneEnd]]:
        """What has ended since the last time. What was left alone meanwhile is no news any more."""
        while self._ends:
            job, ended = self._ends.popleft()
            self._begun.discard(job.token)
            if self._given.pop(job.token, None) is not None:
                yield job, ended

    def _collect(self) -> None:
        """Again after a while, as long as something has ended."""
        has_news, count = False, 0
        self._is_collecting = False
        for job, ended in self._take_ended():
            count += 1
            has_news = has_news or ended.has_news
            self._report(job, ended)
        if has_news:
            self._wake_soon()
        if not self._given:
            self._idle.set()
        elif count and not self._is_collecting:
            self._is_collecting = True
            self._performer.loop.call_later(COLLECT_S, self._collect)
        self._performer.reported()

    def _report(self, job: _Job, ended: LaneEnd) -> None:
        if ended.answer is None:
            self._performer.take_part(self._put_aside(job))
            return
        if ended.answer is not OwnTransaction.UNTOUCHED:
            self.handled += 1
        job.report(self._event(job, ended.answer))

    async def _put_aside(self, job: _Job) -> None:
        event: Event = DeliverFailed(job.token, "cancelled: the process is shutting down")
        try:
            event = delivered(job.token, await self._runner.aside(job.row))
        except (Exception, SystemExit) as error:
            event = self._event(job, error)
        finally:
            job.report(event)
            self._performer.reported()

    def _event(self, job: _Job, answer: Answer | BaseException) -> Event:
        if not isinstance(answer, BaseException):
            return delivered(job.token, answer)
        fields = about_item(job.row)
        log.warning(
            "a handler of %s failed at %s", self._runner.name, job.row.envelope.id, exc_info=answer, extra=fields
        )
        return failure_event(job.token, answer)

    def _wake_soon(self) -> None:
        """Many commits are announced to other processes at once: each notification is a round trip of its own."""
        if not self._wake_due:
            self._wake_due = True
            wait_s = self._woken_at + WAKE_EVERY_S - time.monotonic()
            self._performer.loop.call_later(max(0.0, wait_s), self._wake)

    def _wake(self) -> None:
        self._wake_due, self._woken_at = False, time.monotonic()
        self._performer.loop.run_in_executor(None, self._performer.store.wake)

    # -- on the threads

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            jobs, goes_on = self._more(job)
            for each, ended in zip(jobs, self._run(jobs), strict=True):
                self._ends.append((each, ended))
            if not self._is_collecting or self._jobs.qsize() <= self._low:
                self._signal()
            if not goes_on:
                return

    def _more(self, first: _Job) -> tuple[list[_Job], bool]:
        """What can share its commit, of what is there."""
        jobs = [first]
        while len(jobs) < self._runner.share:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                return jobs, False
            jobs.append(job)
        return jobs, True

    def _run(self, jobs: Sequence[_Job]) -> Sequence[LaneEnd]:
        if not all(self._runner.may_begin(job.token) for job in jobs):
            return [UNTOUCHED] * len(jobs)
        self._begun.update(job.token for job in jobs)
        try:
            return self._runner.together([job.row for job in jobs])
        except (Exception, SystemExit) as error:
            return [LaneEnd(error)] * len(jobs)

    def _signal(self) -> None:
        self._is_collecting = True
        try:
            self._performer.loop.call_soon_threadsafe(self._collect)
        except RuntimeError:
            return  # the loop is closed: what was committed is committed, and the rest comes back with its lease
