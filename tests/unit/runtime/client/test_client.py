"""A client on real sockets, against a hub that does just what the test says."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from tests.integration.test_listener import CERTIFICATE, PRIVATE_KEY
from tests.unit.runtime.client.client_hub import TOKEN, WAIT_S, FakeHub, Line
from websockets.exceptions import ConnectionClosed

from semel import ClientOptions, RetryPolicy, WebPubSubClient
from semel.errors import (
    AuthError,
    ConfigError,
    Forbidden,
    HandlerError,
    InputError,
    LocalProtocolError,
    PeerUnavailable,
    RemoteProtocolError,
    RequestInDoubt,
    SemelError,
    StaleFence,
)
from semel.kernel.ops import Outcome, Unit
from semel.pubsub.client.data import Message, data_of
from semel.pubsub.client.events import Interrupted, Online, Recovered, SessionLost, State, Stopped
from semel.pubsub.protocol.messages import (
    Ack,
    CancelInvocation,
    ErrorName,
    Fault,
    Invoke,
    InvokeResponse,
    JoinGroup,
    LeaveGroup,
    SendEvent,
    SendToGroup,
    SequenceAck,
)
from semel.runtime.client import socket as client_socket
from semel.runtime.client.outbox import StoreOutbox
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled
from semel.websocket import CloseCode

pytestmark = pytest.mark.timeout(60)

QUICK = RetryPolicy(interval_s=0.01, factor=1.0, interval_max_s=0.01)
OPTIONS = ClientOptions(backoff=QUICK, sequence_ack_s=0.01)


@asynccontextmanager
async def connected(hub: FakeHub, **more: object) -> AsyncIterator[tuple[WebPubSubClient, Line]]:
    client = WebPubSubClient(hub.url, **{"options": OPTIONS, **more})  # type: ignore[arg-type]
    opening = asyncio.create_task(client.open())
    line = await hub.welcome()
    await opening
    try:
        yield client, line
    finally:
        await client.close(0)


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as made:
        yield made


# -- requests


async def test_each_request_says_what_it_asks_and_returns_when_it_is_answered(hub: FakeHub) -> None:
    async with connected(hub) as (client, line), asyncio.timeout(scaled(WAIT_S)):
        async with asyncio.TaskGroup() as group:
            group.create_task(client.join_group("g"))
            group.create_task(client.send_to_group("g", {"a": 1}, no_echo=True, ttl_s=5, metadata={"k": "v"}, id="one"))
            group.create_task(client.send_event("e", b"x", metadata={"k": "v"}))
            group.create_task(client.leave_group("h"))
            heard = [await line.take() for _ in range(4)]
        assert [type(request) for request in heard] == [JoinGroup, SendToGroup, SendEvent, LeaveGroup]
        assert isinstance(sent := heard[1], SendToGroup)
        assert (sent.data.body, sent.no_echo, sent.ttl_s) == (b'{"a":1}', True, 5)
        assert sent.metadata == {"k": "v", "semel-id": "one"}
        assert client.groups == {"g"}
        assert (client.connection_id, client.user_id, client.is_connected) == ("c1", "ann", True)


async def test_without_an_answer_the_same_goes_out_again_on_the_same_socket(hub: FakeHub) -> None:
    options = ClientOptions(ack_timeout_s=0.05, ack_timeout_max_s=0.05)
    async with connected(hub, options=options) as (client, line):
        sending = asyncio.create_task(client.send_to_group("g", "x"))
        first, second, third = [await line.hear() for _ in range(3)]
        assert first == second == third
        await line.say(Ack(1, Fault(ErrorName.DUPLICATE, "had it")))
        assert await sending is False


async def test_on_a_new_socket_of_the_session_the_same_goes_out_again(hub: FakeHub) -> None:
    states: list[State] = []
    async with connected(hub) as (client, line):
        client.on_state(states.append)
        sending = [asyncio.create_task(client.send_to_group("g", text)) for text in "ab"]
        asked = [await line.hear(), await line.hear()]
        line.cut()
        again = await hub.line()
        assert again.query["awps_connection_id"] == "c1"
        assert again.query["awps_reconnection_token"] == "token of c1"
        assert again.query["access_token"] == TOKEN
        assert [await again.take(), await again.take()] == asked
        assert await asyncio.gather(*sending) == [True, True]
        assert [type(state) for state in states] == [Interrupted, Recovered]


async def test_after_a_lost_session_an_id_is_sent_again_and_without_one_nobody_knows(hub: FakeHub) -> None:
    states: list[State] = []
    async with connected(hub) as (client, line):
        client.on_state(states.append)
        joining = asyncio.create_task(client.join_group("g"))
        await line.take()
        await joining
        with_id = asyncio.create_task(client.send_to_group("g", "a", id="one"))
        without = asyncio.create_task(client.send_to_group("g", "b"))
        await line.hear()
        await line.hear()
        await line.close(CloseCode.POLICY)
        again = await hub.welcome("c2")
        assert "awps_connection_id" not in again.query
        assert isinstance(await again.take(), JoinGroup)
        repeated = await again.take()
        assert isinstance(repeated, SendToGroup)
        assert repeated.metadata == {"semel-id": "one"}
        assert await with_id is True
        with pytest.raises(RequestInDoubt, match="not known"):
            await without
        assert [type(state) for state in states] == [SessionLost, Online]
        assert client.connection_id == "c2"


async def test_a_refusal_has_its_type(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        joining = asyncio.create_task(client.join_group("g"))
        await line.hear()
        await line.say(Ack(1, Fault(ErrorName.FORBIDDEN, "not you")))
        with pytest.raises(Forbidden, match="not you"):
            await joining


async def test_what_is_malformed_is_refused_here(hub: FakeHub) -> None:
    async with connected(hub) as (client, _):
        for wrong in (client.join_group(""), client.send_to_group("g", None), client.send_to_group("g", 1, ttl_s=900)):
            with pytest.raises(InputError):
                await wrong
        with pytest.raises(InputError, match="no outbox"):
            await client.send_to_group("g", "x", until_kept=True)


async def test_an_answer_may_be_waited_for_only_so_long(hub: FakeHub) -> None:
    async with connected(hub) as (client, _):
        with pytest.raises(RequestInDoubt, match="in time"):
            await client.send_to_group("g", "x", timeout_s=scaled(0.2))
    async with connected(hub, options=ClientOptions(window=1, queue_max=0)) as (client, line):
        waiting = asyncio.create_task(client.send_to_group("g", "x"))
        await line.hear()
        with pytest.raises(PeerUnavailable, match="could not be sent in time"):
            await client.send_to_group("g", "y", timeout_s=0.02)
        await client.close(0)
        with pytest.raises(RequestInDoubt):
            await waiting


async def test_who_asks_too_much_waits_for_room_in_turn(hub: FakeHub) -> None:
    options = ClientOptions(window=1, queue_max=0)
    async with connected(hub, options=options) as (client, line):
        asked = [asyncio.create_task(client.send_to_group("g", number)) for number in range(4)]
        bodies = []
        for _ in range(4):
            request = await line.take()
            assert isinstance(request, SendToGroup)
            bodies.append(request.data.body)
        assert bodies == [b"0", b"1", b"2", b"3"]
        assert await asyncio.gather(*asked) == [True] * 4


async def test_who_stops_waiting_makes_room(hub: FakeHub) -> None:
    options = ClientOptions(window=1, queue_max=0)
    async with connected(hub, options=options) as (client, line):
        first = asyncio.create_task(client.send_to_group("g", "first"))
        await line.hear()
        waiting = asyncio.create_task(client.send_to_group("g", "never"))
        second = asyncio.create_task(client.send_to_group("g", "second"))
        await asyncio.sleep(0)
        waiting.cancel()
        first.cancel()
        request = await line.take()
        assert isinstance(request, SendToGroup)
        assert request.data.body == b"second"
        assert await second is True


async def test_an_invocation_has_an_answer_or_an_error_and_is_cancelled_if_nobody_waits(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        asking = [asyncio.create_task(client.invoke("add", [1, 2])), asyncio.create_task(client.invoke("fail"))]
        asked = [await line.hear(), await line.hear()]
        assert [request.event for request in asked if isinstance(request, Invoke)] == ["add", "fail"]
        await line.say(
            InvokeResponse("2", error=Fault(ErrorName.FORBIDDEN, "no")), InvokeResponse("1", data_of({"sum": 3}))
        )
        assert await asking[0] == {"sum": 3}
        with pytest.raises(Forbidden):
            await asking[1]
        dropped = asyncio.create_task(client.invoke("slow"))
        await line.hear()
        dropped.cancel()
        assert await line.hear() == CancelInvocation("3")
        empty = asyncio.create_task(client.invoke("empty"))
        await line.hear()
        await line.say(InvokeResponse("4"))
        assert await empty is None


# -- messages


async def test_iterating_takes_messages_in_order_and_acknowledges_what_is_done(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        await line.message(1, 2, 2, 3)
        messages = aiter(client)
        assert (await anext(messages)).data == 1
        assert (await anext(messages)).data == 2
        assert await line.hear() == SequenceAck(1)
        assert (await anext(messages)).data == 3
        assert await line.hear() == SequenceAck(2)


async def test_iterating_ends_with_the_client(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        await line.message(1)
        found = []
        async for message in client:
            found.append(message.data)
            await client.close()
        assert found == [1]
        await line.until_gone()
        assert line.close_code == CloseCode.NORMAL


async def test_a_handler_gets_messages_one_after_the_other_and_each_is_acknowledged_after_it(hub: FakeHub) -> None:
    begun: asyncio.Queue[int] = asyncio.Queue()
    may_end = asyncio.Semaphore(0)
    async with connected(hub) as (client, line):
        await line.message(1, 2)

        @client.on_message
        async def handle(message: Message) -> None:
            begun.put_nowait(message.data)
            await may_end.acquire()

        assert await begun.get() == 1
        joining = asyncio.create_task(client.join_group("g"))
        assert isinstance(await line.take(), JoinGroup), "the first is not acknowledged yet"
        await joining
        assert begun.empty()
        may_end.release()
        assert await begun.get() == 2
        assert await line.hear() == SequenceAck(1)
        may_end.release()
        assert await line.hear() == SequenceAck(2)


async def test_a_handler_may_be_a_plain_function_and_set_before_opening(hub: FakeHub) -> None:
    found: list[int] = []
    client = WebPubSubClient(hub.url, options=OPTIONS)
    client.on_message(lambda message: found.append(message.data))
    opening = asyncio.create_task(client.open())
    line = await hub.welcome()
    await opening
    await line.message(1, 2)
    while await line.hear() != SequenceAck(2):
        pass
    assert found == [1, 2]
    await client.close()


async def test_a_handler_that_raises_ends_the_client_and_its_message_is_not_acknowledged(hub: FakeHub) -> None:
    client = WebPubSubClient(hub.url, options=OPTIONS)
    found: list[int] = []

    def handle(message: Message) -> None:
        found.append(message.data)
        if message.data == 2:
            raise ValueError("two is too much")

    async def run() -> None:
        async with client:
            client.on_message(handle)
            await client.wait_closed()

    running = asyncio.create_task(run())
    line = await hub.welcome()
    await line.message(1, 2, 3)
    with pytest.raises(HandlerError, match="two is too much") as error:
        await running
    assert isinstance(error.value.__cause__, ValueError)
    assert found == [1, 2]
    assert await line.hear() == SequenceAck(1)
    await line.until_gone()
    with pytest.raises(HandlerError):
        await client.send_to_group("g", "x")


async def test_a_handler_that_is_cancelled_does_not_go_unnoticed(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):

        @client.on_message
        async def handle(message: Message) -> None:
            raise asyncio.CancelledError

        await line.message(1)
        with pytest.raises(HandlerError, match="CancelledError"):
            await client.wait_closed()


async def test_a_handler_may_wait_for_the_server_however_full_the_inbox_is(hub: FakeHub) -> None:
    """When it cannot hold them all it hangs up, and comes back for the rest when it has room."""
    options = ClientOptions(inbox_max=2, backoff=QUICK)
    handled: list[int] = []
    is_done = asyncio.Event()

    async def serve(line: Line) -> None:
        while True:
            await line.message(*range(1, 21))
            with suppress(ConnectionClosed):
                while True:
                    await line.take()
            line = await hub.line()

    async with connected(hub, options=options) as (client, line):

        @client.on_message
        async def handle(message: Message) -> None:
            await client.send_to_group("echo", message.data)
            handled.append(message.data)
            if len(handled) == 20:
                is_done.set()

        serving = asyncio.create_task(serve(line))
        async with asyncio.timeout(scaled(WAIT_S)):
            await is_done.wait()
        serving.cancel()
    assert handled == [*range(1, 21)]


async def test_a_client_that_takes_nothing_reads_no_more_than_it_may(hub: FakeHub) -> None:
    options = ClientOptions(inbox_max=10)
    async with connected(hub, options=options) as (client, line):
        await line.message(*range(1, 2_001))
        await anext(aiter(client))
        assert client._driver is not None
        assert client._driver.machine.undelivered <= 10
        hearing = asyncio.create_task(line.until_gone())
        numbers = [(await anext(client)).data for _ in range(1_999)]
        assert numbers == [*range(2, 2_001)]
    await hearing


async def test_messages_are_taken_one_way_or_the_other(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        await line.message(1)
        await anext(client)
        with pytest.raises(LocalProtocolError, match="taken already"):
            client.on_message(lambda message: None)
    async with connected(hub) as (client, _):
        client.on_message(lambda message: None)
        with pytest.raises(LocalProtocolError, match="takes the messages"):
            await anext(client)


async def test_a_handler_may_close_the_client(hub: FakeHub) -> None:
    client = WebPubSubClient(hub.url, options=OPTIONS)

    @client.on_message
    async def handle(message: Message) -> None:
        await client.close()

    opening = asyncio.create_task(client.open())
    line = await hub.welcome()
    await opening
    await line.message(1, 2)
    async with asyncio.timeout(scaled(30)):
        await client.wait_closed()
        await line.until_gone()
        await client.close()


async def test_closing_waits_for_answers_and_handlers(hub: FakeHub) -> None:
    handled: list[int] = []
    async with connected(hub) as (client, line):

        @client.on_message
        async def handle(message: Message) -> None:
            await client.join_group("g")
            handled.append(message.data)

        await line.message(1)
        request = await line.hear()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        await line.say(Ack(request.ack_id))  # type: ignore[union-attr, arg-type]
        await closing
        assert handled == [1]


async def test_a_handler_of_states_that_fails_disturbs_nobody(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    client = WebPubSubClient(hub.url, options=OPTIONS)
    states: list[State] = []

    @client.on_state
    def handle(state: State) -> None:
        states.append(state)
        raise ValueError("no")

    opening = asyncio.create_task(client.open())
    await hub.welcome()
    await opening
    await client.close()
    assert [type(state) for state in states] == [Online, Stopped]
    assert "the handler of states failed" in caplog.text


# -- connecting


async def test_for_each_new_session_there_is_a_fresh_address(hub: FakeHub) -> None:
    given: list[int] = []

    async def address() -> str:
        given.append(len(given))
        return f"{hub.url}{len(given)}"

    client = WebPubSubClient(address, options=OPTIONS)
    opening = asyncio.create_task(client.open())
    line = await hub.welcome()
    await opening
    assert line.query["access_token"] == f"{TOKEN}1"
    line.cut()
    line = await hub.line()
    assert line.query["access_token"] == f"{TOKEN}1"
    await line.close(CloseCode.POLICY)
    line = await hub.welcome("c2")
    assert line.query["access_token"] == f"{TOKEN}2"
    await client.close()


@pytest.mark.parametrize("said", ["", "&semel_in_order=true", "&Semel_In_Order=false", "&semel_in_order="])
async def test_what_the_address_says_of_order_is_said_once(hub: FakeHub, said: str) -> None:
    """A server refuses what is said twice."""
    expected = [said.partition("=")[2]] if said else ["true"]
    client = WebPubSubClient(hub.url + said, options=OPTIONS)
    opening = asyncio.create_task(client.open())
    line = await hub.welcome()
    await opening
    assert line.all_of("semel_in_order") == expected
    line.cut()
    assert (await hub.line()).all_of("semel_in_order") == expected
    await client.close()


async def test_a_function_that_fails_to_give_an_address_is_asked_again(hub: FakeHub) -> None:
    errors: list[Exception] = [OSError("its server is down"), PeerUnavailable("busy")]

    def address() -> str:
        if errors:
            raise errors.pop(0)
        return hub.url

    client = WebPubSubClient(address, options=OPTIONS)
    opening = asyncio.create_task(client.open())
    await hub.welcome()
    await opening
    await client.close()


async def test_a_function_that_never_gives_an_address_is_named_in_the_end() -> None:
    def address() -> str:
        raise KeyError(TOKEN)

    with pytest.raises(PeerUnavailable, match="failed with KeyError") as error:
        await WebPubSubClient(address, options=ClientOptions(connect_for_s=0)).open()
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (HTTPStatus.UNAUTHORIZED, AuthError),
        (HTTPStatus.FORBIDDEN, Forbidden),
        (HTTPStatus.NOT_FOUND, RemoteProtocolError),
    ],
)
async def test_a_server_that_refuses_is_not_asked_again(
    hub: FakeHub, status: HTTPStatus, kind: type[SemelError]
) -> None:
    hub.refusals = [(status, {})]
    with pytest.raises(kind, match=str(int(status))) as error:
        await WebPubSubClient(hub.url).open()
    assert error.value.fix


async def test_a_server_that_is_busy_is_asked_again(hub: FakeHub) -> None:
    hub.refusals = [(HTTPStatus.SERVICE_UNAVAILABLE, {}), (HTTPStatus.TOO_MANY_REQUESTS, {})]
    async with connected(hub):
        assert not hub.refusals


async def test_a_redirect_is_not_followed(hub: FakeHub) -> None:
    hub.refusals = [(HTTPStatus.TEMPORARY_REDIRECT, {"Location": hub.url})]
    with pytest.raises(RemoteProtocolError, match="307"):
        await WebPubSubClient(hub.url).open()


async def test_a_proxy_that_cannot_be_used_is_named(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"nonsense://{TOKEN}")
    monkeypatch.setenv("HTTPS_PROXY", f"nonsense://{TOKEN}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ConfigError, match="proxy") as error:
        await WebPubSubClient(hub.url.replace("localhost", "hub.example.com")).open()
    assert TOKEN not in str(error.value)


async def test_a_server_of_another_kind_is_named() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/client/hubs/chat"
        with pytest.raises(PeerUnavailable, match="handshake"):
            await WebPubSubClient(url, options=ClientOptions(connect_for_s=0)).open()


@pytest.mark.parametrize("url", ["", "chat", "http://localhost/client/hubs/chat", "ws://"])
async def test_what_is_no_address_is_said_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="not an address"):
        await WebPubSubClient(url).open()


async def test_nobody_there_is_tried_for_as_long_as_asked() -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    options = ClientOptions(connect_for_s=0.05, backoff=QUICK)
    with pytest.raises(PeerUnavailable, match="no connection"):
        await WebPubSubClient(f"ws://127.0.0.1:{port}/", options=options).open()


async def test_a_server_that_says_nothing_is_given_up(hub: FakeHub) -> None:
    options = ClientOptions(connect_for_s=0, open_timeout_s=0.05)
    with pytest.raises(PeerUnavailable, match="does not answer"):
        await WebPubSubClient(hub.url, options=options).open()


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    (tmp_path / "both.pem").write_text(CERTIFICATE + PRIVATE_KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")
    return context


async def test_a_certificate_that_nobody_vouches_for_is_refused_unless_it_is_trusted_here(tls: ssl.SSLContext) -> None:
    async with FakeHub(tls=tls) as hub:
        with pytest.raises(AuthError, match="certificate is not trusted"):
            await WebPubSubClient(hub.url).open()
        async with connected(hub, tls=ssl.create_default_context(cadata=CERTIFICATE)) as (client, _):
            assert client.is_connected


async def test_no_token_is_ever_logged_or_told(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    states: list[State] = []
    async with connected(hub) as (client, line):
        client.on_state(states.append)
        shown = [repr(client), repr(client._dialer)]
        line.cut()
        await (await hub.line()).close(CloseCode.POLICY)
        await hub.welcome("c2")
    hub.refusals = [(HTTPStatus.UNAUTHORIZED, {})]
    with pytest.raises(AuthError) as refused:
        await WebPubSubClient(hub.url).open()
    with pytest.raises(ConfigError) as malformed:
        await WebPubSubClient(f"http://localhost/?access_token={TOKEN}").open()
    shown += [str(refused.value), str(malformed.value), repr(malformed.value.__context__), repr(states), caplog.text]
    assert "SessionLost" in caplog.text
    for text in shown:
        assert TOKEN not in text
        assert "token of" not in text


async def test_a_frame_that_is_too_large_costs_the_socket_and_not_the_memory(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_socket, "RESPONSE_BYTES_MAX", 10_000)
    async with connected(hub) as (_, line):
        await line.send(f'{{"type":"message","x":"{"y" * 20_000}"}}')
        assert (await hub.line()).query["awps_connection_id"] == "c1"


# -- life


async def test_a_client_is_opened_once_and_used_while_it_is_open(hub: FakeHub) -> None:
    client = WebPubSubClient(hub.url)
    await client.close()
    assert not client.groups
    assert client.connection_id is client.user_id is None
    with pytest.raises(LocalProtocolError, match="not open"):
        await client.join_group("g")
    async with connected(hub) as (client, _):
        with pytest.raises(LocalProtocolError, match="opened once"):
            await client.open()
    with pytest.raises(LocalProtocolError, match="closed"):
        await client.join_group("g")


async def test_what_fails_inside_is_what_is_raised(hub: FakeHub) -> None:
    async def run() -> None:
        async with WebPubSubClient(hub.url, options=OPTIONS):
            raise ZeroDivisionError

    running = asyncio.create_task(run())
    line = await hub.welcome()
    with pytest.raises(ZeroDivisionError):
        await running
    await line.until_gone()


async def test_opening_can_be_given_up(hub: FakeHub) -> None:
    opening = asyncio.create_task(WebPubSubClient(hub.url).open())
    line = await hub.line()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await line.until_gone()


async def test_an_end_with_an_error_reaches_all_who_wait(hub: FakeHub) -> None:
    options = ClientOptions(reconnect_for_s=0, backoff=QUICK)
    async with connected(hub, options=options) as (client, line):
        joining = asyncio.create_task(client.join_group("g"))
        getting = asyncio.create_task(anext(client))
        ending = asyncio.create_task(client.wait_closed())
        await line.hear()
        await line.close(CloseCode.POLICY)
        for each in (joining, getting, ending):
            with pytest.raises(SemelError, match="session is lost"):
                await each


# -- the outbox


async def test_what_is_kept_is_sent_and_then_forgotten(hub: FakeHub) -> None:
    store = MemoryStore()
    async with connected(hub, outbox=store) as (client, line):
        sending = asyncio.create_task(client.send_to_group("g", "a"))
        request = await line.take()
        assert isinstance(request, SendToGroup)
        assert request.metadata is not None
        assert len(request.metadata["semel-id"]) == 32
        assert await sending is True
        assert await client.send_to_group("g", "b", id="b", until_kept=True) is True
        kept = await line.hear()
        assert isinstance(kept, SendToGroup)
        assert kept.metadata == {"semel-id": "b"}
    assert [entry.id for entry in StoreOutbox(store, "client").pending()] == ["b"]


async def test_the_next_client_sends_what_is_left_and_whoever_asks_the_same_again_hears_of_it(hub: FakeHub) -> None:
    store = MemoryStore()
    async with connected(hub, outbox=store, outbox_name="mine") as (client, line):
        for id in "abc":
            await client.send_to_group("g", id, id=id, until_kept=True)
    async with connected(hub, outbox=store, outbox_name="mine") as (client, line):
        asking = asyncio.create_task(client.send_to_group("g", "b", id="b"))
        sent = [await line.take() for _ in range(3)]
        assert [request.data.body for request in sent if isinstance(request, SendToGroup)] == [b"a", b"b", b"c"]
        assert await asking is True
    assert StoreOutbox(store, "mine").pending() == []


class Slow(MemoryStore):
    """While `is_slow`, a commit tells that it has begun and waits until it may end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.begun, self.may_end = threading.Event(), threading.Event()

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        if self.is_slow:
            self.begun.set()
            assert self.may_end.wait(scaled(WAIT_S))
        return super().commit(units)


async def test_what_was_kept_offline_is_not_sent_before_it_is_marked(hub: FakeHub) -> None:
    store = Slow()
    async with connected(hub, outbox=store) as (client, line):
        line.cut()
        again = await hub.line()
        for id in "ab":
            await client.send_to_group("g", id, id=id, until_kept=True)
        store.is_slow = True
        hearing = asyncio.create_task(again.hear())
        assert await asyncio.to_thread(store.begun.wait, scaled(WAIT_S))
        await again.answered()
        assert not hearing.done()
        store.may_end.set()
        assert isinstance(await hearing, SendToGroup)
        await again.hear()
    assert all(entry.sent_at is not None for entry in StoreOutbox(store, "client").pending())


async def test_a_connection_that_breaks_while_something_is_marked_disturbs_no_outbox(hub: FakeHub) -> None:
    store = Slow()
    async with connected(hub, outbox=store) as (client, line):
        line.cut()
        again = await hub.line()
        await client.send_to_group("g", "a", id="a", until_kept=True)
        store.is_slow = True
        hearing = asyncio.create_task(again.hear())
        assert await asyncio.to_thread(store.begun.wait, scaled(WAIT_S))
        again.cut()
        with pytest.raises(ConnectionClosed):
            await hearing
        line = await hub.line()
        store.may_end.set()
        assert isinstance(await line.take(), SendToGroup)
        sending = asyncio.create_task(client.send_to_group("g", "b"))
        await line.take()
        assert await sending is True


async def test_an_outbox_that_another_process_has_taken_ends_the_client(hub: FakeHub) -> None:
    store = MemoryStore()
    async with connected(hub, outbox=store) as (client, _):
        StoreOutbox(store, "client")
        with pytest.raises(StaleFence):
            await client.send_to_group("g", "x")
        with pytest.raises(StaleFence):
            await client.wait_closed()
