"""One bucket of sessions: which rows pass, in which order, decided by the kernel's own machines.

Pure: rows are known here by number only, the time is an argument, and the state goes in and out as bytes. A processor
(`processors.py`) holds the rows themselves, and a Spark query asks it for one bucket at a time, because the cost of
state in Spark is per key and not per row.

What differs from a hop (`kernel/hop.py`) is that nobody sends anything again. So early rows are part of the state, and
a session whose buffer is full either gives up its gap at once or stops the query; it never loses a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from semel import __version__
from semel.errors import ConfigError, InputError, LimitExceeded, SchemaTooNew
from semel.kernel.dedup import (
    GapAsked,
    GapPolicy,
    GapSkipped,
    GivenUp,
    IdWindow,
    MonotonicIndex,
    OnGap,
    Overflow,
    Passed,
    Repeated,
    StrictIndex,
)
from semel.spark.rows import RowOutcome

STATE_VERSION = 1
WEEK_S = 7 * 24 * 3600.0

Machine = StrictIndex[int] | MonotonicIndex
Order = Literal["strict", "monotonic"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a bucket does with its sessions.

    `buffer` is how many early rows one session may have. `forget_s`: a session that has no early rows and has been
    quiet for so long is forgotten, None for never; one that waits for gaps keeps its place all the same, because behind
    a forgotten place it would wait for index 1 for ever. `ids` is how many ids are remembered to tell copies of rows
    without a session apart; 0 lets all of them pass. `unplaced` is the outcome of a row with a session and no index.
    """

    order: Order = "strict"
    gap: GapPolicy = field(default_factory=GapPolicy)
    buffer: int = 1000
    forget_s: float | None = WEEK_S
    ids: int = 0
    unplaced: RowOutcome = RowOutcome.REJECTED

    @property
    def keeps_places(self) -> bool:
        """Whether a session goes on where it was, however long it was quiet."""
        return self.order == "strict" and self.gap.then is OnGap.WAIT

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise ConfigError(f"a buffer of {self.buffer} rows keeps nothing", fix="use buffer=1 or more")
        if self.forget_s is not None and self.forget_s <= 0:
            raise ConfigError(
                f"sessions would be forgotten after {self.forget_s} s, that is at once",
                fix="use a positive forget_s, or None to remember for ever",
            )
        if self.gap.then is OnGap.ASK:
            raise ConfigError("a pipeline has no sender to ask again", fix="use gap='wait' or gap='skip'")


class RowVerdict(NamedTuple):
    """A row that does not pass, and why."""

    row: int
    outcome: RowOutcome
    cause: str


@dataclass(frozen=True, slots=True)
class Gap:
    """The indexes `first..last` of a session were given up: they never came."""

    session: str
    first: int
    last: int


@dataclass(slots=True)
class Decided:
    """What became of the rows: `passed` in order within each session."""

    passed: list[int] = field(default_factory=list)
    verdicts: list[RowVerdict] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


class _Head(msgspec.Struct):
    """What every version of the state begins with."""

    v: int
    by: str


class _Waiting(msgspec.Struct):
    """The early rows of one session: their indexes, and when their gap is given up."""

    at: list[int]
    deadline: float | None


class _State(msgspec.Struct):
    """Version 1. Sessions in columns, because most of them are only a name and a number."""

    v: int
    by: str
    order: Order
    sessions: list[str]
    next: list[int]
    seen: list[float]
    waiting: dict[str, _Waiting]
    given_up: dict[str, list[tuple[int, int]]]
    ids: dict[str, float]
    rows: bytes


class Bucket:
    """The sessions of one bucket. Sessions at rest are a number each; a machine is made when a row comes."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._resting: dict[str, int] = {}
        self._seen: dict[str, float] = {}
        self._machines: dict[str, Machine] = {}
        self._ids = IdWindow(rules.ids, rules.forget_s or math.inf) if rules.ids else None

    def __bool__(self) -> bool:
        """Whether it knows anything."""
        return bool(self._seen or self._ids)

    def __len__(self) -> int:
        """How many sessions it knows."""
        return len(self._seen)

    def offer(self, session: str, indexes: Sequence[int | None], rows: Sequence[int], now: float, to: Decided) -> None:
        """Rows of one session, in the order of their arrival: their indexes, and their numbers."""
        machine = self._machine(session)
        self._seen[session] = now
        if isinstance(machine, MonotonicIndex):
            for index, row in zip(indexes, rows, strict=True):
                self._offer_monotonic(machine, index, row, to)
            return
        at = 0
        while at < len(rows):
            end = machine.pass_run(indexes, at)
            to.passed.extend(rows[at:end])
            if end < len(rows):
                self._offer_strict(session, machine, indexes[end], rows[end], now, to)
            at = end + 1

    def offer_ids(self, ids: Sequence[str], rows: Sequence[int], now: float, to: Decided) -> None:
        """Rows without a session. They have no order; copies are told apart by id, if the rules say so."""
        if self._ids is None:
            to.passed.extend(rows)
            return
        for id, row in zip(ids, rows, strict=True):
            if self._ids.is_new(id, now):
                to.passed.append(row)
            else:
                to.verdicts.append(RowVerdict(row, RowOutcome.DUPLICATE, "its id came again"))

    def _offer_strict(
        self, session: str, machine: StrictIndex[int], index: int | None, row: int, now: float, to: Decided
    ) -> None:
        if index is None or index < 1:
            to.verdicts.append(self._unplaced(row, index))
            return
        match machine.offer(index, row, now):
            case Passed(items=items):
                to.passed.extend([each for _, each in items])
            case Repeated():
                to.verdicts.append(_repeated(machine, index, row))
            case Overflow():
                self._make_room(session, machine, index, now, to)
                self._offer_strict(session, machine, index, row, now, to)

    def _offer_monotonic(self, machine: MonotonicIndex, index: int | None, row: int, to: Decided) -> None:
        if index is None or index < 1:
            to.verdicts.append(self._unplaced(row, index))
        elif machine.is_new(index):
            to.passed.append(row)
        else:
            to.verdicts.append(_repeated(machine, index, row))

    def _unplaced(self, row: int, index: int | None) -> RowVerdict:
        what = "it has no index" if index is None else f"its index is {index}"
        cause = f"{what}, and this order goes by the index within a session, from 1"
        return RowVerdict(row, self.rules.unplaced, cause)

    def _make_room(self, session: str, machine: StrictIndex[int], index: int, now: float, to: Decided) -> None:
        """The buffer is full. Nothing is sent again in a pipeline, so the row cannot be turned away."""
        if self.rules.gap.then is OnGap.WAIT:
            raise LimitExceeded(
                f"session {session!r} waits for index {machine.next}, and {len(machine):,} rows after it have come",
                fix=f"find out why index {machine.next} is missing; let the order skip what is missing (gap='skip', "
                f"after_s=...), or keep more rows (buffer={self.rules.buffer:,} now)",
            )
        _skipped(session, machine.skip_gap(now, arrived=index), to)

    def on_timer(self, now: float) -> Decided:
        """Give up the gaps whose time has come, and forget what can be forgotten of sessions that were quiet."""
        decided = Decided()
        for session, machine in self._machines.items():
            if not isinstance(machine, StrictIndex):
                continue
            while (outcome := machine.on_timer(now)) is not None and not isinstance(outcome, GapAsked):
                _skipped(session, outcome, decided)
        if self.rules.forget_s is not None:
            self._forget(now - self.rules.forget_s)
        return decided

    def finish(self) -> Decided:
        """Nothing more will come. Gaps are skipped if the rules allow it; else the rows behind them cannot pass."""
        decided = Decided()
        for session, machine in self._machines.items():
            if not isinstance(machine, StrictIndex):
                continue
            while machine and self.rules.gap.then is OnGap.SKIP:
                _skipped(session, machine.skip_gap(0.0), decided)
            if machine:
                raise InputError(
                    f"index {machine.next} of session {session!r} is missing, and {len(machine):,} rows come after it",
                    fix="read a range that holds it, or let the order skip what is missing (gap='skip')",
                )
        return decided

    def _forget(self, before: float) -> None:
        quiet = [session for session, seen in self._seen.items() if seen <= before and self._forgettable(session)]
        for session in quiet:
            machine = self._machines.pop(session, None)
            if machine is not None and self.rules.keeps_places:
                self._resting[session] = machine.snapshot()
                continue
            del self._seen[session]
            self._resting.pop(session, None)

    def _forgettable(self, session: str) -> bool:
        """Whether it has what may be forgotten: nothing while rows wait, and of a place that is kept only the rest."""
        machine = self._machines.get(session)
        if isinstance(machine, StrictIndex) and len(machine) > 0:
            return False
        return not self.rules.keeps_places or (machine is not None and bool(machine.given_up.snapshot()))

    def waits(self) -> dict[str, tuple[int, int]]:
        """Sessions with early rows: the index that they wait for, and how many rows do."""
        return {
            session: (machine.next, len(machine))
            for session, machine in self._machines.items()
            if isinstance(machine, StrictIndex) and machine
        }

    def next_deadline(self) -> float | None:
        """When `on_timer` has something to do, if nothing comes before."""
        deadlines = [
            deadline
            for machine in self._machines.values()
            if isinstance(machine, StrictIndex) and (deadline := machine.next_deadline()) is not None
        ]
        if self.rules.forget_s is not None:
            oldest = min((seen for session, seen in self._seen.items() if self._forgettable(session)), default=None)
            deadlines += [oldest + self.rules.forget_s] if oldest is not None else []
        return min(deadlines, default=None)

    def _machine(self, session: str) -> Machine:
        machine = self._machines.get(session)
        if machine is None:
            machine = self._machines[session] = self._made(self._resting.pop(session, None))
        return machine

    def _made(self, value: int | None) -> Machine:
        given_up = GivenUp(keep_all=True)
        if self.rules.order == "monotonic":
            return MonotonicIndex(value or 0, given_up)
        return StrictIndex(next=value or 1, buffer_max=self.rules.buffer, gap=self.rules.gap, given_up=given_up)

    def encode(self, keep: Callable[[list[int]], bytes]) -> bytes:
        """The whole state. `keep` turns the numbers of the early rows, in this order, into bytes that hold the rows.

        The rows are numbered again from 0 when it is decoded.
        """
        values = self._resting | {session: machine.snapshot() for session, machine in self._machines.items()}
        early = {
            session: machine for session, machine in self._machines.items()
            if isinstance(machine, StrictIndex) and machine
        }  # fmt: skip
        rows = [row for machine in early.values() for row in machine.early().values()]
        state = _State(
            v=STATE_VERSION,
            by=__version__,
            order=self.rules.order,
            sessions=list(values),
            next=list(values.values()),
            seen=[self._seen[session] for session in values],
            waiting={
                session: _Waiting(list(machine.early()), machine.next_deadline()) for session, machine in early.items()
            },
            given_up={
                session: ranges
                for session, machine in self._machines.items()
                if (ranges := machine.given_up.snapshot())
            },
            ids=self._ids.snapshot() if self._ids is not None else {},
            rows=keep(rows) if rows else b"",
        )
        return msgspec.msgpack.encode(state)

    @classmethod
    def decode(cls, data: bytes, rules: Rules, now: float) -> tuple[Bucket, bytes]:
        """Undo `encode`: the bucket, and the bytes of its early rows."""
        state = _read(data)
        if state.order != rules.order:
            raise ConfigError(
                f"the state of this query was made for {state.order} order, and it now asks for {rules.order}",
                fix="start the changed query with a new checkpoint folder",
            )
        bucket = cls(rules)
        bucket._resting = dict(zip(state.sessions, state.next, strict=True))
        bucket._seen = dict(zip(state.sessions, state.seen, strict=True))
        for session, ranges in state.given_up.items():
            bucket._machine(session).given_up.restore(ranges)
        row = 0
        for session, waiting in state.waiting.items():
            machine = bucket._machine(session)
            if isinstance(machine, StrictIndex):
                early = dict(zip(waiting.at, range(row, row + len(waiting.at)), strict=True))
                machine.restore_early(early, waiting.deadline, now)
            row += len(waiting.at)
        if bucket._ids is not None:
            bucket._ids.restore(state.ids)
        return bucket, state.rows


def _read(data: bytes) -> _State:
    try:
        head = msgspec.msgpack.decode(data, type=_Head)
        if head.v <= STATE_VERSION:
            return msgspec.msgpack.decode(data, type=_State)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"the state of this query is not Semel's: {error}", fix="start the query with a new checkpoint folder"
        ) from None
    raise SchemaTooNew(
        f"the state of this query has version {head.v}, written by Semel {head.by}; "
        f"this is Semel {__version__}, which knows up to version {STATE_VERSION}",
        fix=f"run the query with Semel {head.by} or newer",
    )


def _repeated(machine: Machine, index: int, row: int) -> RowVerdict:
    """One whose place was given up is no duplicate. It can never pass, so it is kept as a dead letter."""
    if machine.given_up.take(index):
        return RowVerdict(row, RowOutcome.DEAD, f"index {index} came after its place was given up")
    return RowVerdict(row, RowOutcome.DUPLICATE, f"index {index} came again")


def _skipped(session: str, skipped: GapSkipped[int], to: Decided) -> None:
    to.gaps.append(Gap(session, skipped.first, skipped.last))
    to.passed.extend([row for _, row in skipped.items])
