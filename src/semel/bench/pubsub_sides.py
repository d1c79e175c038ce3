"""The servers that `semel bench pubsub` measures, each in a process of its own: bare ones, and `semel serve`."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from semel.auth.keys import AccessKeys, new_key
from semel.bench.pubsub_load import GOODBYE, HOST, open_clients
from semel.errors import PeerUnavailable
from semel.http import HttpRequest, HttpResponse
from semel.pubsub.protocol.client_tokens import client_token
from semel.runtime.server.listener import Listener
from semel.runtime.server.part import Mount
from semel.runtime.transports.websocket import Accept, Message, WebSocketPeer
from semel.websocket import frame

HUB = "bench"
GROUP = "all"
START_S = 60.0
STOP_S = 20.0
SUBSCRIBER_PATH = "/client/subscriber"
ROLES = ("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup")


# -- bare servers


class _Bare:
    """A listener with no service behind it. What a client says goes to the subscribers, or back to itself if there
    are none."""

    def __init__(self, is_batched: bool) -> None:
        self._is_batched = is_batched
        self._subscribers: list[WebSocketPeer] = []

    async def handle(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(404)

    async def upgrade(self, request: HttpRequest) -> Accept | HttpResponse:
        return Accept(None, request.path)

    def on_open(self, peer: WebSocketPeer) -> None:
        if peer.key == SUBSCRIBER_PATH:
            self._subscribers.append(peer)

    def on_frames(self, peer: WebSocketPeer, messages: list[Message]) -> None:
        frames = [frame(message) for message in messages]
        if self._is_batched:
            frames = [b"".join(frames)]
        for receiver in self._subscribers or (peer,):
            for each in frames:
                receiver.write(each)
                if not self._is_batched:
                    receiver.flush()

    def on_room(self, peer: WebSocketPeer) -> None: ...

    def on_stalled(self, peer: WebSocketPeer) -> None: ...

    def on_closed(self, peer: WebSocketPeer, code: int | None, reason: str) -> None:
        if peer in self._subscribers:
            self._subscribers.remove(peer)


async def _serve_listener(parent: Connection, is_batched: bool) -> None:
    bare = _Bare(is_batched)
    listener = Listener([Mount("/", bare.handle, sockets=bare)])
    parent.send(await listener.listen(HOST))
    await _until_closed(parent)
    await listener.stop()


async def listener_one_by_one(parent: Connection) -> None:
    await _serve_listener(parent, is_batched=False)


async def listener_batched(parent: Connection) -> None:
    await _serve_listener(parent, is_batched=True)


async def picows(parent: Connection) -> None:
    """As in its own example: each frame is answered when it is read."""
    from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

    class Echo(WSListener):
        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            if frame.msg_type == WSMsgType.TEXT:
                transport.send(WSMsgType.TEXT, frame.get_payload_as_bytes())

    server = await ws_create_server(lambda request: Echo(), HOST, 0)
    parent.send(server.sockets[0].getsockname()[1])
    await _until_closed(parent)
    server.close()


async def _until_closed(parent: Connection) -> None:
    """The bench closes its end when it has measured."""
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(parent.fileno(), closed.set)
    await closed.wait()
    loop.remove_reader(parent.fileno())


Serve = Callable[[Connection], Coroutine[Any, Any, None]]


def _child(serve: Serve, parent: Connection) -> None:
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(serve(parent))


@contextmanager
def bare_server(serve: Serve) -> Iterator[int]:
    """Its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(serve, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_S):
            raise PeerUnavailable("a bare server does not begin", fix="run it on a machine at rest")
        yield ours.recv()
    except EOFError:
        raise PeerUnavailable("a bare server has ended", fix="see what it printed above") from None
    finally:
        ours.close()
        process.join(STOP_S)
        process.kill()
        process.join()


# -- semel serve


class SemelServer:
    """`semel serve` on a store. It may be killed and started again; port and key stay."""

    def __init__(self, store_url: str, folder: Path) -> None:
        self.port = 0
        self._store_url, self._folder = store_url, folder
        self._keys = AccessKeys(new_key(os.urandom(32)))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._end()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it can be reached."""
        command = [sys.executable, "-m", "semel", "serve", "--json", "--host", HOST, "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--store", self._store_url], stdout=subprocess.PIPE, cwd=self._folder,
            env={**os.environ, "SEMEL_ACCESS_KEY": self._keys.primary},
        )  # fmt: skip
        self.port = urlsplit(json.loads(self._first_line())["result"]["endpoint"]).port or 0

    def await_hub(self) -> None:
        """Until the hub takes clients. One node of several may have to make itself known to the others first."""
        until = time.monotonic() + START_S
        while True:
            try:
                [(sock, _)] = open_clients(self.port, self.path(), 1)
            except PeerUnavailable:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                with sock:
                    sock.send(GOODBYE)
                return

    def _first_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(START_S) else b""
        if not line:
            self.kill()
            raise PeerUnavailable("`semel serve` does not begin", fix="see what it printed above")
        return line

    def kill(self) -> None:
        """With -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._end()

    def _end(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def path(self, *groups: str) -> str:
        """Where a client connects, as a member of these groups from the beginning."""
        path = f"/client/hubs/{HUB}"
        audience = f"http://{HOST}:{self.port}{path}"
        token = client_token(self._keys, audience, now=time.time(), roles=ROLES, groups=groups)
        return f"{path}?access_token={token}"

    def memory_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise PeerUnavailable("the system does not say how much memory a process has", fix="measure it on Linux")
