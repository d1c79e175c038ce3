"""Days of evidence as one row per message and event, in buckets of sessions, for audits that need no exchange.

    compact/events/v1/_manifest.json                         which days are there, and which segments they cover
    compact/events/v1/gen-<id>/day=2026-01-31/part-…_00007.c000.zstd.parquet

Ranges are expanded, the index is among the rows as events of kind 0, and the rows of a session lie in one of 32 files,
by Spark's own hash. A day counts only once the manifest names it, and the manifest is replaced as a whole: whoever
dies before leaves the old one valid. A segment that came later is read beside the compacted day until the day is
compacted again. Where the ranges of a day do not fit the index yet, the day is left as it is.
"""

from __future__ import annotations

import fcntl
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from semel.errors import InputError, StoreBusy, StoreError
from semel.runtime.export.exporter import mark_text
from semel.runtime.export.files import sync
from semel.spark.audit import expand, figures, sources
from semel.spark.audit.figures import LedgerHop
from semel.spark.audit.sources import Evidence, ExportedFile

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKETS = 32
VERSION = 1
EVENTS = f"{expand.EVENT}, code long, key long"
_DAY_US = 86_400_000_000


class File(msgspec.Struct, frozen=True):
    name: str
    bytes: int


class Day(msgspec.Struct, frozen=True):
    """One compacted day. `covers` names the segments that it stands for. `split` is how many ids are in several
    sessions, None if nobody has counted them."""

    day: str
    path: str
    rows: int
    files: tuple[File, ...]
    covers: tuple[str, ...]
    hops: tuple[LedgerHop, ...]
    streams: tuple[str, ...]
    split: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    version: int = VERSION
    buckets: int = BUCKETS
    days: tuple[Day, ...] = ()


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one run did. `left` are days that stay as they are, with the reason."""

    days: tuple[str, ...]
    rows: int
    bytes: int
    left: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CompactedDays:
    """Compacted days that an audit may use, with the folder that they are in."""

    folder: Path
    days: tuple[Day, ...]


def events_folder(folder: Path) -> Path:
    return folder / "compact" / "events" / "v1"


def read_manifest(folder: Path) -> Manifest:
    path = events_folder(folder) / "_manifest.json"
    if not path.exists():
        return Manifest()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        fix = f"remove {events_folder(folder)}: it holds nothing that compacting again does not bring back"
        raise StoreError(f"{path} cannot be read: {error}", fix=fix) from None
    # what another version has written is not for us, and everything in it is in the segments as well
    return found if (found.version, found.buckets) == (VERSION, BUCKETS) else Manifest()


def token(part: ExportedFile) -> str:
    """The name of a segment in `covers`, with the mark after which its rows did not count."""
    until = f"@{mark_text(part.until)}" if part.until is not None else ""
    return f"{part.dataset}/{part.segment.path}{until}"


def split(evidence: Evidence) -> tuple[list[CompactedDays], list[ExportedFile]]:
    """The compacted days that are good for this evidence, and the segments that no such day covers.

    A day is good when everything that it covers still counts, and counts once."""
    rest = {(part.folder, token(part)): part for part in evidence.parts}
    found = []
    for folder in evidence.folders:
        good = []
        for day in read_manifest(folder).days:
            covers = [(folder, name) for name in day.covers]
            if all(cover in rest for cover in covers):
                _check_files(folder, day)
                good.append(day)
                for cover in covers:
                    del rest[cover]
        if good:
            found.append(CompactedDays(folder, tuple(good)))
    return found, list(rest.values())


def _check_files(folder: Path, day: Day) -> None:
    for file in day.files:
        path = events_folder(folder) / day.path / file.name
        if not path.exists() or path.stat().st_size != file.bytes:
            what = "is missing" if not path.exists() else "is not as long as it was written"
            raise StoreError(f"{path} {what}", fix=f"remove {events_folder(folder)} and compact again")


@contextmanager
def events_table(spark: SparkSession, found: Sequence[CompactedDays]) -> Iterator[list[DataFrame]]:
    """The compacted days of each folder as a bucketed table, for as long as the block lasts. Spark knows buckets only
    from a catalog; the entry is taken out again and the files stay."""
    names: list[str] = []
    try:
        yield [_create(spark, each, names) for each in found]
    finally:
        for name in names:
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def _create(spark: SparkSession, found: CompactedDays, names: list[str]) -> DataFrame:
    top = events_folder(found.folder)
    name = f"semel_events_{uuid.uuid4().hex}"
    spark.sql(
        f"CREATE TABLE {name} ({EVENTS}, day string) USING parquet PARTITIONED BY (day) "
        f"CLUSTERED BY (session) SORTED BY (session, idx) INTO {BUCKETS} BUCKETS LOCATION {_text(top / 'none')}"
    )
    names.append(name)
    parts = " ".join(f"PARTITION (day={_text(day.day)}) LOCATION {_text(top / day.path)}" for day in found.days)
    spark.sql(f"ALTER TABLE {name} ADD {parts}")
    return spark.table(name)


def _text(value: object) -> str:
    quoted = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{quoted}'"


# -- writing


def compact(
    spark: SparkSession,
    folder: Path | str,
    days: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Compacted:
    """Compact the days that have changed since they were compacted last, or the given ones of them."""
    began = time.monotonic()
    evidence = sources.find([folder])
    [top] = evidence.folders
    with _alone(top):
        manifest = read_manifest(top)
        _remove_leftovers(top, manifest)
        due = _due(evidence, manifest, days)
        if not due:
            return Compacted((), 0, 0, seconds=time.monotonic() - began)
        progress(f"compacting {len(due)} days")
        parts = {day: [part for part in evidence.parts if part.segment.day == day] for day in due}
        left = _incomplete(spark, evidence, [part for day in due for part in parts[day]])
        done = [day for day in due if day not in left]
        written = _write(spark, evidence, top, {day: parts[day] for day in done}) if done else []
        kept = [day for day in manifest.days if day.day not in done]
        _put_manifest(top, Manifest(days=tuple(sorted([*kept, *written], key=lambda day: day.day))))
    size = sum(file.bytes for day in written for file in day.files)
    rows = sum(day.rows for day in written)
    return Compacted(tuple(day.day for day in written), rows, size, left, time.monotonic() - began)


def _due(evidence: Evidence, manifest: Manifest, days: Sequence[str] | None) -> list[str]:
    present: dict[str, set[str]] = {}
    for part in evidence.parts:
        present.setdefault(part.segment.day, set()).add(token(part))
    for day in days or ():
        if day not in present:
            raise InputError(f"there is no day {day} in this export", fix=f"the days are: {', '.join(sorted(present))}")
    covered = {day.day: set(day.covers) for day in manifest.days}
    return sorted(day for day in (days or present) if covered.get(day) != present[day])


def _incomplete(spark: SparkSession, evidence: Evidence, parts: Sequence[ExportedFile]) -> dict[str, str]:
    """Days that stay as they are, with the reason. Where ranges do not fit the index, it has most often not been
    exported as far as the ledger."""
    ledger = sources.ledger(spark, evidence, [part for part in parts if part.dataset == "ledger"])
    fanned = expand.fanned_ranges(ledger).select(_day().alias("day")).distinct().collect()
    left = {row["day"]: "the deliveries of a hub are judged by all its days together" for row in fanned}
    rows = expand.ranges(ledger)
    about = figures.survey(rows).ranges
    if not about.ranges:
        return left
    gaps = expand.gaps(rows, sources.index(spark, evidence), about)
    found = gaps.groupBy(_day().alias("day")).agg(F.count("*").alias("n")).collect()
    return left | {row["day"]: f"{row['n']:,} ranges do not fit the index" for row in found}


def _day() -> Column:
    days = F.floor(F.unix_micros("at") / F.lit(_DAY_US)).cast("int")
    return F.date_from_unix_date(days).cast("string")


def _write(spark: SparkSession, evidence: Evidence, folder: Path, parts: dict[str, list[ExportedFile]]) -> list[Day]:
    top, generation = events_folder(folder), f"gen-{uuid.uuid4().hex[:12]}"
    every = [part for day in parts.values() for part in day]
    name = f"semel_compact_{uuid.uuid4().hex}"
    rows = _events(spark, evidence, every).withColumn("day", _day())
    writer = rows.repartition(BUCKETS, "session").write.format("parquet").partitionBy("day")
    writer = writer.bucketBy(BUCKETS, "session").sortBy("session", "idx").option("compression", "zstd")
    try:
        writer.option("path", str(top / generation)).saveAsTable(name)
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    return _listed(spark, top, generation, parts)


def _events(spark: SparkSession, evidence: Evidence, parts: Sequence[ExportedFile]) -> DataFrame:
    """Everything that the segments say, one row per message and event, and the records of their streams."""
    own = sources.ledger(spark, evidence, [part for part in parts if part.dataset == "ledger"])
    ranges = expand.ranges(own)
    about = figures.survey(ranges).ranges
    rows = expand.singles(own)
    if about.ranges:
        rows = rows.unionByName(expand.expand(ranges, sources.index(spark, evidence), about))
    index = sources.index(spark, evidence, [part for part in parts if part.dataset == "index"])
    rows = rows.unionByName(as_events(records(index)))
    code, key = F.xxhash64("pipeline", "hop"), F.xxhash64("message")
    return rows.withColumn("code", code).withColumn("key", key)


def records(index: DataFrame) -> DataFrame:
    """The messages among the records of streams. Joins and leaves are not sent on."""
    return index.where(F.col("type") == "message")


def as_events(rows: DataFrame) -> DataFrame:
    own = {
        "epoch": F.col("history"), "node": F.lit(""), "pipeline": F.lit(""), "hop": F.col("stream"),
        "kind": F.lit(figures.RECORD).cast("short"), "peer": F.col("target"), "ord": F.col("offset"),
        "attempt": F.lit(1), "cause": F.lit(None).cast("string"),
    }  # fmt: skip
    return rows.select(*(own.get(name, F.col(name)).alias(name) for name in expand.EVENT_COLUMNS))


def as_records(events: DataFrame) -> DataFrame:
    """Undo `as_events`."""
    rows = events.where(F.col("kind") == figures.RECORD)
    return rows.withColumn("stream", F.col("hop")).withColumn("offset", F.col("ord"))


def _listed(spark: SparkSession, top: Path, generation: str, parts: dict[str, list[ExportedFile]]) -> list[Day]:
    """What was written, as the manifest will have it. A day with nothing in it that counts has no files."""
    schema = f"{EVENTS}, day string"
    folder = top / generation
    written = spark.read.schema(schema).parquet(str(folder)) if any(folder.glob("day=*")) else None
    found = []
    for day, covers in parts.items():
        path = f"{generation}/day={day}"
        if written is None or not (top / path).is_dir():
            continue
        rows = written.where(F.col("day") == day)
        streams = rows.where(F.col("kind") == figures.RECORD).select("hop").distinct().collect()
        hops = figures.survey(rows).hops
        files = tuple(File(path.name, path.stat().st_size) for path in sorted((top / path).glob("part-*.parquet")))
        for file in files:
            sync(top / path / file.name)
        found.append(
            Day(
                day, path, rows.count(), files, tuple(sorted(map(token, covers))), tuple(hops),
                tuple(sorted(row["hop"] for row in streams)), _split(rows),
            )
        )  # fmt: skip
    return found


def _split(rows: DataFrame) -> int:
    session = F.xxhash64("session")
    ids = rows.groupBy("key").agg(F.min(session).alias("one"), F.max(session).alias("other"))
    return ids.where(F.col("one") != F.col("other")).count()


def _put_manifest(folder: Path, manifest: Manifest) -> None:
    """The moment at which the new days count."""
    top = events_folder(folder)
    top.mkdir(parents=True, exist_ok=True)
    temporary = top / f"_manifest.{uuid.uuid4().hex}.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    sync(temporary)
    temporary.replace(top / "_manifest.json")
    sync(top)


def _remove_leftovers(folder: Path, manifest: Manifest) -> None:
    """What a run that died had written, and what was replaced before: an audit that began then is long done."""
    used = {day.path for day in manifest.days}
    for generation in events_folder(folder).glob("gen-*"):
        for day in generation.glob("*"):
            if f"{generation.name}/{day.name}" not in used:
                shutil.rmtree(day) if day.is_dir() else day.unlink()
        if not any(generation.iterdir()):
            generation.rmdir()
    for path in events_folder(folder).glob("_manifest.*.tmp"):
        path.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One at a time in a folder. The system ends the lock with the process."""
    top = events_folder(folder)
    top.mkdir(parents=True, exist_ok=True)
    with (top / "_lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(f"another process is compacting {folder}", fix="let it finish, then try again") from None
        yield
