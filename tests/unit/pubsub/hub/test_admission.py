from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import EVERYTHING, NOW, Bench, live, session

from semel.errors import StoreError
from semel.kernel.ledger import Kind
from semel.pubsub.hub import admission
from semel.pubsub.hub.admission import Admission
from semel.pubsub.hub.clients import Clients
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.roster import UNREADABLE, Here, UnreadableSessions
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionChange
from semel.pubsub.hub.sessions import Sessions
from semel.pubsub.hub.sockets import (
    ClosePeer,
    Frames,
    NewSession,
    ResumeSession,
    SocketClosed,
    SocketDrained,
    SocketStalled,
)
from semel.pubsub.hub.takeover import TakeOver
from semel.pubsub.protocol.messages import Ping
from semel.websocket import CloseCode

OPEN = NewSession("alice", "token", "", None, EVERYTHING)


class Scene:
    def __init__(self, is_shared: bool = False) -> None:
        self.bench = Bench(is_shared=is_shared)
        self.lease = NodeLease("hub/chat/nodes", "node", is_shared)
        self.outgoing, self.roster, self.endings = Outgoing(self.bench.context), Here(), Endings()
        self.left_out, self.sessions, self.take_over = (
            UnreadableSessions(self.bench.context), Mock(spec=Sessions), Mock(spec=TakeOver)
        )  # fmt: skip
        self.clients, self.closing = Mock(spec=Clients), Mock(spec=Closing)
        self.delivery, self.states = Mock(spec=Delivery), Mock(spec=GroupStates)
        self.admission = Admission(
            self.bench.context, self.lease, self.outgoing, self.roster, self.endings, self.left_out, self.sessions,
            self.take_over, self.clients, self.closing, self.delivery, self.states,
        )  # fmt: skip

    def receive(self, *events: admission.SocketEvent | Frames) -> None:
        for event in events:
            if isinstance(event, Frames):
                self.admission.receive_early("socket", event.requests, NOW)
            else:
                self.admission.receive("socket", event, NOW)

    def add(self, each: Session) -> Session:
        self.roster.add(each)
        self.outgoing.sockets["socket"] = each
        return each

    def closed(self) -> list[tuple[CloseCode, str]]:
        return [(each.code, each.reason) for _, each in self.bench.sent() if isinstance(each, ClosePeer)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_requests_of_a_socket_without_a_session_close_it_unless_one_is_on_its_way(scene: Scene) -> None:
    scene.take_over.hold.return_value = True
    scene.receive(Frames([Ping()]))
    assert scene.closed() == []
    scene.take_over.hold.return_value = False
    scene.receive(Frames([Ping()]))
    assert scene.closed() == [(CloseCode.GOING_AWAY, "this session is not open")]


def opening(scene: Scene) -> Session:
    alice = session()
    alice.change(SessionChange.OPEN)
    alice.attach("socket", in_order=False)
    return scene.add(alice)


def test_requests_wait_while_a_session_opens(scene: Scene) -> None:
    alice = opening(scene)
    scene.receive(Frames([Ping()]), Frames([Ping()]))
    assert alice.early == [Ping(), Ping()]
    scene.clients.handle.assert_not_called()


def test_too_many_of_them_end_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "EARLY_MAX", 1)
    alice = opening(scene)
    scene.receive(Frames([Ping()] * 2))
    assert scene.closing.expel.call_args.args[:2] == (alice, CloseCode.POLICY)


def test_a_full_socket_stops_a_reliable_session_and_ends_a_plain_one(scene: Scene) -> None:
    alice = scene.add(live(peer="socket"))
    scene.receive(SocketStalled())
    assert not alice.backlog.is_open
    scene.receive(SocketDrained())
    assert alice.backlog.is_open
    scene.delivery.catch_up.assert_called_once_with(alice, NOW)
    plain = scene.add(live("bob", peer="socket", is_reliable=False))
    scene.receive(SocketStalled())
    assert scene.closing.expel.call_args.args == (
        plain,
        CloseCode.POLICY,
        "the client is too slow",
        NOW,
        Kind.DISCARDED,
    )


@pytest.mark.parametrize(
    ("event", "is_reliable", "ends"),
    [
        (SocketClosed(CloseCode.NORMAL), True, True),
        (SocketClosed(), False, True),
        (SocketClosed(), True, False),
        (SocketClosed(CloseCode.GOING_AWAY), True, False),
    ],
)
def test_a_reliable_session_survives_its_socket(event: SocketClosed, is_reliable: bool, ends: bool) -> None:
    scene = Scene()
    alice = scene.add(live(peer="socket", is_reliable=is_reliable))
    scene.receive(event)
    assert (alice.peer, scene.outgoing.sockets) == (None, {})
    assert (scene.closing.close.called, scene.closing.drop.called) == (ends, not ends)


def test_who_comes_before_the_node_has_its_lease_waits() -> None:
    scene = Scene(is_shared=True)
    scene.receive(OPEN, Frames([Ping()]))
    scene.sessions.open.assert_not_called()
    scene.lease.hold(1, NOW + 10)
    scene.sessions.open.side_effect = lambda peer, asked, now: scene.add(live(peer="socket"))
    scene.admission.admit_waiting(NOW)
    scene.sessions.open.assert_called_once_with("socket", OPEN, NOW)
    scene.clients.handle.assert_called_once()
    scene.admission.admit_waiting(NOW)
    scene.sessions.open.assert_called_once()


def test_who_goes_while_it_waits_is_forgotten() -> None:
    scene = Scene(is_shared=True)
    scene.receive(OPEN, SocketClosed())
    scene.lease.hold(1, NOW + 10)
    scene.admission.admit_waiting(NOW)
    scene.sessions.open.assert_not_called()


def test_who_waits_with_too_much_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "EARLY_MAX", 2)
    scene = Scene(is_shared=True)
    scene.receive(OPEN, Frames([Ping()]), Frames([Ping()]))
    assert scene.closed() == [(CloseCode.INTERNAL, "the node is not ready yet")]


RESUME = ResumeSession("alice")


def test_a_session_that_is_here_is_resumed(scene: Scene) -> None:
    alice = scene.add(live(peer=""))
    scene.receive(RESUME)
    scene.sessions.resume.assert_called_once_with(alice, "socket", RESUME, NOW)


def test_one_that_may_be_elsewhere_is_taken_over() -> None:
    scene = Scene(is_shared=True)
    scene.lease.hold(1, NOW + 10)
    scene.receive(RESUME)
    scene.take_over.resume.assert_called_once_with(RESUME, "socket")


def test_one_that_is_about_to_end_is_not_taken_up_again() -> None:
    scene = Scene(is_shared=True)
    scene.lease.hold(1, NOW + 10)
    scene.endings.begin(live(), Kind.CANCELLED, "", None)
    scene.receive(RESUME)
    assert scene.closed() == [(CloseCode.INTERNAL, "the session is about to end")]


def test_one_that_nobody_has_is_gone(scene: Scene) -> None:
    scene.receive(RESUME)
    assert scene.closed() == [(CloseCode.POLICY, "there is no such session any more")]


def test_one_that_is_left_out_may_be_tried_again(scene: Scene) -> None:
    scene.left_out.add("alice", 0, StoreError("too new"))
    scene.receive(RESUME)
    assert scene.closed() == [(CloseCode.INTERNAL, UNREADABLE)]
