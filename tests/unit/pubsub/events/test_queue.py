"""Events of clients on their way to handlers: durable, one after the other, and answered once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pubsub.hub.world import HUB, World, text

from semel.errors import StoreBusy
from semel.http import HttpResponse
from semel.kernel.effects import Send
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Kind
from semel.kernel.ops import Enqueue, Unit, WorkState
from semel.pubsub.events import queue as events_module
from semel.pubsub.events.cloudevents import (
    EventClient,
    HandlerUnreachable,
    NotAllowed,
    PendingEvent,
    Reply,
    encode_event,
    user_event,
)
from semel.pubsub.events.handler_calls import (
    HANDLERS,
    INVOCATIONS_MAX,
    CallHandler,
    CancelCall,
    Fetch,
    Fetched,
    Replied,
)
from semel.pubsub.events.handlers import EventHandler, Handlers, event_handler
from semel.pubsub.events.queue import DEAD_KEEP_S, FETCHES_MAX, LEASE_S, SWEEP_S
from semel.pubsub.hub.calls import CloseConnections, Connection, JoinMembers
from semel.pubsub.hub.loading import load_hub
from semel.pubsub.hub.machine import Hub, HubOptions
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.sockets import ClosePeer, SocketClosed
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import (
    Ack,
    CancelInvocation,
    Data,
    DataType,
    ErrorName,
    Invoke,
    InvokeResponse,
    LeaveGroup,
    SendEvent,
    SendToGroup,
    ServerMessage,
)
from semel.websocket import CloseCode

ALICE = "alice"
QUEUE = f"hub/{HUB}/events"
OK = HttpResponse(204)
USER_EVENTS = event_handler("https://app.example/{event}", user_events="*")
ALL = event_handler("https://app.example/{event}", ("connected", "disconnected", "joined", "left"), "*")


def said(body: str, content: str = "text/plain", **headers: str) -> HttpResponse:
    found = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return HttpResponse(200, (("Content-Type", content), *found), body.encode())


class Scene(World):
    """With somebody who calls handlers, or rather notes down what would be called."""

    def __init__(
        self,
        *handlers: EventHandler,
        options: HubOptions | None = None,
        node: str = "node",
        beside: World | None = None,
    ) -> None:
        self.handlers = Handlers(HUB, handlers)
        self.calls: list[CallHandler] = []
        self.cancelled: list[str] = []
        self.fetches: list[Fetch] = []
        super().__init__(options, node, beside)

    def load_hub(self) -> Hub:
        return load_hub(self.store, HUB, self.node, self._random, self.options, self.handlers)

    def send_effect(self, effect: Send) -> None:
        match effect.message:
            case CallHandler():
                self.calls.append(effect.message)
            case CancelCall(token=token):
                self.cancelled.append(token)
            case Fetch():
                self.fetches.append(effect.message)
            case _:
                super().send_effect(effect)

    def event(self, ack_id: int | None = None, body: str = "hi", name: str = "ask", peer: str = ALICE) -> None:
        self.send(peer, SendEvent(name, text(body), ack_id))

    def reply(self, reply: Reply = OK) -> PendingEvent:
        """To the first call that waits. Returns the event that was told."""
        call = self.calls.pop(0)
        self.feed(HANDLERS, Replied(call.token, reply))
        return call.event

    @property
    def asked(self) -> list[str]:
        return [call.event.name for call in self.calls]

    def state_of(self, identity: str) -> WorkState | None:
        row = self.store.work(QUEUE, identity)
        return row.state if row is not None else None


@pytest.fixture
def scene() -> Scene:
    scene = Scene(USER_EVENTS)
    scene.connect(ALICE, user="u")
    scene.take(ALICE)
    return scene


def acks(scene: Scene, peer: str = ALICE) -> list[tuple[int, str | None]]:
    heard = [each for each in scene.take(peer) if isinstance(each, Ack)]
    return [(each.ack_id, each.error.name if each.error is not None else None) for each in heard]


# -- what clients send


def test_an_event_is_durable_before_its_handler_hears_of_it(scene: Scene) -> None:
    scene.held = []
    scene.event(1)
    assert scene.calls == []
    scene.let_go()
    [call] = scene.calls
    assert scene.state_of("alice#1") is WorkState.CLAIMED
    assert (call.event.name, call.event.id, call.event.ack_id) == ("ask", "ack-1", 1)
    assert (call.event.client.user, call.event.data, call.handler) == ("u", text("hi"), USER_EVENTS)
    assert call.within_s == pytest.approx(100.0)
    assert scene.take(ALICE) == []


def test_the_answer_comes_before_the_ack_and_both_are_durable(scene: Scene) -> None:
    scene.event(1)
    scene.reply(said("yes", x_webpubsub_metadata_a="b"))
    message, ack = scene.take(ALICE)
    assert isinstance(message, ServerMessage)
    assert (message.data, message.metadata) == (text("yes"), {"a": "b"})
    assert ack == Ack(1)
    assert scene.state_of("alice#1") is WorkState.DONE
    scene.restart()
    scene.resume("again", ALICE)
    assert scene.bodies("again") == ["yes"]
    scene.event(1, peer="again")
    assert acks(scene, "again") == [(1, ErrorName.DUPLICATE)]
    assert scene.calls == []


def test_the_ack_waits_for_what_another_node_put_before_the_answer(scene: Scene) -> None:
    scene.event(1)
    scene.held = []
    scene.reply(said("yes"))
    from semel.pubsub.hub.records import NO_TERMS, message

    other = message(
        f"hub/{HUB}", "other", "", text("from elsewhere"), at=0, sender="x", user=None, terms=NO_TERMS,
        on_fresh=scene.hub.context.accepted,
    )  # fmt: skip
    scene.store.commit([Unit((other,))])
    scene.let_go()
    heard = scene.take(ALICE)
    assert [type(each) for each in heard] == [ServerMessage, ServerMessage, Ack]


def test_an_event_without_an_ack_id_is_told_and_nobody_hears_that(scene: Scene) -> None:
    scene.event()
    event = scene.reply()
    assert event.id == event.identity.removeprefix("alice#event-")
    assert scene.take(ALICE) == []
    assert scene.state_of(event.identity) is WorkState.DONE


def test_events_of_one_connection_are_told_one_after_the_other_and_those_of_two_side_by_side(scene: Scene) -> None:
    scene.connect("bob")
    for ack_id, body in ((1, "a"), (2, "b"), (3, "c")):
        scene.event(ack_id, body)
    scene.event(1, "d", peer="bob")
    assert [call.event.data.body for call in scene.calls] == [b"a", b"d"]
    scene.calls.reverse()
    scene.reply()
    heard = [scene.reply().data.body for _ in range(3)]
    assert heard == [b"a", b"b", b"c"]
    assert acks(scene) == [(1, None), (2, None), (3, None)]


def test_an_ack_id_that_is_on_its_way_is_told_once_and_answered_as_often_as_it_came(scene: Scene) -> None:
    scene.event(1)
    scene.event(1, "again")
    scene.send(ALICE, SendToGroup("g", text("the same ackId"), 1))
    assert len(scene.calls) == 1
    scene.reply()
    assert scene.calls == []
    assert acks(scene) == [(1, None), (1, ErrorName.DUPLICATE), (1, ErrorName.DUPLICATE)]


def test_a_pending_ack_id_is_not_taken_to_be_done_by_a_publish_meanwhile(scene: Scene) -> None:
    scene.event(1)
    scene.publish(ALICE, "g", "x", 2)
    assert acks(scene) == [(2, None)]
    scene.restart()
    scene.resume("again", ALICE)
    scene.calls.clear()
    scene.event(1, peer="again")
    scene.reply()
    assert acks(scene, "again") == [(1, None)]


def test_a_large_event_is_told_whole(scene: Scene) -> None:
    body = "x" * 600_000
    scene.event(1, body)
    [fetch] = scene.fetches
    scene.feed(HANDLERS, Fetched(fetch.token, b"".join(scene.store.body(fetch.blob))))
    assert scene.reply(said(body)).data == text(body)
    assert scene.take(ALICE)[-1] == Ack(1)


def test_a_large_event_that_cannot_be_read_now_is_told_later(scene: Scene) -> None:
    scene.event(1, "x" * 600_000)
    scene.feed(HANDLERS, Fetched(scene.fetches.pop().token, None))
    scene.pass_time(LEASE_S + SWEEP_S)
    [fetch] = scene.fetches
    scene.feed(HANDLERS, Fetched(fetch.token, b"".join(scene.store.body(fetch.blob))))
    scene.reply()
    assert acks(scene) == [(1, None)]


def test_a_large_event_that_can_never_be_read_holds_up_the_others_only_for_so_long(scene: Scene) -> None:
    scene.event(1, "x" * 600_000)
    scene.event(2)
    for _ in range(FETCHES_MAX):
        scene.feed(HANDLERS, Fetched(scene.fetches.pop().token, None))
        scene.pass_time(LEASE_S + SWEEP_S)
    assert scene.state_of("alice#1") is WorkState.DEAD
    scene.reply()
    assert acks(scene) == [(1, ErrorName.INTERNAL), (2, None)]
    scene.event(1, "small")
    scene.reply()
    assert acks(scene) == [(1, None)]


# -- what fails


def test_without_a_handler_an_event_is_refused_and_the_connection_stays() -> None:
    scene = Scene(event_handler("https://app.example", user_events="other"))
    scene.connect(ALICE)
    scene.take(ALICE)
    scene.event(1)
    scene.event()
    assert acks(scene) == [(1, ErrorName.INTERNAL)]
    scene.connect("raw", protocol="")
    scene.event(peer="raw", name="message")
    [shut] = scene.take("raw")
    assert isinstance(shut, ClosePeer)
    assert shut.code == CloseCode.INTERNAL
    assert scene.hub.roster.get("raw") is None
    assert scene.calls == []


def test_what_may_pass_is_told_again_with_the_same_id(scene: Scene) -> None:
    scene.event(1)
    first = scene.reply(HttpResponse(503))
    for wait_s in (1.0, 3.0):
        scene.pass_time(wait_s - 0.1)
        assert scene.calls == []
        scene.pass_time(0.1)
        assert scene.reply(HandlerUnreachable("refused")) == first
    scene.pass_time(5.0)
    assert scene.reply() == first
    assert acks(scene) == [(1, None)]


@pytest.mark.parametrize("reply", [HttpResponse(400), NotAllowed(), HandlerUnreachable("late", is_late=True)])
def test_an_event_that_failed_may_be_tried_again_with_its_ack_id(scene: Scene, reply: Reply) -> None:
    scene.event(1)
    scene.event(1)
    first = scene.reply(reply)
    assert acks(scene) == [(1, ErrorName.INTERNAL)] * 2
    assert scene.state_of("alice#1") is WorkState.DONE
    scene.event(1)
    again = scene.reply()
    assert again.id == first.id
    assert acks(scene) == [(1, None)]


def test_what_nobody_else_knows_of_is_kept_when_it_fails(scene: Scene) -> None:
    scene.event()
    event = scene.reply(HttpResponse(400))
    assert scene.state_of(event.identity) is WorkState.DEAD
    assert "status 400" in next(note.detail for note in scene.notes if note.topic == "event-failed")
    assert scene.take(ALICE) == []
    scene.pass_time(DEAD_KEEP_S + 1)
    scene.store.sweep(round(scene.now * 1e6))
    assert scene.state_of(event.identity) is None


def test_a_simple_client_is_closed_when_its_event_fails() -> None:
    scene = Scene(ALL)
    scene.connect("raw", protocol="")
    scene.reply()
    scene.event(peer="raw", name="message")
    scene.event(peer="raw", name="message", body="never heard")
    scene.reply(HttpResponse(500, (), b""))
    scene.calls.clear()
    scene.pass_time(1)
    scene.reply(HttpResponse(404))
    [shut] = scene.take("raw")
    assert isinstance(shut, ClosePeer)
    assert shut.code == CloseCode.INTERNAL
    assert [scene.reply().name for _ in range(2)] == ["message", "disconnected"]
    assert scene.calls == []


def test_an_event_that_the_store_refuses_is_not_told_and_may_come_again(scene: Scene) -> None:
    scene.failing = [StoreBusy("busy")]
    scene.event(1)
    assert (acks(scene), scene.calls) == ([(1, ErrorName.INTERNAL)], [])
    scene.event(1)
    scene.reply()
    assert acks(scene) == [(1, None)]


def test_an_answer_that_the_store_refuses_is_kept_until_it_takes_it(scene: Scene) -> None:
    scene.event(1)
    scene.failing = [StoreBusy("busy"), StoreBusy("busy")]
    scene.reply(said("yes", ce_connectionState="s1"))
    assert scene.take(ALICE) == []
    scene.pass_time(1)
    scene.pass_time(1)
    message, ack = scene.take(ALICE)
    assert (isinstance(message, ServerMessage), ack) == (True, Ack(1))
    assert scene.calls == []
    session = scene.hub.roster.get(ALICE)
    assert session is not None
    assert session.state == "s1"


@pytest.mark.parametrize(("name", "limit"), [("EVENTS_MAX", 3), ("EVENTS_BYTES_MAX", 3 * len("hi"))])
def test_too_many_events_are_refused(scene: Scene, name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, name, limit)
    for ack_id in range(4):
        scene.event(ack_id)
    assert acks(scene) == [(3, ErrorName.INTERNAL)]
    scene.reply()
    scene.event(3)
    assert acks(scene) == [(0, None)]
    while scene.calls:
        scene.reply()
    assert acks(scene) == [(1, None), (2, None), (3, None)]
    assert scene.hub.events._open == scene.hub.events._held == {}


def test_a_row_that_cannot_be_read_is_put_aside(scene: Scene) -> None:
    scene.store.commit([Unit((Enqueue(QUEUE, "odd", Envelope("odd", data=b"\xff"), ALICE),))])
    scene.event(1)
    assert scene.state_of("odd") is WorkState.DEAD
    scene.reply()
    assert acks(scene) == [(1, None)]
    assert [note.topic for note in scene.notes] == ["event-unreadable"]


# -- state


def test_the_state_of_a_connection_goes_with_later_events_and_survives(scene: Scene) -> None:
    scene.event(1)
    scene.event(2)
    assert scene.reply(HttpResponse(204, (("ce-connectionState", "s1"),))).client.state == ""
    assert scene.reply().client.state == "s1"
    scene.restart()
    scene.resume("again", ALICE)
    scene.event(3, peer="again")
    assert scene.reply().client.state == "s1"


# -- crashes


def test_after_a_crash_an_event_goes_on_with_its_id_when_the_claim_has_run_out(scene: Scene) -> None:
    scene.event(1)
    [first] = scene.calls
    scene.restart()
    scene.calls.clear()
    scene.resume("again", ALICE)
    scene.pass_time(LEASE_S + SWEEP_S)
    [second] = scene.calls
    assert second.event == first.event
    assert second.token != first.token
    scene.feed(HANDLERS, Replied(first.token, OK))
    assert acks(scene, "again") == []
    scene.reply()
    assert acks(scene, "again") == [(1, None)]


def test_a_client_that_asks_again_after_a_crash_need_not_wait_for_the_claim_to_run_out(scene: Scene) -> None:
    scene.event(1)
    first = scene.calls.pop()
    scene.restart()
    scene.resume("again", ALICE)
    scene.event(1, peer="again")
    assert scene.reply().id == first.event.id
    assert acks(scene, "again") == [(1, None)]
    scene.pass_time(LEASE_S + SWEEP_S)
    assert scene.calls == []


def test_a_claim_is_kept_as_long_as_the_handler_takes(scene: Scene) -> None:
    scene.event(1)
    for _ in range(6):
        scene.pass_time(LEASE_S / 3)
    assert len(scene.calls) == 1
    other = scene.store.commit([Unit((events_module.Claim(QUEUE, "other", 10),))])
    assert other[0].results[0].rows == ()  # type: ignore[union-attr]
    scene.reply()
    assert acks(scene) == [(1, None)]


def test_a_claim_that_was_renewed_runs_out_as_soon_as_any_other(scene: Scene) -> None:
    """Or nobody would tell the handler for as long as the last renewal said, after a crash."""
    scene.event(1)
    for _ in range(3):
        scene.pass_time(LEASE_S / 3)
    [first] = scene.calls
    scene.restart()
    scene.calls.clear()
    scene.pass_time(LEASE_S + SWEEP_S)
    scene.pass_time(SWEEP_S)
    assert [call.event for call in scene.calls] == [first.event]


def test_a_claim_that_could_not_be_renewed_once_is_not_lost(scene: Scene) -> None:
    """The store may just be busy. To give up would tell the handler twice."""
    scene.event(1)
    scene.failing = [StoreBusy("busy")]
    scene.pass_time(LEASE_S / 2)
    assert scene.failing == []
    assert scene.cancelled == []
    scene.reply()
    assert acks(scene) == [(1, None)]


def test_what_was_left_behind_is_looked_for_again_if_the_store_was_busy(scene: Scene) -> None:
    scene.event(1)
    scene.restart()
    scene.calls.clear()
    scene.failing = [StoreBusy("busy")]
    scene.pass_time(0)
    assert scene.failing == []
    for _ in range(5):
        scene.pass_time(SWEEP_S)
    assert len(scene.calls) == 1


def test_nothing_is_kept_of_the_events_of_a_session_that_is_over(scene: Scene) -> None:
    scene.event(1)
    scene.drop(ALICE, 1000)
    assert scene.hub.events._open == {}


def test_who_has_lost_its_claim_forgets_the_event_and_the_client_may_ask_again(scene: Scene) -> None:
    scene.event(1)
    scene.now += LEASE_S + 1
    scene.store.commit([Unit((events_module.Claim(QUEUE, "other", 10),))])
    token = scene.calls[0].token
    scene.pass_time(0)
    assert scene.cancelled == [token]
    scene.feed(HANDLERS, Replied(token, OK))
    assert scene.take(ALICE) == []
    scene.calls.clear()
    scene.event(1)
    scene.reply()
    assert acks(scene) == [(1, None)]


def test_what_is_left_of_a_session_that_ended_is_told_and_nobody_hears_the_answer(scene: Scene) -> None:
    scene.event(1)
    scene.drop(ALICE, 1000)
    scene.reply(said("too late"))
    assert scene.state_of("alice#1") is WorkState.DONE
    scene.connect("bob")
    scene.event(1, peer="bob")
    scene.drop("bob", 1000)
    scene.restart()
    scene.calls.clear()
    scene.pass_time(LEASE_S + SWEEP_S)
    assert scene.reply().client.connection == "bob"
    assert scene.state_of("bob#1") is WorkState.DONE


# -- what happens to connections


def test_handlers_hear_what_happens_to_a_connection_in_its_order() -> None:
    scene = Scene(ALL)
    scene.connect(ALICE, user="u")
    scene.join(ALICE, "g", 1)
    scene.event(2)
    scene.call(JoinMembers(Connection(ALICE), ("h",)))
    scene.send(ALICE, LeaveGroup("g", 3))
    scene.call(CloseConnections(Connection(ALICE), reason="enough"))
    told = [scene.reply() for _ in range(6)]
    assert [event.name for event in told] == ["connected", "joined", "ask", "joined", "left", "disconnected"]
    assert (told[0].id, told[2].id) == ("1", "ack-2")
    bodies = [msgspec.json.decode(event.data.body) for event in told if event.name != "ask"]
    assert bodies == [{}, {"group": "g"}, {"group": "h"}, {"group": "g"}, {"reason": "enough"}]
    assert len({event.id for event in told}) == 6
    assert scene.calls == []


def test_disconnected_is_told_once_when_the_session_is_over_and_coming_back_is_not_told() -> None:
    scene = Scene(ALL, options=HubOptions(recovery_s=90))
    scene.connect(ALICE)
    assert scene.reply().name == "connected"
    scene.drop(ALICE)
    scene.pass_time(80)
    scene.resume("again", ALICE)
    scene.drop("again")
    scene.pass_time(80)
    assert scene.calls == []
    scene.restart()
    scene.pass_time(91)
    assert [scene.reply().name for _ in scene.calls] == ["disconnected"]
    scene.pass_time(200)
    assert scene.calls == []


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        (SocketClosed(1000, "bye"), "bye"),
        (SocketClosed(1000), "the client closed the connection"),
        (SocketClosed(1007, "not a frame"), "not a frame"),
        (SocketClosed(), "the connection was lost"),
    ],
)
def test_disconnected_says_why_in_the_words_that_were_used(gone: SocketClosed, reason: str) -> None:
    scene = Scene(ALL)
    scene.connect(ALICE, protocol=Subprotocol.JSON)
    scene.reply()
    scene.feed(ALICE, gone)
    assert msgspec.json.decode(scene.reply().data.body) == {"reason": reason}


def test_a_handler_that_is_only_told_holds_nobody_up_for_ever() -> None:
    scene = Scene(ALL)
    scene.connect(ALICE)
    scene.take(ALICE)
    scene.event(1)
    assert scene.reply(HttpResponse(404)).name == "connected"
    scene.reply()
    assert acks(scene) == [(1, None)]


def test_without_handlers_nothing_is_stored() -> None:
    scene = Scene()
    scene.connect(ALICE)
    scene.join(ALICE, "g")
    scene.drop(ALICE, 1000)
    scene.pass_time(100)
    assert scene.store.status().work == {}


# -- invocations


def test_an_invocation_is_answered_with_what_the_handler_says(scene: Scene) -> None:
    scene.send(ALICE, Invoke("i1", "ask", text("q")), Invoke("i2", "ask"))
    assert scene.reply(said("{}", "application/json")).data == text("q")
    assert scene.take(ALICE) == [InvokeResponse("i1", Data(DataType.JSON, b"{}"))]
    assert scene.reply(HttpResponse(204, (("ce-connectionState", "s1"),))).data.body == b""
    assert scene.take(ALICE) == [InvokeResponse("i2")]
    scene.send(ALICE, Invoke("i1", "ask", text("q")))
    assert scene.reply(HttpResponse(400)).client.state == "s1"
    [failed] = scene.take(ALICE)
    assert isinstance(failed, InvokeResponse)
    assert failed.error is not None
    assert failed.error.name == ErrorName.INTERNAL


def test_who_cancels_an_invocation_hears_no_more_of_it(scene: Scene) -> None:
    scene.send(ALICE, Invoke("i1", "ask", text("q")), Invoke("i1", "ask", text("the same again")))
    [call] = scene.calls
    scene.send(ALICE, CancelInvocation("i1"), CancelInvocation("unknown"))
    assert scene.cancelled == [call.token]
    scene.reply()
    assert scene.take(ALICE) == []


def test_an_invocation_ends_with_its_socket(scene: Scene) -> None:
    scene.send(ALICE, Invoke("i1", "ask", text("q")))
    scene.drop(ALICE)
    scene.resume("again", ALICE)
    scene.reply()
    assert scene.take("again") == []
    scene.send("again", Invoke("i1", "ask", text("q")))
    scene.drop("again", 1000)
    assert len(scene.cancelled) == 1


def test_invocations_that_cannot_be_made_are_refused(scene: Scene) -> None:
    scene.send(ALICE, *(Invoke(str(n), "ask") for n in range(INVOCATIONS_MAX + 1)))
    [refused] = scene.take(ALICE)
    assert isinstance(refused, InvokeResponse)
    assert refused.invocation_id == str(INVOCATIONS_MAX)
    nobody = Scene()
    nobody.connect(ALICE)
    nobody.take(ALICE)
    nobody.send(ALICE, Invoke("i", "ask"))
    [refused] = nobody.take(ALICE)
    assert isinstance(refused, InvokeResponse)
    assert refused.error is not None


# -- the ledger


def test_the_ledger_names_an_event_by_the_id_of_its_application_whichever_connection_brings_it(scene: Scene) -> None:
    scene.connect("bob", "bob")
    for peer in (ALICE, "bob"):
        scene.send(peer, SendEvent("ask", text("hi"), 1, {"semel-id": "order-7"}))
        scene.reply()
    found = [(entry.event.kind, entry.event.delivery) for entry in scene.store.history("order-7")]
    assert [kind for kind, _ in found] == [Kind.ACCEPTED, Kind.HANDLED] * 2
    assert len({delivery for _, delivery in found}) == 2
    assert all(delivery is not None and delivery.endswith("#1") for _, delivery in found)


def test_an_id_that_no_message_can_have_is_refused_and_the_hub_goes_on(scene: Scene) -> None:
    for ack_id, id in ((1, ""), (2, "x" * 256)):
        scene.send(ALICE, SendEvent("ask", text("hi"), ack_id, {"semel-id": id}))
    refusals = [each.error.name for each in scene.take(ALICE) if isinstance(each, Ack) and each.error is not None]
    assert refusals == [ErrorName.BAD_REQUEST] * 2
    assert not scene.calls
    scene.event(3)
    assert scene.asked == ["ask"]


def test_the_ledger_says_what_became_of_each_event(scene: Scene) -> None:
    scene.event(1)
    scene.reply()
    scene.event(2)
    scene.reply(HttpResponse(400))
    found = [(entry.event.kind, entry.event.message) for entry in scene.store.ledger(START) if QUEUE in entry.event.hop]
    assert found == [
        (Kind.ACCEPTED, "alice#1"), (Kind.HANDLED, "alice#1"), (Kind.ACCEPTED, "alice#2"), (Kind.DISCARDED, "alice#2"),
    ]  # fmt: skip


# -- several nodes

SHARED = HubOptions(is_shared=True)


@pytest.fixture
def one() -> Scene:
    return Scene(USER_EVENTS, options=SHARED, node="one")


@pytest.fixture
def two(one: Scene) -> Scene:
    """With alice on `one`, and an event of hers with its handler."""
    two = Scene(USER_EVENTS, options=SHARED, node="two", beside=one)
    one.connect(ALICE)
    one.take(ALICE)
    one.event(1)
    return two


def test_an_event_goes_with_its_session_to_another_node(one: Scene, two: Scene) -> None:
    [first] = one.calls
    two.resume("new", ALICE)
    assert one.cancelled == [first.token]
    one.feed(HANDLERS, Replied(first.token, OK))
    assert two.calls == []
    one.calls.clear()
    for _ in range(9):
        two.pass_time(LEASE_S / 6)
    assert one.calls == []
    assert two.reply().id == first.event.id
    assert acks(two, "new") == [(1, None)]


def test_a_client_that_asks_again_elsewhere_need_not_wait(one: Scene, two: Scene) -> None:
    one.die()
    two.resume("new", ALICE)
    two.event(1, peer="new")
    assert two.reply().id == "ack-1"
    assert acks(two, "new") == [(1, None)]


def test_a_node_that_was_replaced_cannot_open_an_event_again(one: Scene, two: Scene) -> None:
    """It has not heard that the session is elsewhere, and the event is done there."""
    one.nodes.remove(one)
    two.resume("new", ALICE)
    two.event(1, peer="new")
    two.event(2, peer="new")
    two.reply()
    two.reply()
    one.event(2)
    assert [type(heard) for heard in one.take(ALICE)] == [ClosePeer]
    one.reply()
    assert one.calls == []
    assert two.state_of("alice#1") is two.state_of("alice#2") is WorkState.DONE
    assert acks(two, "new") == [(1, None), (2, None)]


def test_what_was_left_of_a_session_is_for_the_node_that_has_it(one: Scene, two: Scene) -> None:
    one.reply()
    left = encode_event(user_event(EventClient(HUB, ALICE), "9", 0, "left", text("x")))
    one.store.commit([Unit((Enqueue(QUEUE, "left", Envelope("left", data=left), ALICE),))])
    for _ in range(3):
        one.pass_time(SWEEP_S)
    assert (one.asked, two.calls) == (["left"], [])
    one.reply()
    assert one.state_of("left") is WorkState.DONE


# -- whatever happens

STEPS = ("event", "reply", "refuse", "trouble", "crash", "come back", "wait", "busy", "listen")


@given(st.lists(st.sampled_from(STEPS), max_size=40))
@settings(deadline=None, max_examples=200)
def test_whatever_happens_each_event_is_answered_once(steps: list[str]) -> None:
    """The client asks again until it has heard, and the handler in the end always says yes."""
    scene = Scene(USER_EVENTS, options=HubOptions(recovery_s=10_000, trim_s=10_000))
    scene.connect(ALICE)
    heard: set[int] = set()
    asked = sockets = 0
    peer = ALICE

    def listen() -> None:
        for ack_id, error in acks(scene, peer):
            if error in (None, ErrorName.DUPLICATE):
                heard.add(ack_id)

    def come_back() -> str:
        scene.resume(f"socket {sockets}", ALICE)
        for ack_id in sorted(set(range(asked)) - heard):
            scene.event(ack_id, peer=f"socket {sockets}")
        return f"socket {sockets}"

    for step in [*steps, "come back"]:
        match step:
            case "event":
                scene.event(asked, peer=peer)
                asked += 1
            case "reply" | "refuse" | "trouble" if scene.calls:
                name = scene.calls[0].event.id
                scene.reply({"reply": said(name), "refuse": HttpResponse(400)}.get(step, HttpResponse(503)))
            case "busy":
                scene.failing.append(StoreBusy("busy"))
            case "crash":
                scene.failing.clear()
                scene.restart()
                scene.calls.clear()
            case "wait":
                scene.pass_time(3)
            case "listen":
                listen()
        if step in ("crash", "come back"):
            # what was said to the socket before, and not listened to, is lost
            sockets += 1
            peer = come_back()
    scene.failing.clear()
    for _ in range(60):
        while scene.calls:
            scene.reply(said(scene.calls[0].event.id))
        listen()
        left = sorted(set(range(asked)) - heard)
        if not left:
            break
        scene.pass_time(1)
        for ack_id in left:
            scene.event(ack_id, peer=peer)
    assert heard == set(range(asked))
    found = scene.store.read(f"hub/{HUB}").records  # type: ignore[union-attr]
    answers = sorted(record.envelope.data.decode() for record in found if record.kind == RecordKind.MESSAGE)
    assert answers == sorted(f"ack-{number}" for number in range(asked))
