"""SQLite's statements, as `apply` asks for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from semel.errors import StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Entry, Event, Kind, Mark
from semel.kernel.ops import Claim, WorkRow, WorkState
from semel.kernel.position import Position
from semel.kernel.store import IndexEntry, Record, State, StreamInfo
from semel.stores.engine import CursorHead, Known, Move, NewRecord, NewWork, WorkHead
from semel.stores.queries import load_queries
from semel.stores.rows import envelope_columns, envelope_of, envelope_row
from semel.stores.shared import (
    blob_refused,
    claimed_row,
    exported_mark,
    is_found_aside,
    scope_refused,
    start_of_epoch,
)
from semel.stores.sqlite_records import insert_records
from semel.stores.sqlite_session import SqliteSession

Q = load_queries("sqlite.sql")

_encode = msgspec.json.Encoder().encode


class SqliteEngine:
    """The statements of one transaction. Counters are read at its begin and written back at its end."""

    def __init__(self, connection: sqlite3.Connection | SqliteSession, now: int, node: str) -> None:
        self._db: Any = connection
        self.now = now
        self.node = node
        row = connection.execute(Q["begin_store"]).fetchone()
        self.epoch, self.commits, self.fence, self._record_seq, self._work_seq, self._ledger_seq = row
        self.top = 0
        self.size = 0
        self._stream_ids: dict[str, int] = {}
        self._bare: dict[tuple[str, str], tuple[int, int, bytes | None, str]] = {}

    def finish(self) -> None:
        self.commits += 1
        counters = (self.commits, self.fence, self._record_seq, self._work_seq, self._ledger_seq)
        self._db.execute(Q["end_store"], counters)

    def lock_work(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], WorkHead]:
        rows = self._db.execute(Q["lock_work"], (json_list(keys),))
        found = {(row[0], row[1]): WorkHead(row[2], row[3], WorkState(row[4]), row[5], row[6]) for row in rows}
        return found | {key: head for key in keys if key not in found and (head := self._bare_head(*key))}

    def _bare_head(self, queue: str, identity: str) -> WorkHead | None:
        """That of a row of which only the identity is left."""
        left = self._db.execute(Q["one_identity"], (queue, identity)).fetchone()
        if left is None:
            return None
        self._bare[queue, identity] = left
        return WorkHead(left[0], None, WorkState.DONE, 0, is_bare=True)

    def _restore(self, queue: str, identity: str) -> None:
        """Make a row again of the identity that is left of one."""
        seq, keep_until, result, scope = self._bare.pop((queue, identity))
        bare = Envelope(id=identity)
        row = (seq, queue, scope, identity, keep_until, result, bare.id, bare.source, bare.type)
        self._db.execute(Q["delete_identity"], (seq,))
        self._db.execute(Q["restore_work"], row)
        if scope != queue:
            self._db.execute(Q["add_scope"], (scope, identity, seq, queue))

    def lock_states(self, keys: Sequence[str]) -> dict[str, int]:
        return dict(self._db.execute(Q["lock_states"], (json_list(keys),)).fetchall())

    def lock_cursors(self, names: Sequence[str]) -> dict[str, CursorHead]:
        rows = self._db.execute(Q["lock_cursors"], (json_list(names),))
        return {row[0]: CursorHead(Position(row[1], row[2], row[3]), bool(row[4])) for row in rows}

    def lock_streams(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        infos = self._streams(names)
        for name in names:
            if name not in infos:
                start = start_of_epoch(self.epoch)
                [(self._stream_ids[name],)] = self._db.execute(Q["add_stream"], (name, start)).fetchall()
                infos[name] = StreamInfo(name, self.epoch, start, start + 1)
        return infos

    def _streams(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        infos: dict[str, StreamInfo] = {}
        if len(names) == 1:
            found = self._db.execute(Q["lock_stream"], (names[0],))
        else:
            found = self._db.execute(Q["lock_streams"], (json_list(names),))
        for name, id, head, first in found:
            self._stream_ids[name] = id
            infos[name] = StreamInfo(name, self.epoch, head, first)
        return infos

    def heads(self, names: Sequence[str]) -> dict[str, int]:
        return {name: info.head for name, info in self._streams(names).items()}

    def next_fence(self) -> int:
        self.fence += 1
        return self.fence

    def _next_work_seq(self) -> int:
        self._work_seq += 1
        return self._work_seq

    def move_work(self, moves: Sequence[Move]) -> None:
        for move in moves:
            if (move.queue, move.identity) in self._bare:
                self._restore(move.queue, move.identity)
            if move.drop_body or move.envelope is not None:
                self._forget_work_body(move)
        self._db.executemany(Q["move_work"], [self._move_row(move) for move in moves])
        for move in moves:
            if move.envelope is not None:
                self._db.execute(Q["new_body"], (*envelope_row(move.envelope), move.queue, move.identity))
            elif move.drop_body:
                self._db.execute(Q["drop_body"], (move.queue, move.identity))
        self._refresh_keys({(move.queue, move.key) for move in moves if move.key is not None})

    def _move_row(self, move: Move) -> dict[str, Any]:
        return {
            "queue": move.queue, "identity": move.identity, "key": move.key, "state": int(move.state),
            "fence": move.fence, "holds": int(move.holds), "keep_until": move.keep_until, "due": move.due,
            "cause": move.cause, "attempts": move.attempts, "turn": self._next_work_seq(),
        }  # fmt: skip

    def _forget_work_body(self, move: Move) -> None:
        for (blob,) in self._db.execute(Q["work_blob"], (move.queue, move.identity)).fetchall():
            self._db.execute(Q["forget_blob"], (self.now, blob))

    def _refresh_keys(self, keys: set[tuple[str, str]]) -> None:
        for queue, key in sorted(keys):
            head = self._db.execute(Q["key_head"], (queue, key)).fetchone()
            if head is None:
                self._db.execute(Q["delete_key"], (queue, key))
            else:
                state, due = head
                until = max(due, self._claimed_until(queue, key)) if state <= WorkState.CLAIMED else None
                self._db.execute(Q["put_key"], (queue, key, until))

    def _claimed_until(self, queue: str, key: str) -> int:
        """A claim that lives keeps the whole key, also from an earlier row that is to be tried again."""
        [(due,)] = self._db.execute(Q["key_claimed"], (queue, key)).fetchall()
        return due or 0

    def put_states(self, rows: Sequence[tuple[str, bytes | None, int]]) -> None:
        """A deleted state stays as an empty value under a negative version, and goes on counting until it is swept."""
        now = self.now
        values = [(key, value or b"", version, now if value is None else None) for key, value, version in rows]
        self._db.executemany(Q["put_state"], values)

    def put_cursors(self, rows: Sequence[tuple[str, Position, bool]]) -> None:
        values = [(name, at.stream, at.epoch, at.offset, int(pins)) for name, at, pins in rows]
        self._db.executemany(Q["put_cursor"], values)

    def put_chunks(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        for name, part, data in rows:
            blob = self._db.execute(Q["blob_refs"], (name,)).fetchone()
            if blob is None:
                self._db.execute(Q["add_blob"], (name, self.now))
            elif blob[0] > 0:
                raise StoreRefused(f"blob {name!r} is complete and takes no more parts", fix="use a new name")
            if self._db.execute(Q["add_chunk"], (name, part, data)).rowcount:
                self._db.execute(Q["grow_blob"], (len(data), self.now, name))

    def name_blobs(self, names: Sequence[tuple[str, int]]) -> None:
        for name, size in names:
            row = self._db.execute(Q["blob_size"], (name,)).fetchone()
            if row is None or row[0] != size:
                raise blob_refused(name, size, row[0] if row is not None else None)
            self._db.execute(Q["refer_blob"], (name,))

    def add_work(self, rows: Sequence[NewWork]) -> dict[tuple[str, str], Known]:
        answers, taken = self._known_work(rows)
        values: list[tuple[Any, ...]] = []
        scopes: list[tuple[str, str, int, str]] = []
        keys: list[tuple[str, str, int]] = []
        for row in rows:
            if row.pair in answers:
                continue
            if (row.queue, row.identity) in taken:
                raise scope_refused(row.queue, row.identity)
            taken.add((row.queue, row.identity))
            seq = self._next_work_seq()
            answers[row.pair] = Known(seq, True, row.queue, row.state, row.result)
            turn = seq if row.holds else None
            values.append(
                (seq, row.queue, row.scope, row.identity, row.key, turn, int(row.state), int(row.holds), row.due,
                 row.keep_until, row.result, *envelope_row(row.envelope))
            )  # fmt: skip
            if row.scope != row.queue:
                scopes.append((row.scope, row.identity, seq, row.queue))
            if row.key is not None and row.holds:
                keys.append((row.queue, row.key, row.due))
        self._db.executemany(Q["add_work"], values)
        self._db.executemany(Q["add_scope"], scopes)
        self._db.executemany(Q["add_key"], keys)
        return answers

    def _known_work(self, rows: Sequence[NewWork]) -> tuple[dict[tuple[str, str], Known], set[tuple[str, str]]]:
        """What is there by (scope, identity), and the names by (queue, identity) that are taken.

        A scope may have the name of a queue: then it is that queue's own scope, wherever its rows are.
        """
        scoped = sorted({row.pair for row in rows})
        names = json_list(sorted({(row.queue, row.identity) for row in rows}.union(scoped)))
        found = self._db.execute(Q["known_work"], (names,)).fetchall()
        found += self._db.execute(Q["known_scope"], (json_list(scoped),)).fetchall()
        found += self._db.execute(Q["known_identities"], (names,)).fetchall()
        known = {
            (scope, identity): Known(seq, False, queue, WorkState(state), result)
            for scope, identity, seq, queue, state, result in found
        }
        return known, {(queue, identity) for _, identity, _, queue, *_ in found}

    def claim(self, claim: Claim, fence: int) -> list[WorkRow]:
        self._give_turns(claim.queue)
        if claim.identity is not None:
            rows = self._claimable_alone(claim)
        else:
            rows = self._claimable(claim)
        due = self.now + int(claim.lease_s * 1_000_000)
        self._db.executemany(
            Q["claim_row"], [(fence, claim.owner, due, self._next_work_seq(), row.seq) for row in rows]
        )
        self._refresh_keys({(row.queue, row.key) for row in rows if row.key is not None})
        return [claimed_row(row, fence, claim.owner, due) for row in rows]

    def _give_turns(self, queue: str) -> None:
        """Scheduled rows of a key that have fallen due take their turn now, in the order in which they fell due."""
        rows = self._db.execute(Q["rows_to_turn"], (queue, self.now)).fetchall()
        if rows:
            self._db.executemany(Q["give_turn"], [(self._next_work_seq(), seq) for seq, _ in rows])
            self._refresh_keys({(queue, key) for _, key in rows})

    def _claimable(self, claim: Claim) -> list[WorkRow]:
        groups: list[list[WorkRow]] = []
        if claim.key is None:
            found = self._db.execute(Q["claimable_rows"], (claim.queue, self.now, claim.limit))
            groups = [[work_row_of(row)] for row in found]
            keys = self._db.execute(Q["claimable_keys"], (claim.queue, self.now, claim.limit)).fetchall()
        else:
            keys = [(claim.key,)]
        groups += self._due_of_keys(claim, [key for (key,) in keys])
        groups.sort(key=lambda group: (group[0].due, group[0].seq))
        return [row for group in groups for row in group][: claim.limit]

    def _due_of_keys(self, claim: Claim, keys: Sequence[str]) -> list[list[WorkRow]]:
        """The keys come in the order in which they fell due, so what they have beyond the limit need not be read."""
        groups: list[list[WorkRow]] = []
        left = claim.limit
        for key in keys:
            if left <= 0:
                break
            if group := self._due_of_key(claim.queue, key, min(claim.per_key, left)):
                groups.append(group)
                left -= len(group)
        return groups

    def _due_of_key(self, queue: str, key: str, rows_max: int) -> list[WorkRow]:
        due: list[WorkRow] = []
        if self._claimed_until(queue, key) > self.now:
            return due
        for found in self._db.execute(Q["key_rows"], (queue, key, rows_max)):
            row = work_row_of(found)
            if row.state > WorkState.CLAIMED or row.due > self.now:
                break
            due.append(row)
        return due

    def _claimable_alone(self, claim: Claim) -> list[WorkRow]:
        found = self._db.execute(Q["one_row"], (claim.queue, claim.identity)).fetchone()
        if found is None:
            return []
        row = work_row_of(found)
        if is_found_aside(claim, row.state):
            return [row]
        if row.state > WorkState.CLAIMED or row.due > self.now:
            return []
        if row.key is not None:
            head = self._db.execute(Q["key_rows"], (row.queue, row.key, 1)).fetchone()
            is_free = self._claimed_until(row.queue, row.key) <= self.now
            return [row] if is_free and head is not None and head[0] == row.seq else []
        return [row]

    def known(self, stream: str, identities: Sequence[str]) -> dict[str, tuple[Position, bytes | None]]:
        found = self._db.execute(Q["known"], (self._stream_ids[stream], json_list(identities)))
        return {identity: (Position(stream, self.epoch, offset), digest) for identity, offset, digest in found}

    def add_records(self, rows: Sequence[NewRecord]) -> None:
        count, first = len(rows), self._record_seq + 1
        self._record_seq += count
        envelopes = [row.envelope for row in rows]
        self.size += sum([len(envelope.data) for envelope in envelopes])
        columns = (
            range(first, first + count),
            [self._stream_ids[row.stream] for row in rows],
            [self.epoch] * count,
            [row.offset for row in rows],
            [row.identity for row in rows],
            [row.kind for row in rows],
            [row.target for row in rows],
            [self.now] * count,
            *envelope_columns(envelopes),
            [row.digest for row in rows],
        )
        insert_records(self._db, Q["add_record"], columns)

    def set_heads(self, heads: dict[str, int]) -> None:
        self.top = max(self.top, *heads.values())
        self._db.executemany(Q["set_head"], [(head, self._stream_ids[name]) for name, head in heads.items()])

    def trim(self, stream: str, before: int) -> int:
        info = self._streams([stream]).get(stream)
        if info is None:
            return 1
        limits = [before, info.head + 1]
        [(pin,)] = self._db.execute(Q["lowest_pin"], (stream,)).fetchall()
        if pin is not None:
            limits.append(pin + 1)
        exported = self.exported("export/index")
        if exported is not None:
            id = self._stream_ids[stream]
            [(offset,)] = self._db.execute(Q["first_unexported"], (id, exported.seq)).fetchall()
            limits += [offset] if offset is not None else []
        first = max(info.first, min(limits))
        self._db.execute(Q["set_first"], (first, self._stream_ids[stream]))
        return first

    def exported(self, key: str) -> Mark | None:
        row = self._db.execute(Q["read_state"], (key,)).fetchone()
        return exported_mark(State(*row)) if row is not None else None

    def move_done(self, limit: int) -> tuple[int, int]:
        """Leave only the identities of rows that are done: how many, and how many rows were past their time."""
        [(last, count, old)] = self._db.execute(Q["done_work"], (self.now, limit)).fetchall()
        if not count:
            return 0, 0
        # one statement for all: each is a turn for the interpreter lock, for which commits wait
        self._db.execute(Q["add_names"], (last,))
        self._db.execute(Q["move_done"], (last, self.now))
        self._db.execute(Q["delete_done_scopes"], (last,))
        self._db.execute(Q["delete_done"], (last,))
        return count - old, old

    def add_ledger(self, events: Sequence[Event]) -> None:
        values = []
        for event in events:
            self._ledger_seq += 1
            values.append((self._ledger_seq, self.now, self.node, *ledger_row(event)))
        self._db.executemany(Q["add_ledger"], values)


def json_list(keys: Sequence[Any]) -> str:
    """A list for `json_each`."""
    return _encode(keys).decode()


def ledger_row(event: Event) -> tuple[Any, ...]:
    return (
        event.pipeline, event.hop, event.kind.value, event.message, event.delivery, event.session or event.message,
        event.idx, event.peer, event.stream, event.epoch, event.first, event.last, event.n, event.fold, event.attempt,
        event.cause, event.trace,
    )  # fmt: skip


def entry_of(row: Sequence[Any]) -> Entry:
    seq, at, node, pipeline, hop, kind, *rest = row
    return Entry(Mark(0, seq), at, node, Event(Kind(kind), hop, pipeline, *rest))


def record_of(stream: str, epoch: int, row: Sequence[Any]) -> Record:
    _, offset, identity, kind, target, at, *envelope = row
    return Record(Position(stream, epoch, offset), envelope_of(envelope), at, kind, target, identity)


def index_entry_of(row: Sequence[Any]) -> IndexEntry:
    seq, stream, epoch, offset, identity, kind, target, at, size, *attributes = row
    envelope = envelope_of((*attributes, None, None, size))
    record = Record(Position(stream, epoch, offset), envelope, at, kind, target, identity)
    return IndexEntry(Mark(0, seq), record, size)


def work_row_of(row: Sequence[Any]) -> WorkRow:
    seq, queue, identity, key, state, due, attempts, fence, owner, cause, *envelope = row
    return WorkRow(
        queue, identity, key, seq, WorkState(state), due, attempts, fence, owner, envelope_of(envelope), cause
    )
