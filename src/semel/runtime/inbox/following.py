"""Follows streams into endpoints: see `semel.inbox.following`, which decides.

A follower works in turns: look whether there is something, read some of it, commit rows and cursor together. Any number
of processes have followers for the same stream. The one that has the lease follows, for as long as there is something
to take; its fence is checked in the commit that moves the cursor. When it dies another has the lease after a while.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import msgspec

from semel.errors import (
    EpochChanged,
    InputError,
    SemelError,
    StaleFence,
    StoreBusy,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from semel.inbox.endpoint import EndpointMode
from semel.inbox.following import (
    BODY_BYTES_MAX,
    FollowBatch,
    FollowCursor,
    FollowedStream,
    FollowStart,
    first_cursor,
    follow_batch,
    in_history,
    is_held,
    read_cursor,
    restart_ops,
    stop_advice,
    stop_ops,
    stop_reason,
    trimmed_reason,
    write_cursor,
)
from semel.inbox.identity import inbox_queue
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Advance, Applied, Enqueue, Op, Put, Refused, Stale, Trim, WorkState
from semel.kernel.position import Position
from semel.kernel.store import Record, Store, Trimmed
from semel.runtime.host.lease_holder import Holder, commit_unit
from semel.runtime.inbox.definition import Application
from semel.stores.open import open_store
from semel.stores.points import reach

log = logging.getLogger(__name__)

PIN_S = 1.0
PIN_RECORDS = 10_000
REST_S = 2.0
"""Who has found nothing for so long gives the lease back: an idle follower writes nothing."""
LOOK_S = 1.0
LOOK_S_MIN = 0.05
HELD_S = 0.2
RECHECK_S = 2.0
"""How soon an operator's word is noticed by a follower that has nothing to do."""
OPEN_AGAIN_S = 5.0
CLOSE_S = 3.0
BATCH_BYTES_MAX = 8 * 1024 * 1024
BACKLOG = (WorkState.READY, WorkState.CLAIMED, WorkState.SCHEDULED)
"""Rows that count against `buffer_high`. Those that wait for a person do not."""


class FollowTurn(Enum):
    """How a turn ended, and with it how soon the next one is worth it."""

    MOVED = "moved"
    RESTING = "resting"
    HELD = "held"
    ELSEWHERE = "elsewhere"
    STOPPED = "stopped"


class SourceStore:
    """The store that has the stream: the inbox's own, or another, opened when it is needed and again after trouble.
    Several threads ask for it, and none may open one that nobody closes."""

    def __init__(self, own: Callable[[], Store], url: str | None, node: str) -> None:
        self._own, self._url, self._node = own, url, node
        self._opened: Store | None = None
        self._closed = False
        self._lock = threading.Lock()

    def get(self) -> Store:
        if self._url is None:
            return self._own()
        with self._lock:
            if self._closed:
                raise StoreUnavailable("it is followed no longer", fix="the application has ended")
            if self._opened is None:
                self._opened = open_store(self._url, node=self._node, create=False)
            return self._opened

    def drop(self) -> None:
        """After trouble: what opens it again looks whether it is still the same history."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                with suppress(SemelError):
                    opened.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.drop()


class StreamFollower:
    """One stream into one endpoint. `turn` blocks and is called by one thread at a time."""

    def __init__(
        self,
        app: Application,
        options: FollowedStream,
        *,
        owner: str = "",
        clock: Callable[[], float] = time.monotonic,
        source: SourceStore | None = None,
    ) -> None:
        self.app, self.options = app, options
        endpoint = app.check_endpoint(options.endpoint).options
        self._high, self._low, self._queue = endpoint.buffer_high, endpoint.buffer_low, endpoint.queue
        self.source = source or SourceStore(lambda: app.store, options.store, f"{app.name}-inbox")
        self._key = options.key(app.name)
        self.lease_s, self._owner, self._clock = endpoint.lease_s, owner, clock
        self._holder: Holder | None = None
        self._held = False
        self._small = False
        self._seen: tuple[int, float] | None = None
        self._busy_at = self._pinned_at = clock()
        self._pinned_to = -1
        self._said = ""
        self._turning, self._closed = threading.Lock(), False
        self.taken = 0

    # -- a turn

    def turn(self) -> FollowTurn:
        """Take some of what there is. Raises StoreError when one of the two stores is in trouble."""
        with self._turning:
            return FollowTurn.STOPPED if self._closed else self._turn()

    def _turn(self) -> FollowTurn:
        source = self.source.get()
        head, now = source.head(self.options.stream), self._clock()
        if self._seen is not None and head.offset == self._seen[0] and now < self._seen[1] + RECHECK_S:
            return self._rest(source, None)
        self._seen = None
        cursor, _ = self._load(source)
        if cursor is None and self.options.is_entrance and head.offset == 0:
            return self._nothing_new(source, head, None)
        if cursor is not None and cursor.stopped:
            return self._stay_stopped(cursor)
        if cursor is not None and stop_reason(cursor, source.store_id, head) is None and head.offset == cursor.offset:
            return self._nothing_new(source, head, cursor)
        if not self._lead():
            return FollowTurn.ELSEWHERE
        try:
            return self._take(source, head)
        except StaleFence:
            self._holder = None
            return FollowTurn.ELSEWHERE

    def _take(self, source: Store, head: Position) -> FollowTurn:
        """As the holder of the lease: what was read before it was had may be old."""
        cursor, version = self._load(source)
        if cursor is None:
            cursor, version = self._begin(source, head)
        if cursor.stopped:
            return self._stay_stopped(cursor)
        if (why := stop_reason(cursor, source.store_id, head)) is not None:
            return self._stop(cursor, version, why)
        if self._is_held():
            return FollowTurn.HELD
        try:
            found = source.read(self.options.stream, cursor.position, 1 if self._small else self.options.batch)
        except EpochChanged as error:
            return self._stop(cursor, version, str(error))
        if isinstance(found, Trimmed):
            return self._stop(cursor, version, trimmed_reason(cursor, found.first))
        if not found.records:
            return self._nothing_new(source, head, cursor)
        reach("follow.read")
        return self._store(source, cursor, version, self._with_bodies(source, found.records))

    def _store(self, source: Store, cursor: FollowCursor, version: int, records: Sequence[Record]) -> FollowTurn:
        """What the store does not take is looked for one by one, and kept as a dead letter."""
        try:
            batch = self._commit(cursor, version, records)
            self._small = False
        except (StoreRefused, InputError) as error:
            if len(records) > 1:
                self._small = True
                return FollowTurn.MOVED
            log.warning("%s could not be stored, and is kept as a dead letter: %s", records[0].position, error)
            batch = self._commit(cursor, version, records, refused=str(error))
        reach("follow.stored")
        self.taken += batch.taken
        self._busy_at = self._clock()
        self._pin_sometimes(source, batch.cursor)
        return FollowTurn.MOVED

    def _commit(self, cursor: FollowCursor, version: int, records: Sequence[Record], refused: str = "") -> FollowBatch:
        """Rows and cursor, under the fence of the lease."""
        assert self._holder is not None, "only its holder follows"
        guard = self._holder.guard
        batch = follow_batch(
            self.options, self.app.name, cursor, records, version, guard, self._enqueue, refused=refused
        )
        self._check(commit_unit(self.app.store, batch.ops))
        return batch

    def _check(self, outcome: Any) -> None:
        """A refusal is no harm: another has the lease, or an operator has moved the cursor. The next turn looks."""
        if isinstance(outcome, Refused):
            if any(isinstance(result, Stale) for result in outcome.results):
                log.info("another process follows %s into %s", self.options.stream, self.options.endpoint)
            raise StaleFence("the cursor is another's by now", fix="look again")

    def _enqueue(self, envelope: Envelope) -> Enqueue:
        return self.app.enqueue(self.options.endpoint, envelope)

    def _with_bodies(self, source: Store, records: Sequence[Record]) -> list[Record]:
        """As many as fit into a commit, with those bodies that stand in chunks where the inbox's store has them not."""
        fitting: list[Record] = []
        size = 0
        for record in records:
            size += record.envelope.size
            if fitting and size > BATCH_BYTES_MAX:
                break
            fitting.append(self._with_body(source, record))
        return fitting

    def _with_body(self, source: Store, record: Record) -> Record:
        blob = record.envelope.blob
        if blob is None or self.options.store is None or blob.size > BODY_BYTES_MAX or not self.options.takes(record):
            return record
        return msgspec.structs.replace(record, body=b"".join(source.body(blob.name)))

    # -- the cursor

    def _load(self, source: Store | None = None) -> tuple[FollowCursor | None, int]:
        state = self.app.store.state(self._key)
        if state is None:
            return None, 0
        cursor = read_cursor(state.value)
        if source is not None:
            cursor = in_history(self.options, cursor, source.store_id, source.epoch)
        return cursor, state.version

    def _begin(self, source: Store, head: Position) -> tuple[FollowCursor, int]:
        """The pin first: whoever dies between the two has kept a little too much."""
        found = source.read(self.options.stream, None, 1)
        first = found.first if isinstance(found, Trimmed) else None
        if first is not None and self.options.is_entrance:
            # what was sent to the endpoint and is gone must not be passed over in silence
            cursor = FollowCursor(source.store_id, self.options.stream, head.epoch, 0)
        else:
            cursor = first_cursor(self.options, source.store_id, head, first)
        self._pin(source, cursor)
        reach("follow.begun")
        assert self._holder is not None, "only its holder follows"
        outcome = commit_unit(self.app.store, (write_cursor(self._key, cursor, 0, self._holder.guard),))
        self._check(outcome)
        assert isinstance(outcome, Applied)
        version = outcome.results[0].version  # type: ignore[union-attr]
        return cursor, int(version or 0)

    def _pin_sometimes(self, source: Store, cursor: FollowCursor) -> None:
        is_due = self._clock() >= self._pinned_at + PIN_S or cursor.offset >= self._pinned_to + PIN_RECORDS
        if is_due:
            self._pin(source, cursor)

    def _pin(self, source: Store, cursor: FollowCursor) -> None:
        """Late or missing it only keeps more, so its trouble is not the follower's."""
        self._pinned_at = self._clock()
        if self._pinned_to == cursor.offset:
            return
        try:
            commit_unit(source, self._pin_ops(source, cursor))
        except StoreError as error:
            log.warning("%s could not be told how far it was taken, and keeps more: %s", self.options.stream, error)
            return
        self._pinned_to = cursor.offset
        reach("follow.pinned")

    def _pin_ops(self, source: Store, cursor: FollowCursor) -> tuple[Op, ...]:
        advance = Advance(self.options.pin(self.app.name, self.app.store.store_id, cursor.life), cursor.position)
        if self.options.is_entrance and cursor.offset:
            return advance, Trim(self.options.stream, cursor.offset + 1)
        return (advance,)

    # -- the lease

    def _lead(self) -> bool:
        if self._holder is not None:
            try:
                self._holder.renew()
            except StaleFence:
                self._holder = None
        if self._holder is None:
            holder = Holder(
                self.app.store, self._key, job=f"following {self.options.stream} into {self.options.endpoint}",
                lease_s=self.lease_s, owner=self._owner,
            )  # fmt: skip
            try:
                holder.acquire()
            except StoreBusy:
                return False
            self._holder = holder
            self._busy_at = self._clock()
        return True

    def close(self) -> None:
        """Let another process go on at once, unless a turn hangs: then the lease runs out."""
        self._closed = True
        if not self._turning.acquire(timeout=CLOSE_S):
            return self.source.close()
        try:
            if self._holder is not None:
                self._holder.release()
                self._holder = None
            self.source.close()
        finally:
            self._turning.release()

    # -- ends of a turn

    def _nothing_new(self, source: Store, head: Position, cursor: FollowCursor | None) -> FollowTurn:
        self._seen = head.offset, self._clock()
        self._small = False
        return self._rest(source, cursor)

    def _rest(self, source: Store, cursor: FollowCursor | None) -> FollowTurn:
        if self._holder is not None:
            if cursor is not None:
                self._pin(source, cursor)
            if self._clock() >= self._busy_at + REST_S:
                self._holder.release()
                self._holder = None
            else:
                with suppress(StaleFence):
                    self._holder.renew()
        return FollowTurn.RESTING

    def _is_held(self) -> bool:
        held = is_held(self._open_rows(), self._held, self._high, self._low)
        if held and not self._held:
            log.info("%s has enough to do: %s is not read for now", self.options.endpoint, self.options.stream)
        self._held = held
        return held

    def _open_rows(self) -> int:
        counts = self.app.store.work_counts(self._queue).get(self._queue, {})
        return sum(counts.get(state, 0) for state in BACKLOG)

    def _stop(self, cursor: FollowCursor, version: int, why: str) -> FollowTurn:
        assert self._holder is not None, "only its holder stops"
        ops = stop_ops(self.app.name, self.options, cursor, version, why, self._holder.guard)
        self._check(commit_unit(self.app.store, ops))
        return self._stay_stopped(msgspec.structs.replace(cursor, stopped=why))

    def _stay_stopped(self, cursor: FollowCursor) -> FollowTurn:
        if self._said != cursor.stopped:
            self._said = cursor.stopped
            log.error(
                "%s is no longer followed into %s: %s. What to do: %s", self.options.stream, self.options.endpoint,
                cursor.stopped, stop_advice(self.app.name, self.options),
            )  # fmt: skip
        if self._holder is not None:
            self._holder.release()
            self._holder = None
        return FollowTurn.STOPPED

    def has_unread(self) -> bool:
        """Whether a turn would find something to take, as far as one may look."""
        if self._held and is_held(self._open_rows(), True, self._high, self._low):
            return False
        try:
            source = self.source.get()
            head, (cursor, _) = source.head(self.options.stream), self._load()
        except StoreError:
            return False
        if cursor is None:
            return head.offset > 0
        return not cursor.stopped and head.offset != cursor.offset


# -- all of a process


class FollowRunner:
    """The followers of a process. Those of the inbox's own store take turns; each other source has a task."""

    def __init__(self, app: Application, *, owner: str) -> None:
        self.followers = [StreamFollower(app, options, owner=owner) for options in followed(app)]
        self._app = app
        self._closing: list[Callable[[], None]] = []

    def jobs(self) -> list[Awaitable[None]]:
        own = [each for each in self.followers if each.options.store is None]
        others = [[each] for each in self.followers if each.options.store is not None]
        return [self._run(each) for each in (own, *others) if each]

    def has_unread(self) -> bool:
        return any(each.has_unread() for each in self.followers)

    async def close(self) -> None:
        for stop in self._closing:
            stop()
        await asyncio.gather(*(asyncio.to_thread(each.close) for each in self.followers))

    async def _run(self, followers: Sequence[StreamFollower]) -> None:
        """Until cancelled. A commit wakes it, and looks are not more frequent than they have to be."""
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        listening: Store | None = None
        while True:
            woken.clear()
            pause_s = min([await self._turns(each) for each in followers])
            source = await asyncio.to_thread(_source_of, followers[0])
            if source is not listening:
                listening = source
                if source is not None:
                    self._closing.append(source.listen(lambda: _wake(loop, woken)))
            if pause_s > LOOK_S_MIN:
                # not wait_for, which may swallow a cancellation that comes together with the wake
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await woken.wait()
            await asyncio.sleep(LOOK_S_MIN if pause_s else 0)

    async def _turns(self, follower: StreamFollower) -> float:
        """One turn, and how long to wait for the next one."""
        try:
            turn = await asyncio.to_thread(follower.turn)
        except StoreError as error:
            log.warning("%s cannot be followed at the moment: %s", follower.options.stream, error)
            await asyncio.to_thread(follower.source.drop)
            return OPEN_AGAIN_S if follower.options.store is not None else LOOK_S
        except Exception:
            log.exception("%s cannot be followed into %s", follower.options.stream, follower.options.endpoint)
            return OPEN_AGAIN_S
        match turn:
            case FollowTurn.MOVED:
                return 0.0
            case FollowTurn.HELD:
                return HELD_S
            case FollowTurn.ELSEWHERE:
                return min(LOOK_S, follower.lease_s / 3)
        return LOOK_S


def _source_of(follower: StreamFollower) -> Store | None:
    try:
        return follower.source.get()
    except StoreError:
        return None


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(woken.set)


def followed(app: Application) -> list[FollowedStream]:
    """The stream of each durable endpoint, and what the application follows."""
    durable = [name for name, each in app.endpoints.items() if each.options.mode is EndpointMode.DURABLE]
    entrances = [FollowedStream(name, inbox_queue(name), is_entrance=True) for name in durable]
    return [*entrances, *app.follows]


# -- for operators


@dataclass(frozen=True, slots=True)
class FollowStatus:
    """How far a stream was taken. `lag` counts records after the cursor; None: its store does not answer."""

    endpoint: str
    name: str
    stream: str
    epoch: int | None
    offset: int | None
    lag: int | None
    stopped: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def follow_status(app: Application) -> list[FollowStatus]:
    """Everything that is followed; among the streams of endpoints only those that were used."""
    found = []
    for options in followed(app):
        follower = StreamFollower(app, options)
        cursor, _ = follower._load()
        try:
            head = follower.source.get().head(options.stream)
            lag = head.offset - (cursor.offset if cursor is not None else 0)
        except StoreError:
            lag = None
        finally:
            follower.source.close()
        if cursor is not None or not options.is_entrance or lag:
            epoch, offset = (cursor.epoch, cursor.offset) if cursor is not None else (None, None)
            stopped = cursor.stopped if cursor is not None else ""
            found.append(FollowStatus(options.endpoint, options.name, options.stream, epoch, offset, lag, stopped))
    return found


def follow_from(app: Application, endpoint: str, name: str, start: FollowStart) -> FollowCursor:
    """Let a follower go on from what is there, or from what comes next. What it leaves out it leaves out for good."""
    options = find_follow(app, endpoint, name)
    follower = StreamFollower(app, options)
    try:
        source = follower.source.get()
        known, version = follower._load()
        found = source.read(options.stream, None, 1)
        first = found.first if isinstance(found, Trimmed) else None
        moved = msgspec.structs.replace(
            first_cursor(_starting(options, start), source.store_id, source.head(options.stream), first),
            life=(known.life if known is not None else 0) + 1,
        )
        follower._pin(source, moved)
        how = f"from {start.value}: {moved.position}" + (f", was at {known.position}" if known is not None else "")
        if not isinstance(commit_unit(app.store, restart_ops(app.name, options, moved, version, how)), Applied):
            raise StoreBusy(f"{name} was moved on at this moment", fix="try again")
        if known is not None:
            _unpin(app, source, options, known)
        return moved
    finally:
        follower.source.close()


def end_follow(app: Application, endpoint: str, name: str) -> None:
    """Forget how far a stream was taken, and let its store trim it: for what is followed no longer."""
    options = find_follow(app, endpoint, name)
    follower = StreamFollower(app, options)
    try:
        known, version = follower._load()
        if known is not None:
            _unpin(app, follower.source.get(), options, known)
            commit_unit(app.store, (Put(options.key(app.name), None, expected=version),))
    finally:
        follower.source.close()


def find_follow(app: Application, endpoint: str, name: str) -> FollowedStream:
    known = [each for each in followed(app) if each.endpoint == endpoint]
    for options in known:
        if options.name == name:
            return options
    names = ", ".join(each.name for each in known) or "none"
    raise InputError(f"endpoint {endpoint!r} does not follow {name!r}", fix=f"name one of: {names}")


def _starting(options: FollowedStream, start: FollowStart) -> FollowedStream:
    return replace(options, start=start)


def _unpin(app: Application, source: Store, options: FollowedStream, cursor: FollowCursor) -> None:
    pin = options.pin(app.name, app.store.store_id, cursor.life)
    at = source.cursor(pin)
    if at is not None and at.epoch == source.epoch:
        commit_unit(source, (Advance(pin, at, pins=False),))
