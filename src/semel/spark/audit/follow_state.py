"""What an audit that goes on keeps, and the folder that it keeps it in.

    state/checkpoint/                   where the query stands in the ledgers and indexes of the stores
    state/parts/<batch>-<id>/messages   one row per message and hop, as far as these batches know; parts add up
    state/parts/<batch>-<id>/index      records that ranges of later batches may name
    state/parts/<batch>-<id>/pending    ranges whose records are not all there yet
    state/lanes/<id>/                   how far each session has come on each hop
    state/judged/<id>/                  sums of the windows with their revisions, what is wrong, what time will change
    state/forgotten/<id>/               marks of messages that were let go of
    state/_state.json                   which of these count

A folder counts once `_state.json` names it, and that is replaced as a whole. So whoever dies at any point goes on with
the same result.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame as Frame
from pyspark.sql import functions as F

from semel.errors import ConfigError, StoreBusy, StoreError
from semel.kernel.ledger import Kind
from semel.runtime.export.files import sync
from semel.spark.audit import figures, sources
from semel.spark.audit.chains import Paths
from semel.spark.audit.figures import LedgerHop

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VERSION = 3
STATE_FILE = "_state.json"
FILE_ROWS_MAX = 100_000
"""Messages are put away by time in files of so many rows. A turn reads only the files that it needs."""
_ROWS_FEW = 4 * FILE_ROWS_MAX
_KINDS = ("parts", "judged", "lanes", "forgotten")

MESSAGES = (
    "code long, session string, key string, sends long, accepted long, duplicates long, rejected long, ended long, "
    "forwarded long, dropped long, replayed long, confirmed long, first_sent long, first_accepted long, first_at long, "
    "ord long, idx long, store long, reading int, mark long"
)
LANES = "code long, session string, store long, last_ord long, highest long, turn long"
WATCHED = "code long, session string, key string, mark long, due long, highest long"
FORGOTTEN = "mark long"
ROWS = {dataset: f"{schema}, store string, history int" for dataset, schema in sources.SCHEMAS.items()}


class AuditQuestion(msgspec.Struct, frozen=True):
    """What the state is about. Another question needs another folder."""

    stores: tuple[str, ...]
    window_us: int
    session_class: str | None
    pipelines: tuple[str, ...]


class FollowedPart(msgspec.Struct, frozen=True):
    """What one batch brought, or several of them put together. `rows` are those of messages."""

    name: str
    hops: tuple[LedgerHop, ...] = ()
    streams: tuple[str, ...] = ()
    metered: tuple[tuple[str, str, int, int], ...] = ()
    times: tuple[int, int] | None = None
    rows: int = 0


class HopReadings(msgspec.Struct, frozen=True):
    """How the hops were read, by their codes, and what was asked. Once that is different, everything that is kept is
    judged again."""

    ways: tuple[tuple[int, bool, bool, bool, bool], ...]
    chains: tuple[tuple[int, ...], ...]
    stays: tuple[tuple[int, ...], ...]
    deadline_us: int
    since: int | None
    until: int | None


class LastJudgement(msgspec.Struct, frozen=True):
    """The last one: what it was of, and when. `waits` are the hops with messages in flight whatever the deadline,
    and `held` the sessions that wait behind a gap there.
    `due` is the time of which the settling changes something next. `rows` were looked at to make it."""

    name: str
    parts: tuple[str, ...]
    reading: HopReadings
    now: int
    waits: dict[int, int]
    paths: Paths
    due: int | None = None
    ranges: bool = False
    rows: int = 0
    held: tuple[tuple[int, str, int], ...] = ()


class Lanes(msgspec.Struct, frozen=True):
    name: str
    rows: int


class Forgotten(msgspec.Struct, frozen=True):
    """Messages that were let go of; nothing happened to them from `horizon` on."""

    name: str
    horizon: int


class FollowState(msgspec.Struct, frozen=True):
    """`horizon`: the windows before it are closed for good. `closed` is how the messages went that were let go of, from
    end to end, and `late` counts those of which something came again. `notes` are what was to be said when it
    began."""

    asked: AuditQuestion
    query: str = ""
    batch: int = -1
    parts: tuple[FollowedPart, ...] = ()
    pending: str | None = None
    horizon: int = 0
    turn: int = 0
    judgement: LastJudgement | None = None
    lanes: tuple[Lanes, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    closed: Paths = Paths()
    late: int = 0
    notes: tuple[str, ...] = ()
    version: int = VERSION

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)


class Folder:
    """The files. One process at a time may have it."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path = spark, path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def query(self) -> str:
        """The id that Spark gave the query, which lives as long as its checkpoint."""
        path = self.checkpoint / "metadata"
        return str(msgspec.json.decode(path.read_bytes())["id"]) if path.exists() else ""

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "_lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreBusy(
                    f"another process follows with {self.path}",
                    fix="end it first, or name another folder with --state",
                ) from None
            yield

    # -- the state

    def found(self, fresh: FollowState) -> FollowState:
        """A state and the checkpoint that it belongs to go together. One without the other is no use: all is read
        again."""
        path = self.path / STATE_FILE
        if not path.exists():
            return self._start_over(fresh)
        try:
            version = msgspec.json.decode(path.read_bytes(), type=_Version).version
            state = msgspec.json.decode(path.read_bytes(), type=FollowState) if version == VERSION else None
        except msgspec.DecodeError as error:
            fix = f"remove {self.path}: everything in it is read from the stores again"
            raise StoreError(f"{path} cannot be read: {error}", fix=fix) from None
        if state is None or (state.batch >= 0 and state.query != self.query()):
            return self._start_over(fresh)
        if state.asked != fresh.asked:
            raise ConfigError(
                f"{self.path} follows other stores or pipelines, or with another window or class of sessions",
                fix="name another folder with --state, or remove this one",
            )
        return state

    def _start_over(self, state: FollowState) -> FollowState:
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.put(state)
        return state

    def put(self, state: FollowState) -> None:
        """The moment at which it counts."""
        beside = self.path / f"{STATE_FILE}.{os.getpid()}.part"
        with beside.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(state)))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path / STATE_FILE)

    def remove_leftovers(self, state: FollowState) -> None:
        """What a run that died had written and nobody names, and what was replaced."""
        used = {*state.names, state.pending, state.judgement.name if state.judgement else None}
        used |= {each.name for each in state.lanes} | {each.name for each in state.forgotten}
        for kind in _KINDS:
            for path in (self.path / kind).glob("*"):
                if path.name not in used:
                    shutil.rmtree(path)

    # -- tables

    def fresh(self, kind: str) -> Path:
        """A place that nobody has."""
        return self.path / kind / uuid.uuid4().hex[:12]

    def write(self, rows: DataFrame, place: Path) -> None:
        rows.coalesce(4).write.mode("overwrite").parquet(str(place))
        sync_files(place)

    def write_by_time(self, rows: DataFrame, place: Path) -> None:
        """So that the messages of a time are in few files."""
        ordered = rows.repartitionByRange("first_at").sortWithinPartitions("first_at")
        ordered.write.option("maxRecordsPerFile", FILE_ROWS_MAX).mode("overwrite").parquet(str(place))
        sync_files(place)

    def read(self, places: Sequence[Path], schema: str) -> DataFrame:
        paths = [str(place) for place in places if any(place.glob("*.parquet"))]
        return self.spark.read.schema(schema).parquet(*paths) if paths else self.nothing(schema)

    def nothing(self, schema: str) -> DataFrame:
        """A table without rows, which Spark can see, so that it plans nothing for it."""
        empty = [F.lit(None).cast(kind).alias(name) for name, kind in map(str.split, schema.split(", "))]
        return self.spark.range(0).select(*empty)

    def read_parts(self, dataset: str, names: Sequence[str], schema: str) -> DataFrame:
        return self.read([self.path / "parts" / name / dataset for name in names], schema)

    def of_marks(self, parts: Sequence[FollowedPart], marks: DataFrame) -> DataFrame:
        """The rows of some messages. Of all files the marks are read, and no more than that of most of them."""
        rows = self.read_parts("messages", [part.name for part in parts], MESSAGES)
        if sum(part.rows for part in parts) > _ROWS_FEW:
            here = rows.select("mark", F.col("_metadata.file_path").alias("file")).join(marks, "mark", "left_semi")
            files = [row["file"] for row in here.select("file").distinct().collect()]
            if not files:
                return self.nothing(MESSAGES)
            rows = self.spark.read.schema(MESSAGES).parquet(*files)
        return rows.join(marks, "mark", "left_semi").select(*columns(MESSAGES))

    def marks_forgotten(self, state: FollowState) -> DataFrame | None:
        places = [self.path / "forgotten" / each.name for each in state.forgotten]
        return self.read(places, FORGOTTEN) if places else None

    def lanes(self, lanes: Sequence[Lanes], sessions: DataFrame | None = None) -> DataFrame:
        """How far each session has come on each hop. The last word of several counts."""
        rows = self.read([self.path / "lanes" / each.name for each in lanes], LANES)
        if sessions is not None:
            rows = rows.join(sessions, "session", "left_semi")
        last = F.max_by(F.struct("last_ord", "highest", "turn"), "turn").alias("last")
        return rows.groupBy("code", "session", "store").agg(last).select("code", "session", "store", "last.*")


class _Version(msgspec.Struct):
    version: int


def count_rows(place: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in place.glob("*.parquet"))


def sync_files(folder: Path) -> None:
    """What is named must be there after a power failure as well."""
    for path in (*folder.glob("*.parquet"), folder):
        sync(path)


def columns(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


def mark(key: str = "key") -> Column:
    """What stands for an id where it would be too long. All sessions of the id go along."""
    return F.xxhash64(key)


def union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(Frame.unionByName, frames)


# -- parts that become one


def part_name(batch: int) -> str:
    return f"{batch}-{uuid.uuid4().hex[:8]}"


def suffix(sizes: Sequence[int]) -> int:
    """How many of the newest to put together, so that each of those that stay is larger than all after it together.
    A row is then moved a few times only, however much is kept."""
    count, total = 1, sizes[-1]
    while count < len(sizes) and (count < 2 or sizes[-count - 1] <= total):
        count += 1
        total += sizes[-count]
    return count


def together(name: str, parts: Sequence[FollowedPart], rows: int) -> FollowedPart:
    hops = figures.together(hop for part in parts for hop in part.hops)
    times = [time for part in parts if part.times is not None for time in part.times]
    return FollowedPart(
        name,
        tuple(hops),
        tuple(sorted({stream for part in parts for stream in part.streams})),
        tuple((pipeline, hop, int(kind), n) for pipeline, hop, kind, n in metered(parts)),
        (min(times), max(times)) if times else None,
        rows,
    )


def metered(parts: Sequence[FollowedPart]) -> Iterator[tuple[str, str, Kind, int]]:
    sums: dict[tuple[str, str, int], int] = {}
    for pipeline, hop, kind, n in (cell for part in parts for cell in part.metered):
        sums[pipeline, hop, kind] = sums.get((pipeline, hop, kind), 0) + n
    return ((pipeline, hop, Kind(kind), n) for (pipeline, hop, kind), n in sorted(sums.items()))
