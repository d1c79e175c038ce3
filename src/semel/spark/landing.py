"""What a batch of rows does to the store: pure, from rows to ops.

    a row that passes under its own id       a record of spark/<pipeline>; accepted and forwarded
    an output of another id                  a record of spark/<pipeline>; its input has a receipt, once
    handled, with nothing to pass on         a receipt
    dead                                     a record of dead/<stream>, with its cause; its input has a receipt of that
    duplicate, rejected, skipped             an event, and nothing else

An input is accepted once, whatever became of it. So whoever lands a batch looks up first which of its inputs have been
answered for (`questions`). What took effect before is a duplicate. What died before and passes now was
replayed.

The ledger tells of consecutive records in one row. A range has to be exact, so each run of records that came by the
same hop has a template of its own, told apart by its `delivery`: query / batch / run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from semel.errors import InputError, LimitExceeded, StoreError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob, Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Append, Log, Op
from semel.kernel.position import Position
from semel.kernel.store import State, Store
from semel.kernel.text import ID_CHARS_MAX, check_id, check_stream, clean_cause, stream_name
from semel.spark.rows import Derive, Row, RowOutcome, Values
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


def receipts_stream(pipeline: str) -> str:
    """A receipt for each input that took effect without a record of its own."""
    return f"{output_stream(pipeline)}/receipts"


def died_stream(pipeline: str) -> str:
    """A receipt for each input that became a dead letter."""
    return f"{output_stream(pipeline)}/dead"


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


def dead_row(values: Values, error: InputError, derive: Derive | None = None) -> Row:
    """What can be kept of a row that breaks a rule: as a dead letter it does not hold up the rows behind it. Raises
    when there is nothing to call it by."""
    if values["id"] is None and values["input"] is not None and derive is not None:
        values = {**values, "id": derive(values["input"], values["ordinal"] or 0)}
    id = _made_id(values, error)
    given = {**values, "headers": dict(values["headers"] or ())}
    kept = {name: given[name] for name in _ATTRIBUTES if given[name] is not None and _is_good({name: given[name]})}
    if id != values["id"] and values["id"] is not None:
        kept["headers"] = {"semel-id": clean_cause(values["id"])}
    data = values["data"] or b""
    is_large = len(data) > DATA_INLINE_BYTES_MAX
    envelope = Envelope(id, data=b"" if is_large else data, **kept)
    large = data if is_large else None
    return Row(envelope, _position(values), RowOutcome.DEAD, error.message, values["input"], values["ordinal"], large)


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
class Inputs:
    """Ids of inputs by how they are answered for: `kept` by a record under their own id, by a receipt in `receipts`,
    as `dead`."""

    kept: set[str] = field(default_factory=set)
    receipts: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)


def questions(rows: Iterable[Row], *, elsewhere: bool = False) -> Inputs:
    """Which inputs have to be looked for before a batch can land. A record or receipt of the same sort the store finds
    by itself, when it is appended. What passes has a record, or a receipt if its place is `elsewhere`."""
    asked = Inputs()
    for row in map(_with_good_input, rows):
        input = input_of(row)
        passes = row.outcome is None
        if row.outcome is RowOutcome.DEAD or (passes and not elsewhere):
            asked.receipts.add(input)
        if row.outcome is RowOutcome.HANDLED or passes:
            asked.dead.add(input)
        if row.outcome in (RowOutcome.DEAD, RowOutcome.HANDLED) or (passes and row.input is not None):
            asked.kept.add(input)
    return asked


def input_of(row: Row) -> str:
    """The id of the message that a row is or was made of."""
    return row.input if row.input is not None else row.envelope.id


class _Input(NamedTuple):
    """The message that a row answers for."""

    id: str
    session: str | None
    idx: int | None


@dataclass(slots=True)
class _Run:
    """The templates of the records that come next in one stream, for as long as they come by the same hop."""

    key: tuple[str, tuple[Kind, ...]] | None = None
    fresh: tuple[Event, ...] = ()
    duplicate: Event | None = None


_FORWARDED = (Kind.ACCEPTED, Kind.FORWARDED)
_NO_EVENTS: tuple[Kind, ...] = ()


@dataclass(slots=True)
class Landing:
    """Gathers the ops of one batch. Rows are added in the order in which their records shall stand. `answered` are the
    inputs that were answered for before; those of the batch are added to it."""

    job: Job
    keep_body: KeepBody
    answered: Inputs = field(default_factory=Inputs)
    ops: list[Op] = field(default_factory=list)
    _stream: str = ""
    _receipts: str = ""
    _died: str = ""
    _runs: dict[str, _Run] = field(default_factory=dict)
    _run_count: int = 0
    _hops: dict[str | None, str] = field(default_factory=dict)
    _kept: str | None = None
    _receipted: str | None = None
    _handled: tuple[_Input, str] | None = None
    _answered_by: str | None = None
    _gap: tuple[str, str | None, int, int] | None = None

    def __post_init__(self) -> None:
        self._stream = output_stream(self.job.pipeline)
        self._receipts = receipts_stream(self.job.pipeline)
        self._died = died_stream(self.job.pipeline)

    def add(self, row: Row) -> None:
        if self._gap is not None or self._handled is not None:
            self._turn_to(row)
        try:
            self._add(row, self._hop(row))
        except InputError as error:
            self._add_dead(row, error.message)

    def add_elsewhere(self, row: Row, *, fresh: bool = True) -> None:
        """A row that has its place outside of the store: its input has a receipt. One that was there is logged."""
        self._turn_to(row)
        hop = self._hop(row, strict=False)
        row = _with_good_input(row)
        input = self._answers_for(row, stands_for_input=input_of(row) == row.envelope.id)
        if input is None:
            return
        if fresh:
            self._receipt(input, hop, Kind.HANDLED)
        else:
            self._log(Kind.DUPLICATE, input, hop)

    def end(self) -> list[Op]:
        """All ops of the batch."""
        self._end_gap()
        self._end_handled()
        return self.ops

    def _turn_to(self, row: Row) -> None:
        """End what this row does not belong to."""
        if self._gap is not None and row.outcome is not RowOutcome.SKIPPED:
            self._end_gap()
        if self._handled is not None and not self._is_output_of(self._handled[0], row):
            self._end_handled()

    def _add(self, row: Row, hop: str) -> None:
        if row.outcome is None:
            self._pass(row, hop)
            return
        match row.outcome:
            case RowOutcome.HANDLED:
                self._handle(row, hop)
            case RowOutcome.DEAD:
                self._add_dead(row, row.cause or "no cause was given")
            case RowOutcome.SKIPPED:
                self._skip(row, hop)
            case RowOutcome.WAITING:
                pass  # nothing has become of anything yet: `waiting_ops` writes it down
            case RowOutcome.DUPLICATE:
                self._log(Kind.DUPLICATE, _checked(_named(row)), hop, row.cause)
            case RowOutcome.REJECTED:
                self._log(Kind.REJECTED, _checked(_named(row)), hop, row.cause)

    def _handle(self, row: Row, hop: str) -> None:
        """Reported when it is known whether outputs stand behind it. One that is itself an output has none."""
        input = _checked(_named(row))
        if row.input is None:
            self._handled = (input, hop)
        elif self._answers_for(row, stands_for_input=False) is not None:
            self._receipt(input, hop, Kind.HANDLED)

    def _pass(self, row: Row, hop: str) -> None:
        """The first output of an input answers for it: by its own record if that is the input's, else by a receipt."""
        envelope = self._whole(row)
        if row.input is None and row.ordinal is None and self._is_new(envelope.id):
            # the commonest row by far
            self._kept, self._receipted, self._answered_by = envelope.id, None, None
            self.answered.kept.add(envelope.id)
            self._append(self._stream, envelope, envelope.id, hop, _FORWARDED, row.target)
            return
        stands = self._handled is None and (row.input is None or row.input == envelope.id)
        input = self._answers_for(row, stands)
        if input is None:
            kinds = _NO_EVENTS
        elif not stands:
            self._receipt(_checked(input), hop, Kind.FORWARDED)
            kinds = _NO_EVENTS
        elif input.id in self.answered.receipts:
            self._log(Kind.DUPLICATE, input, hop)
            kinds = _NO_EVENTS
        else:
            kinds = (self._opening(input.id), Kind.FORWARDED)
            self.answered.kept.add(input.id)
        self._append(self._stream, envelope, envelope.id, hop, kinds, row.target)

    def _is_new(self, id: str) -> bool:
        """Whether nothing is known of a message, but perhaps its record."""
        return id not in self.answered.receipts and id not in self.answered.dead and id != self._receipted

    # -- who answers for an input

    def _is_output_of(self, input: _Input, row: Row) -> bool:
        return row.input == input.id and row.outcome in (None, RowOutcome.DEAD)

    def _answers_for(self, row: Row, stands_for_input: bool) -> _Input | None:
        """The input that this row answers for. Outputs of one input stand together. Behind one that was handled, the
        first answers, in the name of that one. Where they are not numbered, the one before tells whether its input has
        been answered for; but the same message twice is two arrivals."""
        if self._handled is not None:
            handled, self._handled = self._handled[0], None
            self._answered_by = handled.id
            return handled
        if row.input is not None and row.input == self._answered_by:
            return None
        self._answered_by = None
        input = input_of(row)
        if row.ordinal is not None:
            answers = row.ordinal == 0
        else:
            answers = input != self._receipted and (stands_for_input or input != self._kept)
        if not answers:
            return None
        self._kept, self._receipted = (input, None) if stands_for_input else (None, input)
        return _named(row)

    def _end_handled(self) -> None:
        if self._handled is not None:
            (input, hop), self._handled = self._handled, None
            self._receipt(input, hop, Kind.HANDLED)

    # -- what is written

    def _opening(self, input: str) -> Kind:
        """What died and passes now is not accepted a second time."""
        return Kind.REPLAYED if input in self.answered.dead else Kind.ACCEPTED

    def _receipt(self, input: _Input, hop: str, end: Kind) -> None:
        if input.id in self.answered.kept:
            self._log(Kind.DUPLICATE, input, hop)
            return
        self._append(self._receipts, _receipt_of(input), input.id, hop, (self._opening(input.id), end))
        self.answered.receipts.add(input.id)

    def _append(
        self, stream: str, envelope: Envelope, identity: str, hop: str, kinds: tuple[Kind, ...], target: str = ""
    ) -> None:
        run = self._run(stream, hop, kinds)
        fresh = run.fresh or None
        self.ops.append(Append(stream, envelope, identity, target=target, on_fresh=fresh, on_duplicate=run.duplicate))

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

    def _log(self, kind: Kind, input: _Input, hop: str, cause: str | None = None) -> None:
        cause = clean_cause(cause) if cause is not None else None
        self.ops.append(Log(self._event(kind, input, hop, cause)))

    def _event(self, kind: Kind, input: _Input, hop: str, cause: str | None) -> Event:
        return Event(kind, hop, self.job.pipeline, input.id, session=input.session, idx=input.idx, cause=cause)

    def _add_dead(self, row: Row, cause: str) -> None:
        """Reported for its input. An output that died beside others which passed is no end of its input; its letter is
        kept like any other."""
        cause = clean_cause(cause)
        hop = self._hop(row, strict=False)
        row = _with_good_input(row)
        is_input = input_of(row) == row.envelope.id
        input = self._answers_for(row, stands_for_input=is_input)
        if input is None:
            self._log(Kind.FAILED, _named(row), hop, f"output {row.envelope.id}: {cause}")
        elif input.id in self.answered.kept or input.id in self.answered.receipts:
            self._log(Kind.DUPLICATE, input, hop, cause)
            if is_input:
                return
        else:
            run = self._run(self._died, hop, (Kind.ACCEPTED,))
            end = self._event(Kind.DEAD_LETTERED, input, hop, cause)
            receipt = _receipt_of(input)
            fresh = (*run.fresh, end)
            self.ops.append(Append(self._died, receipt, input.id, on_fresh=fresh, on_duplicate=run.duplicate))
            self.answered.dead.add(input.id)
        self._append_dead(row, hop, cause)

    def _append_dead(self, row: Row, hop: str, cause: str) -> None:
        if row.large is not None and len(row.large) > BODY_BYTES_MAX:
            row = msgspec.structs.replace(row, large=None)
        envelope = self._whole(row, {"semel-cause": cause, "semel-pipeline": self.job.pipeline})
        identity = f"{self.job.pipeline}:{envelope.id}"
        if len(identity) > ID_CHARS_MAX:
            identity = _digest(identity.encode())
        self._append(f"dead/{hop.partition('>')[0]}", envelope, identity, hop, _NO_EVENTS)

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
        """Reported as a hop reports it: not as SKIPPED, which ends a message that was accepted. These never came."""
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


def _named(row: Row) -> _Input:
    """The input as far as the row knows it: an output has a session and an index of its own."""
    return _Input(input_of(row), row.envelope.session, row.envelope.index)


def _checked(input: _Input) -> _Input:
    check_id("input", input.id)
    return input


def _with_good_input(row: Row) -> Row:
    """A row whose input is no id at all can only be reported under its own."""
    return row if row.input is None or _is_id(row.input) else msgspec.structs.replace(row, input=None, ordinal=None)


def _receipt_of(input: _Input) -> Envelope:
    return Envelope(input.id, type=RECEIPT_TYPE, session=input.session, index=input.idx)


def _is_stream(name: str) -> bool:
    try:
        check_stream(name)
    except InputError:
        return False
    return True


def _short(name: str) -> str:
    """Fit to be part of a hop and of the name of another stream."""
    return name if len(name) <= SOURCE_CHARS_MAX else f"{_digest(name.encode())}~{name[-SOURCE_CHARS_MAX // 2 :]}"


def answered(store: Store, pipeline: str, rows: Sequence[Row], *, elsewhere: bool = False) -> Inputs:
    """Those of the rows' inputs that the pipeline has answered for: see `questions`. A stream that holds nothing is not
    asked.

    Only those who hold the state `sink/<pipeline>` write these streams. So what was found stands for as long as nobody
    else has landed a batch, and then the commit is refused and this is asked again.
    """
    kept, receipts, died = output_stream(pipeline), receipts_stream(pipeline), died_stream(pipeline)
    used = {stream for stream in (kept, receipts, died) if store.head(stream).offset > 0}
    if not used:
        return Inputs()
    asked = questions(rows, elsewhere=elsewhere)

    def known(stream: str, ids: Collection[str]) -> set[str]:
        return set(store.known(stream, list(ids))) if ids and stream in used else set()

    return Inputs(known(kept, asked.kept), known(receipts, asked.receipts), known(died, asked.dead))
