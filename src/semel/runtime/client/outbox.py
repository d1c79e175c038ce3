"""An outbox on a store: what a publisher has said is sent even if its process dies.

    stream client-outbox/<name>   the messages, in the order in which they were kept
    state  client-outbox/<name>   which of them the hub has, and since when others may have reached it

Every write builds on the version of that row that this process has written last. Whoever opens the outbox writes the
row first, and so the process that had it before can write no more: there is no lease to wait for after a crash.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import uuid4

import msgspec

from semel.errors import CommitInDoubt, SemelError, StaleFence, StoreError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob, Envelope
from semel.kernel.numbers import NumberSet
from semel.kernel.ops import Advanced, Append, Fresh, Op, Outcome, Put, Refused, Result, Trim, Unit
from semel.kernel.position import Position
from semel.kernel.store import Record, Store, Trimmed
from semel.kernel.text import stream_name
from semel.pubsub.client.events import Abort, ClientOutbox, Event, Kept, NotKept, OutboxEntry
from semel.pubsub.hub.records import chunks_of
from semel.stores.bodies import read_whole
from semel.stores.open import open_store

log = logging.getLogger(__name__)

PAGE = 500
SWEEP_EVERY = 500
DOUBT_TRIES = 10


class _Row(msgspec.Struct, array_like=True):
    """All before the offset `first` are done, and after it those in the ranges `done`. `sent` says since when others
    may have reached the hub, if that was not known when they were kept."""

    first: int
    done: list[tuple[int, int]]
    sent: dict[int, float]


_pack = msgspec.msgpack.Encoder().encode
_row = msgspec.msgpack.Decoder(_Row)
_entry = msgspec.msgpack.Decoder(OutboxEntry)


def open_outbox(where: str | Store, name: str) -> tuple[StoreOutbox, Sequence[OutboxEntry]]:
    """The outbox and what waits in it. On a store of the caller's, or on that of a URL, which is closed with it."""
    store = open_store(where) if isinstance(where, str) else where
    close = store.close if isinstance(where, str) else lambda: None
    try:
        outbox = StoreOutbox(store, name, close=close)
        return outbox, outbox.pending()
    except BaseException:
        close()
        raise


class StoreOutbox(ClientOutbox):
    def __init__(self, store: Store, name: str, *, close: Callable[[], None] = lambda: None) -> None:
        self._store, self._close = store, close
        self._stream = self._key = stream_name("client-outbox", name)
        self._offsets: dict[str, int] = {}  # of those that wait, in order
        self._unswept = 0
        self._take_over()

    def _take_over(self) -> None:
        while True:
            state = self._store.state(self._key)
            row = _row.decode(state.value) if state is not None else _Row(1, [], {})
            outcome = self._commit((Put(self._key, _pack(row), expected=state.version if state is not None else 0),))
            if not isinstance(outcome, Refused):
                break
        self._version, self._row = _version(outcome.results), row
        self._last = self._store.head(self._stream).offset

    def pending(self) -> Sequence[OutboxEntry]:
        found: list[OutboxEntry] = []
        done = NumberSet(self._row.done, ranges_max=len(self._row.done))
        for record in self._records():
            offset = record.position.offset
            if offset in done:
                continue
            entry = _entry.decode(record.envelope.data if record.body is None else record.body)
            if offset in self._row.sent:
                entry = msgspec.structs.replace(entry, sent_at=self._row.sent[offset])
            self._offsets[entry.id] = offset
            found.append(entry)
        return found

    def _records(self) -> Iterator[Record]:
        after = Position(self._stream, self._store.epoch, self._row.first - 1)
        while True:
            page = read_whole(self._store, self._stream, after, PAGE)
            if isinstance(page, Trimmed):
                after = msgspec.structs.replace(after, offset=page.first.offset - 1)
                continue
            if not page.records:
                return
            yield from page.records
            after = page.records[-1].position

    def write(self, put: Sequence[OutboxEntry], sent: Mapping[str, float], removed: Collection[str]) -> None:
        row = self._next_row(sent, set(removed))
        trims = (Trim(self._stream, row.first),) if row.first > self._row.first else ()
        appends = [op for entry in put for op in self._append(entry)]
        outcome = self._commit((*appends, Put(self._key, _pack(row), expected=self._version), *trims))
        if isinstance(outcome, Refused):
            raise StaleFence(
                "another process has taken over this outbox",
                fix="nothing is lost: it sends what is there; give each process an outbox of its own",
            )
        self._written(put, removed, row, outcome.results)

    def _next_row(self, sent: Mapping[str, float], removed: Collection[str]) -> _Row:
        left = {id: offset for id, offset in self._offsets.items() if id not in removed}
        first = next(iter(left.values()), self._last + 1)
        marks = self._row.sent | {self._offsets[id]: at for id, at in sent.items() if id in self._offsets}
        waiting = set(left.values())
        done = NumberSet(self._row.done, ranges_max=len(self._offsets) + len(self._row.done))
        for id in removed:
            if id in self._offsets:
                done.add(self._offsets[id])
        return _Row(
            first,
            [each for each in done.ranges() if each[1] > first],
            {offset: at for offset, at in marks.items() if offset in waiting},
        )

    def _append(self, entry: OutboxEntry) -> list[Op]:
        body = _pack(entry)
        if len(body) <= DATA_INLINE_BYTES_MAX:
            return [Append(self._stream, Envelope(entry.id, type="outbox", data=body))]
        blob = Blob(f"{self._stream}/{uuid4().hex}", len(body))
        return [*chunks_of(blob, body), Append(self._stream, Envelope(entry.id, type="outbox", blob=blob))]

    def _written(
        self, put: Sequence[OutboxEntry], removed: Collection[str], row: _Row, results: tuple[Result, ...]
    ) -> None:
        self._version, self._row = _version(results), row
        for id in removed:
            self._offsets.pop(id, None)
        offsets = [result.position.offset for result in results if isinstance(result, Fresh)]
        self._offsets.update(zip((entry.id for entry in put), offsets, strict=True))
        self._last = offsets[-1] if offsets else self._last
        self._unswept += len(removed)
        if self._unswept >= SWEEP_EVERY:
            self._unswept = 0
            with suppress(StoreError):
                self._store.sweep(time.time_ns() // 1000)

    def _commit(self, ops: tuple[Op, ...]) -> Outcome:
        """After a broken connection it is found out whether it happened. When nobody can say, that is the error."""
        while True:
            try:
                return self._store.commit([Unit(ops)])[0]
            except CommitInDoubt as doubt:
                outcomes = self._resolve(doubt)
                if outcomes is not None:
                    return outcomes[0]

    def _resolve(self, doubt: CommitInDoubt) -> list[Outcome] | None:
        for tried in range(DOUBT_TRIES):
            with suppress(StoreError):
                return self._store.resolve(doubt.marker)
            time.sleep(0.02 * 2**tried)
        raise doubt

    def close(self) -> None:
        self._close()


def _version(results: tuple[Result, ...]) -> int:
    [version] = [each.version for each in results if isinstance(each, Advanced) and each.version is not None]
    return version


class OutboxWriter:
    """Does on a thread what a client asks of its outbox. What is asked while it writes goes into the next commit."""

    def __init__(self, outbox: ClientOutbox, report: Callable[[Event], None]) -> None:
        self._outbox, self._report = outbox, report
        self._put: list[OutboxEntry] = []
        self._sent: dict[str, float] = {}
        self._marked: list[asyncio.Future[None]] = []
        self._removed: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def keep(self, entry: OutboxEntry) -> None:
        self._put.append(entry)
        self._begin()

    def mark(self, ids: Sequence[str], at: float) -> asyncio.Future[None]:
        """Done when it is written down. It never is if that fails: then the client ends."""
        done = asyncio.get_running_loop().create_future()
        self._sent.update(dict.fromkeys(ids, at))
        self._marked.append(done)
        self._begin()
        return done

    def remove(self, id: str) -> None:
        self._removed.append(id)
        self._begin()

    async def close(self) -> None:
        """After all that was asked. What could not be removed is tried once more: if it fails, it is sent again some
        day and is a duplicate then."""
        if self._task is not None:
            await self._task
        if self._removed:
            await self._write()
        await asyncio.to_thread(self._outbox.close)

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """What could not be removed waits for the next thing to be written."""
        is_well = True
        while self._put or self._marked or (self._removed and is_well):
            await asyncio.sleep(0)  # the rest of this tick shares the commit
            is_well = await self._write()
        self._task = None

    async def _write(self) -> bool:
        put, self._put = self._put, []
        sent, self._sent = self._sent, {}
        marked, self._marked = self._marked, []
        removed, self._removed = self._removed, []
        try:
            await asyncio.to_thread(self._outbox.write, put, sent, removed)
        except Exception as error:
            self._removed = removed + self._removed
            self._failed(put, bool(marked), error)
            return False
        for done in marked:
            done.set_result(None)
        if put:
            self._report(Kept([entry.id for entry in put]))
        return True

    def _failed(self, put: Sequence[OutboxEntry], had_marks: bool, error: Exception) -> None:
        """What could not be kept its sender may try again. But when it is not known what the outbox holds, or what
        was sent cannot be written down, nothing may go out any more."""
        if not isinstance(error, SemelError):
            log.error("an outbox failed in a way that Semel does not know", exc_info=error)
            self._report(Abort(StoreError(f"{type(error).__name__}: {error}", fix="report this")))
            return
        if put and not isinstance(error, CommitInDoubt):
            self._report(NotKept([entry.id for entry in put], error))
        if had_marks or isinstance(error, CommitInDoubt | StaleFence):
            self._report(Abort(error))
