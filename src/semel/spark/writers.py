"""What Spark calls for `writeStream.format("semel")` and `write.format("semel")`. The targets in `sink` do the work."""

from __future__ import annotations

import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from semel.errors import ConfigError, SemelError
from semel.spark.landing import Job
from semel.spark.sink import SinkOptions, StreamTarget, Target, check_message_columns, read_options
from semel.spark.staging import Staged, current_task, query_of

log = logging.getLogger(__name__)


class StreamWriter(DataSourceStreamArrowWriter):
    """For a query. Tasks and the commit have writers of their own: nothing passes between them but the messages."""

    def __init__(self, options: SinkOptions, target: Target) -> None:
        self.options = options
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.target.stage(iterator, current_task())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        query = self._query(staged)
        if query is not None:
            self.target.commit(self._job(query, batchId), staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        query = self._query(staged)
        if query is not None:
            _abort(self.target, self._job(query, batchId), staged)

    def _job(self, query: str, batch: int) -> Job:
        return Job(self.options.pipeline, query, batch, ids_as=self.options.ids_as)

    def _query(self, staged: Sequence[Staged]) -> str | None:
        """A batch without tasks has no messages; without rows there is nothing to land either way."""
        if staged:
            return staged[0].query
        return query_of(self.options.checkpoint) if self.options.checkpoint else None


class BatchWriter(DataSourceArrowWriter):
    """For one job, which is its own query with one batch. The job that failed and is run again is another one: then
    the identities of the messages tell what is there already."""

    def __init__(self, options: SinkOptions, target: Target, own_folder: str | None = None) -> None:
        self.options = options
        self.target = target
        self.own_folder = own_folder
        self.job = Job(options.pipeline, uuid.uuid4().hex, 0, once=True, ids_as=options.ids_as)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.target.stage(iterator, current_task(self.job.query, self.job.batch))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.target.commit(self.job, _staged(messages))
        self._end()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self.target, self.job, _staged(messages))
        self._end()

    def _end(self) -> None:
        """A job comes once: whatever became of it, nobody asks for its files again."""
        self.options.staged.end(self.job.query)
        if self.own_folder is not None:
            shutil.rmtree(self.own_folder, ignore_errors=True)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _abort(target: Target, job: Job, staged: Sequence[Staged]) -> None:
    """A failure here would hide the one that the abort is about. What is left behind is swept later."""
    try:
        target.abort(job, staged)
    except SemelError as error:
        log.warning("nothing was cleaned up after batch %d of %s: %s", job.batch, job.pipeline, error.message)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    if overwrite:
        raise ConfigError("what has landed is never overwritten", fix="use outputMode('append')")
    found = read_options(options)
    if found.checkpoint is None and found.staging is None:
        raise ConfigError(
            "a query without a checkpoint starts again each time",
            fix="say .option('checkpointLocation', FOLDER) where you start it",
        )
    return StreamWriter(found, _target(found, schema))


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise ConfigError("what has landed is never overwritten", fix="use mode('append')")
    found = read_options(options)
    if found.staging is not None or found.checkpoint is not None:
        return BatchWriter(found, _target(found, schema))
    # on one machine nobody need say where; elsewhere the commit does not find the files, and says so
    own_folder = tempfile.mkdtemp(prefix="semel-staging-")
    found = replace(found, staging=own_folder)
    return BatchWriter(found, _target(found, schema), own_folder)


def _target(options: SinkOptions, schema: StructType) -> Target:
    if options.table is not None:
        from semel.spark.tables import TableTarget

        return TableTarget(options, schema)
    if options.path is not None:
        from semel.spark.parquet import FolderTarget

        return FolderTarget(options, schema)
    check_message_columns(schema)
    return StreamTarget(options)
