"""Our own client against a real `semel serve`: through cuts, kill -9 of either side, and lost sessions."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.interop.served import Served

from semel import ClientOptions, RetryPolicy, SyncWebPubSubClient, WebPubSubClient
from semel.errors import AuthError, Forbidden, InputError
from semel.pubsub.client.data import Message
from semel.pubsub.client.events import Abandoned, Event, FrameReceived, Online, Recovered, SessionLost, State
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import Disconnected
from semel.runtime.client.driver import ClientDriver
from semel.testing.limits import scaled

pytestmark = [pytest.mark.connected, pytest.mark.timeout(120)]

WAIT_S = 40.0
BACKOFF = RetryPolicy(interval_s=0.05, factor=1.5, interval_max_s=0.5, jitter=1.0)
OPTIONS = ClientOptions(backoff=BACKOFF)


@asynccontextmanager
async def client_of(served: Served, group: str, options: ClientOptions = OPTIONS) -> AsyncIterator[WebPubSubClient]:
    """One in a group."""
    async with WebPubSubClient(lambda: served.url("ann"), options=options) as client:
        await client.join_group(group)
        yield client


async def take(client: WebPubSubClient, count: int) -> list[Message]:
    async with asyncio.timeout(scaled(WAIT_S)):
        return [await anext(client) for _ in range(count)]


def cut(client: WebPubSubClient) -> None:
    """The connection breaks; nobody says good-bye."""
    assert client._driver is not None
    for socket in client._driver._sockets.values():
        if socket.connection is not None:
            socket.connection.transport.abort()


async def publish(client: WebPubSubClient, group: str, numbers: range, pause_s: float = 0.0) -> None:
    """Several under way at any time."""
    async with asyncio.TaskGroup() as sending:
        for number in numbers:
            sending.create_task(client.send_to_group(group, number))
            await asyncio.sleep(pause_s)


@pytest.mark.parametrize("subprotocol", list(Subprotocol))
async def test_every_type_of_data_arrives_as_it_was_sent(served: Served, subprotocol: Subprotocol) -> None:
    group = f"types {subprotocol.value}"
    options = ClientOptions(subprotocol)
    anything = b"\n\x0bexample/any\x12\x01x"
    sent: list[tuple[Any, str]] = [
        ({"a": [1, "ü", None]}, "json"), ("text ü", "text"), (b"\x00\xff", "binary"), (anything, "protobuf"),
        ([1, 2], "json"), ("x" * 300_000, "text"),
    ]  # fmt: skip
    async with client_of(served, group, options) as ann, client_of(served, group, options) as ben:
        for value, type in sent:
            await ann.send_to_group(group, value, type=type, metadata={"k": "v"})
        for client in (ann, ben):
            found = await take(client, len(sent))
            assert [(message.data, message.type) for message in found] == sent
            assert {message.group for message in found} == {group}
            assert all(message.metadata == {"k": "v"} for message in found)
        await ann.send_to_group(group, "not to me", no_echo=True)
        await ben.leave_group(group)
        await ann.send_to_group(group, "last", id=group)
        [last] = await take(ann, 1)
        assert (last.data, last.id) == ("last", group)
        assert [message.data for message in await take(ben, 1)] == ["not to me"]


async def test_the_server_itself_may_send(served: Served) -> None:
    async with client_of(served, "any") as client:
        await asyncio.to_thread(served.service.send_to_connection, client.connection_id, {"a": 1})
        [message] = await take(client, 1)
        assert (message.data, message.group, message.from_user) == ({"a": 1}, None, None)


async def test_through_cuts_of_either_side_each_message_arrives_once_and_in_order(served: Served) -> None:
    states: list[State] = []
    async with client_of(served, "cuts") as ann, client_of(served, "cuts") as ben:
        ann.on_state(states.append)
        ben.on_state(states.append)
        publishing = asyncio.create_task(publish(ann, "cuts", range(600), 0.001))
        found: list[int] = []
        for turn in range(6):
            found += [message.data for message in await take(ben, 100)]
            cut(ann if turn % 2 else ben)
        await publishing
        assert found == [*range(600)]
        assert not [state for state in states if isinstance(state, SessionLost)]
        assert sum(isinstance(state, Recovered) for state in states) >= 4


async def test_through_kill_9_of_the_server_each_message_arrives_once_and_in_order(mortal: Served) -> None:
    async with client_of(mortal, "kill") as ann, client_of(mortal, "kill") as ben:
        before = ben.connection_id
        publishing = asyncio.create_task(publish(ann, "kill", range(400), 0.001))
        found = [message.data for message in await take(ben, 60)]
        for _ in range(2):
            mortal.kill()
            await asyncio.to_thread(mortal.start)
            found += [message.data for message in await take(ben, 100)]
        found += [message.data for message in await take(ben, 140)]
        await publishing
        assert found == [*range(400)]
        assert ben.connection_id == before


async def test_after_the_loss_of_its_session_it_is_in_its_groups_again_and_ids_are_taken_once(served: Served) -> None:
    states: list[State] = []
    is_back = asyncio.Event()

    def note(state: State) -> None:
        states.append(state)
        if isinstance(state, Online):
            is_back.set()

    async with client_of(served, "loss") as ann, client_of(served, "loss") as ben:
        ann.on_state(note)
        first = ann.connection_id
        assert await ann.send_to_group("loss", "one", id="loss-1") is True
        await asyncio.to_thread(served.service.close_connection, first, reason="test")
        async with asyncio.timeout(scaled(WAIT_S)):
            await is_back.wait()
        assert ann.connection_id != first
        assert await ann.send_to_group("loss", "one", id="loss-1") is False
        assert await ann.send_to_group("loss", "two", id="loss-2") is True
        assert [message.data for message in await take(ben, 2)] == ["one", "two"]
        assert (await take(ann, 2))[-1].data == "two"
        assert [type(state) for state in states] == [Disconnected, SessionLost, Online]


async def test_an_answer_that_is_lost_on_a_live_connection_is_asked_for_under_the_same_ack_id(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not get to see the first two acks of its message."""
    lost: list[Event] = []
    feed = ClientDriver.feed

    def lossy(driver: ClientDriver, event: Event) -> None:
        is_ack = isinstance(event, FrameReceived) and '"type":"ack","ackId":2' in str(event.frame)
        if is_ack and len(lost) < 2:
            lost.append(event)
        else:
            feed(driver, event)

    monkeypatch.setattr(ClientDriver, "feed", lossy)

    options = ClientOptions(ack_timeout_s=0.1, ack_timeout_max_s=0.1)
    async with client_of(served, "acks", options) as client:
        assert await client.send_to_group("acks", "once") is False
        assert len(lost) == 2
        await client.send_to_group("acks", "end")
        assert [message.data for message in await take(client, 2)] == ["once", "end"]


async def test_handlers_are_called_in_order_however_long_each_takes(served: Served) -> None:
    chance = random.Random(7)
    found: list[int] = []
    is_done = asyncio.Event()
    async with client_of(served, "order") as client:

        @client.on_message
        async def handle(message: Message) -> None:
            await asyncio.sleep(chance.random() * 0.004)
            found.append(message.data)
            if message.data == 99:
                is_done.set()

        await publish(client, "order", range(100))
        async with asyncio.timeout(scaled(WAIT_S)):
            await is_done.wait()
    assert found == [*range(100)]


async def test_errors_have_their_types(served: Served) -> None:
    async with WebPubSubClient(served.url("eve", roles=[])) as client:
        with pytest.raises(Forbidden, match="permission to join"):
            await client.join_group("g")
        with pytest.raises(Forbidden, match="permission to send"):
            await client.send_to_group("g", "x")
    with pytest.raises(AuthError, match=r"401: \w+ .*token"):
        await WebPubSubClient(f"{served.url('eve')}x").open()


async def test_an_id_that_another_message_has_is_an_error_and_not_tried_again(served: Served, tmp_path: Path) -> None:
    told: list[State] = []
    given_up = asyncio.Event()

    def hear(state: State) -> None:
        told.append(state)
        if isinstance(state, Abandoned):
            given_up.set()

    outbox = f"sqlite:///{tmp_path / 'outbox.db'}"
    async with WebPubSubClient(lambda: served.url("ann"), options=OPTIONS, outbox=outbox) as client:
        client.on_state(hear)
        assert await client.send_to_group("ids", "paid", id="one-name")
        assert not await client.send_to_group("ids", "paid", id="one-name")
        with pytest.raises(InputError, match="Conflict"):
            await client.send_to_group("ids", "shipped", id="one-name")
        await client.send_to_group("ids", "returned", id="one-name", until_kept=True)
        async with asyncio.timeout(scaled(WAIT_S)):
            await given_up.wait()
    [abandoned] = [state for state in told if isinstance(state, Abandoned)]
    assert (abandoned.entry.id, abandoned.maybe_taken) == ("one-name", False)


def test_without_asyncio_it_is_the_same(served: Served) -> None:
    with SyncWebPubSubClient(served.url("ann"), options=OPTIONS) as client:
        client.join_group("sync")
        for number in range(20):
            assert client.send_to_group("sync", number)
        messages = iter(client)
        assert [next(messages).data for _ in range(20)] == [*range(20)]


Publisher = subprocess.Popen[str]


@pytest.fixture
def publisher_of(mortal: Served, tmp_path: Path) -> Iterator[Callable[[range], Publisher]]:
    """Starts a publisher of these numbers. All have the same outbox."""
    started: list[Publisher] = []

    def start(numbers: range) -> Publisher:
        program, outbox = Path(__file__).parent / "client_publisher.py", f"sqlite:///{tmp_path}/outbox.db"
        command = [sys.executable, str(program), mortal.url("pub"), outbox, str(numbers.start), str(numbers.stop)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for publisher in started:
        _kill(publisher)


def _kill(publisher: Publisher) -> None:
    """With -9. What it has said and nobody has read yet is lost as well."""
    publisher.kill()
    publisher.wait()
    assert publisher.stdout is not None
    publisher.stdout.close()


async def _until(publisher: Publisher, line: str) -> None:
    assert publisher.stdout is not None
    said = (each.strip() for each in publisher.stdout)
    assert await asyncio.to_thread(lambda: line in said), f"the publisher never said {line!r}"


async def test_a_publisher_that_is_killed_has_published_all_that_it_kept_once(
    mortal: Served, publisher_of: Callable[[range], Publisher]
) -> None:
    """Each publisher goes on after what the one before it has surely kept. The second one sees its server die."""
    count = 300
    async with client_of(mortal, "crash") as client:
        publisher = publisher_of(range(count))
        await _until(publisher, "60")
        _kill(publisher)
        publisher = publisher_of(range(61, count))
        await _until(publisher, "70")
        mortal.kill()
        await _until(publisher, "150")
        _kill(publisher)
        await asyncio.to_thread(mortal.start)
        publisher = publisher_of(range(151, count))
        assert [message.data for message in await take(client, count)] == [*range(count)]
        await _until(publisher, "done")
        assert await asyncio.to_thread(publisher.wait, scaled(WAIT_S)) == 0
        await client.send_to_group("crash", "end")
        assert [message.data for message in await take(client, 1)] == ["end"]
