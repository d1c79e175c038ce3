"""Two nodes on one PostgreSQL are restarted one after the other, while clients of ours and of Microsoft publish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from azure.messaging.webpubsubservice import WebPubSubServiceClient
from tests.interop.served import HUB, ROLES
from tests.interop.test_webpubsub_aio import Subscriber

from semel import WebPubSubClient
from semel.testing.byte_faults import ByteProxy
from semel.testing.limits import scaled
from semel.testing.serve_process import KEY, ServeProcess

pytestmark = [
    pytest.mark.interop,
    pytest.mark.connected,
    pytest.mark.timeout(120),
    # Microsoft's client leaves the sockets of failed attempts to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAIT_S = 30.0
PACE_S = 0.01
FEW = 5
GROUP = "all"

Send = Callable[[str], Awaitable[object]]
Said = tuple[str, int]


class Member:
    """Somebody who publishes, and what he has got: `send` returns when the server has the message."""

    def __init__(self, name: str, send: Send, session: Callable[[], str | None]) -> None:
        self.name, self.session, self._send = name, session, send
        self.received: list[Said] = []
        self.sent = self.accepted = 0
        self._news, self._taken = asyncio.Event(), asyncio.Event()

    def hear(self, text: str) -> None:
        name, number = text.split()
        self.received.append((name, int(number)))
        self._news.set()

    async def until(self, count: int) -> None:
        """So many have come."""
        while len(self.received) < count:
            self._news.clear()
            await self._news.wait()

    async def until_accepted(self, more: int) -> None:
        """The server has so many more messages of his."""
        enough = self.accepted + more
        while self.accepted < enough:
            self._taken.clear()
            await self._taken.wait()

    async def publish(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            self.sent += 1
            await self._send(f"{self.name} {self.sent}")
            self.accepted += 1
            self._taken.set()
            await asyncio.sleep(PACE_S)


async def ours(name: str, url: str, stack: AsyncExitStack) -> Member:
    client = await stack.enter_async_context(WebPubSubClient(url))
    member = Member(name, lambda text: client.send_to_group(GROUP, text), lambda: client.connection_id)
    client.on_message(lambda message: member.hear(message.data))
    await client.join_group(GROUP)
    return member


async def microsofts(name: str, url: str, stack: AsyncExitStack) -> Member:
    client = Subscriber(url, ack_timeout=1)
    await client.open()
    stack.push_async_callback(client.client.close)
    member = Member(name, lambda text: client.send(GROUP, text), lambda: client.client._connection_id)

    async def listen() -> None:
        while True:
            [text] = await client.take(1)
            member.hear(text)

    listening = asyncio.create_task(listen())
    stack.callback(listening.cancel)
    await client.join(GROUP)
    return member


class Fronts:
    """An address for the clients of each node. Who comes while a node is away is led to the other one."""

    def __init__(self, nodes: list[ServeProcess]) -> None:
        self._nodes = nodes
        self._proxies = [ByteProxy(("127.0.0.1", node.port)) for node in nodes]

    async def start(self) -> list[int]:
        return [await proxy.start() for proxy in self._proxies]

    async def close(self) -> None:
        for proxy in self._proxies:
            await proxy.close()

    async def restart(self, number: int) -> int:
        """The node's exit code."""
        node, other = self._nodes[number], self._nodes[1 - number]
        self._proxies[number].target = "127.0.0.1", other.port
        code = await node.stop()
        await node.start()
        self._proxies[number].target = "127.0.0.1", node.port
        return code


@asynccontextmanager
async def two_nodes(store: str, folder: Path) -> AsyncIterator[list[ServeProcess]]:
    nodes = [ServeProcess(store, folder / f"{name}.log", node=name) for name in ("a", "b")]
    try:
        for node in nodes:
            await node.start()
        yield nodes
    finally:
        for node in nodes:
            await node.kill()


def url_of(port: int, user: str) -> str:
    text = f"Endpoint=http://127.0.0.1:{port};AccessKey={KEY};Version=1.0;"
    with WebPubSubServiceClient.from_connection_string(text, hub=HUB) as service:
        return str(service.get_client_access_token(user_id=user, roles=ROLES)["url"])


async def test_a_rolling_restart_loses_doubles_and_reorders_nothing(tmp_path: Path, postgres_url: str) -> None:
    async with two_nodes(postgres_url, tmp_path) as nodes, AsyncExitStack() as stack:
        fronts = Fronts(nodes)
        ports = await fronts.start()
        stack.push_async_callback(fronts.close)
        makers = {"ours": ours, "theirs": microsofts}
        members = [
            await make(f"{kind}-{number}", url_of(port, kind), stack)
            for number, port in enumerate(ports)
            for kind, make in makers.items()
        ]
        sessions = [member.session() for member in members]
        is_over = asyncio.Event()
        async with asyncio.timeout(scaled(WAIT_S)), asyncio.TaskGroup() as publishing:
            for member in members:
                publishing.create_task(member.publish(is_over))
            for number in (0, 1):
                await asyncio.gather(*(member.until_accepted(FEW) for member in members))
                assert await fronts.restart(number) == 0
            await asyncio.gather(*(member.until_accepted(FEW) for member in members))
            is_over.set()
        expected = {member.name: member.sent for member in members}
        async with asyncio.timeout(scaled(WAIT_S)):
            for member in members:
                await member.until(sum(expected.values()))

        first = members[0].received
        for member in members:
            assert member.received == first
        for name, sent in expected.items():
            assert [number for who, number in first if who == name] == list(range(1, sent + 1))
        assert [member.session() for member in members] == sessions
