"""Between the performer and the sockets and callers of one hub."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock, call

import pytest

from semel.pubsub.events.handler_calls import HANDLERS
from semel.pubsub.hub.calls import Answer, Outcome, Summarize
from semel.pubsub.hub.sockets import ALL, ClosePeer, HubRestarted, SocketStalled, Write
from semel.runtime.server import client_sockets
from semel.runtime.server.client_sockets import HubLink
from semel.runtime.server.webhooks import Webhooks
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.websocket import WebSocketPeer
from semel.websocket import CloseCode


def link() -> tuple[HubLink, Mock]:
    made, inbox = HubLink("chat", Mock(spec=Webhooks)), Mock(spec=Inbox)
    made.bind(inbox)
    return made, inbox


def socket(*, takes: bool = True, is_closing: bool = False) -> Mock:
    made = Mock(spec=WebSocketPeer, is_closing=is_closing)
    made.write.return_value = takes
    return made


def test_every_socket_has_a_name_of_its_own() -> None:
    made, _ = link()
    assert [made.enter(socket()), made.enter(socket())] == ["socket-1", "socket-2"]


def test_frames_go_to_those_they_are_for_and_are_counted() -> None:
    made, inbox = link()
    first, second = socket(), socket()
    one, two = made.enter(first), made.enter(second)
    made.send(ALL, Write((((one, "gone"), b"a"), ((two,), b"b")), 3))
    first.write.assert_called_once_with(b"a")
    second.write.assert_called_once_with(b"b")
    assert made.frames_out == 3
    inbox.received.assert_not_called()


def test_the_hub_hears_of_a_socket_that_takes_no_more_but_not_of_one_that_closes() -> None:
    made, inbox = link()
    full, closing = made.enter(socket(takes=False)), made.enter(socket(takes=False, is_closing=True))
    made.send(ALL, Write((((full, closing), b"a"),), 1))
    assert inbox.received.mock_calls == [call(made, full, SocketStalled())]


def test_a_socket_is_closed_as_the_hub_says() -> None:
    made, _ = link()
    peer = socket()
    assert made.send(made.enter(peer), ClosePeer(CloseCode.POLICY, "no"))
    peer.close.assert_called_once_with(CloseCode.POLICY, "no")
    assert made.send("socket-9", ClosePeer(CloseCode.POLICY, "no"))


async def test_a_call_gets_its_own_answer() -> None:
    made, inbox = link()
    asked = [asyncio.create_task(made.call(Summarize())) for _ in range(2)]
    await asyncio.sleep(0)
    names = [each.args[1] for each in inbox.received.mock_calls]
    made.send(names[1], Answer(Outcome.DONE, "second"))
    made.send(names[0], Answer(Outcome.DONE, "first"))
    made.send(names[0], Answer(Outcome.DONE, "again"))
    assert [answer.message for answer in await asyncio.gather(*asked)] == ["first", "second"]


async def test_a_hub_that_does_not_answer_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_sockets, "CALL_S", 0.0)
    made, _ = link()
    assert (await made.call(Summarize())).outcome is Outcome.FAILED
    assert made._calls == {}


async def test_when_the_hub_begins_again_its_callers_and_sockets_must_as_well() -> None:
    made, _ = link()
    peer = socket()
    made.enter(peer)
    asked = asyncio.create_task(made.call(Summarize()))
    await asyncio.sleep(0)
    made.send(ALL, HubRestarted())
    peer.close.assert_not_called()
    made.send(ALL, HubRestarted())
    peer.close.assert_called_once_with(CloseCode.INTERNAL, "the hub was restarted")
    assert (await asked).outcome is Outcome.FAILED


def test_what_is_for_event_handlers_goes_to_the_webhooks_and_comes_back() -> None:
    made, inbox = link()
    made.send(HANDLERS, "an event")
    assert made.webhooks is not None
    message, reply = made.webhooks.receive.call_args.args  # type: ignore[attr-defined]
    assert message == "an event"
    reply("its answer")
    inbox.received.assert_called_once_with(made, HANDLERS, "its answer")


def test_a_pause_holds_every_socket() -> None:
    made, _ = link()
    peer = socket()
    made.enter(peer)
    made.pause()
    peer.hold.assert_called_once_with()
