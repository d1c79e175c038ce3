"""A folder of Parquet files that holds each row once, for any reader.

    part-00000007-00000.parquet     the rows of batch 7
    _manifest/00000007.json         which files batch 7 is: written last
    _manifest/query.json            the query that the folder belongs to
    _plan/00000007.json             which staged files become which parts: written first, and never changed
    _tmp/                           staged files, one for each attempt of a task

A batch goes through three steps, and the driver may die after any of them:

    plan it · rename its files · list them in the manifest

A replay may cut the same rows into other files. So whoever finds a plan carries it out as it stands, with the files
that it names, and leaves the new ones alone. There is one plan for a batch, for ever: a driver that slept through all
of it must not find room for another. So whatever a driver does that was taken for dead, what becomes visible is the one
plan of the batch; and it is stopped by its fence before it plans and again before it renames, where there is a store to
tell. While the files of a batch are being renamed a reader of the folder may see some of them; a reader of the manifest
(`listed`) never does.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from semel.errors import ConfigError, StoreError, StoreUnavailable
from semel.kernel.ops import Op
from semel.kernel.store import Store
from semel.kernel.text import quote_part
from semel.runtime.export.files import make_folder, rename_unless_there, sync, write_synced
from semel.spark.landing import Job, Landing, answered
from semel.spark.rows import ARROW_TRAVEL
from semel.spark.sink import SinkOptions, body_keeper, check_fence, land, message_rows, open_sink_store
from semel.spark.staging import Staged, Task, filesystem_of
from semel.spark.waiting import waiting_ops

TRAVEL_NAMES = ("outcome", "cause", "input", "ordinal")


class BatchFile(msgspec.Struct, frozen=True):
    """One file of a batch: what it was staged as, and its name in the folder."""

    staged: str
    name: str
    rows: int


class Listed(msgspec.Struct, frozen=True):
    """One batch, as the manifest lists it."""

    query: str
    batch: int
    rows: int
    files: tuple[BatchFile, ...]


class Owner(msgspec.Struct, frozen=True):
    """The query that a folder belongs to."""

    pipeline: str
    query: str


def listed(folder: Path) -> list[Listed]:
    """The batches of a folder, in order. A file that is not listed here is not part of it yet."""
    entries = sorted((folder / "_manifest").glob("[0-9]*.json"))
    return [msgspec.json.decode(entry.read_bytes(), type=Listed) for entry in entries]


def local_folder(place: str) -> Path:
    files, path = filesystem_of(place)
    if type(files).__name__ != "LocalFileSystem":
        raise ConfigError(
            f"{place} is on a store of objects, which cannot rename a file in one step",
            fix="give `path` a folder on a disk that the driver and every executor can reach",
        )
    return Path(path)


class FolderTarget:
    """Rows become Parquet files. With a store, they are in the ledger too."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        assert options.path is not None
        self.options = options
        self.folder = local_folder(options.path)
        names = schema.fieldNames()
        if "outcome" in names and options.store is None:
            raise ConfigError(
                "rows with an outcome do not go into the folder, and there is nowhere to tell of them",
                fix="give option `store` for the ledger, or drop the column outcome and what it marks",
            )
        if "outcome" in names and "id" not in names:
            raise ConfigError("rows with an outcome need an id to be reported under", fix="keep the column id")

    # -- in a task

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task) -> Staged:
        with _folder_errors(self.folder):
            make_folder(self.folder / "_tmp")
        staged_part = self.folder / "_tmp" / f"{_name(task)}-{uuid.uuid4().hex[:12]}.parquet"
        with _PartWriter(staged_part) as part:
            staged = self._stage_events(part.passing_on(batches), task)
        return replace(staged, part=part.path.name if part.rows else "", part_rows=part.rows)

    def _stage_events(self, batches: Iterator[pa.RecordBatch], task: Task) -> Staged:
        """What the ledger needs of the rows. Without a store nobody asks."""
        if self.options.store is not None:
            return self.options.staged.write((_without_bodies(batch) for batch in batches), task)
        for _ in batches:
            pass
        return self.options.staged.write((), task)

    # -- in the driver

    def commit(self, job: Job, staged: Sequence[Staged]) -> None:
        if self.options.store is None:
            self._write(job, staged, lambda: None)
            return
        with closing(open_sink_store(self.options)) as store:
            self._write(job, staged, lambda: check_fence(store, job, self.options))
            state = land(store, job, self.options, lambda: self._ops(store, job, staged))
        self.options.staged.sweep(state.landed)

    def _write(self, job: Job, staged: Sequence[Staged], check: Callable[[], None]) -> None:
        """`check` raises when another driver has taken over."""
        with _folder_errors(self.folder):
            check()
            self._claim(job)
            if not self._entry(job.batch).exists():
                plan = self._plan(job, staged)
                check()
                self._carry_out(job, plan)
            self._sweep(job)

    def abort(self, job: Job, staged: Sequence[Staged]) -> None:
        """Files that no plan names are not needed. A plan is carried out by whoever comes next."""
        with _folder_errors(self.folder):
            planned = self._planned(job.batch)
            for each in staged:
                if each.part and each.part not in planned:
                    (self.folder / "_tmp" / each.part).unlink(missing_ok=True)
        self.options.staged.remove(staged)

    def _planned(self, batch: int) -> set[str]:
        """The staged files that the plan of a batch names."""
        path = self._plan_path(batch)
        if not path.exists():
            return set()
        return {file.staged for file in msgspec.json.decode(path.read_bytes(), type=Listed).files}

    def _ops(self, store: Store, job: Job, staged: Sequence[Staged]) -> list[Op]:
        """What the store gets of the rows, if they have ids."""
        read = self.options.staged.read(staged)
        found = (row for each, batch in read for row in message_rows(job, each.partition, batch))
        rows = [row for row in found if row is not None]
        landing = Landing(job, body_keeper(store, job), answered(store, job.pipeline, rows, elsewhere=True))
        for row in rows:
            if row.outcome is None:
                landing.add_elsewhere(row)
            else:
                landing.add(row)
        return [*landing.end(), *waiting_ops(store, job, rows)]

    def _claim(self, job: Job) -> None:
        """A folder belongs to one query: the numbers of another one would begin at 0 again, and its rows come twice."""
        path = self.folder / "_manifest" / "query.json"
        make_folder(path.parent)
        make_folder(self.folder / "_plan")
        make_folder(self.folder / "_tmp")
        if not path.exists():
            if next(self.folder.glob("*.parquet"), None) is not None:
                raise ConfigError(
                    f"{self.folder} holds Parquet files that no query of Semel wrote", fix="give `path` an empty folder"
                )
            self._put_once(job, path, msgspec.json.encode(Owner(job.pipeline, job.query)))
        owner = msgspec.json.decode(path.read_bytes(), type=Owner)
        if owner.query != job.query:
            raise ConfigError(
                f"{self.folder} was written by query {owner.query} of pipeline {owner.pipeline!r}, and this is query"
                f" {job.query}: its rows would stand there twice",
                fix="go on with the checkpoint of that query, or write into an empty folder from the start",
            )

    def _plan(self, job: Job, staged: Sequence[Staged]) -> Listed:
        path = self._plan_path(job.batch)
        if not path.exists():
            parts = [each for each in sorted(staged, key=lambda one: one.partition) if each.part]
            files = tuple(
                BatchFile(each.part, f"part-{job.batch:08}-{number:05}.parquet", each.part_rows)
                for number, each in enumerate(parts)
            )
            plan = Listed(job.query, job.batch, sum(file.rows for file in files), files)
            sync(self.folder / "_tmp")
            self._put_once(job, path, msgspec.json.encode(plan))
        return msgspec.json.decode(path.read_bytes(), type=Listed)

    def _carry_out(self, job: Job, plan: Listed) -> None:
        for file in plan.files:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "_tmp" / file.staged).rename(self.folder / file.name)
        for file in plan.files:
            self._check(file)
        sync(self.folder)
        self._put_once(job, self._entry(job.batch), msgspec.json.encode(plan))

    def _check(self, file: BatchFile) -> None:
        try:
            rows = pq.read_metadata(self.folder / file.name).num_rows
        except (OSError, pa.ArrowInvalid) as error:
            raise StoreError(
                f"{self.folder / file.name} is planned and cannot be read: {error}",
                fix="somebody removed or changed it: restore it, or write into an empty folder from the start",
            ) from None
        if rows != file.rows:
            raise StoreError(
                f"{self.folder / file.name} has {rows:,} rows, planned were {file.rows:,}",
                fix="somebody changed it: restore it, or write into an empty folder from the start",
            )

    def _sweep(self, job: Job) -> None:
        """What was staged for batches up to this one, which are all listed, and by queries that the folder does not
        belong to."""
        for path in (self.folder / "_tmp").iterdir():
            if _batch_of(path.name, job.query) <= job.batch:
                path.unlink(missing_ok=True)

    def _entry(self, batch: int) -> Path:
        return self.folder / "_manifest" / f"{batch:08}.json"

    def _plan_path(self, batch: int) -> Path:
        return self.folder / "_plan" / f"{batch:08}.json"

    def _put_once(self, job: Job, path: Path, content: bytes) -> None:
        """Whoever comes first decides what stands there."""
        name = f"{quote_part(job.query)}@{job.batch}@{path.parent.name}-{uuid.uuid4().hex}-{path.name}"
        temporary = self.folder / "_tmp" / name
        write_synced(temporary, content + b"\n")
        rename_unless_there(temporary, path)


def _name(task: Task) -> str:
    return f"{quote_part(task.query)}@{task.batch}@{task.partition}-{task.attempt}-{task.task}"


def _batch_of(name: str, query: str) -> int:
    """The batch of this query that a staged file belongs to. One of another query belongs to none that could land."""
    given, _, rest = name.partition("@")
    number = rest.partition("@")[0]
    return int(number) if given == quote_part(query) and number.isdigit() else -1


class _PartWriter:
    """Writes the rows that pass on while they pass by. The file is synced when it is closed without an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._writer: pq.ParquetWriter | None = None

    def passing_on(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            passed = _passed(batch)
            if passed.num_rows:
                if self._writer is None:
                    self._writer = pq.ParquetWriter(self.path, passed.schema, compression="zstd")
                self._writer.write_batch(passed)
                self.rows += passed.num_rows
            yield batch

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
            if kind is None:
                sync(self.path)
            else:
                self.path.unlink(missing_ok=True)


def _passed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(_passes(batch)).select([name for name in batch.schema.names if name not in TRAVEL_NAMES])


def _passes(batch: pa.RecordBatch) -> pa.BooleanArray:
    if "outcome" not in batch.schema.names:
        return pa.array([True] * batch.num_rows)
    return pc.equal(pc.fill_null(batch.column("outcome"), ""), "")


def _without_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a message, with a body only where a dead letter needs one."""
    kept = batch.select([name for name in batch.schema.names if name in ARROW_TRAVEL.names])
    if "data" not in kept.schema.names:
        return kept
    at = kept.schema.names.index("data")
    field = kept.schema.field(at)
    return kept.set_column(at, field, pc.if_else(_passes(batch), pa.scalar(None, field.type), kept.column(at)))


@contextlib.contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write in {folder}: {error.strerror or error}",
            fix="check the folder, its rights and the space left; then start the query again",
        ) from None
