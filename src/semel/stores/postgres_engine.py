"""PostgreSQL's statements, as `apply` asks for them.

Writes are sent and not waited for; an answer is waited for only where a decision needs it. What a group of units will
ask for is known beforehand, so numbers are drawn and identities looked up for all of it in one round trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import RawCursor

from semel.errors import StoreBusy, StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Entry, Event, Kind, Mark
from semel.kernel.ops import Append, Claim, Enqueue, Remember, Unit, WorkRow, WorkState
from semel.kernel.position import Position
from semel.kernel.store import IndexEntry, Record, State, StreamInfo
from semel.stores.engine import CursorHead, Known, Move, NewRecord, NewWork, WorkHead
from semel.stores.postgres_connection import (
    Array,
    Begun,
    Call,
    Row,
    Statements,
    bigints,
    bools,
    byteas,
    ints,
    smallints,
    texts,
)
from semel.stores.postgres_fronts import LOWEST, Front, Fronts
from semel.stores.rows import envelope_of, envelope_row
from semel.stores.shared import (
    blob_refused,
    claimed_row,
    exported_mark,
    is_found_aside,
    scope_refused,
    start_of_epoch,
)

NEWS_ROWS = 1000
TOGETHER = frozenset(
    {
        "add_records",
        "add_records_with_digests",
        "set_heads",
        "add_ledger",
        "move_work",
        "add_news",
        "change_states",
        "move_cursors",
    }
)
"""Writes to tables of their own, none of which reads what another writes: their order does not matter."""


class TryAgain(Exception):
    """Somebody created the same row at the same moment. Rolled back and run again, the transaction sees it."""


@dataclass(slots=True)
class _Stream:
    id: int
    head: int
    xid: int


@dataclass(slots=True)
class _Work:
    """A work row as locked, with the number of its claims, and what is to become of it."""

    seq: int
    key: str | None
    state: int
    fence: int
    turn: int | None
    holds: bool
    blob: str | None
    claims: int
    due: int | None = None
    keep_until: int | None = None
    cause: str | None = None
    attempts: int | None = None
    wants_turn: bool = False
    drops: bool = False
    envelope: Envelope | None = None


@dataclass(frozen=True, slots=True)
class _Transaction:
    """An open one, with the clock, the epoch and the base of transaction ids that it goes by. `members` have ever
    joined. `sees_all`: each of its statements sees all that was committed before it. In which store it is, and how
    durable, is asked only of a transaction that is not ours."""

    statements: Statements
    now: int
    epoch: int
    xid_base: int
    members: int
    sees_all: bool
    store_id: str = ""
    sync: str = ""


class PostgresEngine:
    """The statements of one transaction, on our own connection or on the user's. It is begun with the first question,
    by `begin`. `look` asks outside of it."""

    def __init__(
        self,
        begin: Callable[[Sequence[Call]], Begun],
        node: str,
        units: Sequence[Unit] = (),
        fronts: Fronts | None = None,
        look: Callable[..., list[Row]] | None = None,
    ) -> None:
        self._begin = begin
        self._look = look
        self.node = node
        self._is_ours = fronts is not None
        self._fronts = fronts or Fronts()
        self.wrote = False
        self._begun: _Transaction | None = None
        self._waiting: list[Call] = []
        self._streams: dict[str, _Stream] = {}
        self._known: dict[tuple[str, str], tuple[int, bytes | None]] = {}
        self._states: set[str] = set()
        self._cursors: set[str] = set()
        self._work: dict[tuple[str, str], _Work] = {}
        self._bare: dict[tuple[str, str], int] = {}
        seats, fences, self._identities = _needs(units)
        self._seats = self._draw("draw_seats", seats) if seats else []
        self._fences = self._draw("draw_fences", fences) if fences else []

    @property
    def _transaction(self) -> _Transaction:
        return self._begun or self._open([])[0]

    def _open(self, calls: Sequence[Call]) -> tuple[_Transaction, list[RawCursor[Row]]]:
        statements, (first, *answers) = self._begin(calls)
        self._begun = _Transaction(statements, *first.fetchall()[0])
        return self._begun, answers

    def begin(self) -> None:
        """Unless a question has begun it."""
        if self._begun is None:
            self._open([])

    @property
    def now(self) -> int:
        return self._transaction.now

    @property
    def epoch(self) -> int:
        return self._transaction.epoch

    @property
    def members(self) -> int:
        return self._transaction.members

    @property
    def store_id(self) -> str:
        return self._transaction.store_id

    @property
    def sync(self) -> str:
        return self._transaction.sync

    def _run(self, *calls: Call) -> list[RawCursor[Row]]:
        """These, after the writes that wait."""
        waiting, self._waiting = self._waiting, []
        every = [*waiting, *calls]
        answers = self._begun.statements.run_all(every) if self._begun is not None else self._open(every)[1]
        return answers[len(waiting) :]

    def _ask(self, name: str, *params: Any) -> list[Row]:
        return self._run((name, params))[0].fetchall()

    def _write(self, name: str, *params: Any) -> None:
        """A write whose answer nobody needs. It is sent with the next question, or with the last ones all together."""
        self.wrote = True
        self._waiting.append((name, params))

    def flush(self) -> None:
        """Send what waits."""
        if self._waiting:
            self._run()

    def finish(self, writer: str, commits: int) -> None:
        """The last writes of our own transaction, with the marker, and the word to those who listen. Nobody waits for
        an answer: the caller has begun a pipeline, in which COMMIT comes next."""
        statements = self._transaction.statements
        waiting, self._waiting = self._waiting, []
        names = [name for name, _ in waiting]
        if not TOGETHER.issuperset(names) or len(set(names)) < len(names):
            for name, params in waiting:
                statements.run(name, *params)
            waiting = []
        statements.run_together([*waiting, ("sign", (writer, commits, self.now))])

    def _draw(self, query: str, count: int) -> list[int]:
        """Numbers to be popped in ascending order."""
        return [number for (number,) in self._ask(query, count)[::-1]]

    # -- locks

    def lock_work(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], WorkHead]:
        rows = self._ask("lock_work", texts([queue for queue, _ in keys]), texts([identity for _, identity in keys]))
        found = {(queue, identity): _Work(*rest) for queue, identity, *rest in rows}
        self._work |= found | self._lock_identities([key for key in keys if key not in found])
        return {
            name: WorkHead(row.seq, row.key, WorkState(row.state), row.fence, row.claims, name in self._bare)
            for name in keys
            if (row := self._work.get(name)) is not None
        }

    def _lock_identities(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], _Work]:
        """Rows of which only the identity is left."""
        if not keys:
            return {}
        queues, identities = texts([queue for queue, _ in keys]), texts([identity for _, identity in keys])
        rows = self._ask("lock_identities", queues, identities)
        if rows:
            # nobody knows which fences they had; those that are drawn from now on are higher
            self._fences.clear()
        self._bare |= {(queue, identity): scope for queue, identity, _, scope in rows}
        return {
            (queue, identity): _Work(seq, None, WorkState.DONE, 0, None, False, None, 0)
            for queue, identity, seq, _ in rows
        }

    def _restore(self, names: Iterable[tuple[str, str]]) -> None:
        """Make rows again of the identities that are left of them."""
        found = [(self._bare.pop(name), name[1]) for name in sorted(set(names)) if name in self._bare]
        if found:
            scopes, identities = zip(*found, strict=True)
            bare = Envelope(id="bare")
            self._write("restore_work", ints(scopes), texts(identities), bare.source, bare.type)

    def lock_states(self, keys: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = dict(self._ask("lock_states", texts(keys)))
        self._states |= found.keys()
        return found

    def lock_cursors(self, names: Sequence[str]) -> dict[str, CursorHead]:
        rows = self._ask("lock_cursors", texts(names))
        self._cursors |= {name for name, *_ in rows}
        return {name: CursorHead(Position(*position), pins) for name, *position, pins in rows}

    def lock_streams(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        found = self._lock_heads(names)
        missing = [name for name in names if name not in found]
        if missing:
            self._write("add_streams", texts(missing), start_of_epoch(self.epoch))
            found = self._lock_heads(names)
        return found

    def _lock_heads(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        """The lookup of identities begins when the heads are held, so it sees all that was ever committed."""
        locked, *known = self._run(("lock_streams", (texts(names),)), *self._look_up())
        infos: dict[str, StreamInfo] = {}
        for name, id, head, first, xid, own_xid in locked.fetchall():
            self._streams[name] = _Stream(id, head, max(xid, own_xid + self._transaction.xid_base))
            infos[name] = StreamInfo(name, self.epoch, head, first)
        self._known = {
            (stream, identity): (offset, digest)
            for found in known
            for stream, identity, offset, digest in found.fetchall()
        }
        return infos

    def _look_up(self) -> list[Call]:
        streams, identities = self._identities
        if len(set(streams)) > 1:
            return [("known_in_many", (texts(streams), texts(identities)))]
        return [("known", (streams[0], texts(identities)))] if streams else []

    def heads(self, names: Sequence[str]) -> dict[str, int]:
        return dict(self._ask("heads", texts(names)))

    def next_fence(self) -> int:
        if not self._fences:
            self._fences = self._draw("draw_fences", 1)
        return self._fences.pop()

    def _fence_above(self, fence: int, held: Iterable[int]) -> int:
        """A fence drawn before the row was locked may be lower than one given out since. Fences of a row only grow."""
        highest = max(held)
        while fence <= highest:
            fence = self.next_fence()
        return fence

    # -- work

    def move_work(self, moves: Sequence[Move]) -> None:
        rows: dict[int, _Work] = {}
        dropped: Counter[str] = Counter()
        keys: dict[int, str | None] = {}
        self._restore((move.queue, move.identity) for move in moves)
        for move in moves:
            row = self._work[move.queue, move.identity]
            rows[row.seq] = row
            if move.key != row.key:
                keys[row.seq] = row.key = move.key
            self._move(row, move, dropped)
        if keys:
            self._write("set_keys", bigints(list(keys)), texts(list(keys.values())))
        self._seat([row for row in rows.values() if row.wants_turn])
        self._write_moves(list(rows.values()))
        self._write_bodies([row for row in rows.values() if row.envelope is not None])
        self._forget_blobs(dropped)
        self._add_news({(move.queue, key) for move in moves if (key := self._work[move.queue, move.identity].key)})

    def _move(self, row: _Work, move: Move, dropped: Counter[str]) -> None:
        if move.fence != row.fence:
            row.fence = self._fence_above(move.fence, [row.fence])
        row.state, row.holds, row.keep_until = move.state, move.holds, move.keep_until
        row.due = move.due if move.due is not None else row.due
        row.cause = move.cause if move.cause is not None else row.cause
        row.attempts = move.attempts if move.attempts is not None else row.attempts
        if move.drop_body or move.envelope is not None:
            if row.blob is not None:
                dropped[row.blob] += 1
            row.drops, row.envelope = move.drop_body, move.envelope
            row.blob = move.envelope.blob.name if move.envelope is not None and move.envelope.blob is not None else None
        if not move.holds and move.state is WorkState.SCHEDULED:
            row.turn = None
        row.wants_turn = move.holds and row.turn is None and row.key is not None

    def _seat(self, rows: Sequence[_Work]) -> None:
        """From the same numbers as new rows, so that what is written first in a transaction comes first in its key."""
        if rows:
            self._draw_seats(len(rows))
        for row in rows:
            row.turn, row.wants_turn = self._seats.pop(), False

    def _write_moves(self, rows: Sequence[_Work]) -> None:
        self._write(
            "move_work",
            bigints([row.seq for row in rows]),
            smallints([row.state for row in rows]),
            bigints([row.fence for row in rows]),
            bools([row.holds for row in rows]),
            bigints([row.turn for row in rows]),
            bigints([row.keep_until for row in rows]),
            bigints([row.due for row in rows]),
            texts([row.cause for row in rows]),
            ints([row.attempts for row in rows]),
            bools([row.drops for row in rows]),
        )

    def _write_bodies(self, rows: Sequence[_Work]) -> None:
        if rows:
            envelopes = _envelope_arrays([row.envelope for row in rows if row.envelope is not None])
            self._write("replace_bodies", bigints([row.seq for row in rows]), *envelopes)

    def _add_news(self, keys: Iterable[tuple[str, str]]) -> None:
        pairs = sorted(set(keys))
        if pairs:
            self._write("add_news", texts([queue for queue, _ in pairs]), texts([key for _, key in pairs]))

    def add_work(self, rows: Sequence[NewWork]) -> dict[tuple[str, str], Known]:
        """Numbered in the order given, inserted in the order of their identities, as every transaction does."""
        first = {row.pair: row for row in reversed(rows)}
        unique = [row for row in rows if first[row.pair] is row]
        self._draw_seats(len(unique))
        seats = {row.pair: self._seats.pop() for row in unique}
        answers: dict[tuple[str, str], Known] = {}
        while missing := sorted(seats.keys() - answers.keys()):
            answers |= self._add_or_find([first[pair] for pair in missing], [seats[pair] for pair in missing])
        self._add_news((row.queue, row.key) for row in unique if row.key is not None and row.holds)
        return answers

    def _add_or_find(self, rows: Sequence[NewWork], seats: Sequence[int]) -> dict[tuple[str, str], Known]:
        """A row whose identity was left of an earlier one could be inserted, and is taken back."""
        inserted, left = self._insert_work(rows, seats)
        added = [(row, seat) for row, seat in zip(rows, seats, strict=True) if row.pair in inserted]
        late = [seat for row, seat in added if row.pair in left]
        if late:
            self._write("take_back_work", bigints(late))
        new = [(row, seat) for row, seat in added if row.pair not in left]
        self._refuse_names_taken([row for row, _ in new], left)
        answers = {row.pair: Known(seat, True, row.queue, row.state, row.result) for row, seat in new}
        answers |= {row.pair: left[row.pair] for row in rows if row.pair in left}
        return answers | self._known_work([row for row in rows if row.pair not in answers])

    @staticmethod
    def _refuse_names_taken(rows: Sequence[NewWork], left: dict[tuple[str, str], Known]) -> None:
        taken = {(known.queue, identity) for (_, identity), known in left.items()}
        for row in rows:
            if (row.queue, row.identity) in taken:
                raise scope_refused(row.queue, row.identity)

    def _known_work(self, rows: Sequence[NewWork]) -> dict[tuple[str, str], Known]:
        """Answers for rows that could not be inserted. One that is gone by now is left out and may be inserted."""
        if not rows:
            return {}
        scopes, identities = texts([row.scope for row in rows]), texts([row.identity for row in rows])
        found = self._ask("known_work", scopes, identities)
        known = {
            (scope, identity): Known(seq, False, queue, WorkState(state), result)
            for scope, identity, seq, queue, state, result in found
        }
        self._refuse_other_scopes([row for row in rows if row.pair not in known])
        return known

    def _refuse_other_scopes(self, rows: Sequence[NewWork]) -> None:
        if not rows:
            return
        queues, scopes, identities = zip(*[(row.queue, row.scope, row.identity) for row in rows], strict=True)
        for queue, identity in self._ask("work_of_another_scope", texts(queues), texts(scopes), texts(identities)):
            raise scope_refused(queue, identity)

    def _draw_seats(self, count: int) -> None:
        if len(self._seats) < count:
            self._seats = self._draw("draw_seats", count)

    def _insert_work(
        self, rows: Sequence[NewWork], seats: Sequence[int]
    ) -> tuple[set[tuple[str, str]], dict[tuple[str, str], Known]]:
        """The pairs that could be inserted, and those of which an identity is left. The second question is a statement
        of its own: the first may have waited for the sweep that moved a row, and only the next one sees what it did."""
        self.wrote = True
        queues, scopes = texts([row.queue for row in rows]), texts([row.scope for row in rows])
        identities = texts([row.identity for row in rows])
        turns = [seat if row.holds and row.key is not None else None for row, seat in zip(rows, seats, strict=True)]
        new = (
            bigints(seats),
            queues,
            scopes,
            identities,
            texts([row.key for row in rows]),
            bigints(turns),
            smallints([row.state for row in rows]),
            bools([row.holds for row in rows]),
            bigints([row.due for row in rows]),
            bigints([row.keep_until for row in rows]),
            byteas([row.result for row in rows]),
            *_envelope_arrays([row.envelope for row in rows]),
        )
        names = {name for row in rows for name in (row.queue, row.scope)}
        look: Call = ("known_identities", (queues, scopes, identities))
        if len(names) == 1:
            look = ("known_in_queue", (rows[0].queue, identities))
        added, found = self._run(("add_work", new), look)
        inserted = {(scope, identity) for scope, identity in added.fetchall()}
        left = {
            (scope, identity): Known(seq, False, queue, WorkState.DONE, result)
            for scope, identity, seq, queue, result in found.fetchall()
        }
        self._check_view(sorted(inserted - left.keys()))
        return inserted, left

    def _check_view(self, pairs: Sequence[tuple[str, str]]) -> None:
        """A transaction with one view for all its statements does not see what a sweep has moved since it began."""
        if self._transaction.sees_all or self._look is None or not pairs:
            return
        [(is_moved,)] = self._look(
            "moved_meanwhile", texts([pair[0] for pair in pairs]), texts([pair[1] for pair in pairs])
        )
        if is_moved:
            raise StoreBusy(
                "an identity was moved by a sweep since the transaction began",
                fix="roll back and run the transaction again",
            )

    # -- claims

    def claim(self, claim: Claim, fence: int) -> list[WorkRow]:
        """Never waits for anybody: what another transaction holds is passed over."""
        found = self._claimable(claim)
        if not found:
            return []
        fence = self._fence_above(fence, [row.fence for row in found])
        due = self.now + int(claim.lease_s * 1_000_000)
        self._write("take_rows", bigints([row.seq for row in found]), fence, claim.owner, due)
        keys = sorted({row.key for row in found if row.key is not None})
        if keys and claim.identity is None:
            self._write("hold_keys", claim.queue, texts(keys), due)
        elif keys:
            self._add_news((claim.queue, key) for key in keys)
        return [claimed_row(row, fence, claim.owner, due) for row in found]

    def _claimable(self, claim: Claim) -> list[WorkRow]:
        rows_max = max(NEWS_ROWS, claim.limit)
        while True:
            more = self._read_news(claim.queue, rows_max)
            rows = self._pick_one(claim) if claim.identity is not None else self._pick(claim)
            if len(rows) >= claim.limit or not more:
                return rows

    def _read_news(self, queue: str, rows_max: int) -> bool:
        """Bring the keys that have news up to date. News of a key that another claim holds is left for later."""
        fronts = self._fronts.of(queue)
        waiting, begin = fronts.waiting.begin(), fronts.news.begin()
        calls = [("give_turns", (queue, self.now, waiting)), ("read_news", (queue, rows_max, begin))]
        # a user's own queries are not ours to plan
        *_, turns, found = self._run(*([("by_index", ())] if self._is_ours else []), *calls)
        self._note_turns(fronts.waiting, waiting, turns.fetchall()[0])
        took, news = _timed(found.fetchall())
        fronts.news.looked(begin, news[0][0] if news else fronts.news.start, took)
        if not news:
            return False
        names = texts(sorted({key for _, key in news}))
        self._write("add_keys", queue, names)
        locked = {key for (key,) in self._ask("lock_keys", queue, names)}
        if locked:
            self._refresh(queue, sorted(locked))
            self._write("drop_news", bigints([seq for seq, key in news if key in locked]))
        return len(news) == rows_max and bool(locked)

    def _note_turns(self, front: Front, begin: int, answer: Row) -> None:
        took, count, is_mine = answer
        self.wrote = self.wrote or count > 0
        if is_mine:
            front.looked(begin, self.now, took)

    def _refresh(self, queue: str, keys: Sequence[str]) -> None:
        self._write("refresh_keys", queue, texts(keys))
        self._write("drop_keys", queue, texts(keys))

    def _pick(self, claim: Claim) -> list[WorkRow]:
        groups = self._pick_by_key(claim)
        if claim.key is None:
            groups += [[row] for row in self._pick_rows(claim)]
        groups.sort(key=lambda group: (group[0].due, group[0].seq))
        return [row for group in groups for row in group][: claim.limit]

    def _pick_rows(self, claim: Claim) -> list[WorkRow]:
        front = self._fronts.of(claim.queue).rows
        begin = front.begin()
        took, found = _timed(self._ask("pick_rows", claim.queue, self.now, claim.limit, begin), keep=True)
        rows = [work_row_of(row) for row in found]
        front.looked(begin, rows[0].due if rows else self.now, took)
        return rows

    def _pick_by_key(self, claim: Claim) -> list[list[WorkRow]]:
        """A key may look due and not be: its lease was renewed, or its first row is just being finished."""
        groups: list[list[WorkRow]] = []
        tried: list[str] = []
        while (wanted := claim.limit - sum(map(len, groups))) > 0:
            keys = self._pick_keys(claim, tried, wanted)
            if not keys:
                break
            heads = self._heads_of(claim.queue, keys, claim.per_key, wanted)
            groups += [heads[key] for key in keys if heads[key]]
            if sum(map(len, heads.values())) < wanted:
                # all of them were looked at
                idle = sorted(key for key in keys if not heads[key])
                if idle:
                    self._refresh(claim.queue, idle)
            tried += keys
            if len(keys) < wanted:
                break
        return groups

    def _pick_keys(self, claim: Claim, tried: Sequence[str], wanted: int) -> list[str]:
        """Only the first look at all keys says where they begin."""
        front = self._fronts.of(claim.queue).keys
        begin = front.begin() if claim.key is None else LOWEST
        took, found = _timed(
            self._ask("pick_keys", claim.queue, self.now, claim.key, texts(tried), wanted, begin)
        )  # fmt: skip
        if claim.key is None and not tried:
            front.looked(begin, found[0][1] if found else self.now, took)
        return [key for key, _ in found]

    def _heads_of(self, queue: str, keys: Sequence[str], per_key: int, wanted: int) -> dict[str, list[WorkRow]]:
        """The first rows of each key, as far as all of them are due and nobody else has them, and not many more in all
        than are wanted."""
        heads: dict[str, list[WorkRow]] = {key: [] for key in keys}
        one_each = ("pick_heads", (queue, texts(keys), 1))
        [picked] = self._run(one_each if per_key == 1 else ("pick_groups", (queue, texts(keys), per_key, wanted)))
        for row in sorted(picked.fetchall(), key=lambda row: row[0]):
            place, holds = row[:2]
            found = work_row_of(row)
            group = heads[found.key or ""]
            if len(group) == place - 1 and holds and self._is_due(found):
                group.append(found)
        return heads

    def _is_due(self, row: WorkRow) -> bool:
        return row.state <= WorkState.CLAIMED and row.due <= self.now

    def _pick_one(self, claim: Claim) -> list[WorkRow]:
        found = [work_row_of(row) for row in self._ask("pick_one", claim.queue, claim.identity)]
        if not found or is_found_aside(claim, found[0].state):
            return found
        if not self._is_due(found[0]):
            return []
        return found if found[0].key is None or self._is_first(found[0], found[0].key) else []

    def _is_first(self, row: WorkRow, key: str) -> bool:
        if not _timed(self._ask("pick_keys", row.queue, self.now, key, texts([]), 1, LOWEST))[1]:
            return False
        return [head.seq for head in self._heads_of(row.queue, [key], 1, 1)[key]] == [row.seq]

    # -- states, cursors, bodies

    def put_states(self, rows: Sequence[tuple[str, bytes | None, int]]) -> None:
        """A deleted state stays as an empty value under a negative version, and goes on counting until it is swept."""
        last = {key: (key, value or b"", version, self.now if value is None else None) for key, value, version in rows}
        kept = [last[key] for key in sorted(last)]
        self._upsert("states", [row for row in kept if row[0] in self._states], _state_arrays, exists=True)
        self._upsert("states", [row for row in kept if row[0] not in self._states], _state_arrays, exists=False)

    def put_cursors(self, rows: Sequence[tuple[str, Position, bool]]) -> None:
        kept = sorted({name: (name, position, pins) for name, position, pins in rows}.values(), key=lambda row: row[0])
        self._upsert("cursors", [row for row in kept if row[0] in self._cursors], _cursor_arrays, exists=True)
        self._upsert("cursors", [row for row in kept if row[0] not in self._cursors], _cursor_arrays, exists=False)

    def _upsert(self, what: str, rows: Sequence[Any], arrays: Any, *, exists: bool) -> None:
        """A row that was not there could not be locked. If it is there now, every decision was made on an old view."""
        if not rows:
            return
        change, add = ("change_states", "add_states") if what == "states" else ("move_cursors", "add_cursors")
        if exists:
            self._write(change, *arrays(rows))
            return
        self.wrote = True
        if len(self._ask(add, *arrays(rows))) < len(rows):
            raise TryAgain(what)

    def put_chunks(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        names = texts(sorted({name for name, _, _ in rows}))
        self._write("add_blobs", names, self.now)
        for name, refs in self._ask("lock_blobs", names):
            if refs > 0:
                raise StoreRefused(f"blob {name!r} is complete and takes no more parts", fix="use a new name")
        blobs, parts, chunks = zip(*rows, strict=True)
        self._write("add_chunks", texts(blobs), ints(parts), byteas(chunks))

    def name_blobs(self, names: Sequence[tuple[str, int]]) -> None:
        counts = Counter(name for name, _ in names)
        all_names = texts(sorted(counts))
        locked, summed = self._run(("lock_blobs", (all_names,)), ("blob_sizes", (all_names,)))
        sizes: dict[str, int] = dict(summed.fetchall())
        stored = {name: sizes.get(name, 0) for name, _ in locked.fetchall()}
        for name, size in names:
            if stored.get(name) != size:
                raise blob_refused(name, size, stored.get(name))
        self._write("refer_blobs", *_count_arrays(counts))

    def _forget_blobs(self, counts: Counter[str]) -> None:
        if counts:
            self._write("forget_blobs", *_count_arrays(counts), self.now)

    # -- records and ledger

    def known(self, stream: str, identities: Sequence[str]) -> dict[str, tuple[Position, bytes | None]]:
        found = ((identity, self._known.get((stream, identity))) for identity in identities)
        return {identity: (Position(stream, self.epoch, known[0]), known[1]) for identity, known in found if known}

    def add_records(self, rows: Sequence[NewRecord]) -> None:
        if not rows:
            return
        streams = [self._streams[row.stream] for row in rows]
        digests = [row.digest for row in rows]
        has_digests = any(digests)
        self._write(
            "add_records_with_digests" if has_digests else "add_records",
            self.epoch,
            self.now,
            ints([stream.id for stream in streams]),
            bigints([row.offset for row in rows]),
            bigints([stream.xid for stream in streams]),
            smallints([row.kind for row in rows]),
            texts([row.target for row in rows]),
            texts([row.identity for row in rows]),
            *_envelope_arrays([row.envelope for row in rows]),
            *([byteas(digests)] if has_digests else []),
        )

    def set_heads(self, heads: dict[str, int]) -> None:
        moved = [(self._streams[name], head) for name, head in heads.items() if head != self._streams[name].head]
        if moved:
            self._write(
                "set_heads",
                ints([stream.id for stream, _ in moved]),
                bigints([head for _, head in moved]),
                bigints([stream.xid for stream, _ in moved]),
            )

    def trim(self, stream: str, before: int) -> int:
        exported = self.exported("export/index")
        if exported is not None:
            before = self._first_unexported(stream, before, exported)
        self.wrote = True
        rows = self._ask("trim", stream, before)
        return int(rows[0][0]) if rows else 1

    def _first_unexported(self, stream: str, before: int, exported: Mark) -> int:
        rows = self._ask("read_first", stream)
        first = rows[0][0] if rows else 1
        [(offset,)] = self._ask("first_unexported", stream, first, before, exported.xid, exported.seq)
        return before if offset is None else int(offset)

    def exported(self, key: str) -> Mark | None:
        rows = self._ask("exported", key)
        return exported_mark(State(*rows[0])) if rows else None

    def add_ledger(self, events: Sequence[Event]) -> None:
        self._write("add_ledger", self._transaction.xid_base, self.now, self.node, *_ledger_arrays(events))


def _needs(units: Sequence[Unit]) -> tuple[int, int, tuple[list[str], list[str]]]:
    """How many seats and fences the units will draw, and the (stream, identity) pairs that they will look up."""
    seats = fences = 0
    streams: list[str] = []
    identities: list[str] = []
    for unit in units:
        for op in unit.ops:
            if isinstance(op, Append):
                if op.identity is not None:
                    streams.append(op.stream)
                    identities.append(op.identity)
            elif isinstance(op, Enqueue):
                seats += 1
                fences += op.replace
            elif isinstance(op, Remember):
                seats += 1
            elif isinstance(op, Claim):
                fences += 1
    return seats, fences, (streams, identities)


def _timed(rows: Sequence[Row], *, keep: bool = False) -> tuple[int, list[Row]]:
    """How long it took, and what was found: rows that have the time before them, unless they `keep` it."""
    found = [row for row in rows if row[1] is not None]
    return rows[0][0], found if keep else [row[1:] for row in found]


def _envelope_arrays(envelopes: Sequence[Envelope]) -> list[Array]:
    id, source, type, subject, time, session, index, content, headers, data, blob, size = zip(
        *[envelope_row(envelope) for envelope in envelopes], strict=True
    )
    return [
        texts(id), texts(source), texts(type), texts(subject), bigints(time), texts(session), bigints(index),
        texts(content), texts(headers), byteas(data), texts(blob), bigints(size),
    ]  # fmt: skip


def _state_arrays(rows: Sequence[tuple[str, bytes, int, int | None]]) -> list[Array]:
    keys, values, versions, deleted = zip(*rows, strict=True)
    return [texts(keys), byteas(values), bigints(versions), bigints(deleted)]


def _cursor_arrays(rows: Sequence[tuple[str, Position, bool]]) -> list[Array]:
    names, positions, pins = zip(*rows, strict=True)
    return [
        texts(names),
        texts([position.stream for position in positions]),
        ints([position.epoch for position in positions]),
        bigints([position.offset for position in positions]),
        bools(pins),
    ]


def _count_arrays(counts: Counter[str]) -> list[Array]:
    names = sorted(counts)
    return [texts(names), ints([counts[name] for name in names])]


def _ledger_arrays(events: Sequence[Event]) -> list[Array]:
    return [
        texts([event.pipeline for event in events]),
        texts([event.hop for event in events]),
        smallints([event.kind for event in events]),
        texts([event.message for event in events]),
        texts([event.delivery for event in events]),
        texts([event.session or event.message for event in events]),
        bigints([event.idx for event in events]),
        texts([event.peer for event in events]),
        texts([event.stream for event in events]),
        ints([event.epoch for event in events]),
        bigints([event.first for event in events]),
        bigints([event.last for event in events]),
        ints([event.n for event in events]),
        bigints([event.fold for event in events]),
        ints([event.attempt for event in events]),
        texts([event.cause for event in events]),
        texts([event.trace for event in events]),
    ]


def work_row_of(row: Row) -> WorkRow:
    _, _, seq, queue, identity, key, state, due, attempts, fence, owner, cause, *envelope = row
    return WorkRow(
        queue, identity, key, seq, WorkState(state), due, attempts, fence, owner, envelope_of(envelope), cause
    )


def record_of(stream: str, epoch: int, row: Row) -> Record:
    offset, identity, kind, target, at, *envelope = row
    return Record(Position(stream, epoch, offset), envelope_of(envelope), at, kind, target, identity)


def entry_of(row: Row) -> Entry:
    xid, seq, at, node, pipeline, hop, kind, *rest = row
    return Entry(Mark(xid, seq), at, node, Event(Kind(kind), hop, pipeline, *rest))


def index_entry_of(row: Row) -> IndexEntry:
    xid, seq, stream, epoch, offset, identity, kind, target, at, size, *attributes = row
    envelope = envelope_of((*attributes, None, None, size))
    record = Record(Position(stream, epoch, offset), envelope, at, kind, target, identity)
    return IndexEntry(Mark(xid, seq), record, size)
