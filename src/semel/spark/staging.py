"""Rows on their way from a task to the commit: one file for each attempt of a task.

    <folder>/<pipeline>/<query>/<batch>/<partition>-<attempt>-<task>-<random>.arrow

A task may run several times, and two of its attempts at once. Each writes a file of its own, and only those that the
commit is given count. A file is needed until its batch has landed. If it is lost before, Spark runs the batch again
and stages it again, so nothing here has to survive a power cut.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from semel.errors import ConfigError, StoreUnavailable
from semel.kernel.text import quote_part
from semel.spark.landing import SourceRange

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):", re.IGNORECASE)
_SHARED = "give option `staging` a folder that the driver and every executor can reach"


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt of one task of one batch."""

    query: str
    batch: int
    partition: int
    attempt: int
    task: int


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What an attempt wrote: this is all that the commit knows. `file` is empty when there were no rows. `part` is a
    file for a folder of Parquet files, with `part_rows` rows."""

    query: str
    batch: int
    partition: int
    file: str
    rows: int
    host: str
    part: str = ""
    part_rows: int = 0


def current_task(query: str | None = None, batch: int | None = None) -> Task:
    """The task that runs this code. A streaming query names itself and its batch in the task's properties."""
    context = TaskContext.get()
    if context is None:
        raise ConfigError("rows are only written by a task of Spark", fix="use writeStream or write")
    query = query or context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId") if batch is None else batch
    if query is None or number is None:
        raise ConfigError("this task belongs to no query", fix="write with writeStream.format('semel') and start()")
    return Task(query, int(number), context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def filesystem_of(place: str) -> tuple[fs.FileSystem, str]:
    """The file system of a folder given as a path or as a URI, and the path in it."""
    scheme = _SCHEME.match(place)
    if scheme is None:
        return fs.LocalFileSystem(), os.path.abspath(place)
    if scheme[1].lower() == "file":
        return fs.LocalFileSystem(), "/" + place[len("file:") :].lstrip("/")
    # Hadoop calls its own connector to S3 s3a
    uri = re.sub(r"^s3[an]:", "s3:", place)
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ConfigError(f"{place!r} cannot be used for staged rows: {error}", fix=_SHARED) from None
    return found


@dataclass(frozen=True, slots=True)
class Staging:
    """The staged files of one pipeline."""

    folder: str
    pipeline: str

    @property
    def _place(self) -> tuple[fs.FileSystem, str]:
        files, folder = filesystem_of(self.folder)
        return files, f"{folder}/{quote_part(self.pipeline)}"

    def write(self, batches: Iterable[pa.RecordBatch], task: Task) -> Staged:
        """Stage the rows of one attempt. An attempt that fails leaves a file that nobody knows of."""
        rows, file = 0, ""
        with contextlib.ExitStack() as stack:
            writer: pa.ipc.RecordBatchStreamWriter | None = None
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if writer is None:
                    file, sink = stack.enter_context(self._new_file(task))
                    options = pa.ipc.IpcWriteOptions(compression="zstd")
                    writer = stack.enter_context(pa.ipc.new_stream(sink, batch.schema, options=options))
                writer.write_batch(batch)
                rows += batch.num_rows
        return Staged(task.query, task.batch, task.partition, file, rows, socket.gethostname())

    @contextlib.contextmanager
    def _new_file(self, task: Task) -> Iterator[tuple[str, pa.NativeFile]]:
        files, place = self._place
        folder = f"{place}/{quote_part(task.query)}/{task.batch}"
        # a driver that was started again numbers its tasks from 0 again, hence the random part
        path = f"{folder}/{task.partition}-{task.attempt}-{task.task}-{uuid.uuid4().hex[:12]}.arrow"
        try:
            files.create_dir(folder, recursive=True)
            with files.open_output_stream(path) as sink:
                yield path, sink
        except OSError as error:
            raise StoreUnavailable(f"cannot stage rows in {folder}: {error}", fix=_SHARED) from None

    def read(self, staged: Sequence[Staged]) -> Iterator[tuple[Staged, pa.RecordBatch]]:
        """All rows, by partition and in the order in which each task wrote them."""
        for each in sorted(staged, key=lambda one: one.partition):
            if each.file:
                yield from self._read(each)

    def _read(self, staged: Staged) -> Iterator[tuple[Staged, pa.RecordBatch]]:
        files, _ = self._place
        rows = 0
        try:
            with files.open_input_stream(staged.file) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    rows += batch.num_rows
                    yield staged, batch
        except (OSError, pa.ArrowInvalid) as error:
            raise _unreadable(staged, str(error)) from None
        if rows != staged.rows:
            raise _unreadable(staged, f"it has {rows:,} rows, {staged.rows:,} were written")

    def remove(self, staged: Iterable[Staged]) -> None:
        """Files of attempts that nobody needs. One that is gone already, or cannot be removed now, does no harm."""
        files, _ = self._place
        for each in staged:
            if each.file:
                with contextlib.suppress(OSError):
                    files.delete_file(each.file)

    def sweep(self, landed: Mapping[str, int]) -> None:
        """Everything of batches that have landed, with what failed or slow attempts have left there."""
        files, place = self._place
        for query, last in landed.items():
            for folder in _folders(files, f"{place}/{quote_part(query)}"):
                if folder.base_name.isdigit() and int(folder.base_name) <= last:
                    with contextlib.suppress(OSError):
                        files.delete_dir(folder.path)

    def end(self, query: str) -> None:
        """Nothing more will come of this query."""
        files, place = self._place
        with contextlib.suppress(OSError):
            files.delete_dir(f"{place}/{quote_part(query)}")


def _folders(files: fs.FileSystem, place: str) -> list[fs.FileInfo]:
    try:
        found = files.get_file_info(fs.FileSelector(place, allow_not_found=True))
    except OSError:
        return []
    return [each for each in found if each.type is fs.FileType.Directory]


def _unreadable(staged: Staged, why: str) -> StoreUnavailable:
    fix = "start the query again: Spark runs the batch again"
    if staged.host != socket.gethostname():
        fix = f"it was written on {staged.host}, and this is {socket.gethostname()}: {_SHARED}"
    return StoreUnavailable(f"the staged rows {staged.file} cannot be read: {why}", fix=fix)


# -- what the checkpoint knows


def query_of(checkpoint: str) -> str | None:
    """The id of the query that a checkpoint belongs to."""
    content = _read_text(f"{checkpoint}/metadata")
    try:
        id = msgspec.json.decode(content)["id"] if content else None
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None
    return id if isinstance(id, str) else None


def source_ranges(checkpoint: str, batch: int) -> list[SourceRange]:
    """What the batch took of each Semel stream. Spark writes the offsets before it runs a batch, one line for each
    source. What cannot be read is left out: this is for people and for retention, no decision rests on it."""
    found = []
    for line in _read_text(f"{checkpoint}/offsets/{batch}").splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=SourceRange))
    return found


def _read_text(place: str) -> str:
    try:
        files, path = filesystem_of(place)
        with files.open_input_stream(path) as source:
            return bytes(source.read()).decode()
    except (OSError, ConfigError, UnicodeDecodeError):
        return ""
