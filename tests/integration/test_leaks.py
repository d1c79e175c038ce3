"""Whatever fails in the store, nobody outside hears where it is, what it is called and who may use it; the log does."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from semel import errors
from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import service_token
from semel.errors import SemelError
from semel.pubsub.events.handlers import EventHandler, Handlers, SystemEvent
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.protocol.client_tokens import client_token
from semel.pubsub.rest.routes import TABLE
from semel.runtime.server.part import ServerSettings
from semel.runtime.server.pubsub import PubSub, PubSubSettings
from semel.runtime.server.server import serving
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled

SECRETS = ("postgresql://", "payroll", "db-7.internal", "/var/lib", "svc_user", "Traceback", "OperationalError")
# As a number of its own: a signature in hex has these four digits in it now and then.
PORT = re.compile(r"(?<![0-9A-Za-z])5433(?![0-9A-Za-z])")
TEXT = "cannot reach postgresql://svc_user:pw@db-7.internal:5433/payroll (/var/lib/payroll.db): OperationalError"
KEYS = AccessKeys(DEV_KEY)
WAIT_S = 60.0
KINDS: list[type[SemelError]] = [
    errors.StoreUnavailable, errors.StoreBusy, errors.StoreFull, errors.StoreReadOnly, errors.StoreRefused,
    errors.NotAStore, errors.StoreError, errors.StoreGone, errors.StoreBroken, errors.StoreInRecovery,
    errors.CommitInDoubt,
]  # fmt: skip
ROLES = ("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup")


class Telltale(MemoryStore):
    """Fails, when it is told to, with all that nobody should hear."""

    failing: SemelError | None = None

    def __getattribute__(self, name: str) -> Any:
        if name in _ASKED and (failing := object.__getattribute__(self, "failing")) is not None:
            raise failing
        return super().__getattribute__(name)


_ASKED = {
    "commit",
    "resolve",
    "read",
    "tail",
    "head",
    "cursor",
    "known",
    "state",
    "states",
    "work",
    "body",
    "sweep",
    "status",
}


class Handler:
    """An event handler that wants to be told all, and gives each connection a new state, which has to be stored."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-len")), 0
                )
                self.heard.append(head + (await reader.readexactly(size)))
                self.count += 1
                writer.write(
                    b"HTTP/1.1 200 OK\r\nWebHook-Allowed-Origin: *\r\ncontent-length: 0\r\n"
                    b"ce-connectionState: %d\r\n\r\n" % self.count
                )
        except asyncio.IncompleteReadError:
            writer.close()


@asynccontextmanager
async def server(store: MemoryStore) -> AsyncIterator[tuple[str, Handler]]:
    handler = Handler()
    listening = await asyncio.start_server(handler.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    told = EventHandler(
        f"http://127.0.0.1:{port}/events",
        user_events="*",
        system_events=frozenset({SystemEvent.CONNECTED, SystemEvent.DISCONNECTED}),
    )
    handlers = Handlers("chat", (told,))
    settings = PubSubSettings(handlers={"chat": handlers}, hub=HubOptions(recovery_s=600.0))
    pubsub = partial(PubSub, settings=settings)
    async with listening, serving(store, ServerSettings(KEYS, port=0), [pubsub]) as place:
        yield place.endpoint, handler


def address(endpoint: str, hub: str = "chat") -> str:
    path = f"{endpoint}/client/hubs/{hub}"
    token = client_token(KEYS, path, now=time.time(), user_id="ann", roles=ROLES, groups=("g",))
    return f"ws{path.removeprefix('http')}?access_token={token}"


def frames() -> Iterator[dict[str, Any]]:
    """One of each kind that is answered."""
    number = iter(range(1, 100))
    yield {"type": "joinGroup", "group": "new", "ackId": next(number)}
    yield {"type": "leaveGroup", "group": "g", "ackId": next(number)}
    yield {"type": "sendToGroup", "group": "g", "data": 1, "ackId": next(number)}
    yield {"type": "sendToGroup", "group": "g", "data": 1, "ackId": next(number), "metadata": {"semel-id": "x"}}
    yield {"type": "sendToGroup", "group": "g", "dataType": "text", "data": "x" * 500_000, "ackId": next(number)}
    yield {"type": "event", "event": "e", "data": 1, "ackId": next(number)}
    yield {"type": "setGroupState", "group": "g", "state": {"a": "b"}, "ackId": next(number)}
    yield {"type": "subscribeGroupState", "group": "g", "ackId": next(number)}
    yield {"type": "unsubscribeGroupState", "group": "g", "ackId": next(number)}
    yield {"type": "invoke", "invocationId": "i", "target": "event", "event": "e", "data": 1}
    yield {"type": "sendToGroup", "group": "g", "stream": {"streamId": "s"}}
    yield {"type": "streamData", "streamId": "s", "streamSequenceId": 1, "data": 1}
    yield {"type": "streamEnd", "streamId": "s"}


def answered(frame: dict[str, Any]) -> object:
    """What it is an answer to."""
    return frame.get("ackId") or frame.get("invocationId") or frame.get("streamId")


async def say_everything(ws: ClientConnection) -> str:
    """All that is heard until each frame is answered, or the socket is closed."""
    heard: list[str] = []
    said = list(frames())
    waiting = {answered(frame) or "s" for frame in said}
    try:
        for frame in said:
            await ws.send(json.dumps(frame))
        while waiting:
            heard.append(str(await ws.recv()))
            waiting.discard(answered(json.loads(heard[-1])))
    except ConnectionClosed as closed:
        heard.append(str(closed))
    return "\n".join(heard)


async def call_everything(http: httpx.AsyncClient, endpoint: str, connection: str) -> str:
    names = {"{group}": "g", "{user}": "ann", "{connection}": connection, "{permission}": "sendToGroup"}
    asked = [
        ("GET", path) for path in ("/healthz", "/readyz", "/metrics", "/v1/overview", "/v1/pubsub/hubs", "/api/health")
    ]
    for hub in ("chat", "other"):
        asked += [
            ("GET", f"/v1/pubsub/hubs/{hub}/{what}") for what in ("connections", "groups", "messages?after=start")
        ]
        for method, pattern, _ in TABLE:
            for name, value in names.items():
                pattern = pattern.replace(name, value)
            asked.append((method, f"/api/hubs/{hub}{pattern}"))
    heard = []
    for method, path in asked:
        url = endpoint + path
        token = service_token(KEYS, url, now=time.time())
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json", "idempotency-key": "k"}
        body = b'{"groups":["h"]}' if method == "POST" else b""
        answer = await http.request(method, url, headers=headers, content=body)
        heard.append(f"{method} {path} {answer.status_code} {answer.headers} {answer.text}")
    return "\n".join(heard)


async def come_in(endpoint: str, reconnect: str) -> str:
    heard = []
    for url in (address(endpoint), address(endpoint, "unopened"), reconnect):
        try:
            async with connect(url, subprotocols=["json.reliable.webpubsub.azure.v1"]) as ws:  # type: ignore[list-item]
                heard.append(str(await ws.recv()))
        except (ConnectionClosed, InvalidStatus) as refused:
            response = getattr(refused, "response", None)
            heard.append(f"{refused} {response.body if response is not None else ''!r}")
    return "\n".join(heard)


@asynccontextmanager
async def ended_in_trouble(kind: type[SemelError]) -> AsyncIterator[None]:
    """A store that only a restart could mend is in trouble to the end, which whoever starts the server is told."""
    if issubclass(kind, errors.StoreBroken):
        with pytest.raises(errors.StoreUnavailable, match="ended while the store was in trouble"):
            yield
    else:
        yield


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_no_answer_names_the_store(kind: type[SemelError], caplog: pytest.LogCaptureFixture) -> None:
    store = Telltale()
    caplog.set_level(logging.WARNING)
    heard: list[str] = []
    async with (
        asyncio.timeout(scaled(WAIT_S)),
        ended_in_trouble(kind),
        server(store) as (endpoint, handler),
        httpx.AsyncClient() as http,
    ):
        protocol: Any = ["json.reliable.webpubsub.azure.v1"]
        async with (
            connect(address(endpoint), subprotocols=protocol) as ws,
            connect(address(endpoint), subprotocols=protocol) as other,
        ):
            known = json.loads(await ws.recv())
            left = json.loads(await other.recv())
            query = f"awps_connection_id={left['connectionId']}&awps_reconnection_token={left['reconnectionToken']}"
            reconnect = f"ws{endpoint.removeprefix('http')}/client/hubs/chat?{query}"
            marker = {"marker": TEXT} if kind is errors.CommitInDoubt else {}
            store.failing = kind(TEXT, fix=f"look at {TEXT}", **marker)
            heard.append(await say_everything(ws))
            heard.append(await call_everything(http, endpoint, known["connectionId"]))
            heard.append(await come_in(endpoint, reconnect))
        store.failing = None
    assert PORT.search(TEXT)
    heard += [each.decode("latin-1") for each in handler.heard]
    for part in "\n".join(heard).splitlines():
        assert not [secret for secret in SECRETS if secret in part], part
        assert not PORT.search(part), part
    # where nobody knows what became of a commit the session has to come back
    assert ("received 1011" if kind is errors.CommitInDoubt else "InternalServerError") in heard[0]
    assert "POST /api/hubs/chat/:send 503" in heard[1]
    assert TEXT in caplog.text
