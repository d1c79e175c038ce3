"""The transforms in real queries: that Spark runs them, and gives what the decisions say, over restarts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from semel.errors import ConfigError
from semel.kernel.envelope import Envelope
from semel.kernel.position import Position
from semel.spark.handlers import apply_handler, derived
from semel.spark.rows import ARROW as SCHEMA
from semel.spark.rows import MESSAGE, Row, batch_of
from semel.spark.transforms import dedupe_by_id, dedupe_by_index, in_session_order, merge_regions, settled_windows

MINUTE_US = 60_000_000
START_US = 28_333_333 * MINUTE_US


def message(stream: str, offset: int, session: str | None, index: int | None, *, minute: int = 0) -> Row:
    envelope = Envelope(
        f"{session}-{index}", data=bytes([0, 255, offset]), session=session, index=index,
        time=START_US + minute * MINUTE_US, headers={"at": str(offset)},
    )  # fmt: skip
    return Row(envelope, Position(stream, 1, offset))


class Log:
    """A stream that grows by files, each of them one micro-batch, and a query over it that can be run repeatedly."""

    def __init__(self, spark: SparkSession, folder: Path, step: Callable[[DataFrame], DataFrame]) -> None:
        self.spark, self.folder, self.step = spark, folder, step
        self.files = 0
        (folder / "in").mkdir()

    def write(self, *rows: Row) -> None:
        self.files += 1
        pq.write_table(pa.Table.from_batches([batch_of(rows, SCHEMA)]), self.folder / "in" / f"{self.files:03}.parquet")

    def run(self) -> list[Any]:
        """Everything that is there, one file at a time; what has come out since the first run."""
        source = self.spark.readStream.schema(MESSAGE).option("maxFilesPerTrigger", 1).parquet(str(self.folder / "in"))
        query = (
            self.step(source)
            .writeStream.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return self.spark.read.parquet(str(self.folder / "out")).collect()


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Callable[[Callable[[DataFrame], DataFrame]], Log]:
    return lambda step: Log(spark, tmp_path, step)


def batch(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_batches([batch_of(rows, SCHEMA)]))


def told(rows: Sequence[Any]) -> list[tuple[str, str | None]]:
    return sorted(((row.id, row.outcome) for row in rows), key=lambda pair: (pair[0], pair[1] or ""))


def test_a_stream_is_put_in_order_over_restarts_and_keeps_every_column(log: Callable[..., Log]) -> None:
    stream = log(lambda df: in_session_order(df, buckets=2, verdicts=True))
    stream.write(message("east", 1, "s", 3), message("east", 2, "s", 1), message("east", 3, None, None))
    assert told(stream.run()) == [("None-None", None), ("s-1", None)]
    stream.write(message("west", 1, "s", 1), message("west", 2, "s", 2))
    out = stream.run()
    assert told(out) == [("None-None", None), ("s-1", None), ("s-1", "duplicate"), ("s-2", None), ("s-3", None)]
    [kept] = [row for row in out if row.id == "s-3"]
    first = message("east", 1, "s", 3)
    assert (bytes(kept.data), kept.headers, kept.stream, kept.epoch, kept.offset) == (
        first.envelope.data, first.envelope.headers, "east", 1, 1,
    )  # fmt: skip
    assert kept.time.timestamp() * 1_000_000 == first.envelope.time


def test_gaps_are_skipped_by_a_timer_while_nothing_comes(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(spark, tmp_path, lambda df: df)
    log.write(message("east", 1, "s", 2))
    source = spark.readStream.schema(MESSAGE).parquet(str(tmp_path / "in"))
    found: list[list[tuple[str, str | None]]] = []
    query = (
        in_session_order(source, gap="skip", after_s=0.001, buckets=1, verdicts=True)
        .writeStream.foreachBatch(lambda df, _: found.append(told(df.collect())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        while not any(found):
            assert query.isActive, query.exception()
            query.awaitTermination(0.1)
    finally:
        query.stop()
    assert next(filter(None, found)) == [("s#1", "skipped"), ("s-2", None)]


def test_a_session_that_waits_too_long_stops_the_query_with_its_name(log: Callable[..., Log]) -> None:
    stream = log(lambda df: in_session_order(df, buffer=2, buckets=1))
    stream.write(*(message("east", index, "order-7", index) for index in (2, 3, 4)))
    with pytest.raises(StreamingQueryException, match="session 'order-7' waits for index 1"):
        stream.run()


def test_two_regions_and_a_dedup_before_them_make_one_stream(spark: SparkSession, log: Callable[..., Log]) -> None:
    def step(df: DataFrame) -> DataFrame:
        east, west = (dedupe_by_id(df.where(f"stream = '{name}'")) for name in ("east", "west"))
        return merge_regions(east, west, buckets=2)

    stream = log(step)
    stream.write(message("east", 1, "s", 1), message("west", 1, "s", 2), message("west", 2, None, 5))
    stream.write(message("east", 2, "s", 3), message("east", 3, "s", 3), message("east", 4, None, 5))
    assert [row.id for row in stream.run() if row.session] == ["s-1", "s-2", "s-3"]
    assert [row.id for row in stream.run() if not row.session] == ["None-5"]


def test_ids_are_told_apart_whatever_their_own_clock_says(log: Callable[..., Log]) -> None:
    stream = log(dedupe_by_id)
    far = 60 * 24 * 365
    stream.write(message("a", 1, "s", 1, minute=far), message("a", 2, "s", 1, minute=far))
    stream.write(message("a", 3, "s", 2, minute=-far), message("a", 4, "s", 1, minute=-far))
    stream.write(message("a", 5, "s", 3, minute=-far))
    assert sorted(row.id for row in stream.run()) == ["s-1", "s-2", "s-3"]


def test_a_stream_of_indexes_is_deduplicated_without_waiting(log: Callable[..., Log]) -> None:
    stream = log(lambda df: dedupe_by_index(df, buckets=1, verdicts=True))
    stream.write(message("a", 1, "s", 3), message("a", 2, "s", 1))
    stream.write(message("a", 3, "s", 3), message("a", 4, "s", 2), message("a", 5, "s", 4))
    assert told(stream.run()) == [("s-1", None), ("s-2", "dead"), ("s-3", None), ("s-3", "duplicate"), ("s-4", None)]


def test_windows_are_told_when_they_are_settled_and_again_when_late_rows_come(log: Callable[..., Log]) -> None:
    stream = log(lambda df: settled_windows(df, width="1 minute", deadline="2 minutes", by=["stream"]))
    stream.write(message("a", 1, "s", 1), message("a", 2, "s", 2), message("b", 1, "t", 1))
    assert stream.run() == []
    stream.write(message("a", 3, "s", 3, minute=5))
    out = stream.run()
    assert sorted((row.stream, row["count"], row.revision, row.settled) for row in out) == [
        ("a", 2, 0, True), ("b", 1, 0, True),
    ]  # fmt: skip
    stream.write(message("a", 4, "s", 4))
    late = [row for row in stream.run() if row not in out]
    assert [(row.stream, row["count"], row.revision) for row in late] == [("a", 3, 1)]
    assert (late[0].window_end - late[0].window_start).total_seconds() == 60


def test_batches_follow_the_same_rules(spark: SparkSession) -> None:
    east = batch(spark, [message("east", 1, "s", 1), message("east", 2, "s", 4), message("east", 3, None, 1)])
    west = batch(spark, [message("west", 1, "s", 2), message("west", 2, "s", 1), message("west", 3, None, 1)])
    merged = merge_regions(east, west, gap="skip", buckets=2, verdicts=True)
    assert told(merged.collect()) == [
        ("None-1", None), ("None-1", "duplicate"), ("s#3", "skipped"), ("s-1", None), ("s-1", "duplicate"),
        ("s-2", None), ("s-4", None),
    ]  # fmt: skip
    assert [row["index"] for row in merged.where("session = 's' and outcome is null").collect()] == [1, 2, 4]
    assert sorted(row.id for row in dedupe_by_id(east.union(west)).collect()) == ["None-1", "s-1", "s-2", "s-4"]
    passed = dedupe_by_index(west.where("session is not null")).collect()
    assert [row["index"] for row in passed] == [1, 2]


def test_a_batch_of_windows_says_which_may_still_grow(spark: SparkSession) -> None:
    rows = batch(spark, [message("a", at, "s", at, minute=minute) for at, minute in enumerate((0, 0, 1, 3), start=1)])
    windows = settled_windows(rows, width="1 minute", deadline="2 minutes").orderBy("window_start").collect()
    assert [(row["count"], row.revision, row.settled) for row in windows] == [
        (2, 0, True),
        (1, 0, False),
        (1, 0, False),
    ]


def test_a_handler_works_in_a_query_and_its_refusals_travel_on(spark: SparkSession) -> None:
    def double(envelope: Envelope) -> list[Envelope] | Envelope | None:
        if envelope.index == 1:
            raise ValueError("not this one")
        if envelope.index == 2:
            return None
        return [derived(envelope, 0), derived(envelope, 1)] if envelope.index == 3 else replace(envelope, data=b"new")

    rows = batch(spark, [message("a", at, "s", at) for at in range(1, 5)])
    out = apply_handler(rows, double, pipeline="sales").collect()
    assert [(row.outcome, row.cause, row.input, row.ordinal) for row in out] == [
        ("dead", "ValueError: not this one", None, None),
        ("handled", None, None, None),
        ("handled", None, None, None),  # s-3 itself, before its outputs, because they have another place
        (None, None, "s-3", 0),
        (None, None, "s-3", 1),
        (None, None, None, None),
    ]
    assert bytes(out[-1].data) == b"new"
    assert out[-1].offset == 4
    named = apply_handler(rows, "copy:copy", pipeline="sales").select(*rows.columns).collect()
    assert named == rows.collect()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda df: in_session_order(df.drop("index")), "needs a column 'index'"),
        (lambda df: in_session_order(df, buckets=0), "0 buckets"),
        (lambda df: in_session_order(df, gap="ask"), "'ask' is no way"),
        (lambda df: dedupe_by_id(df, on="key"), "needs a column 'key'"),
        (lambda df: settled_windows(df, by=["country"]), "needs a column 'country'"),
    ],
)
def test_what_cannot_work_is_said_before_the_query_runs(
    spark: SparkSession, step: Callable[[DataFrame], DataFrame], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        step(batch(spark, [message("a", 1, "s", 1)]))


def test_lists_and_maps_that_are_null_stay_so_on_a_stream_and_in_a_batch(
    spark: SparkSession, log: Callable[..., Log]
) -> None:
    rows = [message("east", at, "s", at) for at in (1, 2, 3)]
    extra = "CASE index WHEN 1 THEN headers WHEN 2 THEN map() END"
    lists = "CASE index WHEN 1 THEN array(index) WHEN 3 THEN array() END"

    def step(df: DataFrame) -> DataFrame:
        return in_session_order(df.selectExpr("session", "index", f"{extra} AS maps", f"{lists} AS lists"), buckets=1)

    stream = log(step)
    stream.write(*rows)
    wanted = [(1, {"at": "1"}, [1]), (2, {}, None), (3, None, [])]
    for found in (stream.run(), step(batch(spark, rows)).collect()):
        assert sorted((row["index"], row["maps"], row["lists"]) for row in found) == wanted
