from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import HUB, NOW, Bench, live

from semel.kernel.ops import Append, Put
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import SessionCommits
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.session_rows import read_session, session_key
from semel.pubsub.protocol.messages import Ack, ErrorName, JoinGroup, LeaveGroup
from semel.pubsub.protocol.permissions import Permissions


class Scene:
    def __init__(self) -> None:
        self.bench = Bench()
        self.bench.tail.on_messages = self.bench.tail.listener = Mock()
        self.events = Mock(spec=Events)
        self.events.on_join.return_value = self.events.on_leave.return_value = []
        commits = SessionCommits(self.bench.context, self.bench.tail)
        commits.on_refused = Mock()
        self.outgoing = Mock(spec=Outgoing)
        acks = ClientAcks(self.bench.context, self.outgoing)
        self.groups = Groups(self.bench.context, self.bench.tail, commits, acks, self.events)
        self.alice = live(groups=["old"])
        self.rows: list[Put] = []
        self.failures: list[Failure] = []

    def change(self, group: str, kind: RecordKind) -> None:
        self.groups.change(self.alice, group, kind, NOW, self.rows.extend, self.failures.append)

    def ask(self, request: JoinGroup | LeaveGroup) -> None:
        kind = RecordKind.JOIN if isinstance(request, JoinGroup) else RecordKind.LEAVE
        self.groups.ask(self.alice, request, kind, NOW)

    def answers(self) -> list[tuple[int, object]]:
        sent = [call.args[1] for call in self.outgoing.send.call_args_list]
        return [(each.ack_id, each.error.name if each.error else None) for each in sent if isinstance(each, Ack)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_join_is_a_record_and_then_a_row_with_its_offset(scene: Scene) -> None:
    scene.change("g", RecordKind.JOIN)
    record, row = scene.bench.ops()
    assert isinstance(record, Append)
    assert isinstance(row, Put)
    assert (record.kind, record.target) == (RecordKind.JOIN, "g/g")
    assert row.value is not None
    assert read_session(row.value).groups == {"old": 0}, "nobody was promised anything yet"
    assert scene.rows == []
    scene.bench.complete()
    [second] = scene.rows
    assert second.key == session_key(HUB, "alice")
    assert second.value is not None
    assert read_session(second.value).groups == {"old": 0, "g": 1}
    scene.events.claim_next.assert_called_once_with("alice")


def test_a_leave_ends_the_stay(scene: Scene) -> None:
    scene.change("old", RecordKind.LEAVE)
    assert not scene.alice.memberships.is_settled("old", True)
    scene.bench.complete()
    assert scene.alice.memberships.is_settled("old", False)


def test_what_the_store_did_not_take_has_not_happened(scene: Scene) -> None:
    scene.change("g", RecordKind.JOIN)
    scene.bench.fail()
    assert (len(scene.failures), scene.rows) == (1, [])
    assert scene.alice.memberships.is_settled("g", False)
    assert scene.alice.versions.owes_row


# -- what clients ask


def test_a_join_is_not_claimed_before_it_is_decided(scene: Scene) -> None:
    scene.ask(JoinGroup("g", 2))
    assert scene.alice.acks.waiting == {2: 0}
    scene.bench.complete()
    assert 2 in scene.alice.acks.claimed, "with the row that says from where on it holds"
    scene.outgoing.send_acks.assert_not_called()
    scene.outgoing.send.assert_not_called()
    scene.bench.complete()
    assert 2 in scene.alice.acks.taken
    assert scene.answers() == [(2, None)]


def test_a_join_that_the_store_did_not_take_may_be_asked_for_again(scene: Scene) -> None:
    scene.ask(JoinGroup("g", 2))
    scene.bench.fail()
    assert scene.answers() == [(2, ErrorName.INTERNAL)]
    assert not scene.alice.acks.is_known(2)


def test_a_join_that_changes_nothing_is_answered_when_its_ack_id_is_durable(scene: Scene) -> None:
    scene.ask(JoinGroup("old", 2))
    scene.events.on_join.assert_not_called()
    scene.outgoing.send_acks.assert_not_called()
    scene.bench.complete()
    scene.outgoing.send_acks.assert_called_once_with(scene.alice, [2])


def test_a_join_that_changes_nothing_and_wants_no_answer_writes_only_what_is_owed(scene: Scene) -> None:
    scene.ask(JoinGroup("old"))
    assert scene.bench.commits() == []
    scene.alice.versions.owes_row = True
    scene.ask(JoinGroup("old"))
    assert len(scene.bench.commits()) == 1


def test_who_may_not_join_or_leave_is_told(scene: Scene) -> None:
    scene.alice.permit(Permissions.of_roles(()))
    scene.ask(JoinGroup("g", 1))
    scene.ask(LeaveGroup("old", 2))
    assert scene.answers() == [(1, ErrorName.FORBIDDEN), (2, ErrorName.FORBIDDEN)]
