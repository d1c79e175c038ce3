"""Decides what a group of units does to a store. The one place where verdicts and refusals are made.

First every row that some op is conditional on is locked, in an order that is the same for everybody. Then the units
are decided one after the other, each seeing what the ones before it will have done. Last, what was decided is written,
sort by sort, with many rows per statement:

    work rows, states, cursors, chunks · new work · claims · stream heads, records · ledger

so a claim sees the rows enqueued in its own unit, and the heads of streams are held for the shortest time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import msgspec

from semel.errors import StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event, range_event
from semel.kernel.ops import (
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
    PutBlob,
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
from semel.kernel.position import OFFSET_MAX, Position
from semel.stores.checks import check_units
from semel.stores.engine import CursorHead, Engine, Move, NewRecord, NewWork, WorkHead
from semel.stores.shared import start_of_epoch

_DONE = Advanced()
_SKIPPED = Skipped()


def apply(engine: Engine, units: Sequence[Unit]) -> list[Outcome]:
    """Apply the units inside the engine's open transaction; the caller commits."""
    return _Application(engine).run(units)


_Slot = tuple[list[Result], int]
"""Where an answer goes: the results of one unit, and the op's place among them."""


@dataclass(slots=True)
class _Application:
    engine: Engine
    work: dict[tuple[str, str], WorkHead] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    cursors: dict[str, CursorHead] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    undo: list[tuple[dict[Any, Any], object, object]] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    puts: list[tuple[str, bytes | None, int]] = field(default_factory=list)
    advances: list[tuple[str, Position, bool]] = field(default_factory=list)
    chunks: list[tuple[str, int, bytes]] = field(default_factory=list)
    enqueues: list[tuple[_Slot, Enqueue | Remember]] = field(default_factory=list)
    claims: list[tuple[_Slot, Claim]] = field(default_factory=list)
    appends: list[tuple[_Slot, Append]] = field(default_factory=list)
    trims: list[tuple[_Slot, Trim]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def run(self, units: Sequence[Unit]) -> list[Outcome]:
        check_units(units)
        if (appends := _plain_appends(units)) is not None:
            return self._append(appends)
        self._lock(units)
        outcomes: list[tuple[bool, list[Result]]] = []
        broken: set[str] = set()
        for unit in units:
            if unit.chain is not None and unit.chain in broken:
                outcomes.append((False, [_SKIPPED] * len(unit.ops)))
                continue
            is_applied, results = self._decide(unit)
            if not is_applied and unit.chain is not None:
                broken.add(unit.chain)
            outcomes.append((is_applied, results))
        self._write()
        return [Applied(tuple(results)) if ok else Refused(tuple(results)) for ok, results in outcomes]

    def _append(self, ops: Sequence[Append]) -> list[Outcome]:
        """The commonest group by far: nothing in it can be refused, so there is nothing to lock or to take back."""
        results: list[Result] = [_DONE] * len(ops)
        self.appends = list(zip(zip(repeat(results), range(len(ops)), strict=False), ops, strict=True))
        self._write()
        return [Applied((result,)) for result in results]

    # -- locking

    def _lock(self, units: Sequence[Unit]) -> None:
        work: set[tuple[str, str]] = set()
        states: set[str] = set()
        cursors: set[str] = set()
        streams: set[str] = set()
        for unit in units:
            for op in unit.ops:
                if type(op) is Append and op.guard is None:
                    continue
                guard = getattr(op, "guard", None)
                if guard is not None:
                    work.add((guard.queue, guard.identity))
                if isinstance(op, Finish | Renew):
                    work.add((op.queue, op.identity))
                elif isinstance(op, Put):
                    states.add(op.key)
                elif isinstance(op, Advance):
                    cursors.add(op.cursor)
                    streams.add(op.to.stream)
        # always in this order, and sorted, so that two processes never wait for each other's rows in a circle; streams
        # come last, in `_write_records`, because everybody writes to them
        if work:
            self.work = self.engine.lock_work(sorted(work))
        if states:
            self.versions = self.engine.lock_states(sorted(states))
        if cursors:
            self.cursors = self.engine.lock_cursors(sorted(cursors))
            self.heads = self.engine.heads(sorted(streams))

    # -- deciding

    def _decide(self, unit: Unit) -> tuple[bool, list[Result]]:
        """Check each op against what stands after the ones before it, and take all of it back if one is refused."""
        results: list[Result] = [_DONE] * len(unit.ops)
        lists: tuple[list[Any], ...] = (
            self.moves, self.puts, self.advances, self.chunks,
            self.enqueues, self.claims, self.appends, self.trims, self.events,
        )  # fmt: skip
        lengths = [len(entries) for entries in lists]
        self.undo.clear()
        refused = False
        for at, op in enumerate(unit.ops):
            if type(op) is Append and op.guard is None:  # by far the commonest, and nothing is to be decided
                self.appends.append(((results, at), op))
                continue
            results[at] = result = self._decide_op(op, (results, at))
            refused = refused or isinstance(result, Stale | Conflict)
        if not refused:
            return True, results
        # newest first: an op may have changed what an earlier op of the same unit had changed
        for mapping, key, value in reversed(self.undo):
            if value is None:
                mapping.pop(key, None)
            else:
                mapping[key] = value
        for entries, length in zip(lists, lengths, strict=True):
            del entries[length:]
        return False, [result if isinstance(result, Stale | Conflict) else _SKIPPED for result in results]

    def _decide_op(self, op: Op, slot: _Slot) -> Result:
        guard: Guard | None = getattr(op, "guard", None)
        if guard is not None and (stale := self._check_fence(guard.queue, guard.identity, guard.fence)):
            return stale
        match op:
            case Append():
                self.appends.append((slot, op))
            case Enqueue() | Remember():
                self.enqueues.append((slot, op))
            case Log():
                self.events.append(op.event)
            case Put():
                return self._decide_put(op)
            case Advance():
                return self._decide_advance(op)
            case Finish():
                return self._decide_finish(op)
            case Renew():
                return self._decide_renew(op)
            case Claim():
                self.claims.append((slot, op))
            case PutBlob():
                self.chunks.append((op.name, op.part, op.data))
            case Trim():
                self.trims.append((slot, op))
        return _DONE

    def _check_fence(self, queue: str, identity: str, fence: int) -> Stale | None:
        row = self.work.get((queue, identity))
        if row is None:
            return Stale(0)
        if row.state is not WorkState.CLAIMED or row.fence != fence:
            return Stale(row.fence if row.state is WorkState.CLAIMED else 0)
        return None

    def _decide_put(self, op: Put) -> Result:
        last = self.versions.get(op.key, 0)
        version = max(last, 0)
        if op.expected is not None and op.expected != version:
            return Conflict(version)
        if op.value is None and version == 0:
            return Advanced(version=0)
        # versions of a new epoch lie above all old ones: what somebody remembers of a lost history never fits again
        following = max(abs(last), start_of_epoch(self.engine.epoch)) + 1
        # a deleted key keeps its count, so that what is remembered of its first life does not fit the second
        self._set(self.versions, op.key, -following if op.value is None else following)
        self.puts.append((op.key, op.value, -following if op.value is None else following))
        return Advanced(version=0 if op.value is None else following)

    def _decide_advance(self, op: Advance) -> Result:
        head = self.cursors.get(op.cursor)
        offset = head.position.offset if head is not None else 0
        if op.to.epoch != self.engine.epoch or (op.expected is not None and op.expected != offset):
            return Conflict(offset)
        if op.to.offset > self.heads.get(op.to.stream, 0):
            raise StoreRefused(
                f"cursor {op.cursor!r} would stand at {op.to}, past the end of the stream",
                fix="advance only to positions that were read",
            )
        if head is not None and head.position.stream != op.to.stream:
            raise StoreRefused(
                f"cursor {op.cursor!r} belongs to {head.position.stream}, not to {op.to.stream}",
                fix="give each stream a cursor of its own",
            )
        position = op.to if head is None or op.to.offset > offset else head.position
        self._set(self.cursors, op.cursor, CursorHead(position, op.pins))
        self.advances.append((op.cursor, position, op.pins))
        return Advanced(position)

    def _decide_finish(self, op: Finish) -> Result:
        row = self.work.get((op.queue, op.identity))
        if op.fence is not None and (stale := self._check_fence(op.queue, op.identity, op.fence)):
            return stale
        if row is None or (op.fence is None and row.state is WorkState.CLAIMED):
            return Stale(row.fence if row is not None else 0)
        if op.was is not None and row.state is not op.was:
            return Stale(0)
        if row.state is WorkState.DONE and op.to is WorkState.DONE:
            # ending what has already ended must not reach the ledger a second time
            return Stale(0)
        if op.to is WorkState.CLAIMED:
            raise StoreRefused("a row is not finished into a claim", fix="use Claim")
        attempts = _attempts_after(op, row.attempts)
        self._set(self.work, (op.queue, op.identity), WorkHead(row.seq, row.key, op.to, row.fence, attempts))
        self.moves.append(self._finish_move(op, row, attempts))
        return _DONE

    def _finish_move(self, op: Finish, row: WorkHead, attempts: int) -> Move:
        """A retry keeps its key, so nothing overtakes it, unless it passes; a row put aside keeps it only when asked
        to."""
        is_open = op.to in (WorkState.READY, WorkState.SCHEDULED) and not (op.passes and row.key is not None)
        return Move(
            queue=op.queue,
            identity=op.identity,
            key=row.key,
            state=op.to,
            fence=row.fence,
            holds=is_open or (op.holds and op.to is not WorkState.DONE),
            due=self._due_of(op),
            keep_until=self._keep_until(op.keep_s) if op.to in (WorkState.DONE, WorkState.DEAD) else None,
            cause=op.cause,
            drop_body=op.to is WorkState.DONE,
            attempts=attempts,
        )

    def _keep_until(self, keep_s: float | None) -> int | None:
        """None is for ever."""
        return self.engine.now + int(keep_s * 1_000_000) if keep_s is not None else None

    def _due_of(self, op: Finish) -> int:
        if op.delay_s is not None:
            return self.engine.now + int(op.delay_s * 1_000_000)
        return op.due if op.due is not None else self.engine.now

    def _decide_renew(self, op: Renew) -> Result:
        if stale := self._check_fence(op.queue, op.identity, op.fence):
            return stale
        row = self.work[(op.queue, op.identity)]
        due = self.engine.now + int(op.lease_s * 1_000_000)
        self.moves.append(
            Move(op.queue, op.identity, row.key, WorkState.CLAIMED, op.fence, holds=True, due=due, cause=op.cause)
        )
        return _DONE

    def _set(self, mapping: dict[Any, Any], key: object, value: object) -> None:
        self.undo.append((mapping, key, mapping.get(key)))
        mapping[key] = value

    # -- writing

    def _write(self) -> None:
        engine = self.engine
        if self.moves:
            engine.move_work(self.moves)
        if self.puts:
            engine.put_states(self.puts)
        if self.advances:
            engine.put_cursors(self.advances)
        if self.chunks:
            engine.put_chunks(self.chunks)
        if self.enqueues:
            self._write_work()
        for (results, at), claim in self.claims:
            results[at] = Claimed(tuple(engine.claim(claim, engine.next_fence())))
        if self.appends:
            self._write_records()
        for (results, at), trim in self.trims:
            results[at] = Advanced(Position(trim.stream, engine.epoch, engine.trim(trim.stream, trim.before)))
        if self.events:
            engine.add_ledger(self.events)

    def _write_work(self) -> None:
        engine = self.engine
        answers = engine.add_work([self._new_work(op) for _, op in self.enqueues])
        named: list[tuple[str, int]] = []
        again: list[tuple[str, Enqueue]] = []
        seen: set[tuple[str, str]] = set()
        for (results, at), op in self.enqueues:
            pair, envelope = (op.scope or op.queue, op.identity), work_envelope(op)
            known = answers[pair]
            position = Position(known.queue, engine.epoch, known.seq)
            if known.is_new and pair not in seen:
                seen.add(pair)
                results[at] = Fresh(position)
                self._note(op.on_fresh, envelope)
                _name_blob(envelope, named)
                if isinstance(op, Enqueue) and op.log is not None:
                    # decided only here, so nobody waits for this answer
                    self.appends.append((([_DONE], 0), Append(op.log, envelope)))
                continue
            results[at] = Duplicate(position, state=known.state, result=known.result)
            self._note(op.on_duplicate, envelope)
            if isinstance(op, Enqueue) and op.replace:
                again.append((known.queue, op))
                _name_blob(envelope, named)
        if again:
            engine.move_work(self._replacements(again))
        if named:
            engine.name_blobs(named)

    def _new_work(self, op: Enqueue | Remember) -> NewWork:
        """A row that is scheduled takes its turn among its key only when it falls due."""
        now = self.engine.now
        if isinstance(op, Remember):
            return NewWork(
                op.queue, op.scope or op.queue, op.identity, None, WorkState.DONE, now, False, work_envelope(op),
                self._keep_until(op.keep_s), op.result,
            )  # fmt: skip
        due = op.due if op.due is not None else now
        state = WorkState.SCHEDULED if due > now else WorkState.READY
        holds = op.key is None or state is WorkState.READY
        return NewWork(op.queue, op.scope or op.queue, op.identity, op.key, state, due, holds, op.envelope)

    def _replacements(self, again: Sequence[tuple[str, Enqueue]]) -> list[Move]:
        """A row that is set again keeps its queue and its key, whatever the op says: its order depends on them. One
        that has no key left takes the first that is given."""
        heads = self.engine.lock_work(sorted({(queue, op.identity) for queue, op in again}))
        moves: list[Move] = []
        for queue, op in again:
            head = heads[queue, op.identity]
            if head.is_bare:
                head.key, head.is_bare = op.key, False
            moves.append(self._replacement(msgspec.structs.replace(op, queue=queue, key=head.key)))
        return moves

    def _replacement(self, op: Enqueue) -> Move:
        """A new fence, so that whoever holds the row at this moment cannot finish what was set again."""
        row = self._new_work(op)
        return Move(
            op.queue, op.identity, op.key, row.state, self.engine.next_fence(), row.holds, due=row.due,
            envelope=op.envelope, attempts=0,
        )  # fmt: skip

    def _write_records(self) -> None:
        engine = self.engine
        by_stream = self._by_stream()
        infos = engine.lock_streams(sorted(by_stream))
        records: list[NewRecord] = []
        named: list[tuple[str, int]] = []
        heads: dict[str, int] = {}
        for stream, appends in by_stream.items():
            # offsets are given under the stream's lock, so a lower one is never committed after a higher one was seen
            heads[stream] = self._place(stream, infos[stream].head, appends, records, named)
        engine.add_records(records)
        engine.set_heads(heads)
        if named:
            engine.name_blobs(named)

    def _by_stream(self) -> dict[str, list[tuple[_Slot, Append]]]:
        streams = {op.stream for _, op in self.appends}
        if len(streams) == 1:
            return {streams.pop(): self.appends}
        found: dict[str, list[tuple[_Slot, Append]]] = {}
        for entry in self.appends:
            found.setdefault(entry[1].stream, []).append(entry)
        return found

    def _place(
        self,
        stream: str,
        head: int,
        appends: Sequence[tuple[_Slot, Append]],
        records: list[NewRecord],
        named: list[tuple[str, int]],
    ) -> int:
        """Give the new ones of a stream their offsets, without a gap, and answer each op. Returns the new head."""
        epoch = self.engine.epoch
        identities = [op.identity for _, op in appends if op.identity is not None]
        known = self.engine.known(stream, identities) if identities else {}
        ranges = _Ranges()
        for (results, at), op in appends:
            identity, envelope, event = op.identity, op.envelope, op.on_fresh
            if identity is not None and identity in known:
                first, digest = known[identity]
                differs = op.digest is not None and digest is not None and op.digest != digest
                results[at] = Duplicate(first, differs)
                if not differs:
                    self._note(op.on_duplicate, envelope)
                continue
            head += 1
            position = Position(stream, epoch, head)
            results[at] = Fresh(position)
            records.append(NewRecord(stream, head, identity, op.kind, op.target, envelope, op.digest))
            if identity is not None:
                # the same identity may come twice within one group: the second is a duplicate of this one
                known[identity] = position, op.digest
            if envelope.blob is not None:
                _name_blob(envelope, named)
            if event is None:
                continue
            for each in event if isinstance(event, tuple) else (event,):
                if not ranges.add(each, position, envelope.id):
                    self._note(each, envelope)
        self.events += ranges.events()
        if head > OFFSET_MAX:
            raise StoreRefused(f"stream {stream} is at its last offset", fix="begin a new stream")
        return head

    def _note(self, events: Event | tuple[Event, ...] | None, envelope: Envelope) -> None:
        """The events of a verdict."""
        self.events += [fill_event(event, envelope) for event in events_of(events)]


def events_of(events: Event | tuple[Event, ...] | None) -> tuple[Event, ...]:
    """The events of a verdict as a tuple: none, one or several."""
    if events is None:
        return ()
    return events if isinstance(events, tuple) else (events,)


def fill_event(event: Event, envelope: Envelope) -> Event:
    """A template becomes an event about this one message."""
    if not event.is_template:
        return event
    return msgspec.structs.replace(event, message=envelope.id, session=envelope.session, idx=envelope.index)


def _plain_appends(units: Sequence[Unit]) -> list[Append] | None:
    """The appends of a group in which each unit is a single one, without a guard. None for any other group."""
    ops = [unit.ops[0] for unit in units if len(unit.ops) == 1]
    appends = [op for op in ops if type(op) is Append and op.guard is None]
    return appends if len(appends) == len(units) else None


class _Ranges:
    """Gathers the records under each template. Templates are shared objects, so they are told apart by which object
    they are first, and compared field by field only once per transaction. Records come in the order of offsets."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Event, list[Position], list[str]]] = {}
        self._template: Event | None = None
        self._positions: list[Position] = []
        self._messages: list[str] = []

    def add(self, event: Event, position: Position, message: str) -> bool:
        """False when the event is no template but about its own message."""
        if event is not self._template and not self._turn_to(event):
            return False
        self._positions.append(position)
        self._messages.append(message)
        return True

    def _turn_to(self, event: Event) -> bool:
        found = self._found.get(id(event))
        if found is None:
            if not event.is_template:
                return False
            found = self._found[id(event)] = (event, [], [])
        self._template, self._positions, self._messages = found
        return True

    def events(self) -> Iterator[Event]:
        """One event for all records under equal templates."""
        merged: dict[Event, tuple[list[Position], list[str]]] = {}
        for template, positions, messages in self._found.values():
            all_positions, all_messages = merged.setdefault(template, ([], []))
            all_positions += (positions[0], positions[-1])
            all_messages += messages
        for template, (positions, messages) in merged.items():
            yield range_event(template, min(positions), max(positions), messages)


def _attempts_after(op: Finish, attempts: int) -> int:
    match op.attempts:
        case Attempts.RESET:
            return 0
        case Attempts.RELEASE:
            return max(0, attempts - 1)
    return attempts


def work_envelope(op: Enqueue | Remember) -> Envelope:
    """What is remembered has no message of its own: its identity stands for it."""
    return op.envelope if isinstance(op, Enqueue) else Envelope(id=op.identity)


def _name_blob(envelope: Envelope, named: list[tuple[str, int]]) -> None:
    if envelope.blob is not None:
        named.append((envelope.blob.name, envelope.blob.size))
