from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench, live

from semel.http import HttpResponse
from semel.pubsub.events.cloudevents import TOTAL_S, HandlerUnreachable, Reply, user_event
from semel.pubsub.events.handler_calls import (
    HANDLERS,
    INVOCATIONS_MAX,
    CallHandler,
    CancelCall,
    HandlerCalls,
    Invocations,
    Replied,
    Timers,
    client_of,
    micros,
)
from semel.pubsub.events.handlers import Handlers, event_handler
from semel.pubsub.hub.context import SessionCommits
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.protocol.messages import CancelInvocation, Data, DataType, Invoke, InvokeResponse

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


# -- invocations


class InvocationScene:
    def __init__(self, *, has_handler: bool = True) -> None:
        self.bench, self.alice = Bench(), live()
        self.outgoing, self.calls = Mock(spec=Outgoing), Mock(spec=HandlerCalls)
        handlers = Handlers("chat", (event_handler("https://app.example/", user_events="*"),) if has_handler else ())
        commits = SessionCommits(self.bench.context, self.bench.tail)
        self.invocations = Invocations(self.bench.context, self.outgoing, commits, self.calls, handlers)

    def reply(self, *headers: tuple[str, str]) -> None:
        self.calls.begin.call_args.args[4](HttpResponse(204, headers), NOW)

    def responses(self) -> list[tuple[str, bool]]:
        """The invocation, and whether it failed."""
        sent = [call.args[1] for call in self.outgoing.send.call_args_list]
        return [(each.invocation_id, each.error is not None) for each in sent if isinstance(each, InvokeResponse)]


@pytest.fixture
def invoked() -> InvocationScene:
    return InvocationScene()


def test_one_that_is_asked_again_meanwhile_is_answered_once(invoked: InvocationScene) -> None:
    for _ in range(2):
        invoked.invocations.invoke(invoked.alice, Invoke("i", "ask"), NOW)
    invoked.calls.begin.assert_called_once()
    invoked.reply()
    assert invoked.responses() == [("i", False)]


def test_without_a_handler_it_fails() -> None:
    invoked = InvocationScene(has_handler=False)
    invoked.invocations.invoke(invoked.alice, Invoke("i", "ask"), NOW)
    assert invoked.responses() == [("i", True)]


def test_a_session_has_so_many_at_a_time(invoked: InvocationScene) -> None:
    for number in range(INVOCATIONS_MAX + 1):
        invoked.invocations.invoke(invoked.alice, Invoke(f"i{number}", "ask"), NOW)
    assert invoked.responses() == [(f"i{INVOCATIONS_MAX}", True)]


def test_the_answer_is_over_with_the_socket_that_asked(invoked: InvocationScene) -> None:
    invoked.invocations.invoke(invoked.alice, Invoke("i", "ask"), NOW)
    invoked.alice.attach("another", in_order=False)
    invoked.reply()
    assert invoked.responses() == []


def test_one_that_is_cancelled_is_not_called_any_more(invoked: InvocationScene) -> None:
    invoked.invocations.invoke(invoked.alice, Invoke("i", "ask"), NOW)
    invoked.invocations.cancel(invoked.alice, CancelInvocation("i"))
    invoked.invocations.cancel(invoked.alice, CancelInvocation("i"))
    invoked.calls.cancel.assert_called_once()


def test_all_end_with_their_session(invoked: InvocationScene) -> None:
    for id in ("i", "j"):
        invoked.invocations.invoke(invoked.alice, Invoke(id, "ask"), NOW)
    invoked.invocations.end("alice")
    assert invoked.calls.cancel.call_count == 2


def test_a_new_state_of_the_connection_is_durable_before_the_answer(invoked: InvocationScene) -> None:
    invoked.invocations.invoke(invoked.alice, Invoke("i", "ask"), NOW)
    invoked.reply(("ce-connectionstate", "bmV3"))
    assert invoked.responses() == []
    invoked.bench.complete()
    assert (invoked.responses(), invoked.alice.state) == ([("i", False)], "bmV3")


def test_a_state_that_the_store_does_not_take_is_taken_back(invoked: InvocationScene) -> None:
    invoked.invocations.invoke(invoked.alice, Invoke("i", "ask"), NOW)
    invoked.reply(("ce-connectionstate", "bmV3"))
    invoked.bench.fail()
    assert (invoked.responses(), invoked.alice.state) == ([("i", True)], "")
