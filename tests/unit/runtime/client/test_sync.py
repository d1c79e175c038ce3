"""The client without asyncio: the same, from any thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

import pytest
from tests.unit.runtime.client.client_hub import WAIT_S, FakeHub

from semel import ClientOptions
from semel.errors import AuthError, HandlerError, InputError, LocalProtocolError, PeerUnavailable, RequestInDoubt
from semel.pubsub.client.data import Message, data_of
from semel.pubsub.client.events import Online, State
from semel.pubsub.protocol.messages import (
    Ack,
    InvokeResponse,
    JoinGroup,
    LeaveGroup,
    SendEvent,
    SendToGroup,
    SequenceAck,
)
from semel.runtime.client.client import WebPubSubClient
from semel.runtime.client.streams import OutgoingStream
from semel.runtime.client.sync import SyncOutgoingStream, SyncWebPubSubClient, Waiting, looking, waiting
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled

pytestmark = pytest.mark.timeout(60)

T = TypeVar("T")
OPTIONS = ClientOptions(sequence_ack_s=0.01)


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as made:
        yield made


def on_thread(call: Callable[[], T]) -> asyncio.Task[T]:
    return asyncio.create_task(asyncio.wait_for(asyncio.to_thread(call), scaled(WAIT_S)))


async def test_every_request_returns_when_it_is_answered(hub: FakeHub) -> None:
    def program() -> list[object]:
        with SyncWebPubSubClient(hub.url, options=OPTIONS) as client:
            client.join_group("g")
            found = [client.connection_id, client.user_id, client.is_connected, client.groups]
            found += [client.send_to_group("g", "x", id="one"), client.send_event("e", 1), client.invoke("i", 2)]
            client.leave_group("g")
            return found

    running = on_thread(program)
    line = await hub.welcome()
    heard = [await line.take() for _ in range(3)]
    await line.hear()
    await line.say(InvokeResponse("1", data_of("two")))
    heard.append(await line.take())
    assert await running == ["c1", "ann", True, {"g"}, True, True, "two"]
    assert [type(request) for request in heard] == [JoinGroup, SendToGroup, SendEvent, LeaveGroup]
    await line.until_gone()


async def test_messages_are_taken_by_a_loop(hub: FakeHub) -> None:
    def program() -> list[int]:
        found = []
        with SyncWebPubSubClient(hub.url, options=OPTIONS) as client:
            for message in client:
                found.append(message.data)
                if len(found) == 3:
                    client.close()
        return found

    running = on_thread(program)
    line = await hub.welcome()
    await line.message(1, 2, 3)
    assert await running == [1, 2, 3]


async def test_who_waits_while_another_thread_closes_is_not_left_waiting(hub: FakeHub) -> None:
    client = SyncWebPubSubClient(hub.url, options=OPTIONS)
    opening = on_thread(client.open)
    line = await hub.welcome()
    await opening
    taking, joining = on_thread(lambda: list(client)), on_thread(lambda: client.join_group("g"))
    await line.hear()
    await on_thread(lambda: client.close(0))
    assert await taking == []
    with pytest.raises(RequestInDoubt):
        await joining


async def test_a_handler_runs_in_order_on_a_thread_from_which_it_may_ask(hub: FakeHub) -> None:
    handled: list[tuple[int, str]] = []
    states: list[State] = []
    may_end = threading.Event()

    def program() -> None:
        client = SyncWebPubSubClient(hub.url, options=OPTIONS)
        client.on_state(states.append)
        with client:

            @client.on_message
            def handle(message: Message) -> None:
                client.send_to_group("echo", message.data)
                handled.append((message.data, threading.current_thread().name))

            may_end.wait(scaled(WAIT_S))

    running = on_thread(program)
    line = await hub.welcome()
    await line.message(1, 2)
    while (request := await line.hear()) != SequenceAck(2):
        if isinstance(request, SendToGroup):
            await line.say(Ack(request.ack_id or 0))
    may_end.set()
    await running
    assert [number for number, _ in handled] == [1, 2]
    assert {name for _, name in handled} == {"semel-client-handler_0"}
    assert isinstance(states[0], Online)


async def test_a_handler_may_close_the_client(hub: FakeHub) -> None:
    def program() -> None:
        client = SyncWebPubSubClient(hub.url, options=OPTIONS)
        client.on_message(lambda message: client.close())
        with client:
            client.wait_closed()

    running = on_thread(program)
    line = await hub.welcome()
    await line.message(1, 2)
    async with asyncio.timeout(scaled(30)):
        await running
        await line.until_gone()


async def test_what_is_closed_already_need_not_be_waited_for(hub: FakeHub) -> None:
    """A handler may close the client before anybody waits for that."""
    client = SyncWebPubSubClient(hub.url, options=OPTIONS)
    with pytest.raises(LocalProtocolError, match="not open"):
        client.wait_closed()
    opening = on_thread(client.open)
    await hub.welcome()
    await opening
    await on_thread(client.close)
    await on_thread(client.wait_closed)


async def test_several_threads_may_close_it(hub: FakeHub) -> None:
    client = SyncWebPubSubClient(hub.url, options=OPTIONS)
    opening = on_thread(client.open)
    await hub.welcome()
    await opening
    await asyncio.gather(*(on_thread(client.close) for _ in range(4)))


async def test_a_handler_set_before_opening_that_raises_ends_it(hub: FakeHub) -> None:
    def handle(message: Message) -> None:
        raise ValueError("no")

    def program() -> None:
        client = SyncWebPubSubClient(hub.url, options=OPTIONS)
        client.on_message(handle)
        with client:
            client.wait_closed()

    running = on_thread(program)
    line = await hub.welcome()
    await line.message(1)
    with pytest.raises(HandlerError, match="no"):
        await running


async def test_an_error_that_ended_it_is_raised_at_the_end(hub: FakeHub) -> None:
    is_handled = threading.Event()

    def handle(message: Message) -> None:
        is_handled.set()
        raise ValueError("no")

    def program() -> None:
        with SyncWebPubSubClient(hub.url, options=OPTIONS) as client:
            client.on_message(handle)
            is_handled.wait(scaled(WAIT_S))

    running = on_thread(program)
    line = await hub.welcome()
    await line.message(1)
    with pytest.raises(HandlerError):
        await running


async def test_what_fails_inside_is_what_is_raised(hub: FakeHub) -> None:
    def program() -> None:
        with SyncWebPubSubClient(hub.url, options=OPTIONS):
            raise ZeroDivisionError

    running = on_thread(program)
    await hub.welcome()
    with pytest.raises(ZeroDivisionError):
        await running


async def test_who_may_not_come_in_leaves_no_thread_behind(hub: FakeHub) -> None:
    hub.refusals = [(HTTPStatus.UNAUTHORIZED, {})]
    with pytest.raises(AuthError):
        await on_thread(lambda: SyncWebPubSubClient(hub.url).open())
    assert not [thread for thread in threading.enumerate() if thread.name == "semel-client"]


def test_it_is_used_while_it_is_open() -> None:
    client = SyncWebPubSubClient("ws://127.0.0.1:1/", options=ClientOptions(connect_for_s=0))
    client.close()
    with pytest.raises(LocalProtocolError, match="not open"):
        client.join_group("g")
    with pytest.raises(PeerUnavailable):
        client.open()
    client.close()
    assert list(client) == []
    with pytest.raises(LocalProtocolError, match="opened once"):
        client.open()
    with pytest.raises(LocalProtocolError, match="not open"):
        client.join_group("g")


async def test_a_handler_of_states_is_told_that_it_may_not_wait(hub: FakeHub) -> None:
    errors: list[Exception] = []

    def program() -> None:
        client = SyncWebPubSubClient(hub.url, options=OPTIONS)

        def handle(state: State) -> None:
            try:
                client.join_group("g")
            except LocalProtocolError as error:
                errors.append(error)

        client.on_state(handle)
        with client:
            pass

    running = on_thread(program)
    await hub.welcome()
    await running
    assert "would block" in str(errors[0])


async def test_an_outbox_and_errors_work_alike(hub: FakeHub) -> None:
    def program() -> bool:
        with SyncWebPubSubClient(hub.url, options=OPTIONS, outbox=MemoryStore()) as client:
            with pytest.raises(InputError):
                client.send_to_group("", "x")
            return client.send_to_group("g", "x", until_kept=True)

    running = on_thread(program)
    line = await hub.welcome()
    assert isinstance(await line.take(), SendToGroup)
    assert await running is True


# -- the same names, parameters and words as the client on asyncio


PAIRS = [
    (WebPubSubClient, SyncWebPubSubClient),
    (OutgoingStream, SyncOutgoingStream),
]
FOR_THE_OTHER_CLIENT = {"end", "raise_error"}
"""What a client does for the one that waits."""


def public(of: type) -> dict[str, Any]:
    return {name: each for name, each in vars(of).items() if not name.startswith("_") and inspect.isfunction(each)}


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS, ids=["client", "outgoing"])
def test_the_same_methods_take_the_same(asynchronous: type, synchronous: type) -> None:
    theirs = public(asynchronous)
    if asynchronous is WebPubSubClient:
        theirs = {name: each for name, each in theirs.items() if name not in FOR_THE_OTHER_CLIENT}
    ours = public(synchronous)
    assert sorted(theirs) == sorted(ours)
    for name, method in theirs.items():
        assert list(inspect.signature(method).parameters.values()) == list(
            inspect.signature(ours[name]).parameters.values()
        ) or name.startswith("on_")  # handlers are functions there and coroutines here
        assert not inspect.iscoroutinefunction(ours[name])


class Counter:
    def __init__(self) -> None:
        self.count = 0

    async def add(self, n: int, *, twice: bool = False) -> int:
        """Add a number."""
        self.count += 2 * n if twice else n
        return self.count

    def seen(self, *, more: int = 0) -> int:
        """Look at the count."""
        return self.count + more


class SyncCounter(Waiting[Counter]):
    def __init__(self) -> None:
        self._async = Counter()

    def _call(self, asked: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(asked)

    add = waiting(Counter.add)
    seen = looking(Counter.seen)


def test_a_method_is_called_with_what_it_is_given_and_waited_for() -> None:
    counter = SyncCounter()
    assert counter.add(1) == 1
    assert counter.add(2, twice=True) == 5
    assert counter.seen(more=2) == 7
    assert SyncCounter.add.__doc__ == "Add a number."
    assert SyncCounter.seen.__doc__ == "Look at the count."
