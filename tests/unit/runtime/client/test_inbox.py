"""Who takes what has come, and what is then acknowledged."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from semel.errors import HandlerError, LocalProtocolError, StreamBroken
from semel.pubsub.client.data import Message
from semel.pubsub.client.events import Abort, MessageDelivered
from semel.pubsub.protocol.messages import Data, DataType, Fault, GroupMessage, StreamPart
from semel.runtime.client.driver import ClientDriver
from semel.runtime.client.inbox import ClientInbox, IncomingStream


class Scene:
    def __init__(self) -> None:
        self.driver = Mock(spec=ClientDriver, ended=asyncio.get_running_loop().create_future())
        self.inbox = ClientInbox()

    def start(self) -> None:
        self.inbox.start(self.driver)

    def fed(self) -> list[object]:
        return [each.args[0] for each in self.driver.feed.mock_calls]

    def put(self, number: int, text: str = "", part: StreamPart | None = None) -> None:
        data = None if part is not None and part.is_end else Data(DataType.TEXT, text.encode())
        self.inbox.put(number, GroupMessage("g", data, "ann", stream=part))

    async def turn(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    async def end(self) -> None:
        await self.inbox.stop(None)


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_a_handler_takes_one_after_the_other_and_each_is_acknowledged_when_it_returns(scene: Scene) -> None:
    heard: list[object] = []
    may_go = asyncio.Event()

    async def handle(message: Message) -> None:
        heard.append(message.data)
        await may_go.wait()

    scene.inbox.on_message(handle)
    scene.start()
    scene.put(1, "one")
    scene.put(2, "two")
    await scene.turn()
    assert (heard, scene.fed()) == (["one"], [])
    may_go.set()
    await scene.turn()
    assert (heard, scene.fed()) == (["one", "two"], [MessageDelivered(1), MessageDelivered(2)])
    await scene.end()


async def test_a_handler_that_fails_ends_the_client_and_its_message_is_not_acknowledged(scene: Scene) -> None:
    scene.inbox.on_message(Mock(side_effect=ValueError("boom")))
    scene.start()
    scene.put(1, "one")
    await scene.turn()
    (abort,) = scene.fed()
    assert isinstance(abort, Abort)
    assert isinstance(abort.error, HandlerError)
    await scene.end()


async def test_an_iteration_acknowledges_a_message_when_it_asks_for_the_next(scene: Scene) -> None:
    scene.start()
    scene.put(1, "one")
    scene.put(2, "two")
    first = await scene.inbox.take(scene.driver.ended)
    assert first is not None
    assert (first.data, scene.fed()) == ("one", [])
    await scene.inbox.take(scene.driver.ended)
    assert scene.fed() == [MessageDelivered(1)]
    scene.driver.ended.set_result(None)
    assert await scene.inbox.take(scene.driver.ended) is None


async def test_messages_have_one_taker(scene: Scene) -> None:
    scene.inbox.on_message(Mock())
    with pytest.raises(LocalProtocolError):
        scene.inbox.on_message(Mock())
    with pytest.raises(LocalProtocolError):
        await scene.inbox.take(scene.driver.ended)
    scene.inbox.on_stream(Mock())
    with pytest.raises(LocalProtocolError):
        scene.inbox.on_stream(Mock())


async def test_what_is_acknowledged_is_only_that_before_which_nothing_is_left_to_do(scene: Scene) -> None:
    """A stream is handled beside the messages: what comes after its parts waits for them."""
    parts: list[object] = []
    may_go = asyncio.Event()

    async def handle(stream: IncomingStream) -> None:
        async for part in stream:
            parts.append(part.data)
            await may_go.wait()

    scene.inbox.on_stream(handle)
    scene.inbox.on_message(Mock(return_value=None))
    scene.start()
    scene.put(1, "a", StreamPart("s", 1))
    scene.put(2, "message")
    scene.put(3, "", StreamPart("s", 2, is_end=True))
    await scene.turn()
    assert (parts, scene.fed()) == (["a"], [])
    may_go.set()
    await scene.turn()
    assert scene.fed()[-1] == MessageDelivered(3)
    await scene.end()


async def test_a_stream_that_ends_badly_raises_and_that_is_no_failure_of_its_handler(scene: Scene) -> None:
    outcome: list[object] = []

    async def handle(stream: IncomingStream) -> None:
        try:
            outcome.extend([part.data async for part in stream])
        except StreamBroken as error:
            outcome.append(type(error))
            raise

    scene.inbox.on_stream(handle)
    scene.start()
    scene.put(1, "a", StreamPart("s", 1))
    scene.put(2, "", StreamPart("s", 2, is_end=True, error=Fault("Error", "gone")))  # type: ignore[arg-type]
    await scene.turn()
    assert outcome == [StreamBroken]
    assert scene.fed()[-1] == MessageDelivered(2)
    await scene.end()


async def test_parts_that_nobody_wants_any_more_are_acknowledged(scene: Scene) -> None:
    async def handle(stream: IncomingStream) -> None:
        await anext(stream)

    scene.inbox.on_stream(handle)
    scene.start()
    scene.put(1, "a", StreamPart("s", 1))
    await scene.turn()
    assert scene.fed() == [MessageDelivered(1)]
    scene.put(2, "b", StreamPart("s", 2))
    assert scene.fed() == [MessageDelivered(1)]
    await scene.turn()
    assert scene.fed()[-1] == MessageDelivered(2)
    await scene.end()


async def test_a_handler_that_ends_the_client_is_not_cancelled_by_that(scene: Scene) -> None:
    ended = asyncio.Event()

    async def handle(_: Message) -> None:
        await scene.inbox.stop(asyncio.current_task())
        ended.set()

    scene.inbox.on_message(handle)
    scene.start()
    scene.put(1, "one")
    await scene.turn()
    assert ended.is_set()
    scene.driver.ended.set_result(None)
    scene.inbox.wake()
    await scene.turn()
