"""What is wrong, message by message: a table with one row for each finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from semel.spark.audit.figures import HopReading
from semel.spark.audit.result import Example, Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from semel.spark.audit.chains import ChainStay

FINDING = (
    "finding string, pipeline string, hop string, session_class string, window long, message string, session string, "
    "idx long, count long, detail string"
)
COLUMNS = tuple(column.split()[0] for column in FINDING.split(", "))


def findings(rows: DataFrame, ways: Sequence[HopReading], *, window_us: int, session_class: str | None) -> DataFrame:
    """From judged messages that go by their names (`exact`)."""
    when = F.timestamp_micros("when").cast("string")
    kinds = [
        _kind(Finding.LOST, F.col("lost"), 1, F.concat(
            F.lit("sent "), _times("sends"), F.lit(", first at "), when,
            F.when(F.col("rejected") > 0, F.concat(F.lit(", rejected "), F.col("rejected").cast("string")))
            .otherwise(F.lit("")),
        )),
        _kind(Finding.DUPLICATE, F.col("copies") > 0, F.col("copies"), F.concat(
            F.lit("accepted "), _times("accepted"), F.lit(" on this hop"),
        )),
        _kind(Finding.ORDER, F.col("disorder"), 1, F.concat(
            F.lit("accepted after "), F.col("highest").cast("string"), F.lit(" of its session"),
        )),
        _kind(Finding.PHANTOM, F.col("phantom"), F.col("arrivals"), F.concat(F.lit("first seen at "), when)),
        _kind(Finding.UNBALANCED, F.col("unbalanced"), 1, F.concat(
            F.lit("accepted "), F.col("accepted").cast("string"), F.lit(", replayed "),
            F.col("replayed").cast("string"), F.lit(", ended "), F.col("ended").cast("string"),
            F.lit(", confirmed "), F.col("confirmed").cast("string"),
        )),
    ]  # fmt: skip
    of_class = F.regexp_extract("session", session_class, 1) if session_class else F.lit("")
    found = rows.withColumn("_found", F.explode(F.filter(F.array(*kinds), lambda kind: kind.isNotNull())))
    return found.select(
        "_found.finding",
        _name(ways, "pipeline").alias("pipeline"),
        _name(ways, "hop").alias("hop"),
        of_class.alias("session_class"),
        (F.col("when") - F.pmod(F.col("when"), F.lit(window_us).cast("long"))).alias("window"),
        F.col("key").alias("message"),
        "session",
        "idx",
        "_found.count",
        "_found.detail",
    )


def inside_findings(
    rows: DataFrame, stays: Sequence[ChainStay], *, window_us: int, session_class: str | None
) -> DataFrame:
    """From the rows of `chains.lost_inside`, in the same columns."""
    of_class = F.regexp_extract("session", session_class, 1) if session_class else F.lit("")
    ways = [HopReading(stay.into) for stay in stays]
    pairs = [F.lit(value) for stay in stays for value in (stay.into.code, stay.inside(0).where)]
    return rows.select(
        F.lit(Finding.LOST.value).alias("finding"),
        _name(ways, "pipeline").alias("pipeline"),
        _name(ways, "hop").alias("hop"),
        of_class.alias("session_class"),
        (F.col("when") - F.pmod(F.col("when"), F.lit(window_us).cast("long"))).alias("window"),
        F.col("key").alias("message"),
        "session",
        "idx",
        F.lit(1).cast("long").alias("count"),
        F.create_map(*pairs)[F.col("code")].alias("detail"),
    )


def gap_findings(rows: DataFrame) -> DataFrame:
    """Ranges of the ledger that do not fit, in the same columns."""
    place = F.concat_ws(
        "", "stream", F.lit("@"), F.col("epoch").cast("string"), F.lit(":"), F.col("first").cast("string"),
        F.lit(".."), F.col("last").cast("string"),
    )  # fmt: skip
    differ = F.concat(
        F.lit("the ledger counts "), F.col("n").cast("string"), F.lit(" records there, the index has "),
        F.col("found").cast("string"),
    )  # fmt: skip
    other = F.lit("the index has as many records there, but they are others")
    return rows.select(
        F.lit(Finding.GAP.value).alias("finding"),
        "pipeline",
        "hop",
        F.lit("").alias("session_class"),
        F.lit(None).cast("long").alias("window"),
        place.alias("message"),
        F.lit(None).cast("string").alias("session"),
        F.lit(None).cast("long").alias("idx"),
        F.greatest(F.abs(F.col("n") - F.col("found")), F.lit(1)).cast("long").alias("count"),
        F.when(F.col("n") == F.col("found"), other).otherwise(differ).alias("detail"),
    )


@dataclass(frozen=True, slots=True)
class Start:
    """`before` messages of a stream count as lost and are older than the first that this reader ever took."""

    pipeline: str
    hop: str
    first: int
    before: int


def starts(rows: DataFrame, ways: Sequence[HopReading]) -> list[Start]:
    """From judged messages: of readers that look as if they had begun late. Whether they were meant to, no ledger
    says."""
    silent = {way.hop.code: way.hop for way in ways if way.implied}
    if not silent:
        return []
    here = rows.where(F.col("code").isin(*silent))
    taken = here.where("held").groupBy("code").agg(F.min("when").alias("first")).collect()
    firsts = {row["code"]: row["first"] for row in taken}
    older = F.lit(False)
    for code, first in firsts.items():
        older = older | ((F.col("code") == code) & (F.col("when") < first))
    found = here.where(F.col("lost") & older).groupBy("code").agg(F.count("*").alias("before")).collect()
    return [Start((hop := silent[row["code"]]).pipeline, hop.hop, firsts[row["code"]], row["before"]) for row in found]


def examples(rows: DataFrame, each: int) -> list[Example]:
    """The first of each finding on each hop. Only they are sorted out of all, before anything is moved."""
    order = Window.partitionBy("finding", "pipeline", "hop").orderBy("window", "session", "idx", "message")
    first = rows.withColumn("_rank", F.row_number().over(order)).where(F.col("_rank") <= each)
    found = sorted(first.collect(), key=lambda row: (row["finding"], row["pipeline"], row["hop"], row["_rank"]))
    return [_example(row) for row in found]


def _example(row: Any) -> Example:
    return Example(
        Finding(row["finding"]), row["pipeline"], row["hop"], row["window"], row["message"], row["session"],
        row["idx"], row["count"], row["detail"],
    )  # fmt: skip


def _times(name: str) -> Column:
    words = F.concat(F.col(name).cast("string"), F.lit(" times"))
    return F.when(F.col(name) == 1, "once").when(F.col(name) == 2, "twice").otherwise(words)


def _kind(finding: Finding, holds: Column, count: Column | int, detail: Column) -> Column:
    number = (F.lit(count) if isinstance(count, int) else count).cast("long")
    found = F.struct(F.lit(finding.value).alias("finding"), number.alias("count"), detail.alias("detail"))
    return F.when(holds, found)


def _name(ways: Sequence[HopReading], attribute: str) -> Column:
    pairs = [F.lit(value) for way in ways for value in (way.hop.code, getattr(way.hop, attribute))]
    names = F.create_map(*pairs).cast("map<bigint,string>")  # where no hop is asked for it is empty, and has no types
    return names[F.col("code")]
