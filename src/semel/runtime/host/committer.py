"""The plain face of the group commit, for producers that are not machines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial

from semel.errors import CommitInDoubt, SemelError, StaleFence, StoreError
from semel.kernel.effects import CommitFailed, Committed, CommitUnknown
from semel.kernel.group import Completion
from semel.kernel.ops import Conflict, Op, Result, Stale
from semel.runtime.host.performer import Performer, closed_error

_Future = asyncio.Future[tuple[Result, ...]]
_Entry = tuple[tuple[Op, ...], str | None, _Future]


class Committer:
    """`results = await committer.commit(ops)`: when it returns, the ops are durable.

    Everybody who commits at the same time shares one transaction. When the store is slower than its producers they
    wait here in the order in which they came, so memory does not grow. Make it on the performer's loop.
    """

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._held: deque[_Entry] = deque()
        performer.on_room(self._admit)
        performer.on_end(self._fail_held)

    async def commit(self, ops: Iterable[Op], chain: str | None = None) -> tuple[Result, ...]:
        """Commit the ops together and return their results.

        Raises `StaleFence` when a fence, a guard or an expected version was refused, the store's error when it could
        not do it, and `CommitInDoubt` when nobody can say whether it did. Commits of one `chain` stand or fall in
        order. A caller that is cancelled while it waits does not know whether its commit will happen.
        """
        self._performer.check_open()
        future: asyncio.Future[tuple[Result, ...]] = self._performer.loop.create_future()
        self._take(tuple(ops), chain, future)
        return await future

    def _take(self, ops: tuple[Op, ...], chain: str | None, future: _Future) -> None:
        if self._held or self._performer.is_full:
            self._held.append((ops, chain, future))
        else:
            self._submit(ops, chain, future)

    def _submit(self, ops: tuple[Op, ...], chain: str | None, future: _Future) -> None:
        if chain is None:
            self._performer.submit(ops, None, partial(_settle, future))
        else:
            # a machine's chains begin with its name, so these never meet
            self._performer.submit(ops, f"/{chain}", partial(self._settle_chained, chain, future))

    def _admit(self) -> None:
        while self._held and not self._performer.is_full:
            ops, chain, future = self._held.popleft()
            if chain is not None or not future.cancelled():
                self._submit(ops, chain, future)

    def _fail_held(self) -> None:
        """The performer has ended without them: they were never tried, and nobody would ever answer them."""
        held, self._held = self._held, deque()
        for _, _, future in held:
            _settle(future, CommitFailed(0, error=closed_error()))

    def _settle_chained(self, chain: str, future: _Future, completion: Completion) -> None:
        """What waits here belongs to the chain as well: it falls with the one that failed."""
        _settle(future, completion)
        if isinstance(completion, Committed):
            return
        fallen = [entry for entry in self._held if entry[1] == chain]
        self._held = deque(entry for entry in self._held if entry[1] != chain)
        for _, _, other in fallen:
            _settle(other, CommitFailed(0))


def _settle(future: _Future, completion: Completion) -> None:
    if future.done():
        return
    if isinstance(completion, Committed):
        future.set_result(completion.results)
    else:
        future.set_exception(_error_of(completion))


def _error_of(completion: CommitFailed | CommitUnknown) -> SemelError:
    if isinstance(completion, CommitUnknown):
        return CommitInDoubt(
            "nobody can say whether the commit happened",
            marker="",
            fix="commit the same again with the same identities: what is there already answers Duplicate",
        )
    if completion.error is not None:
        return completion.error
    for at, result in enumerate(completion.results):
        if isinstance(result, Stale):
            return StaleFence(f"op {at}: the row is now under fence {result.fence}", fix="claim it again")
        if isinstance(result, Conflict):
            return StaleFence(f"op {at}: it is at version {result.version} by now", fix="read it and decide again")
    return StoreError(
        "not tried, because an earlier commit of its chain failed", fix="read what the store holds and commit again"
    )
