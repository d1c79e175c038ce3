"""Random units against a store and against a small model of what a store must do.

The model shares no code with any store. It is written from the promises: dictionaries and lists, searched from the
start each time. What only the store can know (a fence, a time) is taken from its answers and checked for sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import (
    KEEP_S,
    Advance,
    Advanced,
    Append,
    Applied,
    Attempts,
    Claim,
    Claimed,
    Conflict,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Outcome,
    Put,
    Refused,
    Remember,
    Renew,
    Result,
    Skipped,
    Stale,
    Trim,
    Unit,
    WorkState,
)
from semel.kernel.position import EPOCH_GAP, Position
from semel.kernel.store import Records, Store, Trimmed
from semel.testing.contract.base import DAY_US, HOP, LONG_S, ManualClock, StoreSuite, Time, commit, events, message

STREAMS = ("hub/a", "hub/b")
QUEUES = ("inbox/a", "inbox/a", "inbox/a", "inbox/b")
ENDS = tuple(state for state in WorkState if state is not WorkState.CLAIMED)
OPEN = (WorkState.READY, WorkState.SCHEDULED, WorkState.CLAIMED)
LONG_US = int(LONG_S * 1_000_000)
KEEPS = (0.0, 0.0, KEEP_S)
"""For how long finished rows are kept: shorter and longer than until the next sweep."""


@dataclass(frozen=True)
class World:
    """One empty store, to be opened as often as wanted, and its clock if it takes one."""

    make_store: Callable[[], Store]
    clock: ManualClock | None = None
    durable: bool = True


# -- the model


@dataclass
class ModelRow:
    queue: str
    identity: str
    key: str | None
    seq: int
    turn: int | None
    state: WorkState = WorkState.READY
    due: int = 0
    holds: bool = True
    attempts: int = 0
    fence: int = 0
    kept: bool = False
    bare: bool = False
    result: bytes | None = None


@dataclass
class Stream:
    offsets: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    last: int = 0
    first: int = 1
    epoch: int = 1


class Model:
    """What a store must hold after everything that was answered."""

    def __init__(self) -> None:
        self.epoch = 1
        self.streams = {name: Stream() for name in STREAMS}
        self.states: dict[str, tuple[bytes, int]] = {}
        self.deleted: dict[str, int] = {}
        self.cursors: dict[str, tuple[str, int, bool]] = {}
        self.rows: dict[tuple[str, str], ModelRow] = {}
        self.turns = 0
        self.fence = 0
        self.logged: list[tuple[Kind, str]] = []
        self.again: list[Enqueue] = []
        self.agrees = True

    def check(self, units: list[Unit], outcomes: list[Outcome], store: Store) -> None:
        """Hold the answers against what the model says, and take them over."""
        self.agrees = False
        broken: set[str] = set()
        waiting: list[tuple[Op, Result]] = []
        for unit, outcome in zip(units, outcomes, strict=True):
            assert len(outcome.results) == len(unit.ops)
            if unit.chain in broken:
                assert outcome == Refused((Skipped(),) * len(unit.ops))
                continue
            refusals = self._refusals(unit)
            if any(refusals):
                assert outcome == Refused(tuple(refusal or Skipped() for refusal in refusals))
                broken |= {unit.chain} if unit.chain is not None else set()
                continue
            assert isinstance(outcome, Applied), outcome
            for op, result in zip(unit.ops, outcome.results, strict=True):
                self._apply_now(op, result)
                waiting.append((op, result))
        for op, result in waiting:
            self._apply_later(op, result)
        for op in self.again:
            self._set(self.rows[op.queue, op.identity], op)
        self.again.clear()
        for op, result in waiting:
            if isinstance(op, Trim):
                assert result == Advanced(Position(op.stream, self.epoch, self._trim(op)))
        self._learn_times(units, store)
        self.agrees = True

    # Conditions are decided op by op, each seeing the ones before it. New rows and records come after that, then the
    # rows that are set again, and trims last.

    def _refusals(self, unit: Unit) -> list[Result | None]:
        versions = {key: -version for key, version in self.deleted.items()}
        versions |= {key: version for key, (_, version) in self.states.items()}
        cursors = {name: offset for name, (_, offset, _) in self.cursors.items()}
        rows = {place: (row.state, row.fence) for place, row in self.rows.items()}
        return [self._refusal(op, versions, cursors, rows) for op in unit.ops]

    def _refusal(
        self, op: Op, versions: dict[str, int], cursors: dict[str, int], rows: dict[Any, Any]
    ) -> Result | None:
        match op:
            case Put():
                last = versions.get(op.key, 0)
                version = max(last, 0)
                if op.expected is not None and op.expected != version:
                    return Conflict(version)
                if op.value is not None:
                    versions[op.key] = self._next_version(abs(last))
                elif version:
                    versions[op.key] = -self._next_version(version)
            case Advance():
                offset = cursors.get(op.cursor, 0)
                if op.to.epoch != self.epoch or (op.expected is not None and op.expected != offset):
                    return Conflict(offset)
                cursors[op.cursor] = max(offset, op.to.offset)
            case Finish() | Renew():
                state, fence = rows.get((op.queue, op.identity), (None, 0))
                claimed = state is WorkState.CLAIMED
                is_over = state is None or (state is WorkState.DONE and isinstance(op, Finish) and op.to is state)
                if is_over or claimed != (op.fence is not None) or (claimed and fence != op.fence):
                    return Stale(fence if claimed else 0)
                if isinstance(op, Finish):
                    rows[op.queue, op.identity] = (op.to, fence)
        return None

    def _next_version(self, version: int) -> int:
        """Versions of a new epoch lie above all that an old one can have given out."""
        return max(version, (self.epoch - 1) * EPOCH_GAP) + 1

    def _apply_now(self, op: Op, result: Result) -> None:
        match op:
            case Put():
                assert result == Advanced(version=self._put(op))
            case Advance():
                _, offset, _ = self.cursors.get(op.cursor, (op.to.stream, 0, True))
                offset = max(offset, op.to.offset)
                self.cursors[op.cursor] = (op.to.stream, offset, op.pins)
                assert result == Advanced(Position(op.to.stream, self.epoch, offset))
            case Finish():
                self._finish(self.rows[op.queue, op.identity], op)
            case Log():
                assert op.event.message is not None
                self.logged.append((op.event.kind, op.event.message))

    def _put(self, op: Put) -> int:
        """A key that was deleted goes on counting where it ended, unless that was swept."""
        if op.value is not None:
            last = self.states[op.key][1] if op.key in self.states else self.deleted.pop(op.key, 0)
            self.states[op.key] = (op.value, self._next_version(last))
            return self.states[op.key][1]
        if op.key in self.states:
            self.deleted[op.key] = self._next_version(self.states.pop(op.key)[1])
        return 0

    def _finish(self, row: ModelRow, op: Finish) -> None:
        row.state, row.kept, row.bare, row.result = op.to, op.keep_s != 0.0, False, None
        row.attempts = {Attempts.KEEP: row.attempts, Attempts.RESET: 0, Attempts.RELEASE: row.attempts - 1}[op.attempts]
        row.holds = op.to in (WorkState.READY, WorkState.SCHEDULED) or (op.holds and op.to is not WorkState.DONE)
        if row.holds and row.turn is None:
            row.turn = self._next_turn()

    def _apply_later(self, op: Op, result: Result) -> None:
        match op:
            case Append():
                self._append(self.streams[op.stream], op, result)
            case Enqueue():
                self._enqueue(op, result)
            case Remember():
                self._remember(op, result)

    def _append(self, stream: Stream, op: Append, result: Result) -> None:
        if op.identity is not None and op.identity in stream.known:
            assert result == Duplicate(Position(op.stream, self.epoch, stream.known[op.identity]))
            self._note(op.on_duplicate, op.envelope.id)
            return
        assert isinstance(result, Fresh), result
        offset = result.position.offset
        if not stream.offsets:
            stream.first = offset
            assert offset == 1 or self.epoch > 1
        elif stream.epoch == self.epoch:
            assert offset == stream.last + 1
        else:
            assert offset > stream.last + 1
        assert result.position == Position(op.stream, self.epoch, offset)
        stream.last, stream.epoch = offset, self.epoch
        stream.offsets.append(offset)
        stream.ids.append(op.envelope.id)
        if op.identity is not None:
            stream.known[op.identity] = offset
        for event in op.on_fresh if isinstance(op.on_fresh, tuple) else (op.on_fresh,):
            self._note(event, op.envelope.id)

    def _note(self, event: Event | None, id: str) -> None:
        if event is not None:
            self.logged.append((event.kind, id))

    def _enqueue(self, op: Enqueue, result: Result) -> None:
        row = self.rows.get((op.queue, op.identity))
        if row is None:
            assert isinstance(result, Fresh), result
            seq = self._next_turn()
            row = ModelRow(op.queue, op.identity, op.key, seq, seq)
            self.rows[op.queue, op.identity] = row
            self._set(row, op)
            return
        self._check_duplicate(row, result)
        if op.replace:
            row.attempts, row.fence = 0, -1
            if row.bare:
                row.key, row.bare = op.key, False
            self.again.append(op)

    def _remember(self, op: Remember, result: Result) -> None:
        row = self.rows.get((op.queue, op.identity))
        if row is not None:
            self._check_duplicate(row, result)
            return
        assert isinstance(result, Fresh), result
        row = ModelRow(op.queue, op.identity, None, self._next_turn(), None, WorkState.DONE, holds=False)
        row.kept, row.result = op.keep_s != 0.0, op.result
        self.rows[op.queue, op.identity] = row

    def _check_duplicate(self, row: ModelRow, result: Result) -> None:
        """It says what had become of the row when all of the commit was done but new rows and rows set again."""
        assert isinstance(result, Duplicate), result
        assert result.position.stream == row.queue
        assert result.result == row.result
        assert result.state is row.state or {result.state, row.state} == {WorkState.READY, WorkState.SCHEDULED}

    def _set(self, row: ModelRow, op: Enqueue) -> None:
        """A row that is scheduled takes its turn among its key only when it falls due."""
        row.state = WorkState.READY if op.due is None else WorkState.SCHEDULED
        row.result = None
        row.holds = row.key is None or op.due is None
        if not row.holds:
            row.turn = None
        elif row.turn is None:
            row.turn = self._next_turn()

    def _next_turn(self) -> int:
        self.turns += 1
        return self.turns

    def _trim(self, op: Trim) -> int:
        stream = self.streams[op.stream]
        pins = [offset + 1 for name, offset, pins in self.cursors.values() if pins and name == op.stream]
        if not stream.offsets:
            return 1
        stream.first = max(stream.first, min([op.before, stream.last + 1, *pins]))
        return stream.first

    def _learn_times(self, units: list[Unit], store: Store) -> None:
        """Times are the store's own. The rows that were written carry them."""
        for op in (op for unit in units for op in unit.ops):
            if isinstance(op, Enqueue | Remember | Finish | Renew):
                self._learn(op.queue, op.identity, store)

    def _learn(self, queue: str, identity: str, store: Store) -> None:
        found, row = store.work(queue, identity), self.rows.get((queue, identity))
        assert (found is None) == (row is None)
        if found is not None and row is not None:
            assert found.fence >= row.fence, "fences never go back"
            row.due, row.fence = found.due, found.fence

    # Claims. Rows that tie may come in either order, so the answer is judged and not predicted.

    def check_claim(self, claim: Claim, result: Result, now: int, store: Store) -> None:
        assert isinstance(result, Claimed)
        self.agrees = False
        self._give_turns(claim.queue, now)
        groups = list(self._claimable(claim, now))
        expected = {row.identity: row for group in groups for row in group}
        assert [row.identity for row in result.rows if row.identity not in expected] == []
        assert len(result.rows) == min(claim.limit, len(expected)), (result.rows, list(expected))
        got = [row.identity for row in result.rows]
        assert len(set(got)) == len(got)
        self._check_order(got, groups)
        for found in result.rows:
            row = expected[found.identity]
            assert found.fence > self.fence, "every claim has a new fence"
            row.state, row.holds, row.attempts, row.fence = WorkState.CLAIMED, True, row.attempts + 1, found.fence
            if row.turn is None:
                row.turn = self._next_turn()
            assert (found.state, found.attempts, found.owner) == (WorkState.CLAIMED, row.attempts, claim.owner)
            self._learn(found.queue, found.identity, store)
        self.fence = max([self.fence, *(row.fence for row in result.rows)])
        self.agrees = True

    def _check_order(self, got: list[str], groups: list[list[ModelRow]]) -> None:
        """Rows of a key in their turn; what fell due earlier before what fell due later."""
        taken = [[row for row in group if row.identity in got] for group in groups]
        for group, some in zip(groups, taken, strict=True):
            assert some == group[: len(some)]
            places = [got.index(row.identity) for row in some]
            assert places == sorted(places)
        dues = [(got.index(some[0].identity), some[0].due) for some in taken if some]
        in_order = [due for _, due in sorted(dues)]
        assert in_order == sorted(in_order)
        left = [group[0].due for group, some in zip(groups, taken, strict=True) if not some]
        assert not left or not in_order or min(left) >= in_order[-1]

    def _give_turns(self, queue: str, now: int) -> None:
        waiting = [row for row in self._of(queue) if row.turn is None and row.key is not None and row.due <= now]
        for row in sorted(waiting, key=lambda row: (row.due, row.seq)):
            if row.state is WorkState.SCHEDULED:
                row.turn, row.holds, row.state = self._next_turn(), True, WorkState.READY

    def _of(self, queue: str) -> list[ModelRow]:
        return [row for row in self.rows.values() if row.queue == queue]

    def _claimable(self, claim: Claim, now: int) -> Iterator[list[ModelRow]]:
        def is_due(row: ModelRow) -> bool:
            return row.state in OPEN and row.due <= now

        rows = self._of(claim.queue)
        if claim.identity is not None:
            rows = [row for row in rows if row.identity == claim.identity]
            for row in rows:
                aside = row.state in (WorkState.DEFERRED, WorkState.PARKED)
                if aside or (is_due(row) and (row.key is None or self._line(claim.queue, row.key, now)[:1] == [row])):
                    yield [row]
            return
        for row in rows:
            if row.key is None and is_due(row) and claim.key is None:
                yield [row]
        for key in {row.key for row in rows if row.key is not None and claim.key in (None, row.key)}:
            line = self._line(claim.queue, key, now)[: claim.per_key]
            ready = next((at for at, row in enumerate(line) if not is_due(row)), len(line))
            if ready:
                yield line[:ready]

    def _line(self, queue: str, key: str, now: int) -> list[ModelRow]:
        """The rows of a key that hold it, in the order of their turns. None while a claim on one of them lives."""
        line = [row for row in self._of(queue) if row.key == key and row.holds]
        if any(row.state is WorkState.CLAIMED and row.due > now for row in line):
            return []
        return sorted(line, key=lambda row: row.turn or 0)

    def sweep(self) -> None:
        """Rows here are kept for no time once they are finished, or for long, and the sweep comes after the time of
        states. Of those that are done only the identity is left."""
        self.deleted.clear()
        for place, row in list(self.rows.items()):
            if row.state in (WorkState.DONE, WorkState.DEAD) and not row.holds and not row.kept:
                del self.rows[place]
            elif row.state is WorkState.DONE:
                row.key = row.turn = None
                row.attempts = row.fence = row.due = 0
                row.bare = True

    def raise_epoch(self) -> None:
        self.epoch += 1
        self.fence += 1


# -- the random user

keys = st.sampled_from(["x", "y", "z"])
messages = st.sampled_from([f"m{n}" for n in range(8)])
accepted, duplicate = Event(Kind.ACCEPTED, HOP), Event(Kind.DUPLICATE, HOP)


def appends() -> st.SearchStrategy[Append]:
    return st.builds(
        lambda stream, id, identified: Append(
            stream, message(id), id if identified else None, on_fresh=accepted, on_duplicate=duplicate
        ),
        st.sampled_from(STREAMS),
        messages,
        st.sampled_from([True, True, True, False]),
    )


def puts() -> st.SearchStrategy[Put]:
    expected = st.sampled_from([None] * 4 + [0, 1, 2])
    return st.builds(Put, keys, st.none() | st.binary(max_size=3), expected)


def logs() -> st.SearchStrategy[Log]:
    return st.builds(lambda id: Log(Event(Kind.SENT, HOP, message=id)), messages)


def enqueues(now: int) -> st.SearchStrategy[Enqueue]:
    due = st.none() | st.integers(1, 2).map(lambda hours: now + hours * LONG_US)
    key = st.sampled_from([None, "x", "x", "y"])
    return st.builds(
        lambda queue, id, key, due, replace: Enqueue(queue, id, message(id), key, due, replace=replace),
        st.sampled_from(QUEUES),
        messages,
        key,
        due,
        st.booleans(),
    )


def remembers() -> st.SearchStrategy[Remember]:
    return st.builds(
        lambda queue, id, keep_s, result: Remember(queue, id, keep_s=keep_s, result=result),
        st.sampled_from(QUEUES),
        messages,
        st.sampled_from(KEEPS),
        st.binary(max_size=2),
    )


ACTIONS = [
    *["commit_units"] * 6,
    *["claim"] * 4,
    *["finish_a_claim"] * 3,
    *["let_time_pass"] * 2,
    "sweep",
    "raise_epoch",
    "reopen",
]


class StoreMachine(RuleBasedStateMachine):
    """Drives one store and one model through the same random life."""

    def __init__(self, context: AbstractContextManager[World]) -> None:
        super().__init__()
        self._context = context
        self.world = context.__enter__()
        self.store = self.world.make_store()
        self.model = Model()

    @property
    def time(self) -> Time:
        return Time(self.store, self.world.clock)

    @rule(data=st.data(), action=st.sampled_from(ACTIONS))
    def act(self, data: st.DataObject, action: str) -> None:
        """One rule with weights: most of a store's life is commits and claims."""
        getattr(self, action)(data)

    def commit_units(self, data: st.DataObject) -> None:
        now = self.time.now()
        ops = st.one_of(
            appends(),
            puts(),
            logs(),
            enqueues(now),
            enqueues(now),
            enqueues(now),
            remembers(),
            self.finishes(now),
            self.renews(),
            self.advances(),
            self.trims(),
        )
        chains = st.sampled_from([None, "c", "d"])
        units = st.builds(lambda ops, chain: Unit(tuple(ops), chain), st.lists(ops, min_size=1, max_size=3), chains)
        self._commit(data.draw(st.lists(units, min_size=1, max_size=5)))

    def finish_a_claim(self, data: st.DataObject) -> None:
        """What a worker does: end what it holds, under its fence."""
        held = [row for row in self.model.rows.values() if row.state is WorkState.CLAIMED]
        if held:
            row = data.draw(st.sampled_from(held))
            to = data.draw(st.sampled_from(ENDS))
            due = self.time.now() + LONG_US if to is WorkState.SCHEDULED else None
            keep_s, attempts = data.draw(st.sampled_from(KEEPS)), data.draw(st.sampled_from(Attempts))
            holds = data.draw(st.booleans())
            finish = Finish(row.queue, row.identity, to, row.fence, due, holds, keep_s=keep_s, attempts=attempts)
            self._commit([Unit((finish,))])

    def _commit(self, units: list[Unit]) -> None:
        self.model.check(units, self.store.commit(units), self.store)

    def places(self) -> st.SearchStrategy[tuple[str, str, int | None]]:
        """A row that may exist, mostly with what it takes to finish it: its fence, or none when it is not claimed."""
        rows = list(self.model.rows.values())
        right = [(row.queue, row.identity, row.fence if row.state is WorkState.CLAIMED else None) for row in rows]
        wrong = [(row.queue, row.identity, row.fence + off) for row in rows for off in (0, 1)]
        return st.sampled_from([*right * 5, *wrong, (QUEUES[0], "none", 1)])

    def finishes(self, now: int) -> st.SearchStrategy[Finish]:
        return st.builds(
            lambda place, to, due, holds, keep_s: Finish(place[0], place[1], to, place[2], due, holds, keep_s),
            self.places(),
            st.sampled_from(ENDS),
            st.sampled_from([None, now + LONG_US]),
            st.booleans(),
            st.sampled_from(KEEPS),
        )

    def renews(self) -> st.SearchStrategy[Renew]:
        """Mostly of rows that are claimed, so that some are right."""
        held = [
            (row.queue, row.identity, row.fence) for row in self.model.rows.values() if row.state is WorkState.CLAIMED
        ]
        return st.builds(
            lambda place, lease_s: Renew(place[0], place[1], place[2] or 0, lease_s),
            st.sampled_from(held) if held else self.places(),
            st.sampled_from([0.0, LONG_S]),
        )

    def advances(self) -> st.SearchStrategy[Advance]:
        """Each cursor has its own stream; positions are ones that were given out, in this epoch or the one before."""

        def build(stream: str, back: int, old: bool, pins: bool, expected: int | None) -> Advance:
            offsets = [0, *self.model.streams[stream].offsets]
            offset = offsets[max(0, len(offsets) - 1 - back)]
            epoch = self.model.epoch - int(old)
            return Advance(f"cursor of {stream}", Position(stream, epoch, offset), pins, expected)

        olds = st.sampled_from([False] * 9 + [True])
        expected = st.sampled_from([None] * 6 + [0, 1, 2, 3])
        return st.builds(build, st.sampled_from(STREAMS), st.integers(0, 4), olds, st.booleans(), expected)

    def trims(self) -> st.SearchStrategy[Trim]:
        lasts = {stream: model.last for stream, model in self.model.streams.items()}
        return st.builds(
            lambda stream, back: Trim(stream, max(0, lasts[stream] - back)), st.sampled_from(STREAMS), st.integers(0, 6)
        )

    def claim(self, data: st.DataObject) -> None:
        identities = [None] * 6 + [row.identity for row in self.model.rows.values()]
        claim = Claim(
            data.draw(st.sampled_from(QUEUES)),
            "me",
            limit=data.draw(st.integers(1, 4)),
            lease_s=data.draw(st.sampled_from([LONG_S, LONG_S, 0.0])),
            per_key=data.draw(st.integers(1, 3)),
            identity=data.draw(st.sampled_from(identities)),
            key=data.draw(st.sampled_from([None, None, None, "x"])),
        )
        if claim.identity is not None:
            claim = msgspec.structs.replace(claim, key=None)
        now = self.time.now()
        self.model.check_claim(claim, commit(self.store, claim)[0], now, self.store)

    def let_time_pass(self, data: st.DataObject) -> None:
        seconds = data.draw(st.sampled_from([1.0, LONG_S / 2, LONG_S + 1]))
        if self.world.clock is not None:
            self.time.advance(seconds)

    def sweep(self, data: st.DataObject) -> None:
        now = self.time.now() + 2 * DAY_US
        while self.store.sweep(now, limit=3).more:
            pass
        self.model.sweep()

    def raise_epoch(self, data: st.DataObject) -> None:
        self.model.raise_epoch()
        assert self.store.raise_epoch("a rule says so") == self.model.epoch

    def reopen(self, data: st.DataObject) -> None:
        if self.world.durable:
            self.store.close()
            self.store = self.world.make_store()

    @invariant()
    def streams_agree(self) -> None:
        for name, stream in self.model.streams.items():
            found = self.store.read(name)
            left = [
                (offset, id) for offset, id in zip(stream.offsets, stream.ids, strict=True) if offset >= stream.first
            ]
            if stream.offsets and stream.first > stream.offsets[0]:
                assert found == Trimmed(Position(name, self.model.epoch, stream.first))
                found = self.store.read(name, after=Position(name, self.model.epoch, stream.first - 1))
            assert isinstance(found, Records)
            assert [(record.position.offset, record.envelope.id) for record in found.records] == left

    @invariant()
    def rows_states_and_cursors_agree(self) -> None:
        for key in ("x", "y", "z"):
            state = self.store.state(key)
            assert ((state.value, state.version) if state else None) == self.model.states.get(key)
        for name, (stream, offset, _) in self.model.cursors.items():
            assert self.store.cursor(name) == Position(stream, self.model.epoch, offset)
        for (queue, identity), row in self.model.rows.items():
            found = self.store.work(queue, identity)
            assert found is not None
            assert (found.key, found.attempts, found.fence) == (row.key, row.attempts, row.fence)
            assert found.state is row.state or {found.state, row.state} == {WorkState.READY, WorkState.SCHEDULED}
        status = self.store.status()
        counted = [sum(counts.values()) for queue, counts in status.work.items() if queue in QUEUES]
        done = [row for row in self.model.rows.values() if row.state is WorkState.DONE]
        assert (sum(counted), status.remembered) == (len(self.model.rows) - len(done), len(done))

    def teardown(self) -> None:
        try:
            if self.model.agrees:
                self._ledger_agrees()
            self.store.close()
        finally:
            self._context.__exit__(None, None, None)

    def _ledger_agrees(self) -> None:
        """Ranges and rows of the ledger add up to what was answered."""
        found = [event for event in events(self.store) if event.hop == HOP]
        for kind in (Kind.ACCEPTED, Kind.DUPLICATE, Kind.SENT):
            ids = [id for logged, id in self.model.logged if logged is kind]
            assert sum(event.n for event in found if event.kind is kind) == len(ids)
            if kind is not Kind.ACCEPTED:
                assert sorted(event.message or "" for event in found if event.kind is kind) == sorted(ids)


class ModelSuite(StoreSuite):
    """Subclass with `new_world`; `examples` and `steps` say how long to try."""

    examples = 60
    steps = 40

    @pytest.fixture
    def new_world(self) -> Callable[[], AbstractContextManager[World]]:
        """Makes a world with an empty store, to be left when the example is over."""
        raise NotImplementedError

    def test_random_units_agree_with_the_model(self, new_world: Callable[[], AbstractContextManager[World]]) -> None:
        class Machine(StoreMachine):
            def __init__(self) -> None:
                super().__init__(new_world())

        tries = settings(max_examples=self.examples, stateful_step_count=self.steps, deadline=None)
        run_state_machine_as_test(Machine, settings=tries)
