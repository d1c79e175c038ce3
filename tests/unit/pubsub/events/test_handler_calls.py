from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench, live

from semel.http import HttpResponse
from semel.pubsub.events.cloudevents import TOTAL_S, HandlerUnreachable, Reply, user_event
from semel.pubsub.events.handler_calls import (
    HANDLERS,
    CallHandler,
    CancelCall,
    HandlerCalls,
    Replied,
    Timers,
    client_of,
    micros,
)
from semel.pubsub.events.handlers import event_handler
from semel.pubsub.protocol.messages import Data, DataType

HANDLER = event_handler("https://app.example/{event}", user_events="*")


class Scene:
    def __init__(self) -> None:
        self.bench, self.timers, self.replies = Bench(), Timers(), list[Reply]()
        self.calls = HandlerCalls(self.bench.context, self.timers)
        client = client_of("chat", live())
        self.event = user_event(client, "1", micros(NOW), "hello", Data(DataType.TEXT, b""))
        self.calls.begin("token", self.event, HANDLER, NOW, lambda reply, now: self.replies.append(reply))

    def sent(self) -> list[object]:
        found = [message for peer, message in self.bench.sent() if peer == HANDLERS]
        self.bench.effects.clear()
        return found


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_reply_is_handed_on_once(scene: Scene) -> None:
    assert scene.sent() == [CallHandler("token", scene.event, HANDLER, TOTAL_S)]
    scene.calls.receive_reply(Replied("token", reply := HttpResponse(204)), NOW)
    scene.calls.receive_reply(Replied("token", reply), NOW)
    assert scene.replies == [reply]


def test_a_call_that_may_succeed_later_is_made_again_with_the_time_that_is_left(scene: Scene) -> None:
    scene.sent()
    scene.calls.receive_reply(Replied("token", HandlerUnreachable("refused")), NOW)
    at = scene.timers.next()
    assert at is not None
    assert scene.sent() == scene.replies == []
    scene.timers.run(at)
    [again] = scene.sent()
    assert isinstance(again, CallHandler)
    assert again.within_s == pytest.approx(TOTAL_S - (at - NOW))


def test_nobody_waits_for_a_call_that_was_cancelled(scene: Scene) -> None:
    scene.sent()
    scene.calls.cancel("token")
    scene.calls.cancel("token")
    assert scene.sent() == [CancelCall("token")]
    scene.calls.receive_reply(Replied("token", HttpResponse(204)), NOW)
    assert scene.replies == []


def test_timers_run_in_the_order_of_their_times() -> None:
    timers, called = Timers(), list[str]()
    for at, name in ((2.0, "b"), (1.0, "a"), (2.0, "c"), (3.0, "d")):
        timers.at(at, lambda now, name=name: called.append(name))  # type: ignore[misc]
    timers.run(2.0)
    assert (called, timers.next()) == (["a", "b", "c"], 3.0)
