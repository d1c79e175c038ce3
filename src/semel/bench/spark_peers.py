"""The same audit by others: DuckDB, Polars, and Spark as one would write it at first.

They read the files that Semel has compacted, have as many threads, and give the same counts by the same definitions,
written here once more for each. DuckDB and Polars give each window of each hop, with the percentiles of its latency;
the naive form gives each hop as a whole. DuckDB and Polars run in a process of their own each time, which measures its
own time and memory: what one keeps would otherwise be a burden to the next.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from semel.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COUNTS = (
    "sent", "arrivals", "arrivals_unique", "accepted", "accepted_unique", "duplicates", "lost", "doubled", "disorder",
    "phantoms", "given_up", "in_flight",
)  # fmt: skip
"""What every engine must agree on, by the names of `semel.spark.audit.result.Figures`."""

Counts = tuple[int, ...]
Cells = dict[tuple[int, int | None], Counts]
"""Counts by the code of the hop and the beginning of the window; None is the whole time."""


@dataclass(frozen=True, slots=True)
class BenchQuestion:
    """What is to be counted. Times are in microseconds."""

    files: tuple[str, ...]
    window_us: int
    deadline_us: int
    now: int
    threads: int
    folder: str
    """For what does not fit into memory."""


@dataclass(frozen=True, slots=True)
class Answered:
    """`cells` is None when the engine did not come to an end, and `why` says what happened."""

    seconds: float
    cells: Cells | None
    peak_bytes: int | None = None
    why: str = ""


def check_installed() -> None:
    for name in PEERS:
        if find_spec(name) is None:
            fix = "in a checkout: scripts/setup main spark test bench; elsewhere: pip install 'semel[bench,spark]'"
            raise ConfigError(f"the bench needs the {name} package beside Semel", fix=fix)


def ask(engine: str, question: BenchQuestion) -> Answered:
    """Let DuckDB or Polars count in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, engine, question), daemon=True)
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        found = Answered(0.0, None, why=f"ended with {process.exitcode}; -9 is most often a lack of memory")
    finally:
        ours.close()
        process.join()
    assert isinstance(found, Answered)
    return found


def _child(parent: Connection, engine: str, question: BenchQuestion) -> None:
    """Where memory runs out the system shall end this process, and not the one that measures."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.environ["POLARS_MAX_THREADS"] = str(question.threads)
    __import__(engine)
    began = time.perf_counter()
    try:
        cells = PEERS[engine](question)
    except Exception as error:
        parent.send(Answered(0.0, None, why=f"{type(error).__name__}: {str(error).splitlines()[0]}"))
        return
    parent.send(Answered(time.perf_counter() - began, cells, peak_bytes(os.getpid())))


def peak_bytes(pid: int) -> int | None:
    """The most memory that a process has held. Only Linux says it of others."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


# -- DuckDB

_SQL = """
WITH message AS (
  SELECT code, session, key, max(idx) AS idx,
    count(*) FILTER (kind IN (1, 2)) AS sends, count(*) FILTER (kind = 4) AS accepted,
    count(*) FILTER (kind = 5) AS duplicates, count(*) FILTER (kind = 6) AS rejected,
    count(*) FILTER (kind >= 20) AS ended,
    min(us) FILTER (kind IN (1, 2)) AS first_sent, min(us) FILTER (kind = 4) AS first_accepted, min(us) AS first_at,
    min(ord) FILTER (kind = 4) AS ord
  FROM (SELECT code, session, key, idx, kind, ord, epoch_us("at") AS us FROM read_parquet($files)
        WHERE kind NOT IN (0, 12))
  GROUP BY code, session, key
), placed AS (
  SELECT *, coalesce(first_sent, first_at) AS t, accepted + duplicates + rejected AS arrivals,
    max(CASE WHEN accepted > 0 THEN idx END) OVER (
      PARTITION BY code, session ORDER BY ord ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS highest
  FROM message
), judged AS (
  SELECT *, t <= $now - $deadline AS settled, sends > 0 AND accepted = 0 AND ended = 0 AS missing FROM placed
)
SELECT code, t - t % $window AS start,
  count(*) FILTER (sends > 0) AS sent,
  coalesce(sum(arrivals) FILTER (sends > 0 AND (settled OR NOT missing)), 0) AS arrivals,
  count(*) FILTER (sends > 0 AND (settled OR NOT missing) AND arrivals > 0) AS arrivals_unique,
  coalesce(sum(accepted) FILTER (sends > 0), 0) AS accepted,
  count(*) FILTER (sends > 0 AND accepted > 0) AS accepted_unique,
  coalesce(sum(duplicates) FILTER (sends > 0 AND (settled OR NOT missing)), 0) AS duplicates,
  count(*) FILTER (missing AND settled) AS lost,
  sum(greatest(accepted - 1, 0)) AS doubled,
  count(*) FILTER (accepted > 0 AND idx < highest) AS disorder,
  count(*) FILTER (sends = 0 AND arrivals > 0 AND settled) AS phantoms,
  count(*) FILTER (sends > 0 AND accepted = 0 AND ended > 0) AS given_up,
  count(*) FILTER (missing AND NOT settled) AS in_flight,
  approx_quantile(first_accepted - first_sent, [0.5, 0.99]) AS latency
FROM judged GROUP BY code, start
"""


def _duckdb(question: BenchQuestion) -> Cells:
    import duckdb

    with duckdb.connect() as db:
        db.execute(f"SET threads = {question.threads}")
        db.execute("SET temp_directory = '{}'".format(question.folder.replace("'", "''")))
        values = {
            "files": list(question.files), "now": question.now, "deadline": question.deadline_us,
            "window": question.window_us,
        }  # fmt: skip
        rows = db.execute(_SQL, values).fetchall()
    return {(row[0], row[1]): tuple(int(count) for count in row[2 : 2 + len(COUNTS)]) for row in rows}


# -- Polars


def _polars(question: BenchQuestion) -> Cells:
    import polars as pl

    kind, accepted, sends = pl.col("kind"), pl.col("accepted"), pl.col("sends")
    is_sent, is_accepted = kind.is_in([1, 2]), kind == 4
    at = pl.col("at").dt.epoch("us")
    messages = (
        pl.scan_parquet(list(question.files))
        .filter(~kind.is_in([0, 12]))
        .select("code", "session", "key", "idx", "kind", "ord", at)
        .group_by("code", "session", "key")
        .agg(
            pl.col("idx").max(),
            is_sent.sum().alias("sends"),
            is_accepted.sum().alias("accepted"),
            (kind == 5).sum().alias("duplicates"),
            (kind == 6).sum().alias("rejected"),
            (kind >= 20).sum().alias("ended"),
            pl.col("at").filter(is_sent).min().alias("first_sent"),
            pl.col("at").filter(is_accepted).min().alias("first_accepted"),
            pl.col("at").min().alias("first_at"),
            pl.col("ord").filter(is_accepted).min().alias("ord"),
        )
        .with_columns(*(pl.col(name).cast(pl.Int64) for name in ("sends", "accepted", "duplicates", "rejected")))
    )
    place = pl.when(accepted > 0).then(pl.col("idx"))
    judged = messages.with_columns(
        pl.coalesce("first_sent", "first_at").alias("t"),
        (accepted + pl.col("duplicates") + pl.col("rejected")).alias("arrivals"),
        (place < place.cum_max().over("code", "session", order_by="ord")).fill_null(value=False).alias("disorder"),
        ((sends > 0) & (accepted == 0) & (pl.col("ended") == 0)).alias("missing"),
    ).with_columns(
        (pl.col("t") <= question.now - question.deadline_us).alias("settled"),
        (pl.col("t") - pl.col("t") % question.window_us).alias("start"),
    )
    sent, settled, missing, arrivals = sends > 0, pl.col("settled"), pl.col("missing"), pl.col("arrivals")
    counted = sent & (settled | ~missing)
    latency = pl.col("first_accepted") - pl.col("first_sent")
    sums = {
        "sent": sent.sum(), "arrivals": arrivals.filter(counted).sum(),
        "arrivals_unique": (counted & (arrivals > 0)).sum(), "accepted": accepted.filter(sent).sum(),
        "accepted_unique": (sent & (accepted > 0)).sum(), "duplicates": pl.col("duplicates").filter(counted).sum(),
        "lost": (missing & settled).sum(), "doubled": (accepted - 1).clip(0).sum(),
        "disorder": pl.col("disorder").sum(), "phantoms": (~sent & (arrivals > 0) & settled).sum(),
        "given_up": (sent & (accepted == 0) & (pl.col("ended") > 0)).sum(), "in_flight": (missing & ~settled).sum(),
    }  # fmt: skip
    cells = (
        judged.group_by("code", "start")
        .agg(
            *(sums[name].alias(name) for name in COUNTS),
            latency.quantile(0.5).alias("p50"),
            latency.quantile(0.99).alias("p99"),
        )
        .collect(engine="streaming")
    )
    return {
        (row["code"], row["start"]): tuple(int(row[name]) for name in COUNTS) for row in cells.iter_rows(named=True)
    }  # fmt: skip


PEERS: dict[str, Callable[[BenchQuestion], Cells]] = {"duckdb": _duckdb, "polars": _polars}
"""By the name of the package."""


# -- Spark as one would write it at first


def naive(spark: SparkSession, question: BenchQuestion, codes: Sequence[int]) -> Answered:
    """A query for each figure: distinct counts, anti joins for what is missing, a self join for order."""
    from pyspark.sql import functions as F

    from semel.spark.audit.compact import EVENTS

    began = time.perf_counter()
    events = spark.read.schema(EVENTS).parquet(*question.files).withColumn("us", F.unix_micros("at"))
    figures = {name: _by_hop(rows, count) for name, (rows, count) in _naive_figures(events, question).items()}
    _naive_latency(events).collect()
    cells: Cells = {(code, None): tuple(figures[name].get(code, 0) for name in COUNTS) for code in codes}
    return Answered(time.perf_counter() - began, cells)


def _naive_figures(events: DataFrame, question: BenchQuestion) -> dict[str, tuple[DataFrame, Column]]:
    """For each figure the rows to be counted, and how."""
    from pyspark.sql import functions as F

    every, distinct, of = F.count(F.lit(1)), F.countDistinct("message"), ["code", "message"]
    settled = F.col("since") <= question.now - question.deadline_us
    accepted, ended = events.where("kind = 4"), events.where("kind >= 20")
    sent = _since(events.where("kind IN (1, 2)"))
    missing = sent.join(accepted, of, "left_anti").join(ended, of, "left_anti")
    counted = sent.join(missing.where(~settled), of, "left_anti")
    arrived = events.where("kind IN (4, 5, 6)").join(counted, of, "left_semi")
    taken = accepted.join(sent, of, "left_semi")
    came = events.where("kind IN (4, 5, 6)").select(*of)
    unsent = _since(events.join(sent, of, "left_anti")).join(came, of, "left_semi")
    copies = accepted.groupBy(*of).count().where("count > 1")
    return {
        "sent": (events.where("kind IN (1, 2)"), distinct),
        "arrivals": (arrived, every),
        "arrivals_unique": (arrived, distinct),
        "accepted": (taken, every),
        "accepted_unique": (taken, distinct),
        "duplicates": (arrived.where("kind = 5"), every),
        "lost": (missing.where(settled), every),
        "doubled": (copies, F.sum(F.col("count") - 1)),
        "disorder": (_behind(accepted), distinct),
        "phantoms": (unsent.where(settled), every),
        "given_up": (sent.join(accepted, of, "left_anti").join(ended, of, "left_semi"), every),
        "in_flight": (missing.where(~settled), every),
    }


def _since(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.groupBy("code", "message").agg(F.min("us").alias("since"))


def _behind(accepted: DataFrame) -> DataFrame:
    """What was accepted after a later message of its session."""
    from pyspark.sql import functions as F

    first = accepted.groupBy("code", "session", "message").agg(F.min("ord").alias("ord"), F.max("idx").alias("idx"))
    earlier = first.select("code", "session", F.col("ord").alias("before"), F.col("idx").alias("higher"))
    return first.join(earlier, ["code", "session"]).where("before < ord AND higher > idx")


def _naive_latency(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    sent, accepted = _since(events.where("kind IN (1, 2)")), _since(events.where("kind = 4"))
    took = sent.join(accepted.withColumnRenamed("since", "until"), ["code", "message"])
    return took.groupBy("code").agg(F.percentile_approx(F.col("until") - F.col("since"), [0.5, 0.99]))


def _by_hop(rows: DataFrame, count: Column) -> dict[int, int]:
    return {row["code"]: int(row["n"]) for row in rows.groupBy("code").agg(count.alias("n")).collect()}
