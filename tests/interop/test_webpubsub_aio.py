"""Microsoft's own Python SDKs for asyncio, as they come from the registry, against `semel serve`."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.messaging.webpubsubclient.aio import WebPubSubClient
from azure.messaging.webpubsubclient.models import CallbackType, SendMessageError
from azure.messaging.webpubsubservice.aio import WebPubSubServiceClient
from tests.interop.served import HUB, KEY, ROLES, Served, is_answer

from semel.testing.byte_faults import ByteFault, ByteProxy
from semel.testing.limits import scaled

pytestmark = [
    pytest.mark.interop,
    pytest.mark.connected,
    pytest.mark.timeout(120),
    # the SDK leaves the sockets of failed attempts to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAIT_S = 30.0


class Subscriber:
    """The SDK calls back in tasks of their own, which begin in order. What it retries by itself it sends under new
    ackIds, and so twice: hence the recipe in `_ask`."""

    def __init__(self, url: str, *, ack_timeout: float = 5) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.gone: asyncio.Queue[Any] = asyncio.Queue()
        self.connected: asyncio.Queue[Any] = asyncio.Queue()
        self.client = WebPubSubClient(
            url, message_retry_total=0, ack_timeout=scaled(ack_timeout), start_timeout=scaled(10)
        )
        self._ack_ids = itertools.count(1)

    async def open(self) -> None:
        for kind in (CallbackType.GROUP_MESSAGE, CallbackType.SERVER_MESSAGE):
            await self.client.subscribe(kind, self.messages.put)
        await self.client.subscribe(CallbackType.DISCONNECTED, self.gone.put)
        await self.client.subscribe(CallbackType.CONNECTED, self.connected.put)
        await self.client.open()
        self.id = (await self.connected.get()).connection_id

    async def join(self, group: str) -> None:
        await self._ask(self.client.join_group, group)

    async def leave(self, group: str) -> None:
        await self._ask(self.client.leave_group, group)

    async def send(self, group: str, data: Any, data_type: str = "text", **more: Any) -> None:
        await self._ask(self.client.send_to_group, group, data, data_type, **more)

    async def _ask(self, call: Callable[..., Awaitable[None]], *arguments: Any, ack_id: int = 0, **more: Any) -> None:
        """The recipe for exactly once: the same ackId again until the server has answered."""
        number = ack_id or next(self._ack_ids)
        async with asyncio.timeout(scaled(WAIT_S)):
            while True:
                try:
                    return await call(*arguments, ack_id=number, **more)
                except SendMessageError as error:
                    if is_answer(error):
                        raise
                except (OSError, TimeoutError, AttributeError):
                    pass  # no connection; the last one is the SDK's own while it makes a new one
                await asyncio.sleep(0.05)

    async def take(self, count: int) -> list[Any]:
        found = [await self.messages.get() for _ in range(count)]
        return [bytes(message.data) if message.data_type == "binary" else message.data for message in found]

    async def is_quiet(self) -> bool:
        """Nothing more has come by the time that an ack went there and back."""
        await self.join("quiet")
        return self.messages.empty()


class Place:
    """The server, as one test uses it."""

    def __init__(self, served: Served, stack: AsyncExitStack) -> None:
        self.served, self._stack = served, stack

    async def service(self, port: int | None = None) -> Any:
        text = f"Endpoint=http://127.0.0.1:{port or self.served.port};AccessKey={KEY};Version=1.0;"
        made = WebPubSubServiceClient.from_connection_string(text, hub=HUB)
        return await self._stack.enter_async_context(made)

    async def connect(self, user: str, roles: list[str] = ROLES, port: int | None = None) -> Subscriber:
        token = await (await self.service(port)).get_client_access_token(user_id=user, roles=roles)
        made = Subscriber(token["url"])
        await made.open()
        self._stack.push_async_callback(made.client.close)
        return made

    async def proxy(self) -> ByteProxy:
        made = ByteProxy(("127.0.0.1", self.served.port))
        await made.start()
        self._stack.push_async_callback(made.close)
        return made


@asynccontextmanager
async def at(served: Served) -> AsyncIterator[Place]:
    async with asyncio.timeout(scaled(60)), AsyncExitStack() as stack:
        yield Place(served, stack)


def with_place(test: Callable[[Place], Awaitable[None]]) -> Callable[[Served], None]:
    async def run_at(served: Served) -> None:
        async with at(served) as place:
            await test(place)

    @functools.wraps(test)
    def run(served: Served) -> None:
        asyncio.run(run_at(served))

    del run.__wrapped__  # type: ignore[attr-defined]
    return run


@with_place
async def test_a_group_message_of_each_type_reaches_everybody(place: Place) -> None:
    alice, bob = await place.connect("alice"), await place.connect("bob")
    for each in (alice, bob):
        await each.join("types")
    await alice.send("types", "text")
    await alice.send("types", {"a": [1, "ü"]}, "json")
    await alice.send("types", memoryview(b"\x00\xff"), "binary")
    for each in (alice, bob):
        assert await each.take(3) == ["text", {"a": [1, "ü"]}, b"\x00\xff"]


@with_place
async def test_no_echo_and_leaving(place: Place) -> None:
    alice, bob = await place.connect("alice"), await place.connect("bob")
    for each in (alice, bob):
        await each.join("echo")
    await alice.send("echo", "one", no_echo=True)
    assert await bob.take(1) == ["one"]
    assert await alice.is_quiet()
    await bob.leave("echo")
    await alice.send("echo", "two")
    assert await alice.take(1) == ["two"]
    assert await bob.is_quiet()


@with_place
async def test_the_same_ack_id_is_taken_once(place: Place) -> None:
    alice = await place.connect("alice")
    await alice.join("twice")
    for _ in range(2):
        await alice.send("twice", "once", ack_id=555)
    assert await alice.take(1) == ["once"]
    assert await alice.is_quiet()


@with_place
async def test_what_is_not_allowed_is_forbidden(place: Place) -> None:
    alice = await place.connect("alice", roles=["webpubsub.sendToGroup.mine"])
    await alice.send("mine", "x")
    with pytest.raises(SendMessageError) as refused:
        await alice.send("other", "x")
    assert refused.value.error_detail is not None
    assert refused.value.error_detail.name == "Forbidden"


@with_place
async def test_the_service_sends_asks_grants_and_lists(place: Place) -> None:
    service, alice = await place.service(), await place.connect("aio-alice", roles=[])
    await service.send_to_all("all", content_type="text/plain", filter="userId eq 'aio-alice'")
    await service.add_connection_to_group("aio", alice.id)
    await service.send_to_group("aio", {"to": "group"})
    await service.send_to_user("aio-alice", b"\x01", content_type="application/octet-stream")
    await service.send_to_connection(alice.id, "one", content_type="text/plain")
    assert await alice.take(4) == ["all", {"to": "group"}, b"\x01", "one"]
    assert [m.connection_id async for m in service.list_connections(group="aio")] == [alice.id]
    assert await service.connection_exists(alice.id)
    assert await service.user_exists("aio-alice")
    assert not await service.group_exists("nobody-is-here")
    await service.grant_permission("sendToGroup", alice.id, target_name="g")
    assert await service.has_permission("sendToGroup", alice.id, target_name="g")
    await alice.send("g", "x")
    await service.revoke_permission("sendToGroup", alice.id, target_name="g")
    assert not await service.has_permission("sendToGroup", alice.id, target_name="g")
    with pytest.raises(ResourceNotFoundError):
        await service.add_connection_to_group("aio", "no-such-connection")
    with pytest.raises(HttpResponseError, match="Syntax error at position 14"):
        await service.send_to_all("x", content_type="text/plain", filter="invalid filter")


@with_place
async def test_who_is_closed_connects_anew_and_joins_its_groups_again(place: Place) -> None:
    service, alice = await place.service(), await place.connect("aio-closed")
    await alice.join("rejoined")
    await service.close_connection(alice.id, reason="enough")
    gone = await alice.gone.get()
    assert (gone.connection_id, gone.message) == (alice.id, "enough")
    assert (await alice.connected.get()).connection_id != alice.id
    assert not await service.connection_exists(alice.id)
    await service.send_to_group("rejoined", "back", content_type="text/plain")
    assert await alice.take(1) == ["back"]


@with_place
async def test_a_broken_connection_comes_back_to_its_session(place: Place) -> None:
    service, proxy = await place.service(), await place.proxy()
    alice = await place.connect("aio-cut", port=proxy.port)
    await alice.join("cuts")
    for number in range(2):
        proxy.strike(ByteFault.END)
        await service.send_to_group("cuts", f"m{number}", content_type="text/plain")
        assert await alice.take(1) == [f"m{number}"]
    assert await service.connection_exists(alice.id)
    assert alice.gone.empty()


@with_place
async def test_an_ack_that_is_lost_is_asked_for_under_the_same_ack_id(place: Place) -> None:
    proxy, bob = await place.proxy(), await place.connect("aio-told")
    alice = await place.connect("aio-lost", port=proxy.port)
    await bob.join("lost")
    proxy.strike(ByteFault.TORN, way="down")
    await alice.send("lost", "once")
    assert await bob.take(1) == ["once"]
    assert await bob.is_quiet()


def test_kill_9_during_traffic_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    server = Served(tmp_path)

    async def check() -> None:
        async with at(server) as place:
            proxy = await place.proxy()  # it makes an end of a reset, for which the SDK gives its session up
            alice, bob = [await place.connect(user, port=proxy.port) for user in ("alice", "bob")]
            for each in (alice, bob):
                await each.join("g")
            for number in range(1, 31):
                if number == 15:
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                await alice.send("g", f"m{number}")
            assert await bob.take(30) == [f"m{number}" for number in range(1, 31)]
            assert await bob.is_quiet()
            assert alice.gone.empty()
            assert bob.gone.empty()

    try:
        asyncio.run(check())
    finally:
        server.stop()
