"""The plain face of the group commit, for producers that are not machines."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future as ThreadFuture
from functools import partial
from typing import Any

from semel.errors import CommitInDoubt, LocalProtocolError, SemelError, StaleFence, StoreError
from semel.kernel.effects import CommitFailed, Committed
from semel.kernel.group import Completion
from semel.kernel.ops import Conflict, Op, Result, Stale
from semel.runtime.perform import Performer, closed_error
from semel.runtime.threads import hand_over

_Future = asyncio.Future[tuple[Result, ...]] | ThreadFuture[tuple[Result, ...]]
_Entry = tuple[tuple[Op, ...], str | None, _Future]


class Committer:
    """`results = await committer.commit(ops)`: when it returns, the ops are durable.

    Everybody who commits at the same time shares one transaction. When the store is slower than its producers they
    wait here in the order in which they came, so memory does not grow.
    """

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._held: deque[_Entry] = deque()
        self._from_threads: deque[_Entry] = deque()
        self._thread = threading.get_ident()
        performer.on_room(self._admit)

    async def commit(self, ops: Iterable[Op], chain: str | None = None) -> tuple[Result, ...]:
        """Commit the ops together and return their results.

        Raises `StaleFence` when a fence, a guard or an expected version was refused, the store's error when it could
        not do it, and `CommitInDoubt` when nobody can say whether it did. Commits of one `chain` stand or fall in
        order. A caller that is cancelled while it waits does not know whether its commit will happen.
        """
        future: asyncio.Future[tuple[Result, ...]] = self._performer.loop.create_future()
        self._take(tuple(ops), chain, future)
        return await future

    def commit_sync(
        self, ops: Iterable[Op], chain: str | None = None, timeout_s: float | None = None
    ) -> tuple[Result, ...]:
        """The same for threads. Raises TimeoutError when the time is up; the commit may still happen."""
        if threading.get_ident() == self._thread:
            raise LocalProtocolError("commit_sync would block the loop that it waits for", fix="await commit() here")
        future: ThreadFuture[tuple[Result, ...]] = ThreadFuture()
        self._from_threads.append((tuple(ops), chain, future))
        hand_over(self._performer.loop, self._take_from_threads)
        return future.result(timeout_s)
