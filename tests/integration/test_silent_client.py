"""A client that acknowledges nothing, and a real server: it does not keep the store from being trimmed, and it loses
nothing by that."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import websockets.asyncio.client as websocket

from semel.auth.keys import AccessKeys
from semel.pubsub.protocol.client_tokens import client_token
from semel.stores.sqlite import SqliteStore
from semel.testing.limits import scaled
from semel.testing.serve_process import KEY, ServeProcess

HUB, STREAM = "chat", "hub/chat"
RELIABLE = "json.reliable.webpubsub.azure.v1"
ROLES = ("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup")
COUNT = 50
WAIT_S = 120.0
"""For a hang, not for a slow machine."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServeProcess]:
    url = f"sqlite:///{tmp_path / 'semel.db'}"
    process = ServeProcess(url, tmp_path / "log", settings={"SEMEL_PUBSUB__BACKLOG_AGE_S": "1"})
    await process.start()
    yield process
    await process.kill()


async def connect(server: ServeProcess, **query: str) -> websocket.ClientConnection:
    endpoint = f"http://127.0.0.1:{server.port}"
    if not query:
        audience = f"{endpoint}/client/hubs/{HUB}"
        query = {"access_token": client_token(AccessKeys(KEY), audience, roles=ROLES, groups=("g",), now=time.time())}
    url = f"{endpoint.replace('http', 'ws', 1)}/client/hubs/{HUB}?{urlencode(query)}"
    return await websocket.connect(url, subprotocols=[RELIABLE], proxy=None)  # type: ignore[list-item]


async def hear(socket: websocket.ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(scaled(WAIT_S)):
        return dict(json.loads(await socket.recv()))


async def hear_messages(socket: websocket.ClientConnection, count: int) -> list[tuple[str, int]]:
    said = [await hear(socket) for _ in range(count)]
    return [(each["data"], each["sequenceId"]) for each in said]


async def publish(socket: websocket.ClientConnection, *bodies: str) -> None:
    """And wait until all are durable. What the publisher is sent itself it acknowledges."""
    for number, body in enumerate(bodies):
        ask = {
            "type": "sendToGroup",
            "group": "g",
            "dataType": "text",
            "data": body,
            "ackId": hash((body, number)) % 2**31,
        }
        await socket.send(json.dumps(ask))
    acks = messages = 0
    while acks < len(bodies) or messages < len(bodies):
        said = await hear(socket)
        acks += said["type"] == "ack"
        if said["type"] == "message":
            messages += 1
            await socket.send(json.dumps({"type": "sequenceAck", "sequenceId": said["sequenceId"]}))


async def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + scaled(WAIT_S)
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_a_silent_client_does_not_keep_the_store_from_being_trimmed(server: ServeProcess, tmp_path: Path) -> None:
    silent, busy = await connect(server), await connect(server)
    connected = await hear(silent)
    await hear(busy)
    bodies = [f"m{number}" for number in range(COUNT)]
    await publish(busy, *bodies)
    first_time = await hear_messages(silent, COUNT)
    assert [body for body, _ in first_time] == bodies
    last = first_time[-1][1]

    store = SqliteStore(f"sqlite:///{tmp_path / 'semel.db'}")
    try:
        await until(lambda: any(each.name == STREAM and each.first > last for each in store.status().streams))
        await server.kill()
        await server.start()
        back = await connect(
            server, awps_connection_id=connected["connectionId"], awps_reconnection_token=connected["reconnectionToken"]
        )
        assert (await hear(back))["event"] == "connected"
        assert await hear_messages(back, COUNT) == first_time
        again = await connect(server)
        await hear(again)
        await publish(again, "after")
        [(body, number)] = await hear_messages(back, 1)
        assert (body, number > last) == ("after", True)
        await back.send(json.dumps({"type": "sequenceAck", "sequenceId": number}))
        await until(lambda: not store.states(f"hub/{HUB}/spill/"))
        for socket in (back, again):
            await socket.close()
    finally:
        store.close()
