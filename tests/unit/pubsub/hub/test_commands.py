from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench, live, session

from semel.kernel.effects import CommitFailed
from semel.kernel.ledger import Kind
from semel.kernel.ops import Conflict
from semel.pubsub.hub.answers import DONE, NOT_FOUND
from semel.pubsub.hub.calls import Answer, CloseConnections, Connection, Everybody, Grant, Group, JoinMembers, Outcome
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.commands import Command, Commands, Scope, find_durable, scope_at
from semel.pubsub.hub.context import SessionCommits
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.roster import SOMEWHERE, Arrivals, Elsewhere, Here, Roster
from semel.pubsub.hub.session_phase import SessionChange
from semel.pubsub.protocol.permissions import Permission, Permissions

CLOSE = CloseConnections(Group("g"))


class Scene:
    def __init__(self) -> None:
        self.bench = Bench()
        self.roster, self.elsewhere, self.arrivals, self.endings = Here(), Roster[Elsewhere](), Arrivals(), Endings()
        self.closing, self.groups = Mock(spec=Closing), Mock(spec=Groups)
        context = self.bench.context
        commits = SessionCommits(context, self.bench.tail)
        commits.on_refused = Mock()
        self.commands = Commands(
            context, Outgoing(context), self.bench.tail, self.roster, self.elsewhere, self.arrivals, self.endings,
            self.closing, commits, self.groups,
        )  # fmt: skip
        self.answers: list[tuple[Answer, set[str]]] = []

    def do(self, command: Command, scope: Scope | None = None) -> None:
        then = lambda answer, moved: self.answers.append((answer, set(moved)))  # noqa: E731
        self.commands.carry_out(command, scope or Scope(), NOW, then)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_answer_comes_when_all_have_ended(scene: Scene) -> None:
    for name in ("alice", "bob"):
        scene.roster.add(live(name, groups=["g"]))
    scene.do(CLOSE)
    first, second = (call.args[4] for call in scene.closing.close.call_args_list)
    first(None)
    assert scene.answers == []
    second(None)
    assert scene.answers == [(DONE, set())]


def test_one_that_another_node_has_by_now_has_to_be_ordered_for_again(scene: Scene) -> None:
    scene.roster.add(live("alice", groups=["g"]))
    scene.do(CLOSE)
    scene.closing.close.call_args.args[4](CommitFailed(1, (Conflict(3),)))
    assert scene.answers == [(NOT_FOUND, {"alice"})]


def test_one_of_which_nobody_knows_where_it_is_has_moved(scene: Scene) -> None:
    scene.elsewhere.add(Elsewhere("alice", None, SOMEWHERE, {"g": 1}))
    scene.elsewhere.add(Elsewhere("bob", None, "two", {"g": 1}))
    scene.do(CLOSE)
    assert scene.answers == [(DONE, {"alice"})]


def test_an_end_that_is_not_durable_is_waited_for(scene: Scene) -> None:
    scene.endings.begin(alice := live("alice", groups=["g"]), Kind.CANCELLED, "", None)
    scene.do(CLOSE)
    assert scene.answers == []
    assert scene.closing.when_ended.call_args.args[0] is alice
    scene.closing.when_ended.call_args.args[2](None)
    assert scene.answers[0][0].outcome is Outcome.DONE


def test_one_that_arrives_is_served_when_it_is_there(scene: Scene) -> None:
    alice = session("alice", groups=["g"])
    alice.change(SessionChange.OPEN)
    scene.arrivals.begin(alice)
    scene.roster.add(alice)
    scene.do(CLOSE)
    scene.closing.close.assert_not_called()
    alice.change(SessionChange.OPENED)
    scene.arrivals.decided(alice, NOW)
    assert scene.closing.close.call_args.args[0] is alice


def test_only_those_that_were_there_before_the_order(scene: Scene) -> None:
    for name, at in (("early", 4), ("late", 9), ("unknown", None)):
        scene.roster.add(found := live(name, groups=["g"]))
        found.present_at = at
    scene.do(CLOSE, scope_at(CLOSE, 9, None))
    assert [call.args[0].id for call in scene.closing.close.call_args_list] == ["early"]


def test_a_connection_that_is_named_is_meant_whenever_it_comes() -> None:
    assert scope_at(CloseConnections(Connection("alice")), 9, None) == Scope()
    assert scope_at(CLOSE, 9, frozenset({"alice"})) == Scope(9, frozenset({"alice"}))


def test_permissions_count_at_once_and_are_taken_back_if_the_store_does_not_take_them(scene: Scene) -> None:
    scene.roster.add(alice := live("alice", permissions=Permissions.of_roles(())))
    scene.do(Grant("alice", Permission.SEND_TO_GROUP))
    assert alice.may(Permission.SEND_TO_GROUP, "g")
    assert (scene.answers, len(scene.commands)) == ([], 1)
    scene.bench.fail()
    assert not alice.may(Permission.SEND_TO_GROUP, "g")
    assert (scene.answers[0][0].outcome, len(scene.commands)) == (Outcome.FAILED, 0)


def test_of_two_changes_the_first_holds_if_the_second_fails(scene: Scene) -> None:
    scene.roster.add(alice := live("alice", permissions=Permissions.of_roles(())))
    scene.do(Grant("alice", Permission.SEND_TO_GROUP, "g"))
    first = scene.bench.commits()
    scene.do(Grant("alice", Permission.SEND_TO_GROUP, "h"))
    scene.bench.effects[:] = first
    scene.bench.complete()
    assert alice.may(Permission.SEND_TO_GROUP, "h")
    assert len(scene.commands) == 1


def test_a_join_for_nobody_is_not_found_unless_all_are_meant(scene: Scene) -> None:
    scene.do(JoinMembers(Connection("alice"), ("g",)))
    scene.do(JoinMembers(Everybody(), ("g",)))
    assert [answer for answer, _ in scene.answers] == [NOT_FOUND, DONE]


def test_a_session_that_opens_is_not_found_yet(scene: Scene) -> None:
    alice = session("alice")
    alice.change(SessionChange.OPEN)
    scene.roster.add(alice)
    assert find_durable(scene.roster, Everybody()) == []
    alice.change(SessionChange.OPENED)
    assert find_durable(scene.roster, Everybody()) == [alice]
