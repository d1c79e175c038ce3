"""What operators ask of hubs, at `/v1/pubsub/`: what is there and what goes on, for reading only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import ParamSpec, TypeVar

import msgspec

from semel.auth.authority import Authority
from semel.errors import SemelError, StoreUnavailable
from semel.http import HttpRequest, HttpResponse
from semel.kernel.envelope import Blob
from semel.kernel.ops import MESSAGE
from semel.kernel.position import Position
from semel.kernel.store import Record, Store, Trimmed
from semel.pubsub.hub.calls import Answer, Call, HubInfo, Outcome, Summarize
from semel.pubsub.hub.commits import public_message
from semel.pubsub.hub.loading import is_known, known_hubs
from semel.pubsub.rest.admin import Admin, HubRow, HubsAsked, MessagePage, MessagesAsked
from semel.pubsub.rest.api import Asked
from semel.runtime.host.outages import Outages, Use, is_readable, not_asked
from semel.runtime.host.threads import hand_over

P = ParamSpec("P")
T = TypeVar("T")

STORE_S = 10.0
"""Whoever looks into the store is kept waiting no longer than this."""
SCAN_ROWS = 200
PAGE_BYTES_MAX = 4 * 1024 * 1024
PAUSE_S = 0.05
"""Between two looks for new messages, so that a busy hub is not read at every commit."""

Ask = Callable[[str, Call], Awaitable[Answer]]


class PubSubAdmin:
    """`ask` puts a call to a hub; `running` names the hubs that this process has."""

    def __init__(
        self,
        store: Store,
        outages: Outages,
        authority: Authority,
        ask: Ask,
        running: Callable[[], Iterable[str]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._outages, self._clock = store, outages, clock
        self._admin = Admin(authority)
        self._ask, self._running = ask, running
        self._changes = _Changes(store)
        self._is_stopping = False

    def stop(self) -> None:
        """From now on nobody is kept waiting for messages."""
        self._is_stopping = True
        self._changes.end()

    async def handle(self, request: HttpRequest) -> HttpResponse:
        asked = self._admin.begin(request, self._clock())
        if isinstance(asked, HttpResponse):
            return asked
        if isinstance(asked, HubsAsked):
            return asked.respond(await self._hubs())
        if isinstance(asked, MessagesAsked):
            try:
                return asked.respond(await self._messages(asked))
            except SemelError as error:
                self._outages.record(error, f"messages of {asked.stream} cannot be read", Use.READING)
                return asked.respond(error)
        return asked.respond(await self._look(asked))

    async def _look(self, asked: Asked) -> Answer:
        """Whoever only looks makes no hub: a name that nobody has used, or a mistyped one, has nobody in it."""
        try:
            if asked.hub not in set(self._running()) and not await self._ask_store(is_known, self._store, asked.hub):
                return Answer()
        except SemelError as error:
            self._outages.record(error, f"{asked.hub} cannot be looked for in the store", Use.READING)
            return Answer(Outcome.FAILED, public_message(error))
        return await self._ask(asked.hub, asked.call)

    async def _ask_store(self, look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """On a thread. A store that hangs would keep the threads one by one, so it is asked for nothing then."""
        if self._outages.current is not None and not is_readable(self._outages.current.cause):
            raise not_asked()
        try:
            async with asyncio.timeout(STORE_S):
                return await asyncio.to_thread(look, *args, **kwargs)
        except TimeoutError:
            raise StoreUnavailable(f"it has not answered for {STORE_S:g} s", fix="look at the database") from None

    async def _hubs(self) -> Sequence[HubRow]:
        """Those that the store has sessions of, and those that somebody has asked this process for."""
        running = set(self._running())
        try:
            stored = await self._ask_store(lambda: set(known_hubs(self._store)))
        except SemelError as error:
            self._outages.record(error, "the hubs in the store cannot be listed", Use.READING)
            stored = set()
        answers = await asyncio.gather(*(self._ask(name, Summarize()) for name in sorted(running)))
        found = {name: _info(answer) for name, answer in zip(sorted(running), answers, strict=True)}
        return [HubRow(name, found.get(name)) for name in sorted(running | stored)]

    async def _messages(self, asked: MessagesAsked) -> MessagePage:
        until = time.monotonic() + asked.wait_s
        after = asked.after or await self._begin(asked)
        async with self._changes.watched() as changed:
            while True:
                changed.clear()
                page = await self._ask_store(read_page, self._store, after, asked.target, asked.limit)
                left = until - time.monotonic()
                if page.records or page.missed or left <= 0 or self._is_stopping:
                    return page
                if page.after == after:
                    await _wait(changed, left)
                after = page.after
                await asyncio.sleep(PAUSE_S)

    async def _begin(self, asked: MessagesAsked) -> Position:
        head = await self._ask_store(self._store.head, asked.stream)
        if not asked.from_start:
            return head
        found = await self._ask_store(self._store.read, asked.stream, Position(asked.stream, head.epoch, 0), 1)
        if isinstance(found, Trimmed):
            return Position(asked.stream, head.epoch, found.first.offset - 1)
        return Position(asked.stream, head.epoch, 0)


def _info(answer: Answer) -> HubInfo | None:
    found = answer.rows[0] if answer.outcome is Outcome.DONE else None
    return found if isinstance(found, HubInfo) else None


def read_page(store: Store, after: Position, target: str | None, limit: int) -> MessagePage:
    """Messages after a position, as many as there are and as one answer may hold."""
    found = store.read(after.stream, after, SCAN_ROWS)
    if isinstance(found, Trimmed):
        begin = Position(after.stream, found.first.epoch, found.first.offset - 1)
        return MessagePage((), begin, begin.offset - after.offset)
    records: list[Record] = []
    size = 0
    for record in found.records:
        if record.kind == MESSAGE and target in (None, record.target):
            blob = record.envelope.blob
            size += len(record.envelope.data) if blob is None else blob.size
            if records and size > PAGE_BYTES_MAX:
                break
            records.append(record if blob is None else _with_body(store, record, blob))
        after = record.position
        if len(records) == limit:
            break
    return MessagePage(records, after)


def _with_body(store: Store, record: Record, blob: Blob) -> Record:
    return msgspec.structs.replace(record, body=b"".join(store.body(blob.name)))


async def _wait(changed: asyncio.Event, at_most_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await changed.wait()


class _Changes:
    """Wakes those who wait for something to be committed, by any process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watching: set[asyncio.Event] = set()
        self._stop_listening: Callable[[], None] | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set after each commit for as long as the block lasts."""
        changed = asyncio.Event()
        self._watching.add(changed)
        if self._stop_listening is None:
            loop = asyncio.get_running_loop()
            self._stop_listening = self._store.listen(lambda: hand_over(loop, self._wake))
        try:
            yield changed
        finally:
            self._watching.discard(changed)
            if not self._watching:
                self.end()

    def end(self) -> None:
        self._wake()
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _wake(self) -> None:
        for changed in self._watching:
            changed.set()
