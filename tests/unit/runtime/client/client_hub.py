"""A hub that does just what a test says, on a real socket."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response as HttpResponse

from semel.pubsub.client.data import data_of
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Codec, Subprotocol
from semel.pubsub.protocol.messages import Ack, Connected, GroupMessage, Ping, Pong, Request, Response
from semel.testing.limits import scaled

TOKEN = "secret-token"
WAIT_S = 30.0
SILENT = logging.getLogger("silent hub")
SILENT.disabled = True


class Line:
    """One connection, from the server's end. What a client sends to keep alive is answered and not told."""

    def __init__(self, socket: ServerConnection, codec: Codec) -> None:
        self._socket, self._codec = socket, codec
        assert socket.request is not None
        self._said = parse_qs(urlsplit(socket.request.path).query, keep_blank_values=True)
        self.query = {name: values[0] for name, values in self._said.items()}

    def all_of(self, name: str) -> list[str]:
        """Whatever the query says under this name, written in any case."""
        return [value for said, values in self._said.items() if said.lower() == name for value in values]

    async def hear(self) -> Request:
        """What the client says next."""
        async with asyncio.timeout(scaled(WAIT_S)):
            while isinstance(request := self._codec.decode(await self._socket.recv()), Ping):
                await self.say(Pong())
        return request

    async def say(self, *responses: Response) -> None:
        for response in responses:
            await self._socket.send(self._codec.encode(response))

    async def send(self, frame: str | bytes) -> None:
        await self._socket.send(frame)

    async def welcome(self, connection: str = "c1") -> Self:
        await self.say(Connected(connection, "ann", f"token of {connection}"))
        return self

    async def message(self, *sequence_ids: int, group: str = "g") -> None:
        for number in sequence_ids:
            await self.say(GroupMessage(group, data_of(number), sequence_id=number))

    async def answered(self) -> None:
        """Until all has come that the client had written when it heard this."""
        async with asyncio.timeout(scaled(WAIT_S)):
            await (await self._socket.ping())
        await asyncio.sleep(0)

    async def take(self) -> Request:
        """Hear a request and acknowledge it."""
        request = await self.hear()
        await self.say(Ack(request.ack_id))  # type: ignore[union-attr, arg-type]
        return request

    async def close(self, code: int) -> None:
        await self._socket.close(code)

    def cut(self) -> None:
        self._socket.transport.abort()

    @property
    def close_code(self) -> int | None:
        return self._socket.close_code

    async def until_gone(self) -> None:
        async with asyncio.timeout(scaled(WAIT_S)):
            with suppress(Exception):
                while True:
                    await self._socket.recv()
            await self._socket.wait_closed()


class FakeHub:
    def __init__(
        self, subprotocol: Subprotocol = Subprotocol.JSON_RELIABLE, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._subprotocol, self._tls = subprotocol, tls
        codec = codec_for(subprotocol)
        self.codec: Codec = codec  # type: ignore[assignment]
        self._lines: asyncio.Queue[Line] = asyncio.Queue()
        self.refusals: list[tuple[HTTPStatus, dict[str, str]]] = []
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._accept, "127.0.0.1", 0, subprotocols=[self._subprotocol.value],  # type: ignore[list-item]
            process_request=self._look_at, ssl=self._tls, ping_interval=None, close_timeout=0.2, max_size=None,
            logger=SILENT,
        )  # fmt: skip
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        scheme = "ws" if self._tls is None else "wss"
        return f"{scheme}://localhost:{self.port}/client/hubs/chat?access_token={TOKEN}"

    def _look_at(self, connection: ServerConnection, request: HttpRequest) -> HttpResponse | None:
        if not self.refusals:
            return None
        status, headers = self.refusals.pop(0)
        response = connection.respond(status, "no\n")
        for name, value in headers.items():
            response.headers[name] = value
        return response

    async def _accept(self, socket: ServerConnection) -> None:
        self._lines.put_nowait(Line(socket, self.codec))
        await socket.wait_closed()

    async def line(self) -> Line:
        """The next connection that a client opens."""
        async with asyncio.timeout(scaled(WAIT_S)):
            return await self._lines.get()

    async def welcome(self, connection: str = "c1") -> Line:
        return await (await self.line()).welcome(connection)
