"""A hub under full load with one subscriber that never acknowledges and ten thousand sessions that do nothing.

What is not acknowledged must be kept, but not without end: at the limit of its backlog the session is ended, and its
client comes back with a new one. So the size of the store and the memory of the server go up and down between limits.
Sessions that nobody speaks to, ten thousand of them, must hold nothing back. One subscriber does acknowledge, and must
miss nothing meanwhile.

    python -m tests.campaigns.bounded_campaign --seconds 30 --sessions 500 --backlog 20000
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import websockets.asyncio.client as websocket
from tests.campaigns.lean_client import SUBPROTOCOL, LeanClient
from tests.tools.memory import resident_bytes
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from semel.auth.keys import AccessKeys
from semel.errors import PeerUnavailable
from semel.pubsub.protocol.client_tokens import client_token
from semel.testing.limits import scaled
from semel.testing.serve_process import KEY, ServeProcess

Step = Callable[[int, int], None]

HUB, GROUP = "bounded", "load"
IDLE_SESSIONS = 10_000
PAYLOAD_BYTES = 200
PUBLISHERS = 4
IN_FLIGHT = 250
ACK_EVERY = 500
LAG_MAX = 2_000
"""So many messages may be on their way to who acknowledges: it shares its process with the publishers."""
DEAD_S = 60.0
AT_ONCE = 200
SAMPLES = 60
SETTLE_S = 30.0
ALLOWED_GROWTH = 1.25
ALLOWED_MB = 32.0
ROLES = ("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup")


@dataclass(frozen=True, slots=True)
class Load:
    """`backlog` is after how many unacknowledged messages a session is ended, if not after as many as usual."""

    sessions: int = IDLE_SESSIONS
    payload_bytes: int = PAYLOAD_BYTES
    backlog: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    published: int
    ended: int
    store_mb: float
    memory_mb: float


def bounded(size: int, seed: int, step: Step) -> dict[str, Any]:
    return run(Load(), size, seed, step)


def run(load: Load, seconds: int, seed: int, step: Step) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="semel-bounded-") as name:
        return asyncio.run(Campaign(load, seconds, seed, Path(name).resolve(), step).run())


class IdleSession(asyncio.Protocol):
    """A client that answers pings and does nothing else. Ten thousand of them cost little."""

    def __init__(self, url_path: str, host: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self._request = (
            f"GET {url_path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
        ).encode()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_open = False
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.is_open:
            if data.startswith(b"\x89\x00"):
                self.transport.write(b"\x8a\x80" + os.urandom(4))
            return
        self._heard += data
        if b'"connected"' in self._heard:
            self.is_open, self._heard = True, b""
            self.opened.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.opened.done():
            said = self._heard[:200].decode(errors="replace")
            self.opened.set_exception(PeerUnavailable(f"a session was not opened: {said}", fix="see the server's log"))


class Forgetful:
    """Reads everything and acknowledges nothing. When its session is ended it begins a new one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.received = self.ended = 0

    async def run(self) -> None:
        while True:
            async with websocket.connect(
                self._url, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None, max_queue=None, proxy=None
            ) as socket:
                with suppress(ConnectionClosed):
                    while True:
                        await socket.recv(decode=False)
                        self.received += 1
            self.ended += 1


class Campaign:
    def __init__(self, load: Load, seconds: int, seed: int, folder: Path, step: Step) -> None:
        self.load, self.seconds, self.folder, self.step = load, seconds, folder, step
        settings = {} if load.backlog is None else {"SEMEL_PUBSUB__BACKLOG_COUNT": str(load.backlog)}
        self.server = ServeProcess(f"sqlite:///{folder}/semel.db", folder / "server.log", settings=settings)
        self.chance = random.Random(seed)
        self.published = self.received = self.wrong = 0
        self.samples: list[Sample] = []
        self._last = [0] * PUBLISHERS
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def run(self) -> dict[str, Any]:
        _allow_files(self.load.sessions + 200)
        await self.server.start()
        idle: list[IdleSession] = []
        try:
            await self._open_idle_sessions(idle)
            return await self._fill(idle)
        finally:
            for session in idle:
                session.transport.abort()
            await self.server.kill()

    async def _fill(self, idle: list[IdleSession]) -> dict[str, Any]:
        forgetful = Forgetful(self._url("forgetful", GROUP))
        subscriber = self._client("subscriber", lambda frame: self._hear(subscriber, frame), GROUP)
        publishers = [self._client(f"publisher-{number}", lambda frame: None) for number in range(PUBLISHERS)]
        async with _working(forgetful.run(), subscriber.run(), *(client.run() for client in publishers)) as clients:
            await asyncio.gather(*(client.opened() for client in (subscriber, *publishers)))
            async with _working(*(self._publish(*pair) for pair in enumerate(publishers))) as publishing:
                await self._watch(forgetful, clients)
                await asyncio.gather(*publishing)
            await self._until_received()
        counts = [asdict(client.counts) for client in (subscriber, *publishers)]
        of_clients = {name: sum(each[name] for each in counts) for name in counts[0]}
        return self._figures(forgetful, sum(session.is_open for session in idle)) | {"of_clients": of_clients}

    # -- who is there

    def _url(self, user: str, *groups: str) -> str:
        path = f"127.0.0.1:{self.server.port}/client/hubs/{HUB}"
        now = time.time()
        token = client_token(AccessKeys(KEY), f"http://{path}", now=now, user_id=user, roles=ROLES, groups=groups)
        return f"ws://{path}?access_token={token}"

    def _client(self, name: str, hear: Callable[[dict[str, Any]], None], *groups: str) -> LeanClient:
        return LeanClient(name, [self._url(name, *groups)], hear, self.chance, dead_s=DEAD_S)

    async def _open_idle_sessions(self, found: list[IdleSession]) -> None:
        """In a group that nobody speaks to."""
        loop, port = asyncio.get_running_loop(), self.server.port
        host = f"127.0.0.1:{port}"
        path = self._url("idle", "silent").partition(host)[2]
        for first in range(0, self.load.sessions, AT_ONCE):
            count = min(AT_ONCE, self.load.sessions - first)
            made = [loop.create_connection(lambda: IdleSession(path, host), "127.0.0.1", port) for _ in range(count)]
            sessions = [session for _, session in await asyncio.gather(*made)]
            found += sessions
            await asyncio.gather(*(session.opened for session in sessions))

    # -- what they do

    async def _publish(self, number: int, client: LeanClient) -> None:
        """As much as goes, for as long as it lasts."""
        window, count = asyncio.Semaphore(IN_FLIGHT), 0
        padding = "x" * self.load.payload_bytes
        until = time.monotonic() + self.seconds

        def told(_: asyncio.Future[None]) -> None:
            self.published += 1
            if self.published - self.received > LAG_MAX:
                self._has_room.clear()
            window.release()

        while time.monotonic() < until:
            await self._has_room.wait()
            await window.acquire()
            count += 1
            asked = client.ask(type="sendToGroup", group=GROUP, dataType="json", data=[number, count, padding])
            asked.add_done_callback(told)
        for _ in range(IN_FLIGHT):
            await window.acquire()

    def _hear(self, subscriber: LeanClient, frame: dict[str, Any]) -> None:
        publisher, number, _ = frame["data"]
        self.wrong += number != self._last[publisher] + 1
        self._last[publisher] = number
        self.received += 1
        if self.published - self.received < LAG_MAX:
            self._has_room.set()
        if self.received % ACK_EVERY == 0:
            subscriber.acknowledge()

    async def _watch(self, forgetful: Forgetful, work: list[asyncio.Task[None]]) -> None:
        begin = time.monotonic()
        for number in range(1, SAMPLES + 1):
            pause = begin + number * self.seconds / SAMPLES - time.monotonic()
            done, _ = await asyncio.wait(work, timeout=max(0.0, pause), return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
            self.samples.append(self._sample(time.monotonic() - begin, forgetful))
            self.step(round(number * self.seconds / SAMPLES), self.seconds)

    def _sample(self, seconds: float, forgetful: Forgetful) -> Sample:
        stored = sum(path.stat().st_size for path in self.folder.glob("semel.db*"))
        memory = resident_bytes(self.server.pid)
        return Sample(round(seconds, 1), self.published, forgetful.ended, _mb(stored), _mb(memory))

    async def _until_received(self) -> None:
        """The one that acknowledges gets the rest as well."""
        until = time.monotonic() + scaled(SETTLE_S)
        while self.received < self.published:
            if time.monotonic() > until:
                return
            await asyncio.sleep(0.05)

    # -- what was seen

    def _figures(self, forgetful: Forgetful, still_idle: int) -> dict[str, Any]:
        store = is_bounded([sample.store_mb for sample in self.samples])
        memory = is_bounded([sample.memory_mb for sample in self.samples])
        complete = self.wrong == 0 and self.received == self.published
        return {
            "holds": store and memory and complete and forgetful.ended > 0 and still_idle == self.load.sessions,
            **asdict(self.load),
            "published": self.published,
            "received_by_who_acknowledges": self.received,
            "out_of_order": self.wrong,
            "backlogs_ended": forgetful.ended,
            "idle_at_the_end": still_idle,
            "store_is_bounded": store,
            "memory_is_bounded": memory,
            "store_mb_max": max(sample.store_mb for sample in self.samples),
            "memory_mb_max": max(sample.memory_mb for sample in self.samples),
            "samples": [asdict(sample) for sample in self.samples],
        }


@asynccontextmanager
async def _working(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Tasks that end with the block."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_bounded(sizes: list[float]) -> bool:
    """It has not been much larger in the second half than in the first: it goes up and down, and not on and on."""
    half = len(sizes) // 2
    return max(sizes[half:]) <= ALLOWED_GROWTH * max(sizes[:half]) + ALLOWED_MB


def _mb(size: int) -> float:
    return round(size / 2**20, 1)


def _allow_files(count: int) -> None:
    """Each session is an open file here, and one in the server, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.bounded_campaign", description="Fill a server.")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--payload", type=int, default=2_000, help="bytes of a message")
    parser.add_argument("--backlog", type=int, help="messages after which a session is ended")
    options = parser.parse_args()
    load = Load(options.sessions, options.payload, options.backlog)
    print(json.dumps(run(load, options.seconds, 1, lambda done, total: None), indent=2))


if __name__ == "__main__":
    main()
