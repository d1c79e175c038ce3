"""A path whose workers speak over a hub: a real server, cut connections, kill -9."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.auth.keys import AccessKeys
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm
from semel.pipes.language.notation import parse_path
from semel.pipes.workers.build import build
from semel.pipes.workers.route import Parcel
from semel.pubsub.protocol.client_tokens import client_token
from semel.runtime.client.client import WebPubSubClient
from semel.runtime.host.performer import Performer
from semel.runtime.pipes.node import PipeNode
from semel.runtime.transports.hub import HubLimits, HubTransport
from semel.stores.memory import MemoryStore
from semel.testing.byte_faults import ByteFault, ByteProxy
from semel.testing.limits import scaled
from semel.testing.serve_process import KEY, ServeProcess

PATH = "A -[retries=inf,window=100,timeout=2s,dedup=strict]-> B"
PARTS, EACH = 6, 200


class Hub:
    """A server behind a link that can be cut."""

    def __init__(self, folder: Path) -> None:
        self.server = ServeProcess(f"sqlite:///{folder / 'hub.db'}", folder / "serve.log")
        self.proxy = ByteProxy(("127.0.0.1", 0), seed=5)

    def url(self, name: str, *roles: str) -> str:
        path = f"127.0.0.1:{self.proxy.port}/client/hubs/pipes"
        token = client_token(AccessKeys(KEY), f"http://{path}", now=time.time(), user_id=name, roles=roles)
        return f"ws://{path}?access_token={token}"

    def transport(self, name: str, peer: str, **options: Any) -> HubTransport:
        roles = (f"webpubsub.joinLeaveGroup.{name}", f"webpubsub.sendToGroup.{peer}")
        return HubTransport(name, self.url(name, *roles), peers=(peer,), **options)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = Hub(tmp_path)
    await made.server.start()
    made.proxy.target = ("127.0.0.1", made.server.port)
    await made.proxy.start()
    yield made
    await made.server.stop()
    await made.proxy.close()


@asynccontextmanager
async def node(hub: Hub, name: str, peer: str, here: str, handler: Any) -> AsyncIterator[PipeNode]:
    async with Performer(MemoryStore()) as performer:
        transport = hub.transport(name, peer)
        made = PipeNode(name, performer, transport)
        nodes = {"A": "left", "B": "right"}
        await made.deploy(build(parse_path(PATH)), here={here}, nodes=nodes, handler=handler, inline=True)
        await transport.open()
        yield made


async def test_a_pipe_over_a_hub_survives_cuts_and_kill_9(hub: Hub) -> None:
    got: list[str] = []

    def handle(item: Any) -> list[Any]:
        got.append(item.envelope.id)
        return []

    async with node(hub, "right", "left", "B", handle), node(hub, "left", "right", "A", None) as left:
        for part in range(PARTS):
            ids = [f"m{part}-{number}" for number in range(EACH)]
            await left.offer_all("A", [Envelope(id) for id in ids])
            if part == PARTS // 2:
                await hub.server.kill()
                await hub.server.start()
            else:
                assert hub.proxy.strike(ByteFault.TORN if part % 2 else ByteFault.RESET)
            async with asyncio.timeout(scaled(60)):
                await left.drained("A")
        assert left.astray == 0
    assert got == [f"m{part}-{number}" for part in range(PARTS) for number in range(EACH)]


class Inbox:
    """What a transport hears, with nobody behind it."""

    is_full = False

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def room(self) -> None: ...

    def received(self, transport: Any, peer: str, message: Any) -> None:
        self.heard.put_nowait((peer, message))

    def connected(self, transport: Any, peer: str) -> None: ...

    def disconnected(self, transport: Any, peer: str) -> None: ...


async def test_only_peers_are_heard_and_only_what_they_say_in_frames(hub: Hub) -> None:
    inbox, confirm = Inbox(), Parcel(("local#B",), (), (Confirm(("d",)),))
    left, right = hub.transport("left", "right", limits=HubLimits(buffer_bytes=100)), hub.transport("right", "left")
    for transport, ear in ((left, Inbox()), (right, inbox)):
        transport.bind(ear)
        await transport.open()
    stranger = hub.url("mallory", "webpubsub.sendToGroup.right")
    same_name = hub.url("left", "webpubsub.sendToGroup.right")
    async with WebPubSubClient(stranger) as mallory, WebPubSubClient(same_name) as babble:
        await mallory.send_to_group("right", b"\x00\x00\x00\x01\x90")
        await babble.send_to_group("right", b"\x00\x00\x00\x03abc")
    assert left.send("right", confirm)
    left.flush()
    async with asyncio.timeout(scaled(30)):
        peer, heard = await inbox.heard.get()
    assert (peer, heard.onward, heard.bodies) == ("left", confirm.onward, confirm.bodies)
    assert inbox.heard.empty()
    assert not left.send("nobody", confirm)
    assert not left.send("right", Parcel(("local#B",), (), tuple(Confirm((str(n),)) for n in range(100))))
    assert left.dropped == 2
    await left.close()
    await right.close()
