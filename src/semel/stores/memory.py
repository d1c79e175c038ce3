"""The memory store: the same promises as the others, for tests and for the simulator.

With a journal it is durable as far as the journal is. Every write is recorded together with the store's time, and a
store opened on that journal does the writes again. The simulator's journal loses what was not synced, or tears it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from semel.errors import InputError, StoreRefused, StoreUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Entry, Event, Mark
from semel.kernel.ops import Claim, Op, Outcome, Remember, Result, Unit, WorkRow, WorkState
from semel.kernel.position import EPOCH_GAP, Position, check_epoch
from semel.kernel.store import (
    IDENTITY_KEEP_S,
    ORPHAN_KEEP_S,
    STATE_KEEP_S,
    CursorInfo,
    IndexEntry,
    LedgerHorizon,
    Record,
    Records,
    State,
    Status,
    StreamInfo,
    Swept,
    Trimmed,
)
from semel.stores.apply import apply
from semel.stores.checks import check_result
from semel.stores.engine import CursorHead, Known, Move, NewRecord, NewWork, WorkHead
from semel.stores.points import reach
from semel.stores.shared import (
    blob_missing,
    blob_refused,
    check_bound,
    exported_mark,
    is_found_aside,
    ledger_end,
    named_counts,
    scope_refused,
    start_of_epoch,
    unwrap_bound,
    without_body,
)

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """One write, as the journal keeps it."""

    call: str
    args: tuple[Any, ...]
    now: int


class Journal(Protocol):
    def frames(self) -> Sequence[Frame]: ...

    def append(self, frame: Frame) -> None: ...

    def sync(self) -> None: ...


@dataclass(slots=True)
class _Stream:
    name: str
    start: int = 0
    head: int = 0
    first: int = 1
    records: dict[int, Record] = field(default_factory=dict)
    identities: dict[str, tuple[int, int, bytes | None]] = field(default_factory=dict)


@dataclass(slots=True)
class _Work:
    queue: str
    scope: str
    identity: str
    key: str | None
    seq: int
    turn: int | None
    state: WorkState
    holds: bool
    due: int
    envelope: Envelope
    attempts: int = 0
    fence: int = 0
    owner: str = ""
    cause: str | None = None
    keep_until: int | None = None
    result: bytes | None = None
    is_bare: bool = False

    def as_row(self, *, taken_over: bool = False) -> WorkRow:
        return WorkRow(
            self.queue, self.identity, self.key, self.seq, self.state, self.due, self.attempts, self.fence, self.owner,
            self.envelope, self.cause, taken_over,
        )  # fmt: skip


@dataclass(slots=True)
class _Blob:
    at: int
    refs: int = 0
    chunks: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Data:
    """Everything the store holds. One value, so that a crash is a fresh one and a journal replayed."""

    epoch: int = 1
    fence: int = 0
    seq: int = 0
    streams: dict[str, _Stream] = field(default_factory=dict)
    history: dict[int, Record] = field(default_factory=dict)
    seqs: dict[Position, int] = field(default_factory=dict)
    cursors: dict[str, CursorHead] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    deleted: dict[str, tuple[int, int]] = field(default_factory=dict)
    work: dict[tuple[str, str], _Work] = field(default_factory=dict)
    scopes: dict[tuple[str, str], _Work] = field(default_factory=dict)
    claimable: dict[str, dict[int, _Work]] = field(default_factory=dict)
    work_seq: int = 0
    blobs: dict[str, _Blob] = field(default_factory=dict)
    ledger: list[Entry] = field(default_factory=list)
    ledger_seq: int = 0


class MemoryEngine:
    """Statements on dictionaries. Each change leaves a note on how to take it back."""

    def __init__(self, data: _Data, now: int, node: str) -> None:
        self.data = data
        self.now = now
        self.node = node
        self.epoch = data.epoch
        self._undo: list[Callable[[], object]] = []
        self._fences = 0

    @property
    def wrote(self) -> bool:
        """Whether anything is different now but the counter of fences."""
        return len(self._undo) > self._fences

    def roll_back(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        if key in mapping:
            old = mapping[key]
            self._undo.append(lambda: mapping.__setitem__(key, old))
        else:
            self._undo.append(lambda: mapping.pop(key, None))
        mapping[key] = value

    def _pop(self, mapping: dict[Any, Any], key: Any) -> None:
        if key in mapping:
            old = mapping.pop(key)
            self._undo.append(lambda: mapping.__setitem__(key, old))

    def _change(self, target: Any, **changes: Any) -> None:
        old = {name: getattr(target, name) for name in changes}
        self._undo.append(lambda: _assign(target, old))
        _assign(target, changes)

    def lock_work(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], WorkHead]:
        rows = ((key, self.data.work.get(key)) for key in keys)
        return {
            key: WorkHead(row.seq, row.key, row.state, row.fence, row.attempts, row.is_bare)
            for key, row in rows
            if row is not None
        }

    def lock_states(self, keys: Sequence[str]) -> dict[str, int]:
        live = {key: self.data.states[key].version for key in keys if key in self.data.states}
        return {key: self.data.deleted[key][0] for key in keys if key in self.data.deleted} | live

    def lock_cursors(self, names: Sequence[str]) -> dict[str, CursorHead]:
        return {name: self.data.cursors[name] for name in names if name in self.data.cursors}

    def lock_streams(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        for name in names:
            if name not in self.data.streams:
                start = start_of_epoch(self.epoch)
                self._set(self.data.streams, name, _Stream(name, start, start, start + 1))
        return {name: _info(self.data.streams[name], self.epoch) for name in names}

    def heads(self, names: Sequence[str]) -> dict[str, int]:
        return {name: self.data.streams[name].head for name in names if name in self.data.streams}

    def next_fence(self) -> int:
        self._change(self.data, fence=self.data.fence + 1)
        self._fences += 1
        return self.data.fence

    def move_work(self, moves: Sequence[Move]) -> None:
        for move in moves:
            row = self.data.work[(move.queue, move.identity)]
            changes: dict[str, Any] = {
                "state": move.state, "fence": move.fence, "holds": move.holds, "keep_until": move.keep_until,
                "key": move.key, "result": None, "is_bare": False,
            }  # fmt: skip
            if move.due is not None:
                changes["due"] = move.due
            if move.cause is not None:
                changes["cause"] = move.cause
            if move.attempts is not None:
                changes["attempts"] = move.attempts
            if move.envelope is not None or move.drop_body:
                self._forget_body(row.envelope)
                changes["envelope"] = move.envelope or without_body(row.envelope)
            if row.turn is not None and not move.holds and move.state is WorkState.SCHEDULED:
                changes["turn"] = None
            if move.holds and row.turn is None:
                changes["turn"] = self._next_turn()
            self._change(row, **changes)
            self._index(row)

    def _next_turn(self) -> int:
        self._change(self.data, work_seq=self.data.work_seq + 1)
        return self.data.work_seq

    def _index(self, row: _Work) -> None:
        """Keep the rows that a claim looks at apart from the finished ones."""
        rows = self.data.claimable.setdefault(row.queue, {})
        if row.state in (WorkState.READY, WorkState.SCHEDULED, WorkState.CLAIMED) or row.holds:
            if row.seq not in rows:
                self._set(rows, row.seq, row)
        else:
            self._pop(rows, row.seq)

    def put_states(self, rows: Sequence[tuple[str, bytes | None, int]]) -> None:
        for key, value, version in rows:
            if value is None:
                self._pop(self.data.states, key)
                self._set(self.data.deleted, key, (version, self.now))
            else:
                self._pop(self.data.deleted, key)
                self._set(self.data.states, key, State(value, version))

    def put_cursors(self, rows: Sequence[tuple[str, Position, bool]]) -> None:
        for name, position, pins in rows:
            self._set(self.data.cursors, name, CursorHead(position, pins))

    def put_chunks(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        for name, part, chunk in rows:
            blob = self.data.blobs.get(name)
            if blob is None:
                blob = _Blob(self.now)
                self._set(self.data.blobs, name, blob)
            if blob.refs:
                raise StoreRefused(f"blob {name!r} is complete and takes no more parts", fix="use a new name")
            if part not in blob.chunks:
                self._set(blob.chunks, part, chunk)
                self._change(blob, at=self.now)

    def name_blobs(self, names: Sequence[tuple[str, int]]) -> None:
        for name, size in names:
            blob = self.data.blobs.get(name)
            stored = sum(map(len, blob.chunks.values())) if blob is not None else None
            if blob is None or stored != size:
                raise blob_refused(name, size, stored)
            self._change(blob, refs=blob.refs + 1)

    def _forget_body(self, envelope: Envelope) -> None:
        if envelope.blob is not None and envelope.blob.name in self.data.blobs:
            blob = self.data.blobs[envelope.blob.name]
            self._change(blob, refs=blob.refs - 1, at=self.now)

    def add_work(self, rows: Sequence[NewWork]) -> dict[tuple[str, str], Known]:
        answers: dict[tuple[str, str], Known] = {}
        for new in rows:
            if new.pair in answers:
                continue
            row = self.data.scopes.get(new.pair)
            is_new = row is None
            row = row or self._insert_work(new)
            answers[new.pair] = Known(row.seq, is_new, row.queue, row.state, row.result)
        return answers

    def _insert_work(self, new: NewWork) -> _Work:
        if (new.queue, new.identity) in self.data.work:
            raise scope_refused(new.queue, new.identity)
        seq = self._next_turn()
        row = _Work(
            new.queue, new.scope, new.identity, new.key, seq, seq if new.holds else None, new.state, new.holds,
            new.due, new.envelope, keep_until=new.keep_until, result=new.result,
        )  # fmt: skip
        self._set(self.data.work, (new.queue, new.identity), row)
        self._set(self.data.scopes, new.pair, row)
        self._index(row)
        return row

    def claim(self, claim: Claim, fence: int) -> list[WorkRow]:
        self._give_turns(claim.queue)
        rows = self._claimable(claim)
        expired = {row.seq for row in rows if row.state is WorkState.CLAIMED}
        for row in rows:
            self._change(
                row, state=WorkState.CLAIMED, fence=fence, owner=claim.owner, attempts=row.attempts + 1, holds=True,
                due=self.now + int(claim.lease_s * 1_000_000),
            )  # fmt: skip
            if row.turn is None:
                self._change(row, turn=self._next_turn())
            self._index(row)
        return [row.as_row(taken_over=row.seq in expired) for row in rows]

    def _give_turns(self, queue: str) -> None:
        """Scheduled rows of a key that have fallen due take their turn now, in the order in which they fell due."""
        due = [row for row in self._rows(queue) if row.turn is None and row.due <= self.now and row.key is not None]
        for row in sorted(due, key=lambda row: (row.due, row.seq)):
            self._change(row, turn=self._next_turn(), holds=True, state=WorkState.READY)

    def _rows(self, queue: str) -> list[_Work]:
        return list(self.data.claimable.get(queue, {}).values())

    def _claimable(self, claim: Claim) -> list[_Work]:
        if claim.identity is not None:
            row = self.data.work.get((claim.queue, claim.identity))
            return [row] if row is not None and self._may_claim_alone(claim, row) else []
        groups: list[list[_Work]] = [[row] for row in self._rows(claim.queue) if row.key is None and self._is_due(row)]
        groups += self._keyed_groups(claim)
        if claim.key is not None:
            groups = [group for group in groups if group[0].key == claim.key]
        groups.sort(key=lambda group: (group[0].due, group[0].seq))
        return [row for group in groups for row in group][: claim.limit]

    def _keyed_groups(self, claim: Claim) -> list[list[_Work]]:
        by_key: dict[str, list[_Work]] = {}
        for row in self._rows(claim.queue):
            if row.key is not None and row.holds:
                by_key.setdefault(row.key, []).append(row)
        groups = []
        for rows in by_key.values():
            if any(self._is_held(row) for row in rows):
                continue
            rows.sort(key=lambda row: row.turn or 0)
            group: list[_Work] = []
            for row in rows[: min(claim.per_key, claim.limit)]:
                if not self._is_due(row):
                    break
                group.append(row)
            if group:
                groups.append(group)
        return groups

    def is_due(self, queue: str) -> bool:
        """Whether a claim would find something, or would give a row its turn."""
        rows = self._rows(queue)
        if any(self._is_due(row) and (row.key is None or row.turn is None) for row in rows):
            return True
        return bool(self._keyed_groups(Claim(queue, "")))

    def _is_held(self, row: _Work) -> bool:
        return row.state is WorkState.CLAIMED and row.due > self.now

    def _is_due(self, row: _Work) -> bool:
        return row.state in (WorkState.READY, WorkState.SCHEDULED, WorkState.CLAIMED) and row.due <= self.now

    def _may_claim_alone(self, claim: Claim, row: _Work) -> bool:
        if is_found_aside(claim, row.state):
            return True
        if not self._is_due(row):
            return False
        if row.key is None:
            return True
        of_key = [other for other in self._rows(row.queue) if other.key == row.key and other.holds]
        return min(other.turn or 0 for other in of_key) == row.turn and not any(map(self._is_held, of_key))

    def known(self, stream: str, identities: Sequence[str]) -> dict[str, tuple[Position, bytes | None]]:
        kept = self.data.streams[stream].identities
        return {id: (Position(stream, self.epoch, kept[id][0]), kept[id][2]) for id in identities if id in kept}

    def add_records(self, rows: Sequence[NewRecord]) -> None:
        for new in rows:
            stream = self.data.streams[new.stream]
            position = Position(new.stream, self.epoch, new.offset)
            record = Record(position, new.envelope, self.now, new.kind, new.target, new.identity)
            self._set(stream.records, new.offset, record)
            self._change(self.data, seq=self.data.seq + 1)
            self._set(self.data.history, self.data.seq, record)
            self._set(self.data.seqs, position, self.data.seq)
            if new.identity is not None:
                self._set(stream.identities, new.identity, (new.offset, self.now, new.digest))

    def set_heads(self, heads: dict[str, int]) -> None:
        for name, head in heads.items():
            self._change(self.data.streams[name], head=head)

    def trim(self, stream: str, before: int) -> int:
        data = self.data
        found = data.streams.get(stream)
        if found is None:
            return 1
        pins = [
            head.position.offset + 1 for head in data.cursors.values() if head.pins and head.position.stream == stream
        ]
        exported = exported_mark(data.states.get("export/index"))
        if exported is not None:
            pins += [offset for offset, record in found.records.items() if data.seqs[record.position] > exported.seq][
                :1
            ]
        first = max(found.first, min([before, found.head + 1, *pins]))
        self._change(found, first=first)
        return first

    def add_ledger(self, events: Sequence[Event]) -> None:
        data = self.data
        for event in events:
            if event.session is None and event.message is not None:
                event = msgspec.structs.replace(event, session=event.message)
            self._change(data, ledger_seq=data.ledger_seq + 1)
            data.ledger.append(Entry(Mark(0, data.ledger_seq), self.now, self.node, event))
            self._undo.append(data.ledger.pop)


class MemoryStore:
    """See `semel.kernel.store` for what it promises."""

    def __init__(
        self,
        *,
        node: str = "local",
        clock: Callable[[], int] | None = None,
        journal: Journal | None = None,
        store_id: str = "memory",
        identity_keep_s: float = IDENTITY_KEEP_S,
        state_keep_s: float = STATE_KEEP_S,
        ledger_keep_s: float | None = None,
    ) -> None:
        self.url = "memory:"
        self.node = node
        self.store_id = store_id
        self.identity_keep_s = identity_keep_s
        self.state_keep_s = state_keep_s
        self.ledger_keep_s = ledger_keep_s
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._journal = journal
        self._writer = threading.RLock()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._listeners: list[Callable[[], None]] = []
        self._data = _Data()
        self._closed = False
        if journal is not None:
            self._replay(journal)

    def _replay(self, journal: Journal) -> None:
        for frame in journal.frames():
            getattr(self, "_do_" + frame.call)(frame.now, *frame.args)

    def _write(self, call: str, *args: Any) -> Any:
        """Do it, record it, sync it, and only then answer."""
        with self._writer, self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed", fix="open it again")
            now = self._clock()
            self._wrote = True
            result = getattr(self, "_do_" + call)(now, *args)
            if self._journal is not None:
                self._journal.append(Frame(call, args, now))
                self._journal.sync()
            wakes = list(self._listeners) if self._wrote else []
            if self._wrote:
                self._changed.notify_all()
        reach("commit.committed")
        for wake in wakes:
            with suppress(Exception):
                wake()
        return result

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        outcomes: list[Outcome] = self._write("commit", tuple(units))
        return outcomes

    def _do_commit(self, now: int, units: Sequence[Unit]) -> list[Outcome]:
        engine = MemoryEngine(self._data, now, self.node)
        reach("commit.begin")
        try:
            outcomes = apply(engine, units)
            self._wrote = engine.wrote
            reach("commit.applied")
        except BaseException:
            engine.roll_back()
            raise
        return outcomes

    def _do_transaction(self, now: int, units: Sequence[Unit]) -> list[Outcome]:
        """Units of a user's transaction see each other's writes, which those of one commit do not."""
        engine = MemoryEngine(self._data, now, self.node)
        try:
            return [apply(engine, [unit])[0] for unit in units]
        except BaseException:
            engine.roll_back()
            raise

    def _try(self, units: Sequence[Unit]) -> list[Outcome]:
        """What the units would do now, without doing it."""
        with self._lock:
            engine = MemoryEngine(self._data, self._clock(), self.node)
            try:
                return [apply(engine, [unit])[0] for unit in units]
            finally:
                engine.roll_back()

    def resolve(self, marker: str) -> list[Outcome] | None:
        raise InputError(f"no transaction {marker!r} is in doubt", fix="resolve only what CommitInDoubt named")

    @property
    def epoch(self) -> int:
        return self._data.epoch

    def read(self, stream: str, after: Position | None = None, limit: int = 1000) -> Records | Trimmed:
        with self._lock:
            if after is not None:
                check_epoch(after, self._data.epoch)
            found = self._data.streams.get(stream)
            if found is None:
                return Records(())
            # a cursor may be older than the stream: nothing lies before its start, so nothing is missing there
            start = max(after.offset, found.start) if after is not None else found.start
            if start + 1 < found.first:
                return Trimmed(Position(stream, self._data.epoch, found.first))
            return Records(tuple(self._in_this_epoch(record) for record in self._slice(found, start, limit)))

    def _in_this_epoch(self, record: Record) -> Record:
        """What survived into this epoch has its place in it: a reader goes on from there, whenever it was written."""
        if record.position.epoch == self._data.epoch:
            return record
        return msgspec.structs.replace(
            record, position=msgspec.structs.replace(record.position, epoch=self._data.epoch)
        )

    @staticmethod
    def _slice(stream: _Stream, after: int, limit: int) -> Iterator[Record]:
        offsets = range(after + 1, stream.head + 1)
        if len(offsets) > 2 * len(stream.records):
            offsets = sorted(offset for offset in stream.records if offset > after)  # type: ignore[assignment]
        for offset in offsets:
            if limit <= 0:
                return
            if offset in stream.records:
                limit -= 1
                yield stream.records[offset]

    def tail(
        self, stream: str, after: Position | None = None, limit: int = 1000, timeout_s: float = 30.0
    ) -> Records | Trimmed:
        until = time.monotonic() + timeout_s
        with self._lock:
            while True:
                found = self.read(stream, after, limit)
                left = until - time.monotonic()
                if not isinstance(found, Records) or found.records or left <= 0:
                    return found
                self._changed.wait(left)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(wake)
        return lambda: self._listeners.remove(wake)

    def wake(self) -> None:
        with self._lock:
            self._changed.notify_all()
            wakes = list(self._listeners)
        for wake in wakes:
            with suppress(Exception):
                wake()

    def head(self, stream: str) -> Position:
        with self._lock:
            found = self._data.streams.get(stream)
            return Position(stream, self._data.epoch, found.head if found else 0)

    def cursor(self, name: str) -> Position | None:
        with self._lock:
            head = self._data.cursors.get(name)
            return head.position if head is not None else None

    def known(self, stream: str, identities: Sequence[str]) -> dict[str, Position]:
        with self._lock:
            found = self._data.streams.get(stream)
            kept = found.identities if found is not None else {}
            return {id: Position(stream, self._data.epoch, kept[id][0]) for id in identities if id in kept}

    def state(self, key: str) -> State | None:
        with self._lock:
            return self._data.states.get(key)

    def states(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, State]]:
        with self._lock:
            keys = sorted(
                (key for key in self._data.states if key.startswith(prefix) and key.encode() > after.encode()),
                key=str.encode,
            )
            return [(key, self._data.states[key]) for key in keys[:limit]]

    def work(self, queue: str, identity: str) -> WorkRow | None:
        with self._lock:
            row = self._data.work.get((queue, identity))
            return row.as_row() if row is not None else None

    def due(self, queue: str) -> bool:
        with self._lock:
            engine = MemoryEngine(self._data, self._clock(), self.node)
            return engine.is_due(queue)

    def work_rows(self, queue: str, states: Collection[WorkState], after: int = 0, limit: int = 100) -> list[WorkRow]:
        with self._lock:
            found = [
                row
                for row in self._data.work.values()
                if row.queue == queue and row.state in states and row.seq > after and not row.is_bare
            ]
            return [row.as_row() for row in sorted(found, key=lambda row: row.seq)[:limit]]

    def work_counts(self, queue_prefix: str = "") -> dict[str, dict[WorkState, int]]:
        with self._lock:
            counts: dict[str, Counter[WorkState]] = {}
            for row in self._data.work.values():
                if row.queue.startswith(queue_prefix) and row.state is not WorkState.DONE:
                    counts.setdefault(row.queue, Counter())[row.state] += 1
            return {queue: dict(found) for queue, found in sorted(counts.items())}

    def history(self, message: str, limit: int = 1000) -> list[Entry]:
        with self._lock:
            return [entry for entry in self._data.ledger if entry.event.message == message][:limit]

    def ledger(self, after: Mark, limit: int = 1000) -> list[Entry]:
        with self._lock:
            return [entry for entry in self._data.ledger if entry.mark > after][:limit]

    def index(self, after: Mark, limit: int = 1000) -> list[IndexEntry]:
        with self._lock:
            seqs = sorted(seq for seq in self._data.history if seq > after.seq)[:limit]
            return [
                IndexEntry(Mark(0, seq), self._data.history[seq], self._data.history[seq].envelope.size) for seq in seqs
            ]

    def body(self, name: str) -> Iterator[bytes]:
        with self._lock:
            blob = self._data.blobs.get(name)
            if blob is None or not blob.refs:
                raise blob_missing(name)
            chunks = [blob.chunks[part] for part in sorted(blob.chunks)]
        return iter(chunks)

    def sweep(self, now: int, limit: int = 1000) -> Swept:
        swept: Swept = self._write("sweep", now, limit)
        return swept

    def _do_sweep(self, _: int, now: int, limit: int) -> Swept:
        records, identities = self._sweep_records(now, limit)
        work = self._sweep_work(now, limit)
        moved = self._sweep_done(limit)
        blobs = self._sweep_blobs(now, limit)
        ledger = self._sweep_ledger(now, limit)
        states = self._sweep_states(now, limit)
        reach("sweep.deleted")
        more = max(records, identities, work, moved, blobs, ledger, states) >= limit
        return Swept(records, identities, work, blobs, ledger, states, more, moved)

    def _sweep_records(self, now: int, limit: int) -> tuple[int, int]:
        data = self._data
        exported = exported_mark(data.states.get("export/index"))
        records = identities = 0
        for stream in data.streams.values():
            doomed = [
                record
                for offset, record in stream.records.items()
                if offset < stream.first and (exported is None or data.seqs[record.position] <= exported.seq)
            ]
            for record in doomed[: limit - records]:
                records += 1
                del stream.records[record.position.offset]
                data.history.pop(data.seqs.pop(record.position))
                MemoryEngine(data, now, self.node)._forget_body(record.envelope)
            forget = now - int(self.identity_keep_s * 1_000_000)
            old = [
                id for id, (at, since, _) in stream.identities.items() if since < forget and at not in stream.records
            ]
            for identity in old[: limit - identities]:
                identities += 1
                del stream.identities[identity]
        return records, identities

    def _sweep_work(self, now: int, limit: int) -> int:
        ended = (WorkState.DONE, WorkState.DEAD)
        doomed = [
            row
            for row in self._data.work.values()
            if row.state in ended and not row.holds and row.keep_until is not None and row.keep_until <= now
        ][:limit]
        for row in doomed:
            MemoryEngine(self._data, now, self.node)._forget_body(row.envelope)
            del self._data.work[(row.queue, row.identity)]
            del self._data.scopes[(row.scope, row.identity)]
        return len(doomed)

    def _sweep_done(self, limit: int) -> int:
        """Leave what other stores leave: the place, the identity and the result."""
        done = [row for row in self._data.work.values() if row.state is WorkState.DONE and not row.is_bare][:limit]
        for row in done:
            place = (row.queue, row.identity)
            self._data.work[place] = self._data.scopes[row.scope, row.identity] = _bare(row)
        return len(done)

    def _sweep_blobs(self, now: int, limit: int) -> int:
        old = now - int(ORPHAN_KEEP_S * 1_000_000)
        doomed = [name for name, blob in self._data.blobs.items() if blob.refs <= 0 and blob.at < old][:limit]
        for name in doomed:
            del self._data.blobs[name]
        return len(doomed)

    def _sweep_ledger(self, now: int, limit: int) -> int:
        """Only what has been exported goes, or what is old if nobody exports: the ledger is evidence, not a cache."""
        exported = exported_mark(self._data.states.get("export/ledger"))
        old = ledger_end(now, self.ledger_keep_s)
        first = self._data.ledger[:limit]
        kept = [entry for entry in first if (entry.at >= old if exported is None else entry.mark > exported)]
        self._data.ledger[:limit] = kept
        return len(first) - len(kept)

    def _sweep_states(self, now: int, limit: int) -> int:
        forget = now - int(self.state_keep_s * 1_000_000)
        doomed = [key for key, (_, at) in self._data.deleted.items() if at <= forget][:limit]
        for key in doomed:
            del self._data.deleted[key]
        return len(doomed)

    def migrate(self) -> tuple[int, int]:
        return SCHEMA, SCHEMA

    def raise_epoch(self, reason: str) -> int:
        epoch: int = self._write("raise_epoch", reason)
        return epoch

    def _do_raise_epoch(self, now: int, reason: str) -> int:
        data = self._data
        data.epoch += 1
        data.fence += EPOCH_GAP
        for stream in data.streams.values():
            stream.head = max(stream.head + EPOCH_GAP, start_of_epoch(data.epoch))
        for head in data.cursors.values():
            head.position = msgspec.structs.replace(head.position, epoch=data.epoch)
        reach("epoch.raised")
        return data.epoch

    def connect(self) -> MemoryConnection:
        """A transaction of the user's own, for `bind`."""
        return MemoryConnection(self)

    def bind(self, connection: Any) -> MemoryTx:
        if not isinstance(connection, MemoryConnection) or connection.store is not self:
            raise InputError("a memory store binds to its own connect()", fix="pass store.connect()")
        return MemoryTx(connection)

    def check(self) -> None:
        """Nothing can keep it from taking commits."""

    def horizon(self) -> LedgerHorizon:
        """There is one writer at a time, so what is committed is shown."""
        return LedgerHorizon()

    def status(self) -> Status:
        with self._lock:
            data = self._data
            return Status(
                url=self.url,
                engine="memory",
                store_id=self.store_id,
                epoch=data.epoch,
                schema=SCHEMA,
                streams=tuple(_info(stream, data.epoch) for stream in data.streams.values()),
                cursors=tuple(CursorInfo(name, head.position, head.pins) for name, head in data.cursors.items()),
                work=named_counts(self.work_counts()),
                remembered=sum(row.state is WorkState.DONE for row in data.work.values()),
                ledger_entries=len(data.ledger),
            )

    def close(self) -> None:
        self._closed = True


class MemoryConnection:
    """A transaction of the user's own. From its first write on it keeps other writers out, while readers go on to see
    what was there before: its writes are tried and taken back, and done for good at the commit."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._units: list[Unit] = []
        self._is_open = False

    def apply(self, unit: Unit) -> Outcome:
        if not self._is_open:
            self.store._writer.acquire()
            self._is_open = True
        outcomes = self.store._try([*self._units, unit])
        self._units.append(unit)
        return outcomes[-1]

    def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        """Nothing is written before the commit: it is enough to say it otherwise."""
        for at, unit in enumerate(self._units):
            ops = tuple(
                msgspec.structs.replace(op, result=result)
                if isinstance(op, Remember) and ((op.scope or op.queue), op.identity) == (scope, identity)
                else op
                for op in unit.ops
            )
            if ops != unit.ops:
                self._units[at] = msgspec.structs.replace(unit, ops=ops)
                return True
        return False

    def commit(self) -> None:
        if self._is_open:
            try:
                self.store._write("transaction", tuple(self._units))
            finally:
                self.rollback()

    def rollback(self) -> None:
        if self._is_open:
            self._is_open = False
            self._units = []
            self.store._writer.release()

    def close(self) -> None:
        self.rollback()


class MemoryTx:
    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection

    def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        return unwrap_bound(self._connection.apply(check_bound(ops)))

    def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        return self._connection.keep_result(scope, identity, check_result(result))


def _assign(target: Any, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        setattr(target, name, value)


def _bare(row: _Work) -> _Work:
    return _Work(
        row.queue, row.scope, row.identity, None, row.seq, None, row.state, False, 0, Envelope(id=row.identity),
        keep_until=row.keep_until, result=row.result, is_bare=True,
    )  # fmt: skip


def _info(stream: _Stream, epoch: int) -> StreamInfo:
    return StreamInfo(stream.name, epoch, stream.head, stream.first)
