"""What the driver does with what the machine decides."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock, call

import pytest

from semel.errors import PeerUnavailable
from semel.pubsub.client.events import (
    ClientOptions,
    ClientOutbox,
    CloseSocket,
    Connect,
    DeliverMessage,
    Event,
    MarkSent,
    NotifyApplication,
    RequestAccepted,
    RequestFailed,
    SendFrame,
    Settle,
    Stopped,
    StreamOver,
    SubmitRequest,
    Withdraw,
)
from semel.pubsub.client.machine import ClientMachine
from semel.pubsub.protocol.messages import JoinGroup
from semel.runtime.client import driver as driver_module
from semel.runtime.client.driver import ClientDriver
from semel.runtime.client.outbox import OutboxWriter
from semel.runtime.client.socket import Dialer, Socket

GONE = PeerUnavailable("gone", fix="")


class Scene:
    """A driver whose machine is a mock: `room` is how many requests it takes, `deadline` when it wants to wake up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, outbox: bool = False) -> None:
        self.sockets: dict[int, Mock] = {}
        monkeypatch.setattr(driver_module, "Socket", self._socket)
        self.deliver, self.notify, self.states = Mock(), Mock(), Mock()
        kept = Mock(spec=ClientOutbox) if outbox else None
        self.driver = ClientDriver(
            Mock(spec=Dialer), ClientOptions(), kept, (), self.deliver, self.notify, self.states
        )  # fmt: skip
        self.machine = Mock(spec=ClientMachine, room=1, is_reading=True)
        self.machine.receive.return_value = self.machine.on_timer.return_value = ()
        self.machine.next_deadline.return_value = None
        self.driver.machine = self.machine

    def _socket(self, number: int, *_: object) -> Mock:
        task = asyncio.get_running_loop().create_future()
        self.sockets[number] = Mock(spec=Socket, task=task)
        return self.sockets[number]

    def perform(self, *effects: object) -> None:
        self.driver._perform(effects)  # type: ignore[arg-type]

    def events(self) -> list[Event]:
        return [each.args[0] for each in self.machine.receive.mock_calls]


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


async def test_frames_and_closes_go_to_their_own_socket_while_it_is_there(scene: Scene) -> None:
    scene.perform(Connect(1), Connect(2), SendFrame(1, "a"), SendFrame(2, "b"), CloseSocket(1, 1000, "bye"))
    scene.sockets[1].send.assert_called_once_with("a")
    scene.sockets[1].close.assert_called_once_with(1000, "bye")
    scene.sockets[2].send.assert_called_once_with("b")
    scene.sockets[1].task.set_result(None)
    await asyncio.sleep(0)
    scene.perform(SendFrame(1, "late"))
    scene.sockets[1].send.assert_called_once_with("a")


async def test_a_request_is_settled_once_and_by_its_own_token(scene: Scene) -> None:
    asked = [asyncio.create_task(scene.driver.ask(JoinGroup(group))) for group in ("a", "b")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first, second = (event.token for event in scene.events() if isinstance(event, SubmitRequest))
    scene.perform(
        Settle(second, RequestFailed(GONE)), Settle(first, RequestAccepted()), Settle(first, RequestFailed(GONE))
    )
    assert await asyncio.gather(*asked) == [RequestAccepted(), RequestFailed(GONE)]


async def test_who_does_not_wait_any_longer_says_so_to_the_machine(scene: Scene) -> None:
    asked = asyncio.create_task(scene.driver.ask(JoinGroup("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert scene.events()[-1] == Withdraw(1)


async def test_without_room_a_request_waits_its_turn_and_not_for_ever(scene: Scene) -> None:
    scene.machine.room = 0
    failed = await scene.driver.ask(JoinGroup("a"), timeout_s=0.0)
    assert isinstance(failed, RequestFailed)
    assert not failed.maybe_taken
    assert scene.events() == []
    asked = asyncio.create_task(scene.driver.ask(JoinGroup("a")))
    await asyncio.sleep(0)
    scene.machine.room = 1
    scene.perform()
    for _ in range(6):
        await asyncio.sleep(0)
    scene.perform(Settle(1, RequestAccepted()))
    assert await asked == RequestAccepted()


async def test_nothing_is_read_while_the_machine_wants_nothing(scene: Scene) -> None:
    scene.machine.is_reading = False
    scene.perform()
    assert not scene.driver._may_read.is_set()
    scene.machine.is_reading = True
    scene.perform()
    assert scene.driver._may_read.is_set()


async def test_messages_and_states_go_to_the_application_and_the_end_is_known(scene: Scene) -> None:
    scene.perform(DeliverMessage(3, Mock()), NotifyApplication(Stopped(GONE)))
    assert scene.deliver.call_args.args[0] == 3
    assert scene.notify.mock_calls == [call(Stopped(GONE))]
    assert scene.driver.ended.result() is GONE


async def test_a_stream_is_over_for_the_one_who_began_it(scene: Scene) -> None:
    first, second = Mock(), Mock()
    scene.driver.on_stream_over("s", first)
    scene.driver.on_stream_over("s", second)
    scene.driver.off_stream_over("s", second)
    scene.perform(StreamOver("s", GONE), StreamOver("s"))
    first.assert_called_once_with(GONE)
    second.assert_not_called()


async def test_the_earliest_deadline_counts_and_a_later_one_sets_no_timer(scene: Scene) -> None:
    scene.driver._clock = lambda: 100.0
    for deadline, expected in ((110.0, 110.0), (120.0, 110.0), (105.0, 105.0)):
        scene.machine.next_deadline.return_value = deadline
        scene.perform()
        assert scene.driver._timer_at == expected
    await scene.driver.close()


async def test_what_has_to_be_written_down_holds_back_what_is_sent_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, outbox=True)
    writer = scene.driver._outbox = Mock(spec=OutboxWriter, close=AsyncMock())
    written = writer.mark.return_value = asyncio.get_running_loop().create_future()
    scene.perform(Connect(1), MarkSent(("a",), 5.0), SendFrame(1, "a"))
    assert scene.sockets[1].mock_calls == [call.wait_for(written), call.send("a")]
    writer.mark.assert_called_once_with(("a",), 5.0)
