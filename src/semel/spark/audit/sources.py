"""Where the evidence of an audit is: export folders and live stores, any number of them at once.

Every row counts once. A store may be given both as a folder and live: then the live store adds what the folder does not
have yet. A folder given twice, or a copy of it, adds nothing. Of a store that was restored, rows of the lost history do
not count.

Everything is looked at before Spark begins, so that a missing or foreign file is named here and not by a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from semel.errors import ConfigError, NotAStore, StoreError
from semel.kernel.ledger import START, Mark
from semel.kernel.store import LedgerHorizon
from semel.runtime.export.exporter import (
    DATASETS,
    ID_FILE,
    EpochStart,
    Segment,
    dataset_folder,
    epoch_starts,
    mark_text,
    parse_mark,
    segments,
)
from semel.spark.landing import output_stream, read_state, state_key
from semel.spark.offsets import AVAILABLE
from semel.spark.waiting import read_waits
from semel.stores.open import open_store
from semel.stores.shared import exported_mark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from semel.kernel.store import Store

LEDGER = (
    "seq long, xid long, at timestamp, node string, pipeline string, hop string, kind short, message string, "
    "delivery string, session string, idx long, peer string, stream string, epoch int, first long, last long, n int, "
    "fold long, attempt int, cause string, trace string"
)
INDEX = (
    "stream string, epoch int, offset long, type string, message string, session string, idx long, target string, "
    "at timestamp, bytes long, source string, subject string, terms string"
)
SCHEMAS = {"ledger": LEDGER, "index": INDEX}

_SCHEMES = ("sqlite", "postgresql", "postgres", "memory")
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file that counts. Rows after `until` belong to a history that the store has lost. `oldest` and `newest` are
    the times of its rows in microseconds, by its footer."""

    folder: Path
    dataset: str
    segment: Segment
    until: Mark | None = None
    oldest: int | None = None
    newest: int | None = None

    @property
    def path(self) -> Path:
        return dataset_folder(self.folder, self.dataset) / self.segment.path

    @property
    def key(self) -> tuple[str, str, int, str, str, str]:
        """The range determines the file, wherever it lies."""
        segment = self.segment
        return self.dataset, segment.store, segment.epoch, segment.first, segment.last, segment.day


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """How far a pipeline on Spark has come in one of its streams."""

    hop: str
    store: str
    stream: str
    offset: int


@dataclass(frozen=True, slots=True)
class Held:
    """Messages of a session that a pipeline has taken and keeps, because the one with this index has not come."""

    hop: str
    session: str
    index: int
    rows: int


@dataclass(frozen=True, slots=True)
class LiveStore:
    """A store as it is now. `after` says by dataset up to where a folder has it already."""

    url: str
    store: str
    epoch: int
    after: dict[str, Mark]
    mark: dict[str, Mark]
    """How far the store itself says that it is exported."""
    swept: Mark = START
    """Up to where rows of the ledger may have been removed. They were exported before, to whichever folder."""
    firsts: dict[str, int] = field(default_factory=dict)
    """The streams that were trimmed, with the first offset that is left."""
    taken: tuple[PipelineProgress, ...] = ()
    held: tuple[Held, ...] = ()
    horizon: LedgerHorizon = field(default_factory=LedgerHorizon)

    @property
    def is_short(self) -> bool:
        """Something was swept that no folder among the sources has."""
        return self.after["ledger"] < self.swept

    def start(self, dataset: str) -> str:
        """The `startingPosition` of what is needed from the store itself."""
        after = self.after[dataset]
        if after == START or (dataset == "ledger" and self.is_short):
            return AVAILABLE
        return mark_text(Mark(after.xid, after.seq + 1))


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that an audit reads. `folders` are those whose compacted days may be used."""

    names: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    parts: tuple[ExportedFile, ...] = ()
    live: tuple[LiveStore, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def of(self, dataset: str) -> tuple[ExportedFile, ...]:
        return tuple(part for part in self.parts if part.dataset == dataset)

    @property
    def taken(self) -> tuple[PipelineProgress, ...]:
        return tuple(taken for live in self.live for taken in live.taken)

    @property
    def held(self) -> tuple[Held, ...]:
        return tuple(held for live in self.live for held in live.held)

    @property
    def firsts(self) -> list[tuple[str, str, int]]:
        """Store, stream and first offset of what was trimmed in live stores."""
        return [(live.store, stream, first) for live in self.live for stream, first in live.firsts.items()]

    @property
    def stores(self) -> tuple[str, ...]:
        found = {part.segment.store for part in self.parts} | {live.store for live in self.live}
        return tuple(sorted(found))


def find(sources: Sequence[str | Path]) -> Evidence:
    """Look at every source. What cannot be read is named, with what to do about it."""
    if not sources:
        raise ConfigError("an audit needs a source", fix="name export folders or URLs of stores")
    folders: dict[Path, None] = {}
    urls: dict[str, None] = {}
    for source in map(str, sources):
        if source.partition(":")[0].lower() in _SCHEMES:
            urls[source] = None
        else:
            folders[_folder(source)] = None
    # An export writes into the folder first and moves the mark of the store then. Looked at in the other order, all
    # that is below the mark is in the folder.
    stores = _live_stores(urls, list(folders))
    parts = _unique(part for folder in folders for part in _parts(folder))
    live = [_beside(store, parts) for store in stores]
    parts = [part for part in (_bounded_by_live(part, live) for part in parts) if part is not None]
    checked = tuple(map(_checked, parts))
    return Evidence(
        tuple(map(str, sources)), tuple(folders), checked, tuple(live), (*_swept_notes(live), *_held_notes(live))
    )


# -- folders


def _folder(source: str) -> Path:
    path = Path(source).expanduser()
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        fix = "give a folder that `semel store export` has written, or the URL of a store, such as sqlite:///semel.db"
        raise ConfigError(f"{source} {what}", fix=fix)
    if not (path / ID_FILE).exists() and not any(dataset_folder(path, name).is_dir() for name in DATASETS):
        raise ConfigError(f"{source} is no export", fix="give the folder that `semel store export --to` was given")
    return path.resolve()


def _parts(folder: Path) -> Iterator[ExportedFile]:
    for dataset in DATASETS:
        try:
            listed, starts = segments(folder, dataset), epoch_starts(folder, dataset)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"the manifest of {folder} cannot be read: {error}", fix="copy the folder again from where it came"
            ) from None
        for segment in listed:
            until = _until(segment, starts)
            if until is None or parse_mark(segment.first) <= until:
                yield ExportedFile(folder, dataset, segment, until if _straddles(segment, until) else None)


def _until(segment: Segment, starts: Iterable[EpochStart]) -> Mark | None:
    """Where the next epochs begin: what this one has beyond that was lost, or is exported again by them."""
    later = [parse_mark(s.after) for s in starts if s.store == segment.store and s.epoch > segment.epoch]
    return min(later, default=None)


def _straddles(segment: Segment, until: Mark | None) -> bool:
    return until is not None and parse_mark(segment.last) > until


def _unique(parts: Iterable[ExportedFile]) -> list[ExportedFile]:
    found: dict[tuple[Any, ...], ExportedFile] = {}
    for part in parts:
        found.setdefault(part.key, part)
    return list(found.values())


def _checked(part: ExportedFile) -> ExportedFile:
    """The file is there, is what the manifest says, and is complete. Only its footer is read."""
    path, segment = part.path, part.segment
    again = "export the folder again, or copy it again from where it came"
    if not path.exists():
        raise StoreError(f"a segment is missing: {path}", fix=again)
    try:
        footer = pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid) as error:
        why = str(error).splitlines()[0]
        raise StoreError(f"{path} cannot be read as Parquet: {why}", fix=again) from None
    metadata = {
        key.decode(): value.decode() for key, value in (footer.metadata or {}).items() if key != b"ARROW:schema"
    }
    expected = {"semel.dataset": f"{part.dataset}/v1", "semel.store": segment.store}
    for key, value in expected.items():
        if metadata.get(key) != value:
            raise NotAStore(f"{path} is not the {part.dataset} of {segment.store}: it has no {key}={value}", fix=again)
    if footer.num_rows != segment.rows:
        raise StoreError(f"{path} has {footer.num_rows:,} rows, the manifest says {segment.rows:,}", fix=again)
    if part.until is not None and part.dataset == "index":
        raise StoreError(
            f"{path} reaches beyond {part.until}, where the next epoch of its store begins",
            fix="the folder was put together by hand: export the store again into a new one",
        )
    oldest, newest = _times(footer)
    return replace(part, oldest=oldest, newest=newest)


def _times(footer: Any) -> tuple[int | None, int | None]:
    column = footer.schema.names.index("at")
    found = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
    known = [statistics for statistics in found if statistics is not None and statistics.has_min_max]
    if not known:
        return None, None
    return min(_micros(s.min) for s in known), max(_micros(s.max) for s in known)


def _micros(time: datetime) -> int:
    delta = time.replace(tzinfo=None) - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


# -- live stores


def _live_stores(urls: Iterable[str], folders: Sequence[Path]) -> list[LiveStore]:
    found: dict[str, LiveStore] = {}
    ids = {(folder / ID_FILE).read_text().strip() for folder in folders if (folder / ID_FILE).exists()}
    for url in urls:
        live = _look(url, ids)
        found.setdefault(live.store, live)
    return list(found.values())


def _look(url: str, folder_ids: set[str]) -> LiveStore:
    if url.partition(":")[0].lower() == "memory":
        raise ConfigError("a memory store ends with its process, so nobody else can read it", fix="use sqlite:///FILE")
    store = open_store(url, node="audit", create=False)
    try:
        marks = {dataset: _exported(store, dataset, folder_ids) for dataset in DATASETS}
        streams = store.status().streams
        firsts = {stream.name: stream.first for stream in streams if stream.first > 1}
        pipelines = _pipelines(stream.name for stream in streams)
        taken = tuple(each for pipeline in pipelines for each in _taken(store, pipeline))
        held = tuple(each for pipeline in pipelines for each in _held(store, pipeline))
        return LiveStore(
            url, store.store_id, store.epoch, marks, marks, _swept(store), firsts, taken, held, store.horizon()
        )
    finally:
        store.close()


def _pipelines(streams: Iterable[str]) -> list[str]:
    """Those that write to this store."""
    return sorted({unquote(stream.split("/")[1]) for stream in streams if stream.startswith("spark/")})


def _taken(store: Store, pipeline: str) -> Iterator[PipelineProgress]:
    """A sink says it in the commit that writes the ledger. The ledger is read after this, so it tells of all that was
    taken."""
    key = state_key(pipeline)
    for each in read_state(key, store.state(key)).sources.values():
        yield PipelineProgress(f"{each.stream}>{output_stream(pipeline)}", each.store, each.stream, each.offset)


def _held(store: Store, pipeline: str) -> Iterator[Held]:
    """Sessions that wait for a gap. It is not written down which input their rows came from, so until the gap is closed
    none of them counts as passed."""
    hops = {taken.hop for taken in _taken(store, pipeline)}
    for session, wait in read_waits(store, pipeline).sessions.items():
        yield from (Held(hop, session, wait.index, wait.rows) for hop in sorted(hops))


def _beside(live: LiveStore, parts: Sequence[ExportedFile]) -> LiveStore:
    """What the folders have of it is not read from it once more."""
    after = dict(live.mark)
    for part in parts:
        segment = part.segment
        if segment.store == live.store and segment.epoch == live.epoch:
            after[part.dataset] = max(after[part.dataset], parse_mark(segment.last))
    return replace(live, after=after)


def _swept(store: Store) -> Mark:
    """Only what is exported is removed, the lowest first. Marks have holes, so unless the very first row is there,
    something may have stood before it."""
    exported = exported_mark(store.state("export/ledger")) or START
    first = next((entry.mark for entry in store.ledger(START, 1)), None)
    return exported if first is None else min(exported, Mark(first.xid, first.seq - 1)) if first.seq > 1 else START


def _swept_notes(stores: Iterable[LiveStore]) -> Iterator[str]:
    for live in stores:
        if live.is_short:
            yield (
                f"store {live.store}: its ledger up to {live.swept} was exported and is no longer in it, and none of"
                f" these sources has it after {live.after['ledger']}: name the folder that it was exported to"
            )


def _held_notes(stores: Iterable[LiveStore]) -> Iterator[str]:
    """What is behind an open transaction is not read, and counts as not there yet."""
    for live in stores:
        if live.horizon.is_long:
            yield f"store {live.store}: its ledger has {live.horizon}; what came after that is not in this audit"


def _exported(store: Store, dataset: str, folder_ids: set[str]) -> Mark:
    """How far the given folders have this store, by its own word. What another folder has is not here."""
    mark, folder = store.state(f"export/{dataset}"), store.state(f"export/folder/{dataset}")
    if mark is None or folder is None or folder.value.decode() not in folder_ids:
        return START
    return exported_mark(mark) or START


def _bounded_by_live(part: ExportedFile, live: Iterable[LiveStore]) -> ExportedFile | None:
    """A live store in a later epoch than its folder has lost what the folder has beyond its mark."""
    segment = part.segment
    for store in live:
        if store.store == segment.store and store.epoch > segment.epoch:
            until = store.mark[part.dataset]
            if parse_mark(segment.first) > until:
                return None
            if _straddles(segment, until):
                return replace(part, until=min(until, part.until or until))
    return part


# -- as DataFrames


def ledger(spark: SparkSession, evidence: Evidence, parts: Sequence[ExportedFile] | None = None) -> DataFrame:
    """The rows of the ledger, with `store` and `history`: the epoch of the store that wrote them down."""
    return _rows(spark, "ledger", evidence, evidence.of("ledger") if parts is None else parts)


def index(spark: SparkSession, evidence: Evidence, parts: Sequence[ExportedFile] | None = None) -> DataFrame:
    """The rows of the index, with `store`."""
    return _rows(spark, "index", evidence, evidence.of("index") if parts is None else parts)


def _rows(spark: SparkSession, dataset: str, evidence: Evidence, parts: Sequence[ExportedFile]) -> DataFrame:
    groups: dict[tuple[str, int, Mark | None], list[str]] = {}
    for part in parts:
        groups.setdefault((part.segment.store, part.segment.epoch, part.until), []).append(str(part.path))
    frames = [_files(spark, dataset, paths, *of) for of, paths in groups.items()]
    frames += [_live(spark, dataset, store) for store in evidence.live]
    if not frames:
        frames = [spark.createDataFrame([], f"{SCHEMAS[dataset]}, store string, history int")]
    union = frames[0]
    for frame in frames[1:]:
        union = union.unionByName(frame)
    return union


def _files(
    spark: SparkSession, dataset: str, paths: list[str], store: str, epoch: int, until: Mark | None
) -> DataFrame:
    from pyspark.sql import functions as F

    rows = spark.read.schema(SCHEMAS[dataset]).option("recursiveFileLookup", "true").parquet(*paths)
    if until is not None:
        rows = rows.where(~_after(until))
    return rows.withColumn("store", F.lit(store)).withColumn("history", F.lit(epoch))


def _after(mark: Mark) -> Column:
    from pyspark.sql import functions as F

    xid, seq = F.coalesce(F.col("xid"), F.lit(0)), F.col("seq")
    return (xid > mark.xid) | ((xid == mark.xid) & (seq > mark.seq))


def _live(spark: SparkSession, dataset: str, live: LiveStore) -> DataFrame:
    """Read once and kept, because an audit looks at its evidence several times and a live store grows meanwhile."""
    from pyspark.sql import functions as F

    from semel.spark.session import register

    register(spark)
    source = spark.read.format("semel").options(store=live.url, dataset=dataset, startingPosition=live.start(dataset))
    rows = source.load()
    if live.after[dataset] != START:
        rows = rows.where(_after(live.after[dataset]))
    rows = rows.select(*(column.split()[0] for column in SCHEMAS[dataset].split(", ")))
    return rows.withColumn("store", F.lit(live.store)).withColumn("history", F.lit(live.epoch)).localCheckpoint()
