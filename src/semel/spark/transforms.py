"""Exactly-once steps for anybody's Spark job: small functions from DataFrame to DataFrame.

They work on streams and on batches alike, and on any DataFrame that has the columns they name; `rows.py` says what the
columns of a message are. Use them with `DataFrame.transform`:

    messages = spark.readStream.format("semel").option("store", store).option("stream", "orders").load()
    ordered = messages.transform(in_session_order, gap="skip", after_s=30.0)

The decisions are those of `semel.kernel.dedup`. Where Spark's own operators can do the work they do it; where order
needs Python, the state is kept by bucket of sessions (`processors.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from semel.errors import ConfigError
from semel.kernel.dedup import GapPolicy, OnGap
from semel.spark.nulls import filled
from semel.spark.ordering import WEEK_S, Rules
from semel.spark.processors import (
    BUCKET,
    NOW,
    PACKED,
    PASSED_ON,
    BatchInOrder,
    Counted,
    OrderingProcessor,
    Pack,
    Settled,
    Unpack,
    window_key,
)
from semel.spark.rows import RowOutcome

BUCKETS = 32
IDS_KEPT = 100_000
"""How many ids of rows without a session one bucket of `merge_regions` remembers."""
_ARRIVED = "semel_arrived"
_WINDOW = ("window_start", "window_end")


def dedupe_by_id(df: DataFrame, within: str = "7 days", on: str = "id", time: str | None = None) -> DataFrame:
    """The first row of each id. A stream remembers an id for `within` of its arrival, a batch for ever.

    `time` names a column of event time to go by instead of the time of arrival. Spark then drops rows that are older
    than `within`, and one row with a time in the future makes others look old: use it only where that is no loss.

        >>> dedupe_by_id(messages, within="1 day")                              # doctest: +SKIP
    """
    _check_columns(df, on, *([time] if time else []))
    if not df.isStreaming:
        return df.dropDuplicates([on])
    if time is not None:
        return df.withWatermark(time, within).dropDuplicatesWithinWatermark([on])
    arrived = df.withColumn(_ARRIVED, F.current_timestamp()).withWatermark(_ARRIVED, within)
    return arrived.dropDuplicatesWithinWatermark([on]).drop(_ARRIVED)


def dedupe_by_index(
    df: DataFrame, *, forget_s: float | None = WEEK_S, buckets: int = BUCKETS, verdicts: bool = False
) -> DataFrame:
    """Passes an index above the last one of its session. It never waits, and so it loses what comes late.

    Rows of one micro-batch are taken by index, so only what comes in a later batch than its successor is late. Where
    that happens use `in_session_order`. Rows without a session pass unchanged. For `forget_s`, `buckets` and `verdicts`
    see there; a late row has the outcome 'dead', because it is no duplicate.

        >>> dedupe_by_index(messages, verdicts=True).where("outcome = 'duplicate'")    # doctest: +SKIP
    """
    return _ordered(df, Rules(order="monotonic", forget_s=forget_s), buckets, verdicts)


def in_session_order(
    df: DataFrame,
    *,
    gap: Literal["wait", "skip"] = "wait",
    after_s: float = 10.0,
    buffer: int = 1000,
    forget_s: float | None = WEEK_S,
    buckets: int = BUCKETS,
    verdicts: bool = False,
) -> DataFrame:
    """Passes the rows of each session by index, 1, 2, 3 …, each once. Rows without a session pass unchanged.

    A row that comes before its turn is kept. With `gap="skip"` what is missing is given up `after_s` after the first
    row behind it came, or when more than `buffer` rows of its session wait. With `gap="wait"` it is waited for; more
    than `buffer` waiting rows stop the query with an error that names the session, because no row may be lost. Time is
    that of Spark's batches, so a gap is given up in the first batch after its time.

    A stream with `gap="skip"` has timers, and Spark then runs a batch at every trigger, rows or none: give it a trigger
    such as `processingTime="1 second"`. `availableNow=True` would never end, unless the setting
    `spark.sql.streaming.noDataMicroBatches.enabled` is false when the query starts. A query keeps the policy that it
    began with; another one needs a new checkpoint.

    With `gap="skip"` a session that is quiet for `forget_s` is forgotten, unless rows of it wait; None remembers for
    ever. One that comes back after that begins at 1 again: old copies would pass once more, and a row with a higher
    index waits as behind a gap. With `gap="wait"` a session keeps its place for ever, a name and a number: else it
    would wait for an index that has passed. State is kept in `buckets` parts; a query keeps the number that it began
    with.

    With `verdicts` the columns `outcome` and `cause` are added, and rows that do not pass come out with an outcome,
    which the sink writes to the ledger: 'duplicate', 'skipped' (one row for each index that was given up) and 'dead'
    (it came after its place was given up, or it has a session and no index from 1). Without `verdicts` they are left
    out; but a row with a session and no index stops the query, because nobody would notice.

    In a batch nothing more can come: gaps are skipped, or with `gap="wait"` an error names the first. `buffer` does not
    limit a batch.

        >>> in_session_order(messages, gap="skip", after_s=30.0)                # doctest: +SKIP
    """
    return _ordered(df, _rules(gap, after_s, buffer, forget_s), buckets, verdicts)


def merge_regions(
    first: DataFrame,
    *more: DataFrame,
    gap: Literal["wait", "skip"] = "wait",
    after_s: float = 10.0,
    buffer: int = 1000,
    forget_s: float | None = WEEK_S,
    buckets: int = BUCKETS,
    verdicts: bool = False,
    waiting: bool = False,
) -> DataFrame:
    """Copies of the same messages from several regions as one stream: each message once, each session in order.

    What one region lacks another fills in. The settings are those of `in_session_order`. Rows without a session have no
    order; their copies are told apart by `id`, of which each bucket remembers 100,000 for `forget_s`. With `verdicts`
    and `waiting` a stream also lets out a row with the outcome 'waiting' when rows of a session begin or cease to wait:
    its index is the one that is missing, and the cause says how many rows wait.

        >>> merge_regions(east, west, gap="skip", after_s=60.0)                 # doctest: +SKIP
    """
    merged = first
    for other in more:
        merged = merged.unionByName(other, allowMissingColumns=True)
    _check_columns(merged, "id")
    return _ordered(merged, _rules(gap, after_s, buffer, forget_s, ids=IDS_KEPT), buckets, verdicts, waiting)


def settled_windows(
    df: DataFrame,
    *,
    width: str = "1 minute",
    deadline: str = "5 minutes",
    time: str = "time",
    by: Sequence[str] = (),
    forget_s: float = WEEK_S,
) -> DataFrame:
    """Counts per window of event time, given once the window is settled: when a row `deadline` after its end has come.

    Gives `window_start`, `window_end`, the columns of `by`, `count`, `revision` and `settled`. A stream tells a window
    with revision 0 when it is settled. Late rows open it again: the new count follows with revision 1, 2, … and the
    highest revision holds. `forget_s` after its end a window is forgotten, and what comes still later is not counted. A
    batch tells every window once, and `settled` says which may still grow. Rows without a time are not counted.

        >>> settled_windows(messages, width="1 hour", by=["stream"])            # doctest: +SKIP
    """
    _check_columns(df, time, *by)
    if df.isStreaming:
        return _settled_stream(df, width, deadline, time, tuple(by), forget_s)
    windows = df.groupBy(F.window(time, width).alias("w"), *by).agg(F.count(F.lit(1)).alias("count"))
    watermark = df.agg((F.max(time) - F.expr(f"INTERVAL {deadline}")).alias("semel_watermark"))
    return windows.crossJoin(F.broadcast(watermark)).select(
        F.col("w.start").alias(_WINDOW[0]),
        F.col("w.end").alias(_WINDOW[1]),
        *by,
        "count",
        F.lit(0).alias("revision"),
        (F.col("w.end") <= F.col("semel_watermark")).alias("settled"),
    )


def _settled_stream(
    df: DataFrame, width: str, deadline: str, time: str, by: tuple[str, ...], forget_s: float
) -> DataFrame:
    """Spark's own windows drop what is late. Here the watermark only says when a window is settled."""
    window = F.window(time, width)
    key = window_key(2 + len(by))
    columns = [F.unix_micros(window["start"]), F.unix_micros(window["end"]), *(F.col(name) for name in by)]
    keyed = df.withWatermark(time, deadline).select(*(c.alias(k) for c, k in zip(columns, key, strict=True)))
    fields = [StructField(k, keyed.schema[k].dataType) for k in key]
    counted = keyed.mapInArrow(Counted(tuple(key)), StructType([*fields, StructField("count", LongType())]))
    settled = counted.groupBy(*key).transformWithStateInPandas(
        Settled(int(forget_s * 1000)),
        StructType([*fields, StructField("count", LongType()), StructField("revision", IntegerType())]),
        outputMode="Append",
        timeMode="EventTime",
    )
    return settled.select(
        F.timestamp_micros(key[0]).alias(_WINDOW[0]),
        F.timestamp_micros(key[1]).alias(_WINDOW[1]),
        *(F.col(k).alias(name) for k, name in zip(key[2:], by, strict=True)),
        "count",
        "revision",
        F.lit(True).alias("settled"),
    )


def _rules(gap: str, after_s: float, buffer: int, forget_s: float | None, ids: int = 0) -> Rules:
    if gap not in ("wait", "skip"):
        raise ConfigError(f"{gap!r} is no way to treat a gap", fix="use gap='wait' or gap='skip'")
    return Rules("strict", GapPolicy(OnGap(gap), after_s), buffer, forget_s, ids)


def _ordered(df: DataFrame, rules: Rules, buckets: int, verdicts: bool, waiting: bool = False) -> DataFrame:
    _check_columns(df, "session", "index")
    if buckets < 1:
        raise ConfigError(f"{buckets} buckets hold nothing", fix="use buckets=1 or more")
    rules = _with_unplaced(rules, verdicts)
    schema = _out_schema(df.schema, verdicts)
    keyed = filled(df).withColumn(BUCKET, F.pmod(F.xxhash64(_key_of(df)), F.lit(buckets)).cast("int"))
    if not df.isStreaming:
        in_order = BatchInOrder(rules, verdicts)
        # Spark counts the parameters of what it gets, and would count `self`
        return keyed.groupBy(BUCKET).applyInArrow(lambda table: in_order(table), schema)
    processor = OrderingProcessor(rules, verdicts=verdicts, waiting=waiting)
    return (
        keyed.withColumn(NOW, F.unix_millis(F.current_timestamp()))
        .mapInArrow(Pack(), PACKED)
        .groupBy(BUCKET)
        .transformWithStateInPandas(processor, PASSED_ON, outputMode="Append", timeMode=processor.time_mode)
        .mapInArrow(Unpack(to_arrow_schema(schema, timezone="UTC")), schema)
    )


def _with_unplaced(rules: Rules, verdicts: bool) -> Rules:
    """A row with a session and no index is kept as a dead letter. Where no verdicts come out nobody would keep it, and
    as a rejected one it stops the query."""
    return replace(rules, unplaced=RowOutcome.DEAD if verdicts else RowOutcome.REJECTED)


def _key_of(df: DataFrame) -> Column:
    """Rows without a session are spread by id, if they have one."""
    return F.coalesce(F.col("session"), F.col("id")) if "id" in df.columns else F.col("session")


def _out_schema(schema: StructType, verdicts: bool) -> StructType:
    """Everything may be empty: the row of a skipped index has only a name."""
    fields = [StructField(field.name, field.dataType, True, field.metadata) for field in schema]
    if verdicts:
        fields += [StructField(name, StringType()) for name in ("outcome", "cause") if name not in schema.names]
    return StructType(fields)


def _check_columns(df: DataFrame, *names: str) -> None:
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise ConfigError(
            f"this step needs a column {missing[0]!r}, and the rows have: {', '.join(df.columns)}",
            fix="select it, or rename one with withColumnRenamed",
        )
