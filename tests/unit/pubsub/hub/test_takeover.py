from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import HUB, NOW, Bench, append, live, session

from semel.errors import StoreUnavailable
from semel.kernel.effects import CommitFailed, CommitUnknown, LoadFailed
from semel.kernel.ops import Put
from semel.pubsub.hub import takeover
from semel.pubsub.hub.clients import Clients
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.roster import Arrivals, Elsewhere, Here, Roster
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_rows import acks_key, read_session, session_key
from semel.pubsub.hub.sessions import Sessions
from semel.pubsub.hub.sockets import ClosePeer, ResumeSession
from semel.pubsub.hub.spills import Spills
from semel.pubsub.hub.takeover import TRIES, TakeOver
from semel.pubsub.protocol.messages import Ping
from semel.websocket import CloseCode

KEY, ACKS = session_key(HUB, "alice"), acks_key(HUB, "alice")


class Scene:
    def __init__(self) -> None:
        self.bench = Bench(is_shared=True)
        self.bench.tail.on_messages = self.bench.tail.listener = Mock()
        self.roster, self.elsewhere, self.arrivals = Here(), Roster[Elsewhere](), Arrivals()
        self.floors, self.sessions = Mock(spec=Floors), Mock(spec=Sessions)
        self.closing, self.clients = Mock(spec=Closing), Mock(spec=Clients)
        self.floors.expect.return_value = Put("floor", b"")
        self.sessions.open_record.return_value = append("open", "c/alice")
        self.sessions.take_in.side_effect = lambda taken, now: self.roster.add(taken)
        self.take_over = TakeOver(
            self.bench.context, Outgoing(self.bench.context), self.bench.tail, self.roster, self.elsewhere,
            self.arrivals, self.floors, Mock(spec=Spills), self.sessions, self.closing, self.clients,
        )  # fmt: skip
        self.decided: list[bool] = []

    def load(self, each: Session | None = None) -> None:
        """The store answers with the rows of the session."""
        each = each or self.stored()
        row, acks = each.put_row(HUB, each.row()), each.put_acks(HUB)
        self.bench.load(KEY, row.value, 5)
        self.bench.load(ACKS, acks.value, 6)

    @staticmethod
    def stored(node: str = "dead") -> Session:
        found = session(is_reliable=True)
        found.node = node
        return found

    def closed(self) -> list[tuple[str, CloseCode, str]]:
        sent = self.bench.sent()
        return [(peer, each.code, each.reason) for peer, each in sent if isinstance(each, ClosePeer)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_session_is_written_with_our_name_under_the_versions_that_were_read(scene: Scene) -> None:
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    scene.load()
    puts = {op.key: op for op in scene.bench.ops() if isinstance(op, Put)}
    assert (puts[KEY].expected, puts[ACKS].expected) == (5, 6)
    assert puts[KEY].value is not None
    assert read_session(puts[KEY].value).node == "node"
    assert "floor" in puts
    assert len(scene.arrivals) == 1
    scene.bench.complete()
    taken = scene.roster.sessions["alice"]
    assert (scene.decided, taken.opened, taken.backlog.sent) == ([True], 1, 1)
    assert (len(scene.arrivals), len(scene.take_over)) == (0, 0)


def test_one_that_another_node_has_by_now_is_left_to_it(scene: Scene) -> None:
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    scene.load(scene.stored("living"))
    assert (scene.bench.commits(), scene.decided) == ([], [True])


def test_one_that_is_here_is_not_taken(scene: Scene) -> None:
    scene.roster.add(live())
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    assert (scene.bench.effects, scene.decided) == ([], [True])


def test_one_that_is_on_its_way_is_not_decided(scene: Scene) -> None:
    scene.take_over.take_from("dead", "alice", lambda is_decided: None)
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    assert scene.decided == [False]


def test_rows_that_have_changed_are_read_again_but_not_for_ever(scene: Scene) -> None:
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    for _ in range(TRIES):
        assert scene.decided == []
        scene.load()
        scene.bench.fail(conflict=True)
    assert scene.decided == [False]
    assert scene.bench.notes() == ["take-over"]


def test_a_commit_of_which_nobody_knows_whether_it_was_made_loads_the_hub_again(scene: Scene) -> None:
    reasons: list[str] = []
    scene.bench.context.on_restart = (reasons.append,)
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    scene.load()
    [commit] = scene.bench.commits()
    scene.bench.context.commit_failed(CommitUnknown(commit.token), NOW)
    assert reasons == ["the store did not answer"]


def test_a_store_that_cannot_be_read_leaves_it_undecided(scene: Scene) -> None:
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    scene.bench.context.loaded(LoadFailed(KEY, StoreUnavailable("away")), NOW)
    assert (scene.decided, scene.bench.notes()) == ([False], ["take-over"])


def test_the_client_gets_what_it_asked_meanwhile_done(scene: Scene) -> None:
    asked = ResumeSession("alice", "token")
    scene.take_over.resume(asked, "socket")
    assert scene.take_over.hold("socket", [Ping()])
    scene.load(scene.stored("living"))
    scene.bench.complete()
    taken = scene.roster.sessions["alice"]
    scene.sessions.resume.assert_called_once_with(taken, "socket", asked, NOW)
    scene.clients.handle.assert_called_once_with(taken, [Ping()], NOW)


def test_a_client_without_a_session_is_turned_away(scene: Scene) -> None:
    scene.take_over.resume(ResumeSession("alice"), "socket")
    scene.bench.load(KEY, None)
    assert scene.closed() == [("socket", CloseCode.POLICY, "there is no such session any more")]
    assert not scene.take_over.hold("socket", [Ping()])


def test_a_second_socket_replaces_the_first(scene: Scene) -> None:
    scene.take_over.resume(ResumeSession("alice"), "first")
    scene.take_over.resume(ResumeSession("alice"), "second")
    assert scene.closed() == [("first", CloseCode.GOING_AWAY, "another socket has taken over")]


def test_a_client_that_asks_for_too_much_may_come_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "HELD_MAX", 2)
    scene.take_over.resume(ResumeSession("alice"), "socket")
    assert scene.take_over.hold("socket", [Ping()] * 3)
    assert scene.closed() == [("socket", CloseCode.INTERNAL, "the session is not here yet")]


def test_a_socket_that_closes_meanwhile_is_not_attached(scene: Scene) -> None:
    scene.take_over.resume(ResumeSession("alice"), "socket")
    scene.take_over.socket_closed("socket")
    scene.load()
    scene.bench.complete()
    assert "alice" in scene.roster.sessions
    scene.sessions.resume.assert_not_called()


def test_one_that_cannot_be_resumed_is_ended_before_that_is_decided(scene: Scene) -> None:
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    plain = session(is_reliable=False)
    plain.node = "dead"
    scene.load(plain)
    then = scene.closing.close.call_args.args[-1]
    assert scene.decided == []
    then(CommitFailed(1))
    assert scene.decided == [False]


def test_one_that_another_node_took_before_we_heard_of_our_commit_is_not_ours(scene: Scene) -> None:
    scene.take_over.take_from("dead", "alice", scene.decided.append)
    scene.load()
    scene.elsewhere.add(Elsewhere("alice", None, "third", {}))
    scene.bench.tail.offset = 9
    scene.bench.complete()
    assert (scene.decided, len(scene.roster)) == ([False], 0)
