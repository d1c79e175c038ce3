"""The ledger and the index of streams as immutable Parquet segments, each row written exactly once.

    raw/ledger/v1/day=2026-01-31/seg-<store>-<epoch>-<first>-<last>.parquet      the rows of one day
    raw/ledger/v1/_manifest/day=2026-01-31/seg-….json                            what the file holds: it counts only now
    raw/ledger/v1/_epochs/<store>-<epoch>.json                                   where an epoch of the store begins
    raw/ledger/v1/_tmp/                                                          files being written

A range of rows goes through five steps, and the export may die after any of them:

    plan the range in the store · write and sync a temporary file · rename it · list it in the manifest · mark it done

The plan fixes the range, the range fixes the name and the rows, and the rows fix the bytes. Whoever comes next finds
the plan and ends with the same file. One exporter at a time holds a lease on the dataset; the plan and the mark carry
its fence, so one that was taken for dead can do no harm: all it can write is the file that is there already.
"""

from __future__ import annotations

import errno
import os
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from semel.errors import (
    ConfigError,
    SemelError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from semel.kernel.ledger import START, Entry, Event, Mark
from semel.kernel.ops import Put
from semel.kernel.store import IndexEntry, Store
from semel.kernel.text import quote_part
from semel.record_types import OTHER_TYPE, type_names
from semel.runtime.export.files import make_folder as _make_folder
from semel.runtime.export.files import rename_unless_there as _rename_unless_there
from semel.runtime.export.files import sync as _sync
from semel.runtime.export.files import write_synced as _write_synced
from semel.runtime.host.lease_holder import Holder
from semel.stores.points import reach
from semel.stores.rows import headers_text

DATASETS = ("ledger", "index")
SEGMENT_ROWS = 500_000
SEGMENT_BYTES_MAX = 256 * 1024 * 1024
ROW_GROUP_ROWS = 100_000
READ_ROWS = 2_000
ID_FILE = "semel-export-id"
LEASE_S = 30.0
WAIT_S = 45.0

_ELSEWHERE = "export to a folder elsewhere (--to DIR)"
_TYPE_NAMES = type_names()
_DAY_US = 86_400_000_000
_DAY_ZERO = datetime(1970, 1, 1, tzinfo=UTC)
_FEW_VALUES = {
    "ledger": ["node", "pipeline", "hop", "kind", "peer", "stream", "epoch", "n", "attempt", "cause"],
    "index": ["stream", "epoch", "type", "target", "source", "subject", "terms"],
}
"""Columns with few different values. Only these are dictionary-encoded: for ids it costs time and saves nothing."""


Columns = dict[str, Sequence[Any]]


class PlannedFile(msgspec.Struct, frozen=True):
    """The part of a range that falls on one day (UTC). `min` and `max` are the marks of its first and last row."""

    day: str
    rows: int
    min: str
    max: str


class ExportPlan(msgspec.Struct, frozen=True):
    """A range of marks on its way into files. What follows from it is the same, whoever carries it out."""

    epoch: int
    after: str
    first: str
    last: str
    rows: int
    files: tuple[PlannedFile, ...]


class Segment(msgspec.Struct, frozen=True):
    """One file, as the manifest lists it. `path` is relative to the dataset's folder."""

    path: str
    store: str
    epoch: int
    first: str
    last: str
    day: str
    rows: int
    bytes: int
    min: str
    max: str
    sha256: str


class EpochStart(msgspec.Struct, frozen=True):
    """Rows of earlier epochs after this mark belong to a history that the store lost when it was restored."""

    store: str
    epoch: int
    after: str


@dataclass(frozen=True, slots=True)
class Exported:
    """What one run added. `mark` is how far the dataset is exported now."""

    dataset: str
    rows: int
    bytes: int
    segments: tuple[Segment, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Progress:
    """What an export tells while it works: `waiting_for` is the owner of the lease, or rows done so far."""

    dataset: str
    rows: int = 0
    waiting_for: str = ""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """`wait_s` is how long to wait for another exporter; one that was killed holds its lease for up to `lease_s`.

    `new_epoch` is an operator's word that this store was restored from a backup and is the one that goes on.
    """

    segment_rows: int = SEGMENT_ROWS
    lease_s: float = LEASE_S
    wait_s: float = WAIT_S
    owner: str = ""
    new_epoch: bool = False
    progress: Callable[[Progress], None] = lambda progress: None
    stop: Callable[[], bool] = lambda: False


def export(store: Store, folder: Path, dataset: str, options: ExportOptions | None = None) -> Exported:
    """Write everything that the dataset has gained since the last export. Safe to kill and to call again."""
    if dataset not in DATASETS:
        raise ConfigError(f"there is no dataset {dataset!r}", fix=f"use one of: {', '.join(DATASETS)}")
    _arrow()
    with _folder_errors(folder):
        return _Exporter(store, folder, dataset, options or ExportOptions()).run()


def forget(store: Store, dataset: str, options: ExportOptions | None = None) -> None:
    """End the export of a dataset for good: retention no longer waits for it. Files that were written stay."""
    _Exporter(store, Path(), dataset, options or ExportOptions()).forget()


def dataset_folder(folder: Path, dataset: str) -> Path:
    return folder / "raw" / dataset / "v1"


def segments(folder: Path, dataset: str) -> list[Segment]:
    """The files of a dataset, by store, epoch and range. A file that is not listed here is not part of it."""
    entries = (dataset_folder(folder, dataset) / "_manifest").glob("day=*/seg-*.json")
    found = [msgspec.json.decode(entry.read_bytes(), type=Segment) for entry in entries]
    return sorted(found, key=lambda segment: (segment.store, segment.epoch, parse_mark(segment.first), segment.day))


def epoch_starts(folder: Path, dataset: str) -> list[EpochStart]:
    """Where each epoch begins. A row of an earlier epoch counts only up to the start of the next one."""
    entries = (dataset_folder(folder, dataset) / "_epochs").glob("*.json")
    found = [msgspec.json.decode(entry.read_bytes(), type=EpochStart) for entry in entries]
    return sorted(found, key=lambda start: (start.store, start.epoch))


def mark_text(mark: Mark) -> str:
    """The form in which the stores and the manifest keep a mark. (`str(mark)` leaves out an xid of 0.)"""
    return f"{mark.xid}.{mark.seq}"


def parse_mark(text: str) -> Mark:
    xid, _, seq = text.rpartition(".")
    return Mark(int(xid or 0), int(seq))


@dataclass(frozen=True, slots=True)
class _Page:
    """What one read found, by column. `seq` and `xid` are always among them."""

    columns: Columns

    def __len__(self) -> int:
        return len(self.columns["seq"])

    def mark(self, row: int) -> Mark:
        return Mark(self.columns["xid"][row] or 0, self.columns["seq"][row])

    def up_to(self, last: Mark | None) -> _Page:
        if last is None or not len(self) or self.mark(len(self) - 1) <= last:
            return self
        rows = bisect_right(range(len(self)), last, key=self.mark)
        return _Page({name: values[:rows] for name, values in self.columns.items()})


@dataclass(slots=True)
class _Rows:
    """Rows of one day, gathered from several reads."""

    min: Mark
    max: Mark
    rows: int = 0
    batches: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Range:
    """The rows of one plan, by day. Bounded by `segment_rows` and `SEGMENT_BYTES_MAX`."""

    first: Mark | None = None
    last: Mark | None = None
    rows: int = 0
    bytes: int = 0
    days: dict[int, _Rows] = field(default_factory=dict)

    def add(self, page: _Page, batch: Any) -> None:
        self.first = self.first or page.mark(0)
        self.last = page.mark(len(page) - 1)
        self.rows += len(page)
        self.bytes += batch.nbytes
        at = page.columns["at"]
        if min(at) // _DAY_US == max(at) // _DAY_US:
            self._add_to(at[0] // _DAY_US, page.mark(0), self.last, batch)
            return
        by_day: dict[int, list[int]] = {}
        for row, moment in enumerate(at):
            by_day.setdefault(moment // _DAY_US, []).append(row)
        for day, rows in by_day.items():
            self._add_to(day, page.mark(rows[0]), page.mark(rows[-1]), batch.take(_arrow().array(rows)))

    def _add_to(self, day: int, first: Mark, last: Mark, batch: Any) -> None:
        rows = self.days.setdefault(day, _Rows(first, last))
        rows.max = last
        rows.rows += batch.num_rows
        rows.batches.append(batch)

    def plan(self, epoch: int, after: Mark) -> ExportPlan:
        assert self.first is not None
        assert self.last is not None
        files = tuple(
            PlannedFile(_day_text(day), rows.rows, mark_text(rows.min), mark_text(rows.max))
            for day, rows in sorted(self.days.items())
        )
        return ExportPlan(epoch, mark_text(after), mark_text(self.first), mark_text(self.last), self.rows, files)


class _Exporter:
    """One run over one dataset."""

    def __init__(self, store: Store, folder: Path, dataset: str, options: ExportOptions) -> None:
        self.store = store
        self.dataset = dataset
        self.options = options
        self.top = folder
        self.folder = dataset_folder(folder, dataset)
        self.store_part = quote_part(store.store_id)
        self.holder = Holder(
            store,
            f"export/{dataset}",
            job=f"exporting the {dataset} of this store",
            lease_s=options.lease_s,
            owner=options.owner,
        )
        self.mark_key = f"export/{dataset}"
        self.plan_key = f"export/plan/{dataset}"
        self.folder_key = f"export/folder/{dataset}"
        self.rows = 0
        self.written: list[Segment] = []

    def run(self) -> Exported:
        self._acquire()
        try:
            mark = self._prepare()
            more = True
            while more and not self.options.stop():
                plan, rows = self._next(mark)
                if plan is None:
                    break
                self._carry_out(plan, rows)
                mark = parse_mark(plan.last)
                # a segment that is not full ends the run: busy writers would keep it going for ever, one row a file
                more = rows is None or self._is_full(rows, None)
            return Exported(
                self.dataset, self.rows, sum(segment.bytes for segment in self.written), tuple(self.written), mark
            )
        finally:
            self.holder.release()

    def forget(self) -> None:
        self._acquire()
        try:
            keys = (self.mark_key, self.plan_key, self.folder_key)
            self.holder.commit(*(Put(key, None, guard=self.holder.guard) for key in keys))
        finally:
            self.holder.release()

    def _acquire(self) -> None:
        """Wait for whoever exports this dataset now."""
        self.holder.acquire(
            self.options.wait_s,
            waiting=lambda owner: self.options.progress(Progress(self.dataset, waiting_for=owner)),
            stop=self.options.stop,
        )

    # -- where to begin

    def _prepare(self) -> Mark:
        """Make the folder ready and find the mark up to which everything is exported."""
        state = self.store.state(self.mark_key)
        mark = parse_mark(state.value.split(b" ")[0].decode()) if state is not None else START
        self._check_folder(mark)
        for name in ("_manifest", "_epochs", "_tmp"):
            _make_folder(self.folder / name)
        self._check_history(mark)
        here = Put(self.folder_key, self._folder_id().encode(), guard=self.holder.guard)
        # with a mark in the store, neither trim nor sweep goes past what has been exported
        self.holder.commit(here, Put(self.mark_key, mark_text(mark).encode(), guard=self.holder.guard))
        self._remove_leftovers()
        return mark

    def _check_folder(self, mark: Mark) -> None:
        """A store exports into one folder: two would hold half of the rows each, and neither would say so."""
        known = self.store.state(self.folder_key)
        path = self.top / ID_FILE
        if known is None or mark == START or (path.exists() and path.read_text().strip() == known.value.decode()):
            return
        raise ConfigError(
            f"the {self.dataset} up to {mark} is in another folder, not in {self.top}",
            fix=f"export into that folder; if it has moved, move all of it, with its file {ID_FILE}",
        )

    def _folder_id(self) -> str:
        path = self.top / ID_FILE
        if not path.exists():
            temporary = self._temporary("id")
            _write_synced(temporary, uuid.uuid4().hex.encode() + b"\n")
            _rename_unless_there(temporary, path)
        return path.read_text().strip()

    def _check_history(self, mark: Mark) -> None:
        """Files of this epoch beyond what the store knows of prove that it is a copy, or was put back to an older
        state without anybody noticing. Going on would export some rows twice under other names."""
        plan = self._stored_plan()
        known = parse_mark(plan.last) if plan is not None else mark
        here = [self.store_part, str(self.store.epoch)]
        names = (path.stem[4:].rsplit("-", 3) for path in self.folder.glob("_manifest/day=*/seg-*.json"))
        beyond = max((parse_mark(last) for *of, _, last in names if of == here), default=START)
        if beyond <= known:
            return
        if not self.options.new_epoch:
            raise StoreError(
                f"{self.top} has the {self.dataset} of this store up to {beyond}, the store itself only up to {known}",
                fix="if the store was restored from a backup, add --new-epoch; if it is a copy, export it elsewhere",
            )
        self.store.raise_epoch(f"the export had {self.dataset} up to {beyond}, the store only up to {known}")

    def _remove_leftovers(self) -> None:
        """Files that an export before this one was writing when it died. Other stores' files are not ours."""
        for path in (self.folder / "_tmp").glob(f"{self.store_part}@*"):
            if int(path.name.split("@")[1]) < self.holder.fence:
                path.unlink(missing_ok=True)

    # -- planning

    def _stored_plan(self) -> ExportPlan | None:
        state = self.store.state(self.plan_key)
        return msgspec.json.decode(state.value, type=ExportPlan) if state is not None else None

    def _next(self, mark: Mark) -> tuple[ExportPlan | None, _Range | None]:
        """The plan that an export before this one left behind, or a new one for the rows after the mark."""
        plan = self._stored_plan()
        if plan is not None:
            return plan, None
        rows = self._read(mark, None)
        if not rows.rows:
            return None, None
        plan = rows.plan(self.store.epoch, mark)
        self.holder.commit(Put(self.plan_key, msgspec.json.encode(plan), guard=self.holder.guard))
        reach("export.planned")
        return plan, rows

    def _read(self, after: Mark, last: Mark | None) -> _Range:
        """Rows after a mark: up to `last`, or when that is not known yet, until the segment is full or none are left.

        The store's promise does the rest: a row that appears later never sorts before one that was read."""
        found = _Range()
        while True:
            page = self._read_page(after, last)
            if len(page):
                found.add(page, _batch(page.columns, dataset_schema(self.dataset)))
                after = page.mark(len(page) - 1)
                self.options.progress(Progress(self.dataset, self.rows + found.rows))
            if len(page) < READ_ROWS or self._is_full(found, last):
                return found
            self.holder.renew()

    def _is_full(self, found: _Range, last: Mark | None) -> bool:
        if last is not None:
            return found.last == last
        return found.rows >= self.options.segment_rows or found.bytes >= SEGMENT_BYTES_MAX

    def _read_page(self, after: Mark, last: Mark | None) -> _Page:
        """A store may hand over columns as they are; building an object for each row takes most of the time."""
        columns = getattr(self.store, f"{self.dataset}_columns", None)
        if columns is not None:
            page = _Page(columns(after, READ_ROWS))
        elif self.dataset == "ledger":
            page = _Page(_ledger_columns(self.store.ledger(after, READ_ROWS)))
        else:
            page = _Page(_index_columns(self.store.index(after, READ_ROWS)))
        return page.up_to(last)

    # -- carrying out

    def _carry_out(self, plan: ExportPlan, rows: _Range | None) -> None:
        self._note_epoch(plan)
        missing = [file for file in plan.files if not self._is_there(plan, file)]
        if missing and rows is None:
            rows = self._read_again(plan)
        for file in missing:
            assert rows is not None
            self._write(plan, file, rows.days[_day_number(file.day)].batches)
        for file in plan.files:
            self._list(plan, file)
        done = mark_text(parse_mark(plan.last)).encode()
        self.holder.commit(
            Put(self.mark_key, done, guard=self.holder.guard), Put(self.plan_key, None, guard=self.holder.guard)
        )
        self.rows += plan.rows

    def _note_epoch(self, plan: ExportPlan) -> None:
        """Only once the plan is committed: before that, nobody can be sure of still being the owner."""
        path = self.folder / "_epochs" / f"{self.store_part}-{plan.epoch}.json"
        if not path.exists():
            self._put_file(path, msgspec.json.encode(EpochStart(self.store.store_id, plan.epoch, plan.after)))

    def _read_again(self, plan: ExportPlan) -> _Range:
        """The rows of a plan are still in the store until it is marked done. If they are not, it has been."""
        rows = self._read(parse_mark(plan.after), parse_mark(plan.last))
        if rows.rows == plan.rows and rows.plan(plan.epoch, parse_mark(plan.after)) == plan:
            return rows
        self.holder.renew(now=True)
        raise StoreError(
            f"the plan of {plan.first}..{plan.last} counts {plan.rows:,} rows, the {self.dataset} has {rows.rows:,}",
            fix="rows were removed by hand or the store is damaged: restore it from a backup",
        )

    def _name(self, plan: ExportPlan, file: PlannedFile) -> str:
        first, last = parse_mark(plan.first), parse_mark(plan.last)
        return f"day={file.day}/seg-{self.store_part}-{plan.epoch}-{first}-{last}"

    def _is_there(self, plan: ExportPlan, file: PlannedFile) -> bool:
        """A file has its name only after it was synced, so one with the right number of rows is complete."""
        path = self.folder / f"{self._name(plan, file)}.parquet"
        try:
            return bool(_parquet().read_metadata(path).num_rows == file.rows)
        except (OSError, _arrow().ArrowInvalid):
            return False

    def _write(self, plan: ExportPlan, file: PlannedFile, batches: list[Any]) -> None:
        self.holder.renew()
        name = self._name(plan, file)
        temporary = self._temporary(name.replace("/", "-"))
        _write_synced(temporary, _parquet_bytes(batches, self.dataset, self._metadata(plan, file)))
        reach("export.written")
        self._rename(temporary, self.folder / f"{name}.parquet")
        reach("export.renamed")

    def _metadata(self, plan: ExportPlan, file: PlannedFile) -> dict[str, str]:
        return {
            "semel.dataset": f"{self.dataset}/v1",
            "semel.store": self.store.store_id,
            "semel.epoch": str(plan.epoch),
            "semel.range": f"{plan.first}..{plan.last}",
            "semel.day": file.day,
        }

    def _list(self, plan: ExportPlan, file: PlannedFile) -> None:
        name = self._name(plan, file)
        content = (self.folder / f"{name}.parquet").read_bytes()
        segment = Segment(
            path=f"{name}.parquet",
            store=self.store.store_id,
            epoch=plan.epoch,
            first=plan.first,
            last=plan.last,
            day=file.day,
            rows=file.rows,
            bytes=len(content),
            min=file.min,
            max=file.max,
            sha256=sha256(content).hexdigest(),
        )
        self._put_file(self.folder / "_manifest" / f"{name}.json", msgspec.json.encode(segment))
        self.written.append(segment)
        reach("export.listed")

    def _temporary(self, name: str) -> Path:
        """Named after the fence, so that two exporters never write to one file."""
        return self.folder / "_tmp" / f"{self.store_part}@{self.holder.fence}@{name}"

    def _put_file(self, path: Path, content: bytes) -> None:
        temporary = self._temporary(f"{path.parent.name}-{path.name}")
        _write_synced(temporary, content + b"\n")
        self._rename(temporary, path)

    def _rename(self, temporary: Path, path: Path) -> None:
        _make_folder(path.parent)
        try:
            temporary.replace(path)
        except FileNotFoundError:
            raise self.holder.taken_over() from None
        _sync(path.parent)


def _ledger_columns(entries: Sequence[Entry]) -> Columns:
    events = [msgspec.structs.astuple(entry.event) for entry in entries]
    columns: Columns = dict(zip(Event.__struct_fields__, zip(*events, strict=True), strict=bool(events)))
    columns["seq"] = [entry.mark.seq for entry in entries]
    columns["xid"] = [entry.mark.xid or None for entry in entries]
    columns["at"] = [entry.at for entry in entries]
    columns["node"] = [entry.node for entry in entries]
    return columns


def _index_columns(entries: Sequence[IndexEntry]) -> Columns:
    records = [entry.record for entry in entries]
    return {
        "seq": [entry.mark.seq for entry in entries],
        "xid": [entry.mark.xid or None for entry in entries],
        "stream": [record.position.stream for record in records],
        "epoch": [record.position.epoch for record in records],
        "offset": [record.position.offset for record in records],
        "kind": [record.kind for record in records],
        "message": [record.envelope.id for record in records],
        "session": [record.envelope.session for record in records],
        "idx": [record.envelope.index for record in records],
        "target": [record.target for record in records],
        "at": [record.at for record in records],
        "bytes": [entry.size for entry in entries],
        "source": [record.envelope.source for record in records],
        "subject": [record.envelope.subject for record in records],
        "terms": [headers_text(record.envelope.headers) for record in records],
    }


# -- Arrow


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        fix = "in a checkout: make setup; elsewhere: pip install 'semel[export]'"
        raise ConfigError("the export needs the pyarrow package", fix=fix) from None
    return pyarrow


def _parquet() -> Any:
    import pyarrow.parquet

    return pyarrow.parquet


def _compute() -> Any:
    import pyarrow.compute

    return pyarrow.compute


def dataset_schema(dataset: str) -> Any:
    pa = _arrow()
    at = pa.timestamp("us", tz="UTC")
    required, text, i16, i32, i64 = False, pa.string(), pa.int16(), pa.int32(), pa.int64()
    if dataset == "index":
        columns = [
            ("stream", text, required), ("epoch", i32, required), ("offset", i64, required), ("type", text, required),
            ("message", text, required), ("session", text, required), ("idx", i64), ("target", text, required),
            ("at", at, required), ("bytes", i64, required), ("source", text), ("subject", text), ("terms", text),
        ]  # fmt: skip
    else:
        columns = [
            ("seq", i64, required), ("xid", i64), ("at", at, required), ("node", text, required),
            ("pipeline", text, required), ("hop", text, required), ("kind", i16, required), ("message", text),
            ("delivery", text), ("session", text), ("idx", i64), ("peer", text, required), ("stream", text),
            ("epoch", i32), ("first", i64), ("last", i64), ("n", i32, required), ("fold", i64),
            ("attempt", i32, required), ("cause", text), ("trace", text),
        ]  # fmt: skip
    return pa.schema([pa.field(*column) for column in columns])


def _batch(columns: Columns, schema: Any) -> Any:
    """A message without a session is a session of its own: then every reader can group by one column."""
    pa = _arrow()
    arrays = {column.name: _array(columns, column) for column in schema}
    arrays["session"] = _compute().coalesce(arrays["session"], arrays["message"])
    return pa.record_batch([arrays[column.name] for column in schema], schema=schema)


def _array(columns: Columns, column: Any) -> Any:
    pa = _arrow()
    if column.name == "type":
        return pa.array([_TYPE_NAMES.get(kind, OTHER_TYPE) for kind in columns["kind"]], type=column.type)
    return pa.array(columns[column.name], type=column.type)


def _parquet_bytes(batches: list[Any], dataset: str, metadata: dict[str, str]) -> memoryview:
    """The same rows give the same bytes, however many reads they came in."""
    pa = _arrow()
    table = pa.Table.from_batches(batches).combine_chunks().replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    _parquet().write_table(
        table, sink, compression="zstd", use_dictionary=_FEW_VALUES[dataset], row_group_size=ROW_GROUP_ROWS
    )
    return memoryview(sink.getvalue())


def _day_text(day: int) -> str:
    return (_DAY_ZERO + timedelta(days=day)).strftime("%Y-%m-%d")


def _day_number(day: str) -> int:
    return (datetime.fromisoformat(day).replace(tzinfo=UTC) - _DAY_ZERO).days


# -- files


@contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    """What can be wrong with the folder, in Semel's own words."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(
                f"no space left for the export in {folder}: {why}", fix="free some and run it again"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreReadOnly(
                f"the export may not write in {folder}: {why}", fix=f"give this user the right to, or {_ELSEWHERE}"
            ) from None
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
            raise _no_folder(folder, Path(error.filename or folder), why) from None
        raise StoreUnavailable(f"the folder {folder} fails: {why}", fix="check the disk, then run it again") from None


def _no_folder(folder: Path, place: Path, why: str) -> SemelError:
    """What stands where the folder, or a part of it, should be."""
    way = (place, *place.parents)
    in_the_way = next((path for path in way if os.path.lexists(path) and not path.is_dir()), None)
    if in_the_way is not None:
        what = "a link that leads nowhere" if not in_the_way.exists() else "not a folder itself"
        return ConfigError(
            f"{folder} cannot be a folder: {in_the_way} is {what}", fix=f"move {in_the_way} away, or {_ELSEWHERE}"
        )
    if folder.is_dir():
        return StoreUnavailable(
            f"{place} went missing during the export", fix="let nobody else clean up there, and run it again"
        )
    above = next(path for path in way if path.is_dir())
    return ConfigError(
        f"{folder} cannot be a folder: {above} takes no new one ({why})", fix=f"make it by hand, or {_ELSEWHERE}"
    )
