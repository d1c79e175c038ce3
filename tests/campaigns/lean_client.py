"""A client of `json.reliable.webpubsub.azure.v1` by the letter of the protocol, and no more.

It shares nothing with `semel.pubsub.client.machine` or the server's codecs on purpose: two writings of the same
protocol check each other. What the protocol asks of a client is here:

    connect     take connectionId and reconnectionToken from `connected`
    recover     come back with both in the query, until it works; 1008 means that the session is lost
    publish     keep each request until it is acked, and send it again under the same ackId after every recovery; when
                one is refused for a time, send again from the lowest ackId upwards
    receive     drop what has a sequenceId that was had before; acknowledge the highest every now and then
    be alive    ask for a pong; who gets none leaves and comes back
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import websockets.asyncio.client as websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.typing import Subprotocol

from semel.errors import PeerUnavailable, SessionGone
from semel.testing.limits import scaled

SUBPROTOCOL = "json.reliable.webpubsub.azure.v1"
RECOVER_S = 60.0
RETRY_S = (0.02, 0.2)
PING_S = 1.0
DEAD_S = 4.0
ACK_S = 0.5
REFUSED_S = 0.25
"""How long it waits before it sends again what was refused."""
LOST = 1008

Hear = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Counts:
    """`replayed`: messages that came again on another socket. `backwards`: numbers that did not rise on one socket."""

    recoveries: int = 0
    resent: int = 0
    duplicates: int = 0
    replayed: int = 0
    refused: int = 0
    backwards: int = 0


class LeanClient:
    """`urls` are the addresses of one hub, with a token, on as many nodes as there are: each attempt takes any of them.
    `hear` gets each message once. A connection without a pong for `dead_s` is given up; who gets more than it can take
    must be patient, for a pong stands in line with the messages. `plant` is a known mistake: `new-ack-ids` or
    `no-recovery`."""

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        hear: Hear,
        chance: random.Random,
        *,
        dead_s: float | None = None,
        plant: str | None = None,
    ) -> None:
        self.name = name
        self.counts = Counts()
        self.connection_id: str | None = None
        self._urls, self._hear, self._chance, self._plant = urls, hear, chance, plant
        self._dead_s = scaled(DEAD_S) if dead_s is None else dead_s
        self._token: str | None = None
        self._socket_number = 0
        self._is_going_back = False
        self._last = self._acked = self._heard = 0
        self._ack_id = 0
        self._unacked: dict[int, tuple[dict[str, Any], asyncio.Future[None]]] = {}
        self._outgoing: deque[str] = deque()
        self._something_to_send = asyncio.Event()
        self._is_open = asyncio.Event()
        self._pong_at = 0.0

    # -- what it is asked

    def ask(self, **request: Any) -> asyncio.Future[None]:
        """Send under a fresh ackId. The future is done when the server has acknowledged it, however often it took."""
        self._ack_id += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unacked[self._ack_id] = (request, future)
        if self._is_open.is_set() and not self._is_going_back:
            self._send(**request, ackId=self._ack_id)
        return future

    def acknowledge(self) -> None:
        """At once, and not when it is time."""
        self._acked = self._last
        self._send(type="sequenceAck", sequenceId=self._last)

    async def opened(self) -> None:
        await self._is_open.wait()

    async def run(self) -> None:
        """Until it is cancelled, or the session is lost."""
        while True:
            socket = await self._connect()
            tasks = [asyncio.ensure_future(work(socket)) for work in (self._receive, self._transmit, self._keep_alive)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._is_open.clear()
                for task in tasks:
                    task.cancel()
                found = await asyncio.gather(*tasks, return_exceptions=True)
                socket.transport.abort()
            for result in found:
                if isinstance(result, Exception) and not isinstance(result, ConnectionClosed | OSError):
                    raise result
            if socket.close_code == LOST:
                raise SessionGone(f"{self.name}: {socket.close_reason}", fix="see the log of the server")

    # -- connecting

    async def _connect(self) -> websocket.ClientConnection:
        loop = asyncio.get_running_loop()
        limit = scaled(RECOVER_S)
        until = loop.time() + limit
        while True:
            url = self._chance.choice(self._urls)
            if self._token is not None:
                recovery = {"awps_connection_id": self.connection_id, "awps_reconnection_token": self._token}
                url = f"{url}&{urlencode(recovery)}"
            try:
                socket = await websocket.connect(
                    url, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None, ping_interval=None,
                    open_timeout=self._dead_s, max_queue=None, proxy=None,
                )  # fmt: skip
            except (OSError, TimeoutError, InvalidHandshake, InvalidMessage, EOFError) as error:
                if loop.time() > until:
                    raise PeerUnavailable(
                        f"{self.name} found no server for {limit:.0f} s: {error}", fix="see the log of the server"
                    ) from None
                await asyncio.sleep(self._chance.uniform(*RETRY_S))
                continue
            if self._token is not None:
                self.counts.recoveries += 1
                self._resume()
            self._pong_at, self._heard = loop.time(), 0
            self._socket_number += 1
            return socket

    def _resume(self) -> None:
        """Whatever was not acknowledged goes again before anything new, in its order."""
        self._outgoing.clear()
        self._acked = 0
        self._is_open.set()
        if self._plant == "new-ack-ids":
            self._unacked = {self._ack_id + at: each for at, each in enumerate(self._unacked.values(), start=1)}
            self._ack_id += len(self._unacked)
        self._is_going_back = False
        self.counts.resent += len(self._unacked)
        self._send_unacked()

    def _send_unacked(self) -> None:
        for ack_id, (request, _) in self._unacked.items():
            self._send(**request, ackId=ack_id)

    def _send(self, **request: Any) -> None:
        self._outgoing.append(json.dumps(request, separators=(",", ":")))
        self._something_to_send.set()

    # -- what goes on while it is connected

    async def _transmit(self, socket: websocket.ClientConnection) -> None:
        while True:
            await self._something_to_send.wait()
            self._something_to_send.clear()
            while self._outgoing:
                await socket.send(self._outgoing.popleft())

    async def _keep_alive(self, socket: websocket.ClientConnection) -> None:
        """Ping and acknowledge. Ends when no pong has come for too long."""
        loop = asyncio.get_running_loop()
        pinged_at = loop.time()
        while loop.time() - self._pong_at < self._dead_s:
            await asyncio.sleep(ACK_S)
            if self._last > self._acked:
                self.acknowledge()
            if loop.time() - pinged_at >= PING_S:
                pinged_at = loop.time()
                self._send(type="ping")

    async def _receive(self, socket: websocket.ClientConnection) -> None:
        async for text in socket:
            self._take(json.loads(text))

    def _take(self, frame: dict[str, Any]) -> None:
        match frame["type"]:
            case "message":
                self._take_message(frame)
            case "ack":
                self._take_ack(frame)
            case "pong":
                self._pong_at = asyncio.get_running_loop().time()
            case "system" if frame["event"] == "connected":
                self._take_connected(frame)

    def _take_connected(self, frame: dict[str, Any]) -> None:
        if self.connection_id not in (None, frame["connectionId"]) and self._plant is None:
            raise SessionGone(f"{self.name} came back and is somebody else", fix="see the log of the server")
        self.connection_id = frame["connectionId"]
        if self._plant != "no-recovery":
            self._token = frame["reconnectionToken"]
        if self._token is None:
            self._last = 0
        self._resume()

    def _take_message(self, frame: dict[str, Any]) -> None:
        number = frame["sequenceId"]
        self.counts.backwards += number <= self._heard
        self._heard = number
        if number <= self._last:
            self.counts.replayed += 1
            return
        self._last = number
        self._hear(frame)

    def _take_ack(self, frame: dict[str, Any]) -> None:
        ack_id = frame["ackId"]
        if ack_id not in self._unacked:
            return
        if frame["success"] or frame["error"]["name"] == "Duplicate":
            self.counts.duplicates += not frame["success"]
            _, future = self._unacked.pop(ack_id)
            if not future.done():
                future.set_result(None)
        else:
            self.counts.refused += 1
            self._go_back_soon()

    def _go_back_soon(self) -> None:
        """In order: all that has no answer or this one goes again, and nothing new before it."""
        if not self._is_going_back:
            self._is_going_back = True
            asyncio.get_running_loop().call_later(REFUSED_S, self._go_back, self._socket_number)

    def _go_back(self, socket_number: int) -> None:
        """Unless another socket has taken everything again anyway."""
        if socket_number == self._socket_number and self._is_open.is_set():
            self._is_going_back = False
            self._send_unacked()
