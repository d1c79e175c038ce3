"""The sink: its options, and how a batch lands. `writers` is what Spark calls.

Spark promises that a batch which was not known to be complete comes again, whole and under the same number. It does not
promise that it comes once. So the rows of a batch are staged by the tasks and land in one transaction of the store,
together with the number of the batch; one that has landed is passed over when it comes again. When the checkpoint is
lost, the numbers start again under another query id: then the identities of the messages tell.

Spark may call `abort` for a batch that has landed (the driver died before it could note it). Nothing is ever undone.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from semel.errors import ConfigError, InputError, StaleFence, StoreBusy, StoreError
from semel.kernel.envelope import Blob
from semel.kernel.lease import Guard
from semel.kernel.ledger import HOP_CHARS_MAX
from semel.kernel.ops import Advance, Conflict, Op, Put, Refused, Stale, WorkState
from semel.kernel.position import Position
from semel.kernel.store import Store
from semel.kernel.text import check_stream
from semel.runtime.host.lease_holder import LEASE_QUEUE, commit_unit
from semel.spark.landing import (
    Job,
    KeepBody,
    Landing,
    SinkState,
    SourceRange,
    answered,
    dead_row,
    derived_id,
    output_stream,
    read_state,
    state_key,
)
from semel.spark.relay import is_hub, pin, relay, relay_hop
from semel.spark.rows import ARROW_TRAVEL, Row, Values, rows_of
from semel.spark.staging import Staged, Staging, Task, query_of, source_ranges
from semel.spark.waiting import waiting_ops
from semel.stores.bodies import put_body
from semel.stores.open import open_store

log = logging.getLogger(__name__)

NODE = "spark"
TRIES_MAX = 20
_KNOWN = (
    "store", "pipeline", "to", "target", "fence", "staging", "table", "key", "path", "idsAs", "checkpointLocation",
    "queryName",
)  # fmt: skip
_LONGS = ("bigint", "int", "smallint", "tinyint")
_INTEGERS = ("int", "bigint", "smallint", "tinyint")
_TEXT = ("string", "varchar", "char")
_TYPES: dict[str, tuple[str, ...]] = {
    "time": ("timestamp",),
    "index": _LONGS,
    "epoch": _INTEGERS,
    "offset": _LONGS,
    "ordinal": _INTEGERS,
    "data": ("binary", *_TEXT),
    "headers": ("map<string,string>",),
}
"""What a column may be. The first is what a message has there, and what to cast to."""


# -- options


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the user said. Names are spelled as in `option(...)`; Spark does not mind their case."""

    pipeline: str
    store: str | None = None
    to: str | None = None
    target: str = ""
    fence: int | None = None
    staging: str | None = None
    table: str | None = None
    key: tuple[str, ...] = ()
    path: str | None = None
    checkpoint: str | None = None
    ids_as: str = ""

    @property
    def guard(self) -> Guard | None:
        """The lease of the pipeline, under the fence that this driver holds."""
        return None if self.fence is None else Guard(LEASE_QUEUE, f"pipeline/{self.pipeline}", self.fence)

    @property
    def staged(self) -> Staging:
        assert self.staging is not None or self.checkpoint is not None
        return Staging(self.staging or f"{self.checkpoint}/semel-staging", self.pipeline)


def read_options(options: Mapping[str, str]) -> SinkOptions:
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in _KNOWN}
    unknown = sorted(set(given) - known)
    if unknown:
        raise ConfigError(f"the sink has no option {unknown[0]!r}", fix=f"use: {', '.join(_KNOWN)}")
    if not given.get("pipeline"):
        raise ConfigError("the sink needs a name", fix="say .option('pipeline', 'orders'): it names the output")
    output_stream(given["pipeline"])
    found = SinkOptions(
        pipeline=given["pipeline"],
        store=given.get("store"),
        to=given.get("to"),
        target=given.get("target", ""),
        fence=_fence(given.get("fence")),
        staging=given.get("staging"),
        table=given.get("table"),
        key=tuple(name.strip() for name in given.get("key", "").split(",") if name.strip()),
        path=given.get("path"),
        checkpoint=given.get("checkpointlocation"),
        ids_as=given.get("idsas", ""),
    )
    _check_together(found)
    return found


def _fence(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit():
        raise ConfigError(f"fence is {text!r}", fix="give the number under which the lease of the pipeline is held")
    return int(text)


def _check_together(found: SinkOptions) -> None:
    if found.store is None and found.path is None:
        raise ConfigError("the sink needs a store", fix="say .option('store', 'sqlite:///semel.db')")
    if sum(place is not None for place in (found.to, found.table, found.path)) > 1:
        raise ConfigError("the sink has one target", fix="give one of: to, table, path")
    if (found.table is None) != (not found.key):
        raise ConfigError(
            "a table and its key belong together", fix="give both: .option('table', 'orders').option('key', 'id')"
        )
    if found.fence is not None and found.store is None:
        raise ConfigError("a fence is a number that a store gave out", fix="give the store as well")
    check_target(found.target, found.to)
    if found.to is not None and check_stream(found.to) == output_stream(found.pipeline):
        raise ConfigError(f"{found.to} is the pipeline's own stream", fix="leave out `to`, or name another stream")
    if found.to is not None and len(relay_hop(found.pipeline, found.to)) > HOP_CHARS_MAX:
        raise ConfigError(f"the name of the stream {found.to[:40]}… is too long", fix="choose a shorter one")


def check_target(target: str, to: str | None) -> None:
    if not target:
        return
    if to is None or not is_hub(to):
        raise ConfigError(f"target {target!r} needs a hub to write to", fix="give to = 'hub/<hub>' as well")
    if target[:2] not in ("g/", "u/", "c/") or not target[2:]:
        fix = "write g/<group>, u/<user> or c/<connection>; leave it out for everybody"
        raise ConfigError(f"{target!r} is nobody in a hub", fix=fix)


def check_message_columns(schema: StructType) -> None:
    """That rows of this schema can be messages, before any of them is made."""
    names = schema.fieldNames()
    if "id" not in names:
        raise InputError("a message needs an id, and these rows have no column `id`", fix="select an id column")
    for column in schema.fields:
        if column.name not in ARROW_TRAVEL.names:
            continue
        wanted = _TYPES.get(column.name, _TEXT)
        if column.dataType.simpleString().partition("(")[0] not in wanted:
            raise InputError(
                f"column {column.name} is {column.dataType.simpleString()}, a message has {wanted[0]} there",
                fix=f"cast it: df.withColumn('{column.name}', col('{column.name}').cast('{wanted[0]}'))",
            )


# -- where rows go


class Target(Protocol):
    """Where rows go in the end."""

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task) -> Staged:
        """In a task: put its rows aside."""
        ...

    def commit(self, job: Job, staged: Sequence[Staged]) -> None:
        """In the driver: let the batch take effect, once however often this is called."""
        ...

    def abort(self, job: Job, staged: Sequence[Staged]) -> None:
        """In the driver: remove what is certainly not needed, and undo nothing."""
        ...


# -- landing


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """Rows become records of spark/<pipeline>, and go on to the stream `to` if there is one."""

    options: SinkOptions

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task) -> Staged:
        return self.options.staged.write(batches, task)

    def commit(self, job: Job, staged: Sequence[Staged]) -> None:
        with closing(open_sink_store(self.options)) as store:
            self.land(store, job, staged)

    def land(self, store: Store, job: Job, staged: Sequence[Staged]) -> None:
        options = self.options
        state = land(store, job, options, lambda: self._ops(store, job, staged))
        if options.to is not None:
            relay(store, job.pipeline, options.to, options.guard, target=options.target)
        options.staged.sweep(state.landed)

    def _ops(self, store: Store, job: Job, staged: Sequence[Staged]) -> list[Op]:
        pins = pin(store, job.pipeline, self.options.to) if self.options.to is not None else []
        rows = list(staged_rows(job, self.options.staged, staged))
        return [*pins, *landing_ops(store, job, rows), *waiting_ops(store, job, rows)]

    def abort(self, job: Job, staged: Sequence[Staged]) -> None:
        with closing(open_sink_store(self.options)) as store:
            clean_up(store, self.options, staged)


def open_sink_store(options: SinkOptions) -> Store:
    """A store that is there already: a new one by a slip of the pen would swallow the output."""
    assert options.store is not None
    return open_store(options.store, node=NODE, create=False)


def land(store: Store, job: Job, options: SinkOptions, ops: Callable[[], list[Op]]) -> SinkState:
    """Commit the ops of a batch and its number in one transaction, unless it has landed before. Returns the state
    afterwards. `ops` is only asked when they are needed, and again when others have landed a batch in between: what it
    has looked up may have changed."""
    for _ in range(TRIES_MAX):
        known = store.state(state_key(job.pipeline))
        state = read_state(state_key(job.pipeline), known)
        if state.has(job.query, job.batch):
            return state
        check_complete(job, options, state)
        head, following = progress_ops(store, job, options, state, known.version if known is not None else 0)
        outcome = commit_unit(store, (*head, *ops()))
        if not isinstance(outcome, Refused):
            return following
        check_refusal(job, outcome)
    raise StoreBusy(f"others write for pipeline {job.pipeline!r} all the time", fix="run it in one place")


def check_complete(job: Job, options: SinkOptions, state: SinkState) -> None:
    """Spark lands every batch, one after the other. If the store lacks some, it has forgotten them: it was put back to
    an older state, or it is another store. To go on would leave a hole."""
    missing = state.missing(job.query, job.batch)
    if missing and options.checkpoint and query_of(options.checkpoint) == job.query:
        raise StoreError(
            f"the store lacks the batches {missing[0]}..{missing[-1]} that this query has landed: it was restored from"
            " a backup, or it is another store",
            fix="start the query with a new checkpoint folder: it reads everything again, and what is there stays",
        )


def progress_ops(
    store: Store, job: Job, options: SinkOptions, state: SinkState, version: int
) -> tuple[list[Op], SinkState]:
    """What says that the batch has landed, and keeps of its sources what a replay of it would need."""
    ranges = source_ranges(options.checkpoint, job.batch) if options.checkpoint and not job.once else []
    sources = {_source_name(store, each): each for each in ranges}
    following = state.after_job(job.query) if job.once else state.after(job.query, job.batch, sources)
    ops: list[Op] = [Put(state_key(job.pipeline), following.encode(), expected=version, guard=options.guard)]
    ops += [
        Advance(f"{output_stream(job.pipeline)}/{each.stream}", Position(each.stream, each.epoch, each.after))
        for each in ranges
        if each.store == store.store_id and each.epoch == store.epoch
    ]
    return ops, following


def _source_name(store: Store, each: SourceRange) -> str:
    return each.stream if each.store == store.store_id else f"{each.store}:{each.stream}"


def check_refusal(job: Job, refused: Refused) -> None:
    """A stale fence is final. A conflict is another driver's commit: look again at what it did."""
    if any(isinstance(result, Stale) for result in refused.results):
        raise stale(job)
    assert any(isinstance(result, Conflict) for result in refused.results)


def check_fence(store: Store, job: Job, options: SinkOptions) -> None:
    """Before a step that no transaction holds together: whether this driver still has the lease."""
    guard = options.guard
    if guard is None:
        return
    row = store.work(guard.queue, guard.identity)
    if row is None or row.state is not WorkState.CLAIMED or row.fence != guard.fence:
        raise stale(job)


def stale(job: Job) -> StaleFence:
    return StaleFence(
        f"another driver has taken over pipeline {job.pipeline!r}: batch {job.batch} of this one was not written",
        fix="nothing is lost: the other one goes on; end this one",
    )


def landing_ops(store: Store, job: Job, rows: Sequence[Row]) -> list[Op]:
    landing = Landing(job, body_keeper(store, job), answered(store, job.pipeline, rows))
    for row in rows:
        landing.add(row)
    return landing.end()


def staged_rows(job: Job, staging: Staging, staged: Sequence[Staged]) -> Iterator[Row]:
    """The rows of a batch in order. One that no store would take becomes a dead letter."""
    for each, batch in staging.read(staged):
        namer = _RowNamer(job, each.partition)
        yield from rows_of(batch, refuse=namer.refuse, derive=namer.derive)


def message_rows(job: Job, partition: int, batch: pa.RecordBatch) -> Iterator[Row | None]:
    """The rows of any table as messages, or None when they have no id. The table may use the names of a message's
    columns in its own way: those of another type are no part of the message, and an id of any type is one as text."""
    if "id" not in batch.schema.names:
        yield from [None] * batch.num_rows
        return
    columns = {"id": batch.column("id").cast(pa.string())}
    for each in ARROW_TRAVEL:
        if each.name != "id" and each.name in batch.schema.names and _fits(batch.column(each.name).type, each.type):
            columns[each.name] = batch.column(each.name)
    namer = _RowNamer(job, partition)
    yield from rows_of(pa.record_batch(columns), refuse=namer.refuse, derive=namer.derive)


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(given) and given.tz is not None)
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(given))
    return bool(given == wanted)


@dataclass(frozen=True, slots=True)
class _RowNamer:
    """Gives ids to rows that lack them, and names those to which nobody can give one."""

    job: Job
    partition: int

    def derive(self, input: str, ordinal: int) -> str:
        return derived_id(self.job.ids_as or self.job.pipeline, input, ordinal)

    def refuse(self, values: Values, error: InputError) -> Row:
        try:
            return dead_row(values, error, self.derive)
        except InputError:
            shown = {name: value for name, value in values.items() if value is not None and name != "data"}
            raise InputError(
                f"a row of partition {self.partition} in batch {self.job.batch} cannot be kept, not even as a dead"
                f" letter: {error.message}; it holds {shown}",
                fix="give every row an id before it comes to the sink, or filter such rows out",
            ) from None


def body_keeper(store: Store, job: Job) -> KeepBody:
    def keep(body: bytes) -> Blob:
        return put_body(store, f"{job.pipeline[:64]}-{job.batch}-{uuid.uuid4().hex}", [body])

    return keep


def clean_up(store: Store, options: SinkOptions, staged: Sequence[Staged]) -> None:
    """After an abort: the files of its attempts are not needed, whether or not the batch has landed. If it has, all
    is done; if it has not, Spark stages its rows again."""
    state = read_state(state_key(options.pipeline), store.state(state_key(options.pipeline)))
    options.staged.sweep(state.landed)
    options.staged.remove(staged)


def taken_up_to(store: Store, pipeline: str) -> dict[str, int]:
    """How far the last batch that landed went in each of its streams. Streams of one name in several stores count by
    the one that is furthest behind."""
    state = read_state(state_key(pipeline), store.state(state_key(pipeline)))
    taken: dict[str, int] = {}
    for each in state.sources.values():
        taken[each.stream] = min(each.offset, taken.get(each.stream, each.offset))
    return taken
