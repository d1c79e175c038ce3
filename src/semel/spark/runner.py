"""Runs a pipeline: one driver at a time, from where the last one stopped.

The driver holds the lease `pipeline/<name>` and gives its fence to the sink. A second driver is refused while the first
one lives; a first one that was taken for dead finds its fence outdated at the next batch, and writes nothing.

What others want to know of a run is in the store: `pipeline/<name>` is the run, `pipeline/<name>/stop` a request to end
it. So `semel pipeline status` and `stop` work from any machine that reaches the store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from semel.errors import HandlerError, PeerUnavailable, SemelError, StaleFence, StoreBusy
from semel.kernel.ops import Advance, Put, WorkRow, WorkState
from semel.kernel.position import Position
from semel.kernel.store import Store, Trimmed
from semel.runtime.host.lease_holder import LEASE_QUEUE, Holder, commit_unit
from semel.spark.failures import first_line, ours_in
from semel.spark.landing import died_stream
from semel.spark.nulls import with_headers
from semel.spark.pipeline import Pipeline, build, sink_options
from semel.spark.session import EVOLVING_STATE, checkpoint_settings, with_settings
from semel.spark.waiting import Wait, read_waits
from semel.stores.open import absolute_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

LOOK_S = 0.5
REPORT_S = 1.0
STOP_LEASE_S = 1.0


class PipelineRun(msgspec.Struct, frozen=True):
    """A run as the store knows it. Times are microseconds; `state` is running, stopped, finished or failed."""

    pipeline: str
    state: str
    owner: str
    fence: int
    checkpoint: str
    started: int
    at: int
    query: str = ""
    batch: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """`alive` says that a driver holds the lease. `lag` is how many records of each input are not taken yet, None for
    an input in a store that cannot be asked. `dead` is how many inputs have become dead letters, and `waiting` by
    session what waits behind a gap."""

    run: PipelineRun | None
    alive: bool
    owner: str
    lag: dict[str, int | None]
    landed: int
    dead: int = 0
    waiting: dict[str, Wait] = field(default_factory=dict)


@dataclass(slots=True)
class RunOptions:
    """`stop` is asked now and then whether the run should end; `progress` is called for each batch."""

    checkpoint: str
    once: bool = False
    wait_s: float = 0.0
    progress: Callable[[PipelineRun], None] = lambda run: None
    stop: Callable[[], bool] = lambda: False


def state_key(name: str) -> str:
    return f"pipeline/{name}"


def stop_key(name: str) -> str:
    return f"pipeline/{name}/stop"


def checkpoint_of(name: str, folder: str | Path) -> str:
    """Where a pipeline keeps its place: a folder of its own below the given one, which may be a URI."""
    text = str(folder)
    return f"{text.rstrip('/')}/{name}" if "://" in text else str(Path(text).resolve() / name)


def run(spark: SparkSession, pipeline: Pipeline, store: Store, options: RunOptions) -> PipelineRun:
    """Run it until it is done (`once`), told to stop, or broken. What is raised says what to do."""
    holder = Holder(store, state_key(pipeline.name), job=f"running the pipeline {pipeline.name!r}",
                    lease_s=pipeline.lease_s)  # fmt: skip
    holder.acquire(options.wait_s, stop=options.stop)
    try:
        return _Driver(spark, pipeline, store, options, holder).run()
    finally:
        holder.release()


_STARTING = threading.Lock()


@contextmanager
def settings_while(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Let the session have these settings while a query starts, which takes them over; afterwards it is as it was. One
    at a time: the settings of another start would get into this one."""
    with _STARTING, with_settings(spark, settings):
        yield


class _Driver:
    """One run, under its lease."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, store: Store, options: RunOptions, holder: Holder
    ) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.store = store
        self.options = options
        self.holder = holder
        self.lost: StaleFence | None = None
        self.ended = threading.Event()
        now = _now()
        self.now = PipelineRun(pipeline.name, "running", holder.owner, holder.fence, options.checkpoint, now, now)

    def run(self) -> PipelineRun:
        self._say(self.now)
        self._warn_of_empty_inputs()
        try:
            self._pin()
            self._relay()
            query = self._start()
            self._watch(query)
        except SemelError as error:
            self._fail(error)
            raise
        if self.lost is not None:
            raise self.lost
        return self._end("finished" if self.options.once and not self._is_stop_requested() else "stopped")

    def _warn_of_empty_inputs(self) -> None:
        """A stream that nobody has written yet, or a misspelt one, which stays empty for ever."""
        here = absolute_url(self.pipeline.store)
        for each in self.pipeline.inputs:
            if absolute_url(each.store) == here and self.store.head(each.stream).offset == 0:
                log.warning("pipeline %s: there is no stream %s yet", self.pipeline.name, each.stream)

    def _pin(self) -> None:
        """A hub trims what none of its clients needs. From its first run on, a pipeline that begins with the oldest
        needs it all."""
        if self.pipeline.start == "latest":
            return
        here = absolute_url(self.pipeline.store)
        for each in self.pipeline.inputs:
            cursor = f"{self.pipeline.output}/{each.stream}"
            if absolute_url(each.store) == here and self.store.cursor(cursor) is None:
                found = self.store.read(each.stream, None, 1)
                offset = found.first.offset - 1 if isinstance(found, Trimmed) else 0
                self.holder.commit(Advance(cursor, Position(each.stream, self.store.epoch, offset)))

    def _relay(self) -> None:
        """What a run before this one landed and did not move on."""
        if self.pipeline.to is not None:
            from semel.spark.relay import relay

            to, target = self.pipeline.to, self.pipeline.target
            relay(self.store, self.pipeline.name, to, guard=self.holder.guard, target=target)

    def _start(self) -> StreamingQuery:
        # a thread of its own has no session in the JVM, and without one Spark does not find sources written in Python
        self.spark._jvm.SparkSession.setActiveSession(self.spark._jsparkSession)  # type: ignore[union-attr]
        try:
            with settings_while(self.spark, self._settings()):
                return self._started()
        except Exception as error:
            raise explain(error, self.pipeline.name) from error

    def _started(self) -> StreamingQuery:
        frame = build(self.spark, self.pipeline)
        writer = (
            with_headers(frame)
            .writeStream.format("semel")
            .queryName(self.pipeline.name)
            .options(**sink_options(self.pipeline, self.holder.fence))
            .option("checkpointLocation", self.options.checkpoint)
            .outputMode("append")
        )
        trigger: dict[str, Any] = (
            {"availableNow": True}
            if self.options.once
            else {"processingTime": f"{round(self.pipeline.every_s * 1000)} milliseconds"}
        )
        return writer.trigger(**trigger).start()

    def _settings(self) -> dict[str, str]:
        """What the query needs to be told when it starts. A run that takes what is there must not wait for timers."""
        state = EVOLVING_STATE if self.pipeline.order is not None or self.pipeline.dedupe == "index" else {}
        idle = {"spark.sql.streaming.noDataMicroBatches.enabled": "false" if self.options.once else "true"}
        return {**checkpoint_settings(self.options.checkpoint), **state, **idle}

    def _watch(self, query: StreamingQuery) -> None:
        """Keep the lease while the query works, and end the query when it must end."""
        minder = threading.Thread(target=self._mind, args=(query,), daemon=True)
        minder.start()
        try:
            query.awaitTermination()
        except Exception as error:
            if self.lost is None:
                raise explain(error, self.pipeline.name) from error
        finally:
            query.stop()
            self.ended.set()
            minder.join()
            self._report(query, last=True)

    def _mind(self, query: StreamingQuery) -> None:
        """Beside the query: a batch may take longer than the lease."""
        reported = 0.0
        while query.isActive:
            try:
                self.holder.renew()
                if self.options.stop() or self._is_stop_requested():
                    query.stop()
                    return
                if time.monotonic() - reported >= REPORT_S:
                    self._report(query)
                    reported = time.monotonic()
            except StaleFence as error:
                self.lost = error
                query.stop()
                return
            except SemelError:
                # the store does not answer for a moment; if it does not come back the sink will say so
                pass
            self.ended.wait(LOOK_S)

    def _is_stop_requested(self) -> bool:
        state = self.store.state(stop_key(self.pipeline.name))
        return state is not None and state.value == str(self.holder.fence).encode()

    def _report(self, query: StreamingQuery, *, last: bool = False) -> None:
        progress = query.lastProgress
        if progress is None:
            return
        recent = [each for each in query.recentProgress if each["batchId"] > self.now.batch]
        if not recent:
            return
        self.now = msgspec.structs.replace(
            self.now,
            at=_now(),
            query=str(query.id),
            batch=progress["batchId"],
            rows=self.now.rows + sum(each["numInputRows"] for each in recent),
            rows_per_s=round(float(progress.get("processedRowsPerSecond") or 0.0), 1),
        )
        self._report_progress()
        if not last:
            self._say(self.now)

    def _report_progress(self) -> None:
        """Whoever listens is not part of the run: what goes wrong there must not cost the lease."""
        try:
            self.options.progress(self.now)
        except Exception:
            log.warning("it could not be reported how far pipeline %s is", self.pipeline.name, exc_info=True)

    def _say(self, run: PipelineRun) -> None:
        key = state_key(self.pipeline.name)
        self.holder.commit(Put(key, msgspec.json.encode(run), guard=self.holder.guard))

    def _end(self, state: str) -> PipelineRun:
        self.now = msgspec.structs.replace(self.now, state=state, at=_now())
        self._say(self.now)
        return self.now

    def _fail(self, error: SemelError) -> None:
        """Record what happened. When even that cannot be written, the error itself is what counts."""
        self.now = msgspec.structs.replace(self.now, state="failed", at=_now(), error=error.message)
        try:
            self._say(self.now)
        except SemelError:
            return


# -- from outside


def status(store: Store, pipeline: Pipeline, heads: Callable[[str, str], int | None]) -> RunStatus:
    """How a pipeline stands. `heads(store, stream)` answers the head of an input."""
    from semel.spark.sink import taken_up_to

    row = store.work(LEASE_QUEUE, state_key(pipeline.name))
    taken = taken_up_to(store, pipeline.name)
    lag: dict[str, int | None] = {}
    for each in pipeline.inputs:
        head = heads(each.store, each.stream)
        lag[each.stream] = None if head is None else max(0, head - taken.get(each.stream, 0))
    alive = _is_alive(row)
    return RunStatus(
        last_run(store, pipeline.name),
        alive,
        row.owner if row is not None and alive else "",
        lag,
        store.head(pipeline.output).offset,
        deaths(store, pipeline.name),
        read_waits(store, pipeline.name).sessions,
    )


def deaths(store: Store, name: str) -> int:
    """How many inputs of a pipeline have become dead letters."""
    return store.head(died_stream(name)).offset


def last_run(store: Store, name: str) -> PipelineRun | None:
    state = store.state(state_key(name))
    return msgspec.json.decode(state.value, type=PipelineRun) if state is not None else None


def _is_alive(row: WorkRow | None) -> bool:
    """By this machine's clock, which is good enough for people: the store's own decides who may take over."""
    return row is not None and row.state is WorkState.CLAIMED and row.due > _now()


def ask_to_stop(store: Store, name: str) -> WorkRow | None:
    """Ask the driver that holds the lease to end after its batch. None when nobody runs it."""
    row = store.work(LEASE_QUEUE, state_key(name))
    if row is None or _is_over(store, name, row):
        return None
    commit_unit(store, (Put(stop_key(name), str(row.fence).encode()),))
    return row


def wait_for_end(store: Store, name: str, fence: int, wait_s: float) -> bool:
    """Whether the driver with this fence has let go of the lease in time."""
    until = time.monotonic() + wait_s
    while True:
        row = store.work(LEASE_QUEUE, state_key(name))
        if row is None or row.fence != fence or _is_over(store, name, row):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_S)


def _is_over(store: Store, name: str, row: WorkRow) -> bool:
    """Whether nobody runs it any more. A driver that was killed did not let go of its lease; whether that has run out
    the store says by its own clock, when somebody else asks for it. What is got that way is given back at once."""
    if row.state is not WorkState.CLAIMED:
        return True
    other = Holder(store, state_key(name), job=f"stopping the pipeline {name!r}", lease_s=STOP_LEASE_S)
    try:
        other.acquire()
    except StoreBusy:
        return False
    other.release()
    return True


# -- what went wrong, in our words


def explain(error: Exception, name: str) -> SemelError:
    """The error that the query ended with. One of ours that crossed two processes and a JVM is found in its text."""
    if isinstance(error, SemelError):
        return error
    text = str(error)
    if (ours := ours_in(text)) is not None:
        return ours
    if "Connection refused" in text or "UnknownHostException" in text:
        return PeerUnavailable(f"pipeline {name!r}: Spark lost a connection: {first_line(text)}", fix="see --debug")
    return HandlerError(
        f"pipeline {name!r} failed: {first_line(text)}", fix="fix it and run it again: it goes on where it stopped"
    )


def _now() -> int:
    return time.time_ns() // 1000
