"""Rows through Spark under measurement: out of a store, into order, and all the way."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructType

from semel.bench.regions import EAST, NAME, WEST, fill, regional_logs
from semel.bench.spark import DELIVERY_ROWS_MAX, DeliveryLine, ReorderLine, SourceLine, SparkOptions, Step
from semel.errors import PeerUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Unit
from semel.kernel.store import Store
from semel.spark.delivery import delivery
from semel.spark.pipeline import Input
from semel.spark.rows import ARROW, MESSAGE
from semel.spark.runner import RunOptions
from semel.spark.runner import run as run_pipeline
from semel.spark.session import EVOLVING_STATE, NEEDED, checkpoint_settings
from semel.spark.transforms import in_session_order
from semel.stores.open import open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

STREAM = "hub/bench"
COLUMNS = ("id", "time", "session", "index", "data", "offset")
BODY = b'{"text": "a message of the usual size, which is not long"}'
_TEXT = '"text": "a message of the usual size, which is not long"'
BEGIN_US = 1_767_225_600_000_000
UNIT_ROWS = 5_000
SESSIONS = 20_000
BATCHES, FILES = 5, 2
"""How many batches the reorder takes, and how many files each of them has: as many as there are regions, and so as many
tasks."""
LOST, TWICE, SHUFFLE = 0.01, 0.02, 2_000
"""Shares of each regional copy, and by how many places a row may come too late."""
QUERY_S = 3_600


# -- source


def measure_source(spark: SparkSession, options: SparkOptions, folder: Path, step: Step) -> tuple[SourceLine, ...]:
    """Both sides in turns, after one round that is not counted."""
    with ExitStack() as stack:
        stores = {"sqlite": f"sqlite:///{folder / 'source.db'}"}
        if options.postgres:
            from semel.testing.postgres import PrivatePostgres, new_database

            server = options.url or stack.enter_context(PrivatePostgres()).url
            stores["postgres"] = stack.enter_context(new_database(server))
        return tuple(
            line for name, url in stores.items() for line in _source_lines(spark, options, folder, name, url, step)
        )


def _source_lines(
    spark: SparkSession, options: SparkOptions, folder: Path, engine: str, url: str, step: Step
) -> Iterator[SourceLine]:
    step(f"source: filling {engine} with {options.rows:,} rows")
    with closing(open_store(url)) as store:
        _fill(store, options.rows)
    stored = spark.read.format("semel").option("store", url).option("stream", STREAM)
    copy = str(folder / f"{engine}.parquet")
    whole = stored.load()
    whole.repartition(options.threads).write.option("compression", "zstd").parquet(copy)
    parquet = spark.read.parquet(copy)
    for schema in (StructType([whole.schema[name] for name in COLUMNS]), whole.schema):
        sides = {"store": stored.schema(schema).load(), "parquet": parquet.select(*schema.names)}
        yield _source_line(options, engine, sides, step)


def _source_line(options: SparkOptions, engine: str, sides: dict[str, DataFrame], step: Step) -> SourceLine:
    columns = len(sides["store"].columns)
    times: dict[str, list[float]] = {name: [] for name in sides}
    sums: dict[str, Any] = {}
    for number in range(options.rounds + 1):
        for name, rows in sides.items():
            step(f"source: {engine}, {columns} columns, {name}, round {number} of {options.rounds}")
            began = time.perf_counter()
            sums[name] = rows.agg(*_sums(rows)).collect()
            times[name].append(time.perf_counter() - began)
    store_s, parquet_s = (median(times[name][1:]) for name in ("store", "parquet"))
    agrees = sums["store"] == sums["parquet"] and sums["store"][0]["n"] == options.rows
    return SourceLine(engine, columns, options.rows, options.rows / store_s, options.rows / parquet_s, agrees)


def _fill(store: Store, rows: int) -> None:
    for first in range(0, rows, UNIT_ROWS):
        numbers = range(first, min(rows, first + UNIT_ROWS))
        store.commit([Unit(tuple(Append(STREAM, _envelope(n), identity=f"m-{n:09d}") for n in numbers))])


def _envelope(number: int) -> Envelope:
    return Envelope(
        f"m-{number:09d}", data=_body(number), session=f"s-{number % SESSIONS}", index=number // SESSIONS + 1,
        time=BEGIN_US + number,
    )  # fmt: skip


def _body(number: int) -> bytes:
    """About 170 bytes that no other message has: equal bodies would be one entry of a dictionary to Parquet."""
    mark = hashlib.blake2b(number.to_bytes(8), digest_size=24).hexdigest()
    return f'{{"order": {number}, "mark": "{mark}", "amount": {number % 9973}, {_TEXT}}}'.encode()


def _sums(rows: DataFrame) -> list[Column]:
    """How many rows there are, and a number that says whether every byte of them is the same."""
    columns = [
        F.map_entries(f"`{field.name}`") if isinstance(field.dataType, MapType) else F.col(f"`{field.name}`")
        for field in rows.schema
    ]
    return [F.count(F.lit(1)).alias("n"), F.bit_xor(F.xxhash64(*columns)).alias("content")]


# -- reorder


def measure_reorder(spark: SparkSession, options: SparkOptions, folder: Path, step: Step) -> ReorderLine:
    step(f"reorder: making {options.rows:,} rows")
    copies, checkpoint = folder / "copies", folder / "reorder"
    rows, messages = write_copies(copies, options.rows)
    session = _session_for(spark, checkpoint)
    source = session.readStream.schema(MESSAGE).option("maxFilesPerTrigger", FILES).parquet(str(copies))
    counted = in_session_order(source).observe("passed", F.count(F.lit(1)).alias("n"))
    step(f"reorder: {rows:,} rows")
    began = time.perf_counter()
    writer = counted.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(QUERY_S):
            raise PeerUnavailable("the query does not end", fix="run it on a machine at rest, or with fewer --rows")
    finally:
        query.stop()
    seconds = time.perf_counter() - began
    batches = [each for each in query.recentProgress if each.numInputRows]
    steady = batches[1:]
    steady_s = sum(each.batchDuration for each in steady) / 1000
    passed = sum(each.observedMetrics["passed"]["n"] for each in batches)
    state = [_state_bytes(spark, checkpoint, each.batchId) for each in batches]
    steady_per_s = sum(each.numInputRows for each in steady) / steady_s
    return ReorderLine(rows, messages, passed, rows / seconds, steady_per_s, tuple(state))


def _session_for(spark: SparkSession, checkpoint: Path) -> SparkSession:
    """A session of its own with what a pipeline would set for this checkpoint, so that the given one stays as it is."""
    session = spark.newSession()
    for key, value in {**NEEDED, **EVOLVING_STATE, **checkpoint_settings(str(checkpoint))}.items():
        session.conf.set(key, value)
    return session


def _state_bytes(spark: SparkSession, checkpoint: Path, batch: int) -> int:
    """What all buckets had to remember after a batch."""
    state = spark.read.format("statestore").option("path", str(checkpoint)).option("stateVarName", "bucket")
    row = state.option("batchId", batch).load().agg(F.sum(F.octet_length("value.state")).alias("n")).first()
    assert row is not None
    return int(row["n"] or 0)


def write_copies(folder: Path, rows: int, sessions: int = SESSIONS) -> tuple[int, int]:
    """Two regional copies of the same messages in one log of several files. What one copy has lost the other one has.
    Gives how many rows and how many messages there are."""
    rng = np.random.default_rng(1)
    messages = max(1, rows // 2)
    fate = rng.random(messages)
    kept = [np.flatnonzero(fate >= LOST), np.flatnonzero((fate < LOST) | (fate >= 2 * LOST))]
    copies = [np.concatenate([each, each[rng.random(len(each)) < TWICE]]) for each in kept]
    number = np.concatenate(copies)
    region = np.repeat([0, 1], [len(each) for each in copies])
    order = np.argsort(number + rng.uniform(0, SHUFFLE, len(number)), kind="stable")
    folder.mkdir()
    sessions = min(sessions, max(1, messages // 10))
    for at, chosen in enumerate(np.array_split(order, BATCHES * FILES)):
        file = folder / f"{at:03d}.parquet"
        pq.write_table(_rows(number[chosen], region[chosen], sessions), file, compression="zstd")
        # Spark takes the oldest file first
        os.utime(file, (BEGIN_US // 1_000_000 + at,) * 2)
    return len(number), messages


def _rows(number: Any, region: Any, sessions: int) -> Any:
    count = len(number)
    text = pa.array(number).cast(pa.string())
    known = {
        "id": pc.binary_join_element_wise(pa.scalar("m"), text, "-"),
        "source": pa.array(["bench"]).take(pa.array(np.zeros(count, np.int32))),
        "type": pa.array(["message"]).take(pa.array(np.zeros(count, np.int32))),
        "time": pa.array(BEGIN_US + number),
        "session": pc.binary_join_element_wise(pa.scalar("s"), pa.array(number % sessions).cast(pa.string()), "-"),
        "index": pa.array(number // sessions + 1),
        "data": pa.array([BODY]).take(pa.array(np.zeros(count, np.int32))),
        "stream": pa.array(["east", "west"]).take(pa.array(region)),
        "epoch": pa.array(np.ones(count, np.int32)),
        "offset": pa.array(np.arange(1, count + 1)),
    }
    columns = [known[f.name].cast(f.type) if f.name in known else pa.nulls(count, f.type) for f in ARROW]
    return pa.Table.from_arrays(columns, schema=ARROW)


# -- all the way


def measure_delivery(spark: SparkSession, options: SparkOptions, folder: Path, step: Step) -> DeliveryLine:
    wanted = min(options.rows, DELIVERY_ROWS_MAX)
    step(f"delivery: filling two stores with {wanted:,} rows")
    east_url, west_url = (f"sqlite:///{folder / name}.db" for name in ("east", "west"))
    east, west, messages = regional_logs(wanted // 2, seed=1)
    fill(east_url, EAST, east)
    fill(west_url, WEST, west)
    pipeline = delivery(Input(east_url, EAST), Input(west_url, WEST), store=east_url, name=NAME)
    rows = len(east) + len(west)
    step(f"delivery: {rows:,} rows")
    with closing(open_store(east_url)) as store:
        began = time.perf_counter()
        run_pipeline(spark, pipeline, store, RunOptions(checkpoint=str(folder / "delivery"), once=True))
        seconds = time.perf_counter() - began
        delivered = store.head(pipeline.output).offset
    return DeliveryLine(rows, messages, delivered, rows / seconds)
