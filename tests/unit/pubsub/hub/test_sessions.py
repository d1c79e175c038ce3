from __future__ import annotations

from unittest.mock import Mock

import msgspec
import pytest
from tests.unit.pubsub.hub.parts import EVERYTHING, HUB, NOW, Bench, live, session

from semel.kernel.ops import Append, Put
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.catchup import CatchUp
from semel.pubsub.hub.clients import Clients
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.context import SessionCommits
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.roster import Arrivals, Elsewhere, Here, Roster
from semel.pubsub.hub.session_phase import SessionPhase
from semel.pubsub.hub.session_rows import session_key
from semel.pubsub.hub.sessions import Sessions
from semel.pubsub.hub.sockets import ClosePeer, NewSession, ResumeSession, WelcomePeer
from semel.pubsub.hub.streams import Streams
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import Ping
from semel.websocket import CloseCode

OPEN = NewSession("alice", "token", Subprotocol.JSON_RELIABLE, "ann", EVERYTHING, ("g",))


class Scene:
    def __init__(self) -> None:
        self.bench = Bench(head=5, is_shared=True)
        self.bench.tail.on_messages = self.bench.tail.listener = Mock()
        context = self.bench.context
        self.lease = NodeLease("hub/chat/nodes", "node", True)
        self.lease.hold(7, NOW + 10)
        self.outgoing, self.roster, self.elsewhere = Outgoing(context), Here(), Roster[Elsewhere]()
        self.arrivals, self.clients, self.closing = Arrivals(), Mock(spec=Clients), Mock(spec=Closing)
        self.delivery, self.catch_up, self.events = Mock(spec=Delivery), Mock(spec=CatchUp), Mock(spec=Events)
        self.events.on_open.return_value = []
        self.streams, self.states = Mock(spec=Streams), Mock(spec=GroupStates)
        commits = SessionCommits(context, self.bench.tail)
        commits.on_refused = Mock()
        self.sessions = Sessions(
            context, self.lease, self.outgoing, self.bench.tail, self.roster, self.elsewhere, self.arrivals, commits,
            self.clients, self.delivery, self.catch_up, self.closing, self.streams, self.states, self.events,
        )  # fmt: skip


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_new_session_is_served_when_it_is_durable(scene: Scene) -> None:
    scene.sessions.open("socket", OPEN, NOW)
    alice = scene.roster.sessions["alice"]
    alice.early.append(Ping())
    puts = {op.key: op for op in scene.bench.ops() if isinstance(op, Put)}
    assert puts[session_key(HUB, "alice")].guard == scene.lease.guard
    assert [op.kind for op in scene.bench.ops() if isinstance(op, Append)] == [RecordKind.OPEN]
    assert (alice.phase, alice.start, len(scene.arrivals)) == (SessionPhase.OPENING, 5, 1)
    scene.clients.handle.assert_not_called()
    scene.bench.complete()
    assert (alice.phase, alice.early, len(scene.arrivals)) == (SessionPhase.LIVE, [], 0)
    assert (alice.versions.row, alice.versions.row_stored) == (1, 1)
    scene.clients.handle.assert_called_once_with(alice, [Ping()], NOW)
    assert alice.backlog.is_open


def test_who_cannot_be_told_connected_is_welcome_when_the_session_is_durable(scene: Scene) -> None:
    """Otherwise other nodes would not know of a client whose handshake was answered."""
    scene.sessions.open("socket", msgspec.structs.replace(OPEN, subprotocol=""), NOW)
    assert scene.bench.sent() == []
    scene.bench.complete()
    assert scene.bench.sent() == [("socket", WelcomePeer())]


def test_one_that_the_store_does_not_take_is_not_there(scene: Scene) -> None:
    scene.sessions.open("socket", OPEN, NOW)
    alice = scene.roster.sessions["alice"]
    scene.bench.fail()
    assert (len(scene.roster), len(scene.arrivals), alice.phase) == (0, 0, SessionPhase.GONE)
    assert scene.bench.sent() == [("socket", ClosePeer(CloseCode.INTERNAL, "the store cannot take the session now"))]


def test_a_client_that_resumes_replaces_its_old_socket_and_gets_all_again(scene: Scene) -> None:
    alice = live(peer="old")
    scene.outgoing.sockets["old"] = alice
    alice.backlog.written, alice.backlog.acked = 9, 4
    scene.sessions.resume(alice, "new", ResumeSession("alice", in_order=True), NOW)
    assert list(scene.outgoing.sockets) == ["new"]
    assert (alice.peer, alice.backlog.written, alice.in_order is not None) == ("new", 4, True)
    scene.delivery.catch_up.assert_called_once_with(alice, NOW)
    scene.streams.resumed.assert_called_once_with(alice, NOW)
    scene.states.resumed.assert_called_once_with(alice, NOW)


def test_a_session_of_before_the_restart_catches_up_and_waits_for_its_client(scene: Scene) -> None:
    alice = session(since=3)
    scene.sessions.restore(alice, NOW)
    assert (scene.roster.get("alice"), alice.backlog.sent) == (alice, 5)
    scene.closing.drop.assert_called_once_with(alice, NOW)
    scene.catch_up.add.assert_called_once_with(alice, 5, NOW)


def test_what_cannot_be_resumed_ends_at_the_restart(scene: Scene) -> None:
    plain, other_epoch = session("plain", is_reliable=False), session("old")
    other_epoch.epoch = 0
    for each in (plain, other_epoch):
        scene.sessions.restore(each, NOW)
    reasons = [(call.args[0], call.args[2]) for call in scene.closing.close.call_args_list]
    assert reasons == [(plain, "the server was restarted"), (other_epoch, "the store was restored from a backup")]
    scene.catch_up.add.assert_not_called()


def test_a_session_from_another_node_is_here_and_behind(scene: Scene) -> None:
    alice = session()
    alice.opened = 8
    scene.elsewhere.add(Elsewhere("alice", None, "dead", {}))
    scene.sessions.take_in(alice, NOW)
    assert (len(scene.elsewhere), scene.roster.get("alice"), alice.present_at) == (0, alice, 5)
    scene.catch_up.add.assert_called_once_with(alice, 8, NOW)
