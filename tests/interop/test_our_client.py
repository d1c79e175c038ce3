"""Our client and Microsoft's JavaScript client in one group: each reads the streams and the states of the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.interop.javascript import WAIT_S, Node
from tests.interop.javascript_clients import Connect, Service, Wire
from tests.interop.served import ROLES, Served

from semel import WebPubSubClient
from semel.errors import StreamBroken
from semel.pubsub.client.data import GroupStateChange
from semel.runtime.client.inbox import IncomingStream
from semel.testing.limits import scaled

pytestmark = [pytest.mark.interop, pytest.mark.connected, pytest.mark.timeout(120)]


@pytest.fixture
async def ours(served: Served) -> AsyncIterator[WebPubSubClient]:
    async with WebPubSubClient(served.url("ours")) as client:
        yield client


GIVEN: list[tuple[Any, str]] = [
    ("one", "text"), ({"two": [2]}, "json"), (b"\x03\xff", "binary"), (b"\x0a\x01x", "protobuf"),
]  # fmt: skip


async def test_microsofts_client_reads_our_streams(ours: WebPubSubClient, connect: Connect) -> None:
    bob = await asyncio.to_thread(lambda: connect("bob", groups=["to-bob"]))
    async with ours.stream_to_group("to-bob", id="s1") as stream:
        for content, kind in GIVEN:
            await stream.write(content, type=kind)
    *parts, last = await asyncio.to_thread(bob.read, "s1", 5)
    assert [(part["data"], part["dataType"]) for part in parts] == GIVEN
    assert last == {"end": True}
    given_up = await ours.stream_to_group("to-bob", id="s2").open()
    await given_up.write("half")
    await given_up.flush()
    await given_up.abort("no more", code="E7")
    part, last = await asyncio.to_thread(bob.read, "s2", 2)
    assert part["data"] == "half"
    assert (last["error"]["name"], last["error"]["userErrorCode"]) == ("UserError", "E7")


async def test_we_read_the_streams_of_microsofts_client(ours: WebPubSubClient, connect: Connect) -> None:
    ended = asyncio.Queue[tuple[str, list[Any], StreamBroken | None]]()

    @ours.on_stream
    async def read(stream: IncomingStream) -> None:
        parts: list[Any] = []
        try:
            async for part in stream:
                parts += [(part.data, part.type)]
        except StreamBroken as error:
            ended.put_nowait((stream.id, parts, error))
        else:
            ended.put_nowait((stream.id, parts, None))

    await ours.join_group("to-us")
    bob = await asyncio.to_thread(lambda: connect("bob"))

    def send() -> None:
        writer = bob.stream("to-us", streamId="s3")
        for content, kind in GIVEN:
            writer.do("write", content, kind)
        writer.do("end")
        bob.stream("to-us", streamId="s4").do("abort", {"message": "no more", "userErrorCode": "E7"})

    await asyncio.to_thread(send)
    async with asyncio.timeout(scaled(WAIT_S)):
        assert await ended.get() == ("s3", GIVEN, None)
        id, parts, error = await ended.get()
    assert (id, parts) == ("s4", [])
    assert error is not None
    assert (error.name, error.user_code) == ("UserError", "E7")


async def test_each_sees_the_states_of_the_other(ours: WebPubSubClient, node: Node, service: Service) -> None:
    changes = asyncio.Queue[GroupStateChange]()
    ours.on_group_state(changes.put_nowait)
    assert await ours.watch_group_state("seen") == {}
    bob = await asyncio.to_thread(lambda: Wire(node, service.url("bob", ROLES, [])))
    assert (await asyncio.to_thread(lambda: bob.asked("setGroupState", 1, group="seen", state={"mood": "good"})))[
        "success"
    ]
    [item] = (await asyncio.wait_for(changes.get(), scaled(WAIT_S))).changed
    assert (item.connection_id, item.user_id, item.state) == (bob.id, "bob", {"mood": "good"})
    await ours.set_group_state("seen", {"mood": "better"})
    await asyncio.to_thread(lambda: bob.asked("subscribeGroupState", 2, group="seen"))
    snapshot = await asyncio.to_thread(bob.heard, "groupStateSnapshot")
    assert {each["connectionId"]: each["state"] for each in snapshot["items"]} == {
        bob.id: {"mood": "good"},
        ours.connection_id: {"mood": "better"},
    }
    await asyncio.to_thread(bob.stop)
    async with asyncio.timeout(scaled(WAIT_S)):
        while (await changes.get()).changed[-1].state is not None:
            pass
    assert set(ours.group_states("seen")) == {ours.connection_id}
