"""What a batch of rows does to the store: pure, from rows to ops.

    a row that passes under its own id       a record of spark/<pipeline>; accepted and forwarded
    an output of another id                  a record of spark/<pipeline>; its input has a receipt, once
    handled, with nothing to pass on         a receipt
    dead                                     a record of dead/<stream>, with its cause
    duplicate, rejected, skipped             an event, and nothing else

The ledger tells of consecutive records in one row. A range has to be exact, so each run of records that came by the
same hop has a template of its own, told apart by its `delivery`: query / batch / run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec

from semel.errors import InputError, LimitExceeded, StoreError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob, Envelope
from semel.kernel.ledger import Event, Kind, message_event
from semel.kernel.ops import Append, Log, Op
from semel.kernel.position import Position
from semel.kernel.store import State
from semel.kernel.text import ID_CHARS_MAX, check_id, check_stream, clean_cause, stream_name
from semel.spark.rows import Outcome, Row, Values
from semel.stores.bodies import BODY_BYTES_MAX

QUERIES_KEPT = 8
"""How many earlier queries of a pipeline the sink remembers, so that a late replay of one is still known."""

SOURCE_CHARS_MAX = 256
PIPELINE_CHARS_MAX = 200
"""Together with the name of a source they fit into the name of a hop."""

RECEIPT_TYPE = "semel.receipt"

KeepBody = Callable[[bytes], Blob]
"""Puts a body that is too large for an envelope into the store, and returns what the envelope carries instead."""


# -- names


def output_stream(pipeline: str) -> str:
    """Where a pipeline's output stands in the store."""
    stream = stream_name("spark", pipeline)
    if len(stream) > PIPELINE_CHARS_MAX:
        raise LimitExceeded(
            f"the stream of pipeline {pipeline!r} would have a name of {len(stream)} characters, the limit is"
            f" {PIPELINE_CHARS_MAX}",
            fix="give the pipeline a shorter name, of a-z 0-9 . _ ~ -",
        )
    return stream


def state_key(pipeline: str) -> str:
    return f"sink/{pipeline}"


def derived_id(pipeline: str, input: str, ordinal: int) -> str:
    """The id of an output that was given none. It follows from the name of the pipeline and not from the query, so
    that the same input gives the same id even when the checkpoint is lost."""
    return _digest(msgspec.json.encode([pipeline, input, ordinal]))


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:32]


# -- how far a pipeline has come


class SourceRange(msgspec.Struct, frozen=True):
    """What a batch took of one stream: the offsets after < o <= offset."""

    store: str
    stream: str
    epoch: int
    after: int
    offset: int


class SinkState(msgspec.Struct, frozen=True):
    """Which batch of which query has landed last. `sources` is how far that one went, by stream, with the id of its
    store in front when that is another one. `earlier` are the queries before this one. `job` is the last batch job: it
    has no place to go on from, so it neither takes the place of a query nor pushes out an earlier one."""

    query: str = ""
    batch: int = -1
    sources: dict[str, SourceRange] = {}
    earlier: dict[str, int] = {}
    job: str = ""

    @property
    def landed(self) -> dict[str, int]:
        """The last batch of each query that is known, and of the last job."""
        return {**self._queries, self.job: 0} if self.job else self._queries

    @property
    def _queries(self) -> dict[str, int]:
        return {**self.earlier, self.query: self.batch} if self.query else self.earlier

    def has(self, query: str, batch: int) -> bool:
        return batch <= self.landed.get(query, -1)

    def missing(self, query: str, batch: int) -> range:
        """The batches of a query that should have landed before this one, and have not."""
        return range(self.landed.get(query, -1) + 1, batch)

    def after(self, query: str, batch: int, sources: dict[str, SourceRange]) -> SinkState:
        others = {name: number for name, number in self._queries.items() if name != query}
        kept = dict(list(others.items())[-QUERIES_KEPT:])
        return SinkState(query, batch, sources, kept, self.job)

    def after_job(self, job: str) -> SinkState:
        return msgspec.structs.replace(self, job=job)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def read_state(key: str, state: State | None) -> SinkState:
    if state is None:
        return SinkState()
    try:
        return msgspec.json.decode(state.value, type=SinkState)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"the state {key} is not one that this sink wrote: {error}", fix="give the pipeline another name"
        ) from None


# -- rows that no store would take


def dead_row(values: Values, error: InputError) -> Row:
    """What can be kept of a row that breaks a rule: as a dead letter it does not hold up the rows behind it. Raises
    when there is nothing to call it by."""
    id = _made_id(values, error)
    given = {**values, "headers": dict(values["headers"] or ())}
    kept = {name: given[name] for name in _ATTRIBUTES if given[name] is not None and _is_good({name: given[name]})}
    if id != values["id"] and values["id"] is not None:
        kept["headers"] = {"semel-id": clean_cause(values["id"])}
    data = values["data"] or b""
    is_large = len(data) > DATA_INLINE_BYTES_MAX
    envelope = Envelope(id, data=b"" if is_large else data, **kept)
    return Row(envelope, _position(values), Outcome.DEAD, error.message, large=data if is_large else None)


_ATTRIBUTES = ("source", "type", "subject", "time", "session", "index", "datacontenttype", "headers")


def _is_good(attribute: dict[str, Any]) -> bool:
    try:
        Envelope("x", **attribute)
    except InputError:
        return False
    return True


def _made_id(values: Values, error: InputError) -> str:
    id: str | None = values["id"]
    if id is not None:
        return id if _is_id(id) else f"bad-{_digest(id.encode())}"
    if values["stream"] is None or values["offset"] is None:
        raise InputError(error.message, fix=error.fix)
    place = f"{values['stream']}@{values['epoch'] or 0}:{values['offset']}"
    return place if _is_id(place) else f"bad-{_digest(place.encode())}"


def _is_id(id: str) -> bool:
    try:
        check_id("id", id)
    except InputError:
        return False
    return True


def _position(values: Values) -> Position | None:
    stream = values["stream"]
    return Position(stream, values["epoch"] or 0, values["offset"] or 0) if stream is not None else None


# -- landing


@dataclass(frozen=True, slots=True)
class Job:
    """One batch of one query of a pipeline. `once` is a query that never comes again, with this batch only; `ids_as` is
    the name from which derived ids follow, if it is not the pipeline's."""

    pipeline: str
    query: str
    batch: int
    once: bool = False
    ids_as: str = ""


@dataclass(slots=True)
class _Run:
    """The templates of the records that come next in one stream, for as long as they come by the same hop."""

    key: tuple[str, tuple[Kind, ...]] | None = None
    fresh: tuple[Event, ...] = ()
    duplicate: Event | None = None


_FORWARDED = (Kind.ACCEPTED, Kind.FORWARDED)
_HANDLED = (Kind.ACCEPTED, Kind.HANDLED)
_DEAD = (Kind.ACCEPTED,)
_NO_EVENTS: tuple[Kind, ...] = ()


@dataclass(slots=True)
class Landing:
    """Gathers the ops of one batch. Rows are added in the order in which their records shall stand."""

    job: Job
    keep_body: KeepBody
    ops: list[Op] = field(default_factory=list)
    _stream: str = ""
    _receipts: str = ""
    _runs: dict[str, _Run] = field(default_factory=dict)
    _run_count: int = 0
    _hops: dict[str | None, str] = field(default_factory=dict)
    _kept: str | None = None
    _receipted: str | None = None
    _gap: tuple[str, str | None, int, int] | None = None

    def __post_init__(self) -> None:
        self._stream = output_stream(self.job.pipeline)
        self._receipts = f"{self._stream}/receipts"

    def add(self, row: Row) -> None:
        if self._gap is not None and row.outcome is not Outcome.SKIPPED:
            self._end_gap()
        try:
            self._add(row, self._hop(row))
        except InputError as error:
            self._add_dead(row, error.message)

    def tell(self, row: Row, kinds: tuple[Kind, ...]) -> None:
        """Events about a row that has its place elsewhere, told of its input. The first output answers for it."""
        envelope = row.envelope
        message = row.input if row.input is not None else envelope.id
        if self._answers_for_input(row, message == envelope.id):
            hop = self._hop(row, strict=False)
            self.ops += [
                Log(Event(kind, hop, self.job.pipeline, message, session=envelope.session, idx=envelope.index))
                for kind in kinds
            ]

    def end(self) -> list[Op]:
        """All ops of the batch."""
        self._end_gap()
        return self.ops

    def _add(self, row: Row, hop: str) -> None:
        match row.outcome:
            case None:
                self._pass(row, hop)
            case Outcome.HANDLED:
                self._receipt(row, hop, _HANDLED)
            case Outcome.DEAD:
                self._add_dead(row, row.cause or "no cause was given")
            case Outcome.SKIPPED:
                self._skip(row, hop)
            case Outcome.DUPLICATE:
                self._log(Kind.DUPLICATE, row, hop)
            case Outcome.REJECTED:
                self._log(Kind.REJECTED, row, hop)

    def _pass(self, row: Row, hop: str) -> None:
        """The first output of an input answers for it: by its own record if it kept the id, else by a receipt."""
        envelope = self._whole(row)
        keeps_id = row.input is None or row.input == envelope.id
        answers = self._answers_for_input(row, keeps_id)
        if answers and not keeps_id:
            self._receipt(row, hop, _FORWARDED)
        self._append(self._stream, envelope, envelope.id, hop, _FORWARDED if answers and keeps_id else _NO_EVENTS)

    def _answers_for_input(self, row: Row, keeps_id: bool) -> bool:
        """Outputs of one input stand together. Where they are not numbered, the one before tells whether its input has
        been answered for; but the same message twice is two arrivals."""
        input = row.input if row.input is not None else row.envelope.id
        if row.ordinal is not None:
            answers = row.ordinal == 0
        else:
            answers = input != self._receipted and (keeps_id or input != self._kept)
        if answers:
            self._kept, self._receipted = (input, None) if keeps_id else (None, input)
        return answers

    def _receipt(self, row: Row, hop: str, kinds: tuple[Kind, ...]) -> None:
        envelope = row.envelope
        id = row.input if row.input is not None else envelope.id
        check_id("input", id)
        receipt = Envelope(id, type=RECEIPT_TYPE, session=envelope.session, index=envelope.index)
        self._append(self._receipts, receipt, id, hop, kinds)

    def _append(self, stream: str, envelope: Envelope, identity: str, hop: str, kinds: tuple[Kind, ...]) -> None:
        run = self._run(stream, hop, kinds)
        self.ops.append(Append(stream, envelope, identity, on_fresh=run.fresh or None, on_duplicate=run.duplicate))

    def _run(self, stream: str, hop: str, kinds: tuple[Kind, ...]) -> _Run:
        """Records without events stand between two runs as well: they take an offset."""
        run = self._runs.get(stream)
        if run is None:
            run = self._runs[stream] = _Run()
        if run.key != (hop, kinds):
            run.key = (hop, kinds)
            delivery = self._delivery()
            run.fresh = tuple(Event(kind, hop, self.job.pipeline, delivery=delivery) for kind in kinds)
            run.duplicate = Event(Kind.DUPLICATE, hop, self.job.pipeline, delivery=delivery) if kinds else None
        return run

    def _delivery(self) -> str:
        self._run_count += 1
        return f"{self.job.query}/{self.job.batch}/{self._run_count}"

    def _add_dead(self, row: Row, cause: str) -> None:
        """Its cause is its own, so the event of its end is about this one message."""
        cause = clean_cause(cause)
        hop = self._hop(row, strict=False)
        stream = f"dead/{hop.partition('>')[0]}"
        if row.large is not None and len(row.large) > BODY_BYTES_MAX:
            row = msgspec.structs.replace(row, large=None)
        envelope = self._whole(row, {"semel-cause": cause, "semel-pipeline": self.job.pipeline})
        identity = f"{self.job.pipeline}:{envelope.id}"
        if len(identity) > ID_CHARS_MAX:
            identity = _digest(identity.encode())
        run = self._run(stream, hop, _DEAD)
        end = message_event(Kind.DEAD_LETTERED, hop, self.job.pipeline, envelope, cause=cause)
        self.ops.append(Append(stream, envelope, identity, on_fresh=(*run.fresh, end), on_duplicate=run.duplicate))

    def _whole(self, row: Row, more_headers: dict[str, str] | None = None) -> Envelope:
        """The envelope as it is stored: a large body becomes chunks, and what Semel has to say is in the headers."""
        envelope = row.envelope
        if row.large is None and more_headers is None:
            return envelope
        blob = self.keep_body(row.large) if row.large is not None else envelope.blob
        headers = {**envelope.headers, **(more_headers or {})}
        try:
            return msgspec.structs.replace(envelope, headers=headers, blob=blob)
        except LimitExceeded:
            return msgspec.structs.replace(envelope, headers=more_headers, blob=blob)

    def _log(self, kind: Kind, row: Row, hop: str) -> None:
        cause = clean_cause(row.cause) if row.cause is not None else None
        self.ops.append(Log(message_event(kind, hop, self.job.pipeline, row.envelope, cause=cause)))

    # -- gaps

    def _skip(self, row: Row, hop: str) -> None:
        """Indexes that never came. Those that follow each other are one gap, and one event."""
        session, index = row.envelope.session, row.envelope.index or 0
        gap = self._gap
        if gap is not None and gap[:2] == (hop, session) and index == gap[3] + 1:
            self._gap = (hop, session, gap[2], index)
            return
        self._end_gap()
        self._gap = (hop, session, index, index)

    def _end_gap(self) -> None:
        """Told like a hop tells of it: not as SKIPPED, which ends a message that was accepted. These never came."""
        if self._gap is None:
            return
        hop, session, first, last = self._gap
        self._gap = None
        event = Event(
            Kind.ACTION,
            hop,
            self.job.pipeline,
            session=session,
            message=f"gap {first}..{last}",
            cause=f"indexes {first}..{last} never came",
        )
        self.ops.append(Log(event))

    # -- hops

    def _hop(self, row: Row, *, strict: bool = True) -> str:
        """From the stream that the row came from to this pipeline."""
        source = row.position.stream if row.position is not None else None
        hop = self._hops.get(source)
        if hop is not None:
            return hop
        if source is not None and not _is_stream(source):
            if strict:
                raise InputError(f"stream {source[:80]!r} is not the name of a stream", fix="leave the column as it is")
            return f"input>{self._stream}"
        return self._hops.setdefault(source, f"{_short(source or 'input')}>{self._stream}")


def _is_stream(name: str) -> bool:
    try:
        check_stream(name)
    except InputError:
        return False
    return True


def _short(name: str) -> str:
    """Fit to be part of a hop and of the name of another stream."""
    return name if len(name) <= SOURCE_CHARS_MAX else f"{_digest(name.encode())}~{name[-SOURCE_CHARS_MAX // 2 :]}"
