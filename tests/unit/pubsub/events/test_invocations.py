from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench, live

from semel.http import HttpResponse
from semel.pubsub.events.handler_calls import INVOCATIONS_MAX, HandlerCalls, Invocations
from semel.pubsub.events.handlers import Handlers, event_handler
from semel.pubsub.hub.context import SessionCommits
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.protocol.messages import CancelInvocation, Invoke, InvokeResponse


class Scene:
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
def scene() -> Scene:
    return Scene()


def test_one_that_is_asked_again_meanwhile_is_answered_once(scene: Scene) -> None:
    for _ in range(2):
        scene.invocations.invoke(scene.alice, Invoke("i", "ask"), NOW)
    scene.calls.begin.assert_called_once()
    scene.reply()
    assert scene.responses() == [("i", False)]


def test_without_a_handler_it_fails() -> None:
    scene = Scene(has_handler=False)
    scene.invocations.invoke(scene.alice, Invoke("i", "ask"), NOW)
    assert scene.responses() == [("i", True)]


def test_a_session_has_so_many_at_a_time(scene: Scene) -> None:
    for number in range(INVOCATIONS_MAX + 1):
        scene.invocations.invoke(scene.alice, Invoke(f"i{number}", "ask"), NOW)
    assert scene.responses() == [(f"i{INVOCATIONS_MAX}", True)]


def test_the_answer_is_over_with_the_socket_that_asked(scene: Scene) -> None:
    scene.invocations.invoke(scene.alice, Invoke("i", "ask"), NOW)
    scene.alice.attach("another", in_order=False)
    scene.reply()
    assert scene.responses() == []


def test_one_that_is_cancelled_is_not_called_any_more(scene: Scene) -> None:
    scene.invocations.invoke(scene.alice, Invoke("i", "ask"), NOW)
    scene.invocations.cancel(scene.alice, CancelInvocation("i"))
    scene.invocations.cancel(scene.alice, CancelInvocation("i"))
    scene.calls.cancel.assert_called_once()


def test_all_end_with_their_session(scene: Scene) -> None:
    for id in ("i", "j"):
        scene.invocations.invoke(scene.alice, Invoke(id, "ask"), NOW)
    scene.invocations.end("alice")
    assert scene.calls.cancel.call_count == 2


def test_a_new_state_of_the_connection_is_durable_before_the_answer(scene: Scene) -> None:
    scene.invocations.invoke(scene.alice, Invoke("i", "ask"), NOW)
    scene.reply(("ce-connectionstate", "bmV3"))
    assert scene.responses() == []
    scene.bench.complete()
    assert (scene.responses(), scene.alice.state) == ([("i", False)], "bmV3")


def test_a_state_that_the_store_does_not_take_is_taken_back(scene: Scene) -> None:
    scene.invocations.invoke(scene.alice, Invoke("i", "ask"), NOW)
    scene.reply(("ce-connectionstate", "bmV3"))
    scene.bench.fail()
    assert (scene.responses(), scene.alice.state) == ([("i", True)], "")
