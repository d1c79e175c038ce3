"""Semel's part of a user's transaction on PostgreSQL as one statement, for any driver.

What a handler does at its end (finish its row, tell the ledger, enqueue what it sends, remember what it has handled) is
SQL text with plain values. Nothing here talks to a server: `bound_steps` is a generator that asks for one query after
the other, and whoever has a connection answers with the rows. Nearly always there is a single one, and after new rows a
small second one: a sweep may have moved a row of the same identity while the first one ran.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any

import msgspec

from semel.errors import (
    InputError,
    LocalProtocolError,
    NotAStore,
    SemelError,
    StaleFence,
    StoreBusy,
    StoreRefused,
    WrongIsolation,
)
from semel.kernel.ledger import Event
from semel.kernel.ops import Advanced, Duplicate, Enqueue, Finish, Fresh, Log, Op, Remember, Result, WorkState
from semel.kernel.position import Position
from semel.stores.apply import events_of, fill_event, work_envelope
from semel.stores.checks import COUNT_MAX, check_result, check_units
from semel.stores.postgres_connection import FIX_DATA, Row, redact, translate_state
from semel.stores.queries import load_queries
from semel.stores.rows import ENVELOPE_COLUMNS, envelope_row
from semel.stores.shared import check_bound, scope_refused, stale_bound

PARTS = load_queries("postgres_bound.sql")
TRIES_MAX = 20
DURABLE = frozenset({"on", "remote_apply"})
DONE_FIELDS = ("queue", "identity", "fence", "keep")
ONE_EVENT_FIELDS = (
    "pipeline", "hop", "kind", "message", "delivery", "session", "idx", "peer", "n", "attempt", "cause", "trace",
)  # fmt: skip
_ONE_EVENT = frozenset(ONE_EVENT_FIELDS)
_SIMPLY_DONE = {
    "state": int(WorkState.DONE), "due": None, "delay": None, "cause": None, "passes": False, "attempts": 0,
}  # fmt: skip

_encode = msgspec.json.Encoder().encode
_DONE = Advanced()
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_PARAM = re.compile(r"\$([a-z]+)")
_VIEW = "current_setting('transaction_isolation') = 'read committed'"

_Work = Enqueue | Remember


# -- the text


class Finishes(IntEnum):
    """How a statement finishes rows. ONE is shorter, and leaves a row with a body in chunks alone. DONE is shorter yet,
    for a row that is done with, as nearly every message ends."""

    NONE = 0
    ONE = 1
    MANY = 2
    DONE = 3


class LedgerWrites(IntEnum):
    """How a statement writes to the ledger. ONE is an event about one message, and hangs on no verdict over a row."""

    NONE = 0
    ONE = 1
    MANY = 2


_SINGLE = (Finishes.ONE, Finishes.DONE)
_FINISHED = {
    Finishes.NONE: (),
    Finishes.ONE: ("finished_one",),
    Finishes.MANY: ("finished_many", "forgotten"),
    Finishes.DONE: ("finished_done",),
}


class _Shape(msgspec.Struct, frozen=True):
    """Which parts a statement has. There are few shapes, so a server that keeps prepared statements keeps few."""

    finishes: Finishes
    events: LedgerWrites
    work: bool
    waits: bool

    @property
    def gate(self) -> str:
        """Where it is said whether anything stands against the call, before its first write."""
        return "may" if self.work or self.finishes is Finishes.MANY else "store"

    @property
    def gated(self) -> str:
        return "store s, may m" if self.gate == "may" else "store s, LATERAL (SELECT s.ok) m"

    @property
    def verdict(self) -> str:
        """Where it is said whether it happens. That one row is another's shows only when it is to be changed."""
        return "(SELECT true AS ok FROM finished)" if self.finishes in _SINGLE else self.gate


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """One statement, with values that every driver can bind: texts and bytes. `shape` is what it is joined from, or the
    name of one that is whole."""

    shape: _Shape | str
    values: Mapping[str, Any]

    def numbered(self) -> tuple[str, list[Any]]:
        """With $1 and $2, as the server knows them."""
        text, _, names = _numbered(self.shape)
        return text, [self.values[name] for name in names]

    def encoded(self) -> tuple[bytes, list[Any]]:
        """The same, for a driver that would encode it each time."""
        _, text, names = _numbered(self.shape)
        return text, [self.values[name] for name in names]

    def named(self) -> tuple[str, dict[str, Any]]:
        """With %(name)s, as drivers that follow the DB-API know them."""
        return _named(self.shape), dict(self.values)


@lru_cache
def _numbered(shape: _Shape | str) -> tuple[str, bytes, tuple[str, ...]]:
    text, names = _with_numbers(_text(shape))
    return text, text.encode(), names


def _with_numbers(text: str) -> tuple[str, tuple[str, ...]]:
    names = tuple(dict.fromkeys(_PARAM.findall(text)))
    return _PARAM.sub(lambda found: f"${names.index(found[1]) + 1}", text), names


@lru_cache
def _named(shape: _Shape | str) -> str:
    return _PARAM.sub(r"%(\1)s", _text(shape))


def _text(shape: _Shape | str) -> str:
    if isinstance(shape, str):
        return _COMMENT.sub("", PARTS[shape])
    parts = "".join(f"{part},\n" for part in _parts(shape)).removesuffix(",\n")
    text = f"WITH {parts}\n{_answer(shape)}"
    for name, value in _places(shape).items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _places(shape: _Shape) -> dict[str, str]:
    return {
        "condition": PARTS["condition"] if shape.work else "true",
        "view": _VIEW if shape.work else "true",
        "gated": shape.gated,
        "verdict": shape.verdict,
    }


def _parts(shape: _Shape) -> Iterator[str]:
    names = ["store"]
    if shape.finishes is Finishes.MANY:
        names += ["held"]
    if shape.work:
        names += ["given"]
    yield from (_COMMENT.sub("", PARTS[name]) for name in names)
    if shape.gate == "may":
        yield _may(shape)
    names = list(_FINISHED[shape.finishes])
    if shape.work:
        names += ["added", "answered"]
    if shape.events:
        names += ["written_one" if shape.events is LedgerWrites.ONE else "written"]
    yield from (_COMMENT.sub("", PARTS[name]) for name in names)
    if shape.finishes or shape.work:
        yield _news(shape)


def _may(shape: _Shape) -> str:
    fits = "SELECT bool_and(fits) AS ok FROM held" if shape.finishes is Finishes.MANY else "SELECT true AS ok"
    locks = "SELECT true AS ok" if shape.waits else _COMMENT.sub("", PARTS["try_locks"])
    taken = "SELECT min(n) FILTER (WHERE taken) AS n FROM given" if shape.work else "SELECT NULL::integer AS n"
    return f"""may AS MATERIALIZED (
    SELECT s.ok AND f.ok AND l.ok AND t.n IS NULL AS ok, l.ok AS locked, t.n AS taken
    FROM store s, ({fits}) f, ({locks}) l, ({taken}) t
)"""


def _news(shape: _Shape) -> str:
    finished = "SELECT queue, key FROM finished WHERE key IS NOT NULL" if shape.finishes else ""
    added = "SELECT queue, key FROM added WHERE key IS NOT NULL AND holds" if shape.work else ""
    distinct = " UNION ".join(part for part in (finished, added) if part)
    return f"news AS (INSERT INTO semel_work_news (queue, key) {distinct})"


def _answer(shape: _Shape) -> str:
    locked, taken = ("m.locked", "m.taken") if shape.gate == "may" else ("true", "NULL::integer")
    nothing = "NULL::integer, NULL::bigint, NULL::text, NULL::boolean, NULL::smallint, NULL::bytea"
    answers = "a.n, a.seq, a.queue, a.fresh, a.state, a.result" if shape.work else nothing
    joins = (
        f"{' CROSS JOIN may m' if shape.gate == 'may' else ''}{' LEFT JOIN answered a ON true' if shape.work else ''}"
    )
    return f"""SELECT s.store_id, s.sync, s.view, s.epoch, {locked}, {taken}, (SELECT ok FROM {{verdict}} v), {answers}
FROM store s{joins}"""


def _done_or_fail() -> tuple[bytes, tuple[str, ...]]:
    """A division by zero when it has not done it."""
    shape = _Shape(Finishes.DONE, LedgerWrites.ONE, work=False, waits=True)
    text = _text(shape).removesuffix(_answer(shape).format(verdict=shape.verdict)) + "SELECT 1 / count(*) FROM finished"
    text, names = _with_numbers(text)
    return text.encode(), names


DONE_OR_FAIL, _DONE_NAMES = _done_or_fail()
"""For a server that is asked in the simple protocol; `done_values` are its values, in this order."""


# -- the values


def is_plain(ops: Sequence[Op]) -> bool:
    """Whether one statement can do it. The rest goes the general way."""
    if not all(_is_plain(op) for op in ops):
        return False
    rows = [(op.queue, op.identity) for op in ops if isinstance(op, Finish)]
    work = {(op.queue, op.identity, op.scope or op.queue) for op in ops if isinstance(op, _Work)}
    return len(set(rows)) == len(rows) and len({row[:2] for row in work}) == len(work)


def _is_plain(op: Op) -> bool:
    match op:
        case Finish():
            if op.fence is None:
                return op.to is WorkState.DONE and op.was is None
            return op.to is not WorkState.CLAIMED
        case Log():
            return op.guard is None and _fits(op.event)
        case Enqueue():
            return not op.replace and op.envelope.blob is None and _is_simple(op)
        case Remember():
            return _is_simple(op)
        case _:
            return False


def _is_simple(op: _Work) -> bool:
    return op.guard is None and all(map(_fits, (*events_of(op.on_fresh), *events_of(op.on_duplicate))))


def _fits(event: Event) -> bool:
    return event.epoch is None or event.epoch <= COUNT_MAX


def _json(value: Any) -> str:
    try:
        return _encode(value).decode()
    except UnicodeEncodeError as error:
        raise StoreRefused(f"not well-formed Unicode: {error}", fix=FIX_DATA) from None


def _finish_row(op: Finish) -> dict[str, Any]:
    """As `apply` decides it: a retry keeps its key unless it passes, a row put aside only when asked to."""
    has_ended = op.to in (WorkState.DONE, WorkState.DEAD)
    return {
        "queue": op.queue,
        "identity": op.identity,
        "fence": op.fence,
        "state": int(op.to),
        "due": op.due,
        "delay": None if op.delay_s is None else int(op.delay_s * 1_000_000),
        "keep": int(op.keep_s * 1_000_000) if has_ended and op.keep_s is not None else None,
        "holds": op.to in (WorkState.READY, WorkState.SCHEDULED) or (op.holds and op.to is not WorkState.DONE),
        "cause": op.cause,
        "passes": op.passes and not op.holds,
        "attempts": int(op.attempts),
    }


def _form(rows: Sequence[Mapping[str, Any]]) -> Finishes:
    if len(rows) != 1:
        return Finishes.MANY if rows else Finishes.NONE
    return Finishes.DONE if _SIMPLY_DONE.items() <= rows[0].items() else Finishes.ONE


def _single(form: Finishes, row: Mapping[str, Any]) -> dict[str, str | None]:
    return _texts({name: row[name] for name in DONE_FIELDS} if form is Finishes.DONE else row)


def _written(events: Sequence[Mapping[str, Any]]) -> LedgerWrites:
    if len(events) != 1:
        return LedgerWrites.MANY if events else LedgerWrites.NONE
    return LedgerWrites.ONE if events[0].keys() <= _ONE_EVENT else LedgerWrites.MANY


def _texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    texts = {name: value if value is None or type(value) is str else str(value) for name, value in row.items()}
    if not all(text is None or text.isascii() for text in texts.values()):
        _json(texts)  # refuses what no driver could encode
    return texts


def _work_rows(work: Mapping[int, _Work]) -> list[dict[str, Any]]:
    """The bodies and results travel as one value; each row says where its own begins."""
    rows: list[dict[str, Any]] = []
    start = 1
    for n, op in work.items():
        rows.append({"n": n, **_name_of(op), **_plan_of(op), "start": start, **_attributes_of(op)})
        start += len(_bytes_of(op))
    return rows


def _name_of(op: _Work) -> dict[str, str]:
    return {"queue": op.queue, "scope": op.scope or op.queue, "identity": op.identity}


def _plan_of(op: _Work) -> dict[str, Any]:
    if isinstance(op, Enqueue):
        return {"key": op.key, "due": op.due}
    return {"keep": int(op.keep_s * 1_000_000), "kept": len(op.result)}


def _attributes_of(op: _Work) -> dict[str, Any]:
    row = dict(zip(ENVELOPE_COLUMNS, envelope_row(work_envelope(op)), strict=True))
    del row["data"], row["blob"]
    return row


def _bytes_of(op: _Work) -> bytes:
    return op.envelope.data if isinstance(op, Enqueue) else op.result


def _event_row(event: Event) -> dict[str, Any]:
    row = {name: value for name, value in msgspec.structs.asdict(event).items() if value is not None}
    row["session"] = event.session or event.message
    return row


def keep_result_query(scope: str, identity: str, result: bytes) -> BoundQuery:
    return BoundQuery("keep_result", {"scope": scope, "identity": identity, "result": check_result(result)})


# -- the steps


@dataclass(frozen=True, slots=True)
class _Answer:
    position: Position
    is_fresh: bool
    state: WorkState
    result: bytes | None


@dataclass(slots=True)
class _Call:
    """The ops of one call and what is known of them. `work` are the rows to be without an answer, by their place among
    the ops; `copies` repeat an earlier one of the same call."""

    ops: Sequence[Op]
    store_id: str
    node: str
    wait: bool
    work: dict[int, _Work] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    answers: dict[int, _Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        firsts: dict[tuple[str, str], int] = {}
        for at, op in enumerate(self.ops):
            if isinstance(op, _Work):
                first = firsts.setdefault((op.scope or op.queue, op.identity), at)
                if first == at:
                    self.work[at] = op
                else:
                    self.copies[at] = first

    @property
    def finishes(self) -> list[Finish]:
        return sorted([op for op in self.ops if isinstance(op, Finish)], key=lambda op: (op.queue, op.identity))

    def query(self, *, at_length: bool = False) -> BoundQuery:
        """`at_length` is for a single row that the shorter statement has not found."""
        rows = [_finish_row(op) for op in self.finishes]
        logs = [_event_row(op.event) for op in self.ops if isinstance(op, Log)]
        form = Finishes.MANY if at_length else _form(rows)
        return self._query(form, rows, [*logs, *self._verdict_events({**self.work, **self._copied})])

    def query_again(self) -> BoundQuery:
        """About the rows that have no answer yet."""
        return self._query(Finishes.NONE, [], self._verdict_events(self.work))

    def query_moved(self) -> BoundQuery | None:
        """About the rows that were inserted, in a later view."""
        fresh = [_name_of(op) for at, op in self._named if (known := self.answers.get(at)) and known.is_fresh]
        return BoundQuery("moved", {"fresh": _json(fresh)}) if fresh else None

    @property
    def _named(self) -> list[tuple[int, _Work]]:
        return [(at, op) for at, op in enumerate(self.ops) if isinstance(op, _Work)]

    def _query(self, form: Finishes, finishes: Sequence[Any], events: Sequence[Any]) -> BoundQuery:
        values: dict[str, Any] = {"store": self.store_id}
        if finishes:
            values |= _single(form, finishes[0]) if form in _SINGLE else {"finishes": _json(finishes)}
        written = _written(events)
        if written is LedgerWrites.ONE:
            values |= {"node": self.node, **_texts({f"e{name}": events[0].get(name) for name in ONE_EVENT_FIELDS})}
        elif events:
            values |= {"events": _json(events), "node": self.node}
        if self.work:
            values["bodies"] = b"".join(map(_bytes_of, self.work.values()))
            values["work"] = _json(_work_rows(self.work))
        return BoundQuery(_Shape(form, written, bool(self.work), self.wait or not self.work), values)

    @property
    def _copied(self) -> dict[int, _Work]:
        return {at: op for at, op in self._named if at in self.copies}

    def _verdict_events(self, work: Mapping[int, _Work]) -> list[dict[str, Any]]:
        """In the order of the ops. That a copy is a duplicate is known beforehand."""
        rows: list[dict[str, Any]] = []
        for at in sorted(work):
            op, is_copy = work[at], at in self.copies
            envelope = work_envelope(op)
            fresh = () if is_copy else events_of(op.on_fresh)
            again = {} if is_copy else {"of": at, "fresh": False}
            rows += [{"of": at, "fresh": True, **_event_row(fill_event(event, envelope))} for event in fresh]
            rows += [{**again, **_event_row(fill_event(event, envelope))} for event in events_of(op.on_duplicate)]
        return rows

    def take(self, rows: Sequence[Row]) -> None:
        """Raises when the statement has done nothing."""
        if not rows:
            raise NotAStore("the table semel_store is empty", fix="create the tables: semel store init <url>")
        store_id, sync, sees_all, epoch, is_locked, taken, is_ok, *_ = rows[0]
        check_same_store(store_id, self.store_id)
        check_durable(sync)
        check_view(sees_all)
        if taken is not None:
            raise scope_refused(self.work[taken].queue, self.work[taken].identity)
        if not is_locked:
            raise StoreBusy(
                "another transaction that is still open has the same identity",
                fix="try again when it has ended; this transaction may go on",
            )
        if not is_ok:
            raise stale_bound()
        for *_, n, seq, queue, is_fresh, state, result in rows:
            if n is not None:
                # a driver may have views in place of bytes
                kept = bytes(result) if result is not None else None
                self.answers[n] = _Answer(Position(queue, epoch, seq), is_fresh, WorkState(state), kept)
                del self.work[n]

    def results(self) -> tuple[Result, ...]:
        return tuple(self._result(at, op) for at, op in enumerate(self.ops))

    def _result(self, at: int, op: Op) -> Result:
        if not isinstance(op, _Work):
            return _DONE
        known = self.answers[self.copies.get(at, at)]
        if known.is_fresh and at not in self.copies:
            return Fresh(known.position)
        return Duplicate(known.position, state=self._state_after(op, known), result=known.result)

    def _state_after(self, op: _Work, known: _Answer) -> WorkState:
        """The statement sees a row as it was before; what it finished itself is known here."""
        name = (known.position.stream, op.identity)
        return next((finish.to for finish in self.finishes if (finish.queue, finish.identity) == name), known.state)


def done_values(ops: Sequence[Op], store_id: str, node: str) -> list[str | None] | None:
    """For `DONE_OR_FAIL`, if that is what these ops come to: one row that is simply done, and one event."""
    match ops:
        case (Finish() as finish, Log() as log) if _is_plain(finish) and _is_plain(log):
            row, event = _finish_row(finish), _event_row(log.event)
        case _:
            return None
    if finish.fence is None or _form([row]) is not Finishes.DONE or _written([event]) is not LedgerWrites.ONE:
        return None
    values = _done_texts(row, event, store_id, node)
    return [values[name] for name in _DONE_NAMES]


def _done_texts(row: Mapping[str, Any], event: Mapping[str, Any], store_id: str, node: str) -> dict[str, str | None]:
    event = {f"e{name}": event.get(name) for name in ONE_EVENT_FIELDS}
    return {"store": store_id, "node": node, **_single(Finishes.DONE, row), **_texts(event)}


BoundSteps = Generator[BoundQuery, Sequence[Row], tuple[Result, ...]]


def bound_steps(
    ops: Sequence[Op], store_id: str, node: str, *, wait: bool = True, plain: bool | None = None
) -> BoundSteps:
    """Asks for queries until the call is done; the server's errors are thrown in. A row that another transaction
    committed at this moment shows only in the next view: then it is asked for again. `plain` is what `is_plain` has
    said already."""
    check_units([check_bound(ops)])
    if not (is_plain(ops) if plain is None else plain):
        raise LocalProtocolError(
            "one statement can finish with a fence, end what is unclaimed, log, remember, and enqueue without replace,"
            " guard and blob",
            fix="bind a psycopg.Connection for the rest, and let it wait",
        )
    if not ops:
        return ()
    call = _Call(ops, store_id, node, wait)
    try:
        call.take((yield call.query()))
    except StaleFence:
        if len(call.finishes) != 1:
            raise
        call.take((yield call.query(at_length=True)))
    for _ in range(TRIES_MAX):
        if not call.work:
            yield from _check_moved(call)
            return call.results()
        rows = yield call.query_again()
        try:
            call.take(rows)
        except SemelError:
            yield from _spoil()
            raise
    yield from _spoil()
    raise StoreBusy("others change the same rows all the time", fix="roll back and run the transaction again")


def _check_moved(call: _Call) -> Generator[BoundQuery, Sequence[Row], None]:
    """Somebody finished a row of the same identity and a sweep moved it, all since the statement began: very rare."""
    query = call.query_moved()
    if query is not None and (yield query):
        yield from _spoil()
        raise StoreBusy(
            "an identity was moved by a sweep at this moment", fix="roll back and run the transaction again"
        )


def _spoil() -> Generator[BoundQuery, Sequence[Row], None]:
    """A part of the call has happened, and there is no savepoint: the user's transaction must not be committed."""
    with suppress(SemelError):
        yield BoundQuery("spoil", {})


def run_steps(steps: BoundSteps, ask: Callable[[BoundQuery], Sequence[Row]]) -> tuple[Result, ...]:
    """`ask` runs a query on the user's connection, and raises in our words."""
    try:
        query = next(steps)
        while True:
            try:
                rows = ask(query)
            except SemelError as error:
                query = steps.throw(error)
            else:
                query = steps.send(rows)
    except StopIteration as end:
        results: tuple[Result, ...] = end.value
        return results


async def run_steps_async(
    steps: BoundSteps, ask: Callable[[BoundQuery], Awaitable[Sequence[Row]]]
) -> tuple[Result, ...]:
    try:
        query = next(steps)
        while True:
            try:
                rows = await ask(query)
            except SemelError as error:
                query = steps.throw(error)
            else:
                query = steps.send(rows)
    except StopIteration as end:
        results: tuple[Result, ...] = end.value
        return results


def check_same_store(found: str, store_id: str) -> None:
    if found != store_id:
        raise InputError(
            "the connection leads to another store", fix="open the store and the connection on the same database"
        )


def check_durable(sync: str) -> None:
    if sync not in DURABLE:
        raise InputError(
            f"synchronous_commit is {sync} in this transaction: a commit that was answered could be lost",
            fix="SET LOCAL synchronous_commit = on, or take that setting out of the connection",
        )


def check_view(sees_all: bool) -> None:
    if not sees_all:
        raise WrongIsolation(
            "the transaction does not see what others commit meanwhile, so an identity could be taken for new",
            fix="use the isolation level READ COMMITTED, or bind a psycopg.Connection and let it wait",
        )


# -- errors


@contextmanager
def bound_errors(url: str, *kinds: type[Exception]) -> Iterator[None]:
    """The errors of any driver in our words. `kinds` are those that mean the server or the way to it."""
    try:
        yield
    except kinds as error:
        raise translate_bound(url, error) from error


def translate_bound(url: str, error: Exception) -> SemelError:
    state = sqlstate_of(error)
    text = redact(" ".join(str(error).split()))
    if state.startswith("40"):
        return StoreBusy(
            f"another transaction has changed the same rows: {text}",
            fix="roll back and run the transaction again; under READ COMMITTED it happens least",
        )
    if state == "42P01":
        return NotAStore(
            f"the connection leads to a database without Semel's tables: {text}",
            fix="open the store and the connection on the same database, in the same schema",
        )
    return translate_state(url, state, text)


def sqlstate_of(error: BaseException) -> str:
    """Frameworks wrap the error of the driver, and drivers call the code by different names."""
    for each in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if code:
            return str(code)
    return ""
