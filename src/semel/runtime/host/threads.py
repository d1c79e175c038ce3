"""The threads that call a store, whose methods block: one that writes, and a few that read.

Nothing here touches the loop's own data. A thread does its work and hands the outcome to the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from semel.errors import CommitInDoubt, SemelError, StoreBroken, StoreError, StoreRefused
from semel.kernel.group import CommitGroup, in_words
from semel.kernel.interpreter import Interpreter
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

Report = Callable[[], None]
"""Tells the interpreter what became of a group; called on the loop."""

DOUBT_RETRY = RetryPolicy(interval_s=0.02, factor=2.0, interval_max_s=1.0)


class Writer:
    """The one thread that commits, one group after the other. `done` is called on the loop with what became of a group,
    and the error if the store has not taken it; `trouble` is called with a doubt that lasts, while it does."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        interpreter: Interpreter,
        done: Callable[[CommitGroup, Report, SemelError | None], None],
        *,
        doubt_s: float,
        trouble: Callable[[SemelError], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._interpreter = interpreter
        self._done = done
        self._doubt_s = doubt_s
        self._trouble = trouble
        self._groups: SimpleQueue[CommitGroup | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="semel-writer", daemon=True)
        self._thread.start()

    def put(self, group: CommitGroup) -> None:
        self._groups.put(group)

    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.get_ident() == self._thread.ident

    def stop(self, timeout_s: float) -> bool:
        """End after the group under way. False when the store did not come back in time."""
        self._stopping.set()
        self._groups.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            hand_over(self._loop, self._done, group, *self._commit(group))

    def _commit(self, group: CommitGroup) -> tuple[Report, SemelError | None]:
        try:
            return partial(self._interpreter.committed, group, self._store.commit(group.units)), None
        except CommitInDoubt as doubt:
            return self._resolve(group, doubt)
        except StoreRefused as error:
            return partial(self._interpreter.refused, group, error), error
        except StoreError as error:
            return partial(self._interpreter.failed, group, error), error
        except (SemelError, TypeError, ValueError, OverflowError) as error:
            # not the store's trouble, so it is the data of some commit: halving finds whose
            refusal = as_refusal(error)
            return partial(self._interpreter.refused, group, refusal), refusal
        except Exception as error:
            # it may have come after COMMIT, and to commit again could double what has no identity
            log.exception("a store failed in a way that Semel does not know; in doubt: %s", in_words(group.members))
            return partial(self._interpreter.unknown, group), as_refusal(error)

    def _resolve(self, group: CommitGroup, doubt: CommitInDoubt) -> tuple[Report, SemelError | None]:
        """Nothing else is written before the doubt is over, or until it has lasted too long."""
        until = time.monotonic() + self._doubt_s
        attempt = 0
        while True:
            try:
                return partial(self._interpreter.resolved, group, self._store.resolve(doubt.marker)), None
            except Exception as error:
                attempt += 1
                wait_s = DOUBT_RETRY.wait_s(attempt, 0.0)
                cause = error if isinstance(error, StoreBroken) else doubt
                hand_over(self._loop, self._trouble, cause)
                is_over = cause is error or time.monotonic() + wait_s > until
                if is_over or self._stopping.wait(wait_s):
                    log.error("in doubt for good: %s", in_words(group.members))
                    return partial(self._interpreter.unknown, group), cause


class Readers:
    """A few threads that read, so that a slow read holds up neither the loop nor the writer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None], Callable[[SemelError], None]] | None]
        self._jobs = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"semel-reader-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[SemelError], None]) -> None:
        """Do the job on a thread, then call one of the two on the loop."""
        self._jobs.put((job, done, failed))

    def stop(self, timeout_s: float) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done, failed = entry
            try:
                result = job()
            except SemelError as error:
                hand_over(self._loop, failed, error)
            except Exception as error:
                log.exception("a read failed in a way that Semel does not know")
                hand_over(self._loop, failed, StoreError(f"{type(error).__name__}: {error}", fix="report this"))
            else:
                hand_over(self._loop, done, result)


def hand_over(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *values: Any) -> None:
    """Call it on the loop. A loop that has closed takes nothing any more."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *values)


def run_in_thread(loop: asyncio.AbstractEventLoop, job: Callable[[], T]) -> asyncio.Future[T]:
    """Do it on a thread of its own, which may never come back: nobody waits for it at the end, and no other work does
    meanwhile. Call it on the loop."""
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_it(value)

    def run() -> None:
        try:
            result = job()
        except Exception as error:
            hand_over(loop, settle, future.set_exception, error)
        else:
            hand_over(loop, settle, future.set_result, result)

    threading.Thread(target=run, name="semel-job", daemon=True).start()
    return future


def as_refusal(error: Exception) -> SemelError:
    if isinstance(error, SemelError):
        return error
    return StoreRefused(f"{type(error).__name__}: {error}", fix="correct the commit: the store cannot hold it")
