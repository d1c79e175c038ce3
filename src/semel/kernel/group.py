"""Group commit: which waiting commits share the next transaction, and who gets which outcome when it fails.

Pure bookkeeping, driven by the asyncio runtime and by the simulator alike. One transaction is under way at a time.

* All commits that are waiting go together, bounded in rows and bytes.
* When the engine refuses the data, the group is halved until only the guilty commit fails.
* A commit that fails takes with it every later one of its chain that is waiting. Otherwise k fails, k+1 lands, and the
  resend of k is taken for a duplicate.
* A transaction in doubt is resolved before anything else happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from semel.errors import SemelError
from semel.kernel.effects import CommitFailed, Committed, CommitUnknown
from semel.kernel.ops import Append, Applied, Enqueue, Op, Outcome, Put, PutBlob, Remember, Unit

Completion = Committed | CommitFailed | CommitUnknown

NAMED_MAX = 20
"""As many messages of a stream are named one by one."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """`rows` and `bytes` bound one transaction; `waiting` bounds what may queue before producers are held back."""

    rows: int = 1000
    bytes: int = 8 * 1024 * 1024
    waiting_rows: int = 20_000
    waiting_bytes: int = 64 * 1024 * 1024


class WaitingCommit(msgspec.Struct, eq=False):
    """One commit on its way. `done` is called with its completion, exactly once."""

    unit: Unit
    token: int
    done: Callable[[Completion], None]
    rows: int
    bytes: int


@dataclass(slots=True, eq=False)
class CommitGroup:
    """Commits that share a transaction."""

    members: list[WaitingCommit]

    @property
    def units(self) -> list[Unit]:
        return [member.unit for member in self.members]


@dataclass(slots=True)
class CommitQueue:
    limits: GroupLimits = field(default_factory=GroupLimits)
    _waiting: deque[WaitingCommit] = field(default_factory=deque)
    _halves: deque[CommitGroup] = field(default_factory=deque)
    _under_way: CommitGroup | None = None
    _rows: int = 0
    _bytes: int = 0

    def __len__(self) -> int:
        """Commits that have no outcome yet."""
        under_way = len(self._under_way.members) if self._under_way else 0
        return len(self._waiting) + under_way + sum(len(half.members) for half in self._halves)

    @property
    def is_full(self) -> bool:
        """Hold producers back: the store is slower than they are."""
        return self._rows >= self.limits.waiting_rows or self._bytes >= self.limits.waiting_bytes

    def submit(self, ops: tuple[Op, ...], chain: str | None, token: int, done: Callable[[Completion], None]) -> None:
        rows, size = len(ops) or 1, weigh(ops)
        self._waiting.append(WaitingCommit(Unit(ops, chain), token, done, rows, size))
        self._rows += rows
        self._bytes += size

    def next_group(self) -> CommitGroup | None:
        """The commits for the next transaction, or None while one is under way or nothing waits."""
        if self._under_way is not None:
            return None
        if self._halves:
            self._under_way = self._halves.popleft()
        elif self._waiting:
            self._under_way = self._take()
        return self._under_way

    def _take(self) -> CommitGroup:
        if self._rows <= self.limits.rows and self._bytes <= self.limits.bytes:
            # the counts of `_rows` and `_bytes` are of `_waiting` alone: what is under way or halved has left them
            members, self._waiting = list(self._waiting), deque()
            self._rows = self._bytes = 0
            return CommitGroup(members)
        return self._take_some()

    def _take_some(self) -> CommitGroup:
        rows = size = 0
        members: list[WaitingCommit] = []
        while self._waiting:
            head = self._waiting[0]
            # the first goes along however large it is, or a commit above the limit would never be tried
            if members and (rows + head.rows > self.limits.rows or size + head.bytes > self.limits.bytes):
                break
            members.append(self._waiting.popleft())
            rows += head.rows
            size += head.bytes
        self._rows -= rows
        self._bytes -= size
        assert min(self._rows, self._bytes) >= 0, "each commit is counted in and out once"
        return CommitGroup(members)

    def committed(self, group: CommitGroup, outcomes: Sequence[Outcome]) -> None:
        """The transaction happened. Refused units, and what is chained to them, fail."""
        self._settle(
            group,
            [
                Committed(member.token, outcome.results)
                if type(outcome) is Applied
                else CommitFailed(member.token, outcome.results)
                for member, outcome in zip(group.members, outcomes, strict=True)
            ],
        )

    def refused(self, group: CommitGroup, error: SemelError) -> None:
        """The engine would not take the data: nothing happened. Halve the group until the guilty one stands alone."""
        if len(group.members) == 1:
            self.failed(group, error)
            return
        self._end(group)
        middle = len(group.members) // 2
        # extendleft reverses: the first half is tried first, before anything that waits, so that order is kept
        self._halves.extendleft([CommitGroup(group.members[middle:]), CommitGroup(group.members[:middle])])

    def failed(self, group: CommitGroup, error: SemelError) -> None:
        """The store could not do it: nothing happened, and all of the group fail."""
        self._settle(group, [CommitFailed(member.token, error=error) for member in group.members])

    def resolved(self, group: CommitGroup, outcomes: Sequence[Outcome] | None) -> None:
        """The doubt is over. If the transaction never happened, it is simply tried again."""
        if outcomes is not None:
            self.committed(group, outcomes)
        else:
            self._end(group)
            self._halves.appendleft(group)

    def unknown(self, group: CommitGroup) -> None:
        """The doubt cannot be resolved. Nobody may act on any of it, and the chains are broken."""
        self._settle(group, [CommitUnknown(member.token) for member in group.members])

    def _end(self, group: CommitGroup) -> None:
        assert group is self._under_way, "a group ends once"
        self._under_way = None

    def _settle(self, group: CommitGroup, completions: Sequence[Completion]) -> None:
        """Chained commits are taken out before any outcome is reported: whoever gets a failure may submit again at
        once, and the new commit must not fail with the old ones."""
        self._end(group)
        members = group.members
        broken = {
            member.unit.chain
            for member, completion in zip(members, completions, strict=True)
            if type(completion) is not Committed and member.unit.chain is not None
        }
        chained = self._cut(broken) if broken else []
        for member, completion in zip(members, completions, strict=True):
            member.done(completion)
        for member in chained:
            member.done(CommitFailed(member.token))

    def _cut(self, broken: set[str]) -> list[WaitingCommit]:
        cut: list[WaitingCommit] = []
        for half in self._halves:
            cut += [member for member in half.members if member.unit.chain in broken]
            half.members = [member for member in half.members if member.unit.chain not in broken]
        self._halves = deque(half for half in self._halves if half.members)
        waiting = [member for member in self._waiting if member.unit.chain in broken]
        self._waiting = deque(member for member in self._waiting if member.unit.chain not in broken)
        self._rows -= sum(member.rows for member in waiting)
        self._bytes -= sum(member.bytes for member in waiting)
        return cut + waiting


def weigh(ops: Sequence[Op]) -> int:
    """Bytes that the ops will write, near enough to bound a transaction."""
    size = 0
    for op in ops:
        if type(op) is Append or isinstance(op, Enqueue):
            size += len(op.envelope.data) + 256
        elif type(op) is Put:
            size += len(op.value or b"") + 256
        elif isinstance(op, Remember):
            size += len(op.result) + 256
        elif isinstance(op, PutBlob):
            size += len(op.data)
        else:
            size += 256
    return size


def in_words(members: Sequence[WaitingCommit]) -> str:
    """What some commits were about, for people: "3 commits: hub/chat a, b; 1 without a message"."""
    named: dict[str, list[str]] = {}
    others = 0
    for member in members:
        news = [op for op in member.unit.ops if isinstance(op, Append | Enqueue | Remember)]
        others += not news
        for op in news:
            id = op.identity if isinstance(op, Remember) else op.envelope.id
            named.setdefault(op.stream if isinstance(op, Append) else op.queue, []).append(id)
    parts = [f"{where} {_listed(ids)}" for where, ids in sorted(named.items())]
    if others:
        parts.append(f"{others} without a message")
    return f"{len(members)} {'commit' if len(members) == 1 else 'commits'}: {'; '.join(parts)}"


def _listed(ids: Sequence[str]) -> str:
    more = len(ids) - NAMED_MAX
    return ", ".join(ids[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
