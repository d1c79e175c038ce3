"""Streams and group states of a client on real sockets, against a hub that does just what the test says."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator

import pytest
from tests.unit.runtime.client.client_hub import WAIT_S, FakeHub, Line
from tests.unit.runtime.client.test_client import OPTIONS, connected
from tests.unit.runtime.client.test_sync import on_thread

from semel import ClientOptions, SyncWebPubSubClient, WebPubSubClient
from semel.errors import Forbidden, HandlerError, InputError, LocalProtocolError, StreamBroken
from semel.pubsub.client.data import GroupStateChange, data_of
from semel.pubsub.client.events import Online, SessionLost
from semel.pubsub.protocol.messages import (
    Ack,
    ErrorName,
    Fault,
    GroupMessage,
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    LeaveGroup,
    SequenceAck,
    SetGroupState,
    StartStream,
    StreamAck,
    StreamClosed,
    StreamData,
    StreamEnd,
    StreamPart,
    SubscribeGroupState,
    UnsubscribeGroupState,
)
from semel.runtime.client.inbox import IncomingStream
from semel.runtime.client.streams import OutgoingStream
from semel.runtime.client.sync import SyncIncomingStream
from semel.testing.limits import scaled
from semel.websocket import CloseCode

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub() as made:
        yield made


async def begun(client: WebPubSubClient, line: Line, **how: object) -> OutgoingStream:
    stream = client.stream_to_group("g", **how)  # type: ignore[arg-type]
    opening = asyncio.create_task(stream.open())
    assert isinstance(await line.hear(), StartStream)
    await line.say(StreamAck(stream.id, 1))
    return await opening


def part(number: int, sequence_id: int, data: object = None, id: str = "s") -> GroupMessage:
    content = data_of(f"{id} {number}" if data is None else data)
    return GroupMessage("g", content, "ann", sequence_id, stream=StreamPart(id, number))


def end(number: int, sequence_id: int, error: Fault | None = None, id: str = "s") -> GroupMessage:
    return GroupMessage("g", None, "ann", sequence_id, stream=StreamPart(id, number, True, error))


# -- sending


async def test_a_stream_says_what_it_is_and_ends_with_its_block(hub: FakeHub) -> None:
    async def send(client: WebPubSubClient) -> str:
        async with client.stream_to_group(
            "g", idle_timeout_s=2.5, no_echo=True, ttl_s=9, metadata={"k": "v"}
        ) as stream:
            assert (stream.group, stream.error) == ("g", None)
            await stream.write("a")
            await stream.write({"b": 1})
            await stream.keep_alive()
            await stream.flush()
        with pytest.raises(LocalProtocolError):
            await stream.write("late")
        return stream.id

    async with connected(hub) as (client, line):
        sending = asyncio.create_task(send(client))
        start = await line.hear()
        assert isinstance(start, StartStream)
        id = start.stream_id
        assert start == StartStream("g", id, 2500, True, 9, {"k": "v"})
        await line.say(StreamAck(id, 1))
        heard = [await line.hear() for _ in range(3)]
        assert heard == [StreamData(id, 1, data_of("a")), StreamData(id, 2, data_of({"b": 1})), StreamData(id)]
        await line.say(StreamAck(id, 3))
        assert await line.hear() == StreamEnd(id)
        await line.say(StreamClosed(id))
        assert await sending == id


async def test_after_a_cut_what_is_not_acknowledged_goes_out_again(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        stream = await begun(client, line, id="s")
        for text in "abc":
            await stream.write(text)
        parts = [await line.hear() for _ in range(3)]
        await line.say(StreamAck("s", 2))
        line.cut()
        again = await hub.line()
        await again.say(StreamAck("s", 2))
        assert [await again.hear(), await again.hear()] == parts[1:]
        await again.say(StreamAck("s", 4))
        ending = asyncio.create_task(stream.end())
        assert await again.hear() == StreamEnd("s")
        await again.say(StreamClosed("s"))
        await ending


async def test_who_writes_too_fast_waits(hub: FakeHub) -> None:
    async with connected(hub, options=ClientOptions(stream_window=2)) as (client, line):
        stream = await begun(client, line, id="s")
        writing = [asyncio.create_task(stream.write(text)) for text in "abc"]
        await asyncio.gather(*writing[:2])
        assert [await line.hear(), await line.hear()] == [
            StreamData("s", n, data_of(t)) for n, t in ((1, "a"), (2, "b"))
        ]
        assert not writing[2].done()
        await line.say(StreamAck("s", 2))
        await writing[2]
        assert await line.hear() == StreamData("s", 3, data_of("c"))


async def test_when_its_block_fails_receivers_hear_of_it_and_nobody_waits(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        stream = await begun(client, line, id="s")
        await stream.__aexit__(ZeroDivisionError, ZeroDivisionError("secret"), None)
        assert await line.hear() == StreamEnd("s", Fault(ErrorName.USER, "ZeroDivisionError"))
        await line.say(StreamClosed("s"))


async def test_a_sender_may_say_why_it_gives_up(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        stream = await begun(client, line, id="s")
        aborting = asyncio.create_task(stream.abort("no more", code="E7"))
        assert await line.hear() == StreamEnd("s", Fault(ErrorName.USER, "no more", "E7"))
        await line.say(StreamClosed("s"))
        await aborting
        await stream.__aexit__(None, None, None)


async def test_a_stream_that_the_server_ends_raises_at_the_next_write_and_at_the_end(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        stream = await begun(client, line, id="s")
        await stream.write("a")
        await stream.write("b")
        flushing = asyncio.create_task(stream.flush())
        await line.hear()
        await line.say(StreamAck("s", 2), StreamClosed("s", Fault(ErrorName.IDLE_TIMEOUT, "too long")))
        with pytest.raises(StreamBroken, match="IdleTimeout") as raised:
            await flushing
        assert (raised.value.name, raised.value.parts) == ("IdleTimeout", 1)
        with pytest.raises(StreamBroken):
            await stream.write("c")
        with pytest.raises(StreamBroken):
            await stream.__aexit__(None, None, None)


async def test_a_stream_that_may_not_begin_raises_and_its_id_is_free_again(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        opening = asyncio.create_task(client.stream_to_group("g", id="s").open())
        await line.hear()
        with pytest.raises(InputError, match="open already"):
            await client.stream_to_group("g", id="s").open()
        await line.say(StreamClosed("s", Fault(ErrorName.FORBIDDEN, "no")))
        with pytest.raises(Forbidden):
            await opening
        stream = await begun(client, line, id="s")
        with pytest.raises(LocalProtocolError, match="once"):
            await stream.open()


async def test_with_its_session_a_stream_is_lost(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        stream = await begun(client, line, id="s")
        await stream.write("a")
        flushing = asyncio.create_task(stream.flush())
        await line.hear()
        await line.close(CloseCode.POLICY)
        with pytest.raises(StreamBroken) as raised:
            await flushing
        assert raised.value.name == "SessionGone"
        await hub.welcome("c2")


async def test_cancelling_a_write_that_waits_takes_it_back(hub: FakeHub) -> None:
    async with connected(hub, options=ClientOptions(stream_window=1)) as (client, line):
        stream = await begun(client, line, id="s")
        await stream.write("a")
        waiting = asyncio.create_task(stream.write("b"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await line.hear()
        await line.say(StreamAck("s", 2))
        await stream.write("c")
        assert await line.hear() == StreamData("s", 2, data_of("c"))


# -- receiving


async def test_each_stream_is_handled_as_one_beside_the_others_and_beside_messages(hub: FakeHub) -> None:
    found: dict[str, list[object]] = {}
    done = asyncio.Queue[str]()

    async with connected(hub) as (client, line):

        @client.on_stream
        async def handle(stream: IncomingStream) -> None:
            assert (stream.group, stream.from_user, stream.is_whole, stream.metadata) == ("g", "ann", True, None)
            found[stream.id] = [part.data async for part in stream]
            done.put_nowait(stream.id)

        await line.say(part(1, 1), part(1, 2, id="t"), GroupMessage("g", data_of("plain"), sequence_id=3))
        await line.say(part(2, 4, id="t"), end(3, 5, id="t"), part(2, 6), end(3, 7))
        async with asyncio.timeout(scaled(WAIT_S)):
            assert {await done.get(), await done.get()} == {"s", "t"}
            assert (await anext(client)).data == "plain"
        assert found == {"s": ["s 1", "s 2"], "t": ["t 1", "t 2"]}
        taking = asyncio.create_task(anext(client))
        while await line.hear() != SequenceAck(7):
            pass
        taking.cancel()


async def test_nothing_is_acknowledged_before_all_before_it_is_handled(hub: FakeHub) -> None:
    goes_on = asyncio.Event()
    async with connected(hub) as (client, line):

        @client.on_stream
        async def handle(stream: IncomingStream) -> None:
            async for _ in stream:
                if stream.id == "s":
                    await goes_on.wait()

        await line.say(part(1, 1, id="t"), part(1, 2), part(2, 3, id="t"), end(3, 4, id="t"))
        assert await line.hear() == SequenceAck(1)
        goes_on.set()
        await line.say(end(2, 5))
        while await line.hear() != SequenceAck(5):
            pass


async def test_a_handler_that_has_enough_need_not_read_to_the_end(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):

        @client.on_stream
        async def handle(stream: IncomingStream) -> None:
            async for _ in stream:
                return

        await line.say(part(1, 1), part(2, 2))
        assert await line.hear() in (SequenceAck(1), SequenceAck(2))
        await line.say(part(3, 3), end(4, 4), end(9, 5, id="unknown"))
        while await line.hear() != SequenceAck(5):
            pass


@pytest.mark.parametrize("catches", [False, True])
async def test_a_stream_that_its_sender_gives_up_is_broken_for_its_reader_and_for_nobody_else(
    hub: FakeHub, catches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[StreamBroken] = []
    async with connected(hub) as (client, line):

        @client.on_stream
        async def handle(stream: IncomingStream) -> None:
            try:
                async for _ in stream:
                    pass
            except StreamBroken as error:
                broken.append(error)
                if not catches:
                    raise

        with caplog.at_level(logging.WARNING):
            await line.say(part(1, 1), end(2, 2, Fault(ErrorName.USER, "no more", "E7")))
            while await line.hear() != SequenceAck(2):
                pass
        assert [(error.name, error.user_code, error.parts) for error in broken] == [("UserError", "E7", 1)]
        assert ("no more" in caplog.text) is not catches
        assert client.is_connected


async def test_a_handler_that_fails_ends_the_client(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):

        @client.on_stream
        async def handle(stream: IncomingStream) -> None:
            raise ZeroDivisionError

        await line.say(part(1, 1))
        with pytest.raises(HandlerError, match="handler of streams"):
            await client.wait_closed()


@pytest.mark.parametrize("way", ["loss", "leave", "close"])
async def test_when_no_more_of_it_can_come_its_reader_is_not_left_waiting(hub: FakeHub, way: str) -> None:
    heard = asyncio.Queue[object]()
    async with connected(hub) as (client, line):

        @client.on_stream
        async def handle(stream: IncomingStream) -> None:
            try:
                async for part in stream:
                    heard.put_nowait(part.data)
            except BaseException as error:
                heard.put_nowait(getattr(error, "name", type(error).__name__))
                raise

        await line.say(part(1, 1))
        assert await heard.get() == "s 1"
        if way == "loss":
            await line.close(CloseCode.POLICY)
            await hub.welcome("c2")
        elif way == "leave":
            leaving = asyncio.create_task(client.leave_group("g"))
            while not isinstance(request := await line.hear(), LeaveGroup):
                pass
            await line.say(Ack(request.ack_id or 0))
            await leaving
        else:
            await client.close()
        expected = {"loss": "SessionGone", "leave": "GroupLeft", "close": "CancelledError"}[way]
        assert await asyncio.wait_for(heard.get(), scaled(WAIT_S)) == expected


async def test_closing_waits_for_streams_that_are_being_handled(hub: FakeHub) -> None:
    handled: list[str] = []
    is_read, may_end = asyncio.Event(), asyncio.Event()
    async with connected(hub) as (client, line):
        client.on_message(lambda message: None)

        @client.on_stream
        async def handle(stream: IncomingStream) -> None:
            handled.extend([part.data async for part in stream])
            is_read.set()
            await may_end.wait()
            handled.append("all")

        await line.say(part(1, 1), end(2, 2))
        await asyncio.wait_for(is_read.wait(), scaled(WAIT_S))
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        may_end.set()
        await closing
        assert handled == ["s 1", "all"]


async def test_a_handler_of_a_stream_may_close_the_client(hub: FakeHub) -> None:
    has_ended = asyncio.Event()
    async with connected(hub) as (client, line):

        @client.on_stream
        async def handle(stream: IncomingStream) -> None:
            await client.close()
            has_ended.set()

        await line.say(part(1, 1))
        await asyncio.wait_for(client.wait_closed(), scaled(WAIT_S))
        await asyncio.wait_for(has_ended.wait(), scaled(WAIT_S))


async def test_streams_have_one_handler(hub: FakeHub) -> None:
    client = WebPubSubClient(hub.url)
    client.on_stream(lambda stream: None)
    with pytest.raises(LocalProtocolError, match="one handler"):
        client.on_stream(lambda stream: None)


# -- group states


def item(connection: str, at: int, mood: str | None = "good") -> GroupStateItem:
    return GroupStateItem(connection, at, None, None if mood is None else {"mood": mood})


async def test_a_state_is_set_changed_and_cleared(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        assert client.group_state("g") == {}
        for doing, state in (
            (client.set_group_state("g", {"a": "1", "b": "2"}), {"a": "1", "b": "2"}),
            (client.update_group_state("g", {"a": None, "c": "3"}), {"b": "2", "c": "3"}),
            (client.clear_group_state("g"), None),
        ):
            asking = asyncio.create_task(doing)
            request = await line.take()
            assert isinstance(request, SetGroupState)
            assert request.state == state
            await asking
            assert client.group_state("g") == (state or {})


async def test_what_is_on_its_way_counts_for_who_changes_some_of_it(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        doing = [
            asyncio.create_task(client.set_group_state("g", {"a": "1"})),
            asyncio.create_task(client.update_group_state("g", {"b": "2"})),
            asyncio.create_task(client.clear_group_state("g")),
            asyncio.create_task(client.update_group_state("g", {"c": "3"})),
        ]
        states = [(await line.take()).state for _ in doing]  # type: ignore[union-attr]
        assert states == [{"a": "1"}, {"a": "1", "b": "2"}, None, {"c": "3"}]
        await asyncio.gather(*doing)


async def test_a_state_that_was_refused_does_not_count(hub: FakeHub) -> None:
    async with connected(hub) as (client, line):
        setting = asyncio.create_task(client.set_group_state("g", {"a": "1"}))
        await line.hear()
        await line.say(Ack(1, Fault(ErrorName.FORBIDDEN, "no")))
        with pytest.raises(Forbidden):
            await setting
        updating = asyncio.create_task(client.update_group_state("g", {"b": "2"}))
        assert (await line.take()).state == {"b": "2"}  # type: ignore[union-attr]
        await updating


async def test_a_watcher_hears_what_changes_and_what_it_missed(hub: FakeHub) -> None:
    heard = asyncio.Queue[GroupStateChange]()
    async with connected(hub) as (client, line):
        client.on_group_state(heard.put_nowait)
        watching = asyncio.create_task(client.watch_group_state("g"))
        assert isinstance(await line.take(), SubscribeGroupState)
        await line.say(GroupStateSnapshot("g", (item("a", 1), item("b", 1))))
        assert await watching == {"a": item("a", 1), "b": item("b", 1)}
        assert (await heard.get()).changed == (item("a", 1), item("b", 1))
        await line.say(GroupStateUpdate("g", (item("a", 2, "bad"),)))
        change = await heard.get()
        assert (change.group, change.changed) == ("g", (item("a", 2, "bad"),))
        assert change.states == {"a": item("a", 2, "bad"), "b": item("b", 1)} == client.group_states("g")
        line.cut()
        again = await hub.line()
        await again.say(GroupStateSnapshot("g", (item("a", 2, "bad"),)))
        assert (await heard.get()).changed == (item("b", 1, None),)
        unwatching = asyncio.create_task(client.unwatch_group_state("g"))
        assert isinstance(await again.take(), UnsubscribeGroupState)
        await unwatching
        assert client.group_states("g") == {}


async def test_what_changes_while_a_handler_works_is_told_together(
    hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    heard = asyncio.Queue[GroupStateChange]()
    may_go = asyncio.Event()
    async with connected(hub) as (client, line):

        @client.on_group_state
        async def handle(change: GroupStateChange) -> None:
            heard.put_nowait(change)
            await may_go.wait()
            raise ZeroDivisionError

        watching = asyncio.create_task(client.watch_group_state("g"))
        await line.take()
        await line.say(GroupStateSnapshot("g", (item("a", 1),)))
        await watching
        await heard.get()
        for at in range(2, 20):
            await line.say(GroupStateUpdate("g", (item("a", at), item("b", at))))
        joining = asyncio.create_task(client.join_group("g"))
        await line.take()
        await joining
        may_go.set()
        assert (await heard.get()).changed == (item("a", 19), item("b", 19))
        assert "handler of group states" in caplog.text


async def test_a_new_session_says_and_watches_the_same(hub: FakeHub) -> None:
    states = asyncio.Queue[object]()
    async with connected(hub) as (client, line):
        client.on_state(states.put_nowait)
        for asking in (client.watch_group_state("g"), client.set_group_state("g", {"a": "1"})):
            doing = asyncio.create_task(asking)
            if isinstance(await line.take(), SubscribeGroupState):
                await line.say(GroupStateSnapshot("g", (item("a", 1),)))
            await doing
        await line.close(CloseCode.POLICY)
        again = await hub.welcome("c2")
        assert isinstance(await again.take(), SubscribeGroupState)
        assert await again.take() == SetGroupState("g", 2, {"a": "1"})
        assert isinstance(await states.get(), SessionLost)
        assert await asyncio.wait_for(states.get(), scaled(WAIT_S)) == Online("c2", "ann")


# -- without asyncio


async def test_without_asyncio_a_stream_is_sent_and_received(hub: FakeHub) -> None:
    found: list[tuple[list[object], str]] = []
    came = threading.Event()

    def program() -> None:
        client = SyncWebPubSubClient(hub.url, options=OPTIONS)

        @client.on_stream
        def handle(stream: SyncIncomingStream) -> None:
            assert (stream.group, stream.id, stream.from_user, stream.is_whole) == ("g", "s", "ann", True)
            found.append(([part.data for part in stream], threading.current_thread().name))
            came.set()

        with client:
            with client.stream_to_group("g", id="o", idle_timeout_s=5) as stream:
                assert (stream.id, stream.group, stream.error) == ("o", "g", None)
                stream.write("a")
                stream.keep_alive()
                stream.flush()
            with pytest.raises(LocalProtocolError):
                stream.end()
            given_up = client.stream_to_group("g", id="p").open()
            given_up.abort("no more", code="E7")
            assert came.wait(scaled(WAIT_S))

    running = on_thread(program)
    line = await hub.welcome()
    assert await line.hear() == StartStream("g", "o", 5000)
    await line.say(StreamAck("o", 1))
    assert [await line.hear(), await line.hear()] == [StreamData("o", 1, data_of("a")), StreamData("o")]
    await line.say(StreamAck("o", 2))
    assert await line.hear() == StreamEnd("o")
    await line.say(StreamClosed("o"))
    assert await line.hear() == StartStream("g", "p")
    await line.say(StreamAck("p", 1))
    assert await line.hear() == StreamEnd("p", Fault(ErrorName.USER, "no more", "E7"))
    await line.say(StreamClosed("p"), part(1, 1), part(2, 2), end(3, 3))
    await running
    assert found == [(["s 1", "s 2"], "semel-client-stream-s")]


async def test_without_asyncio_a_block_that_fails_gives_the_stream_up(hub: FakeHub) -> None:
    def program() -> None:
        with SyncWebPubSubClient(hub.url, options=OPTIONS) as client, client.stream_to_group("g", id="s"):
            raise ZeroDivisionError

    running = on_thread(program)
    line = await hub.welcome()
    await line.hear()
    await line.say(StreamAck("s", 1))
    assert await line.hear() == StreamEnd("s", Fault(ErrorName.USER, "ZeroDivisionError"))
    with pytest.raises(ZeroDivisionError):
        await running


async def test_without_asyncio_a_handler_of_a_stream_may_fail_or_close(hub: FakeHub) -> None:
    def program() -> None:
        client = SyncWebPubSubClient(hub.url, options=OPTIONS)

        @client.on_stream
        def handle(stream: SyncIncomingStream) -> None:
            for message in stream:
                if message.data == "fail":
                    raise ZeroDivisionError
                client.close()

        with client:
            client.wait_closed()

    for data, error in (("fail", HandlerError), ("close", None)):
        running = on_thread(program)
        line = await hub.welcome()
        await line.say(part(1, 1, data))
        if error is None:
            await running
        else:
            with pytest.raises(error):
                await running


async def test_without_asyncio_states_are_said_and_watched(hub: FakeHub) -> None:
    heard: list[GroupStateChange] = []
    came = threading.Event()

    def program() -> list[object]:
        with SyncWebPubSubClient(hub.url, options=OPTIONS) as client:

            @client.on_group_state
            def handle(change: GroupStateChange) -> None:
                heard.append(change)
                came.set()

            found: list[object] = [client.watch_group_state("g")]
            client.set_group_state("g", {"a": "1"})
            client.update_group_state("g", {"b": "2"})
            found += [client.group_state("g"), client.group_states("g")]
            client.clear_group_state("g")
            client.unwatch_group_state("g")
            assert came.wait(scaled(WAIT_S))
            return found

    running = on_thread(program)
    line = await hub.welcome()
    await line.take()
    await line.say(GroupStateSnapshot("g", (item("x", 1),)))
    assert [(await line.take()).state for _ in range(3)] == [{"a": "1"}, {"a": "1", "b": "2"}, None]  # type: ignore[union-attr]
    await line.take()
    there = {"x": item("x", 1)}
    assert await running == [there, {"a": "1", "b": "2"}, there]
    assert heard[0].changed == (item("x", 1),)
