from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench, append, live

from semel.pubsub.events.queue import Events
from semel.pubsub.hub.client_acks import ClientAcks
from semel.pubsub.hub.clients import Clients
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.publishing import Publishing
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.session import Session, StagedPublishes
from semel.pubsub.hub.session_commits import SessionCommits
from semel.pubsub.hub.streams import Streams
from semel.pubsub.protocol.messages import (
    Ack,
    Data,
    DataType,
    ErrorName,
    JoinGroup,
    LeaveGroup,
    Ping,
    Pong,
    SendEvent,
    SendToGroup,
    SequenceAck,
)
from semel.pubsub.protocol.permissions import Permissions

TEXT = Data(DataType.TEXT, b"x")


class Scene:
    def __init__(self) -> None:
        self.bench, self.alice = Bench(), live(groups=["g"])
        context = self.bench.context
        self.outgoing, self.commits = Mock(spec=Outgoing), SessionCommits(context, self.bench.tail)
        self.publishing, self.delivery, self.groups = Mock(spec=Publishing), Mock(spec=Delivery), Mock(spec=Groups)
        self.events, self.acks = Mock(spec=Events), ClientAcks(context, self.outgoing)
        self.clients = Clients(
            context, self.outgoing, self.bench.tail, self.commits, self.acks, self.publishing, self.delivery,
            self.groups, Mock(spec=Streams), Mock(spec=GroupStates), self.events,
        )  # fmt: skip

    def handle(self, *requests: object) -> None:
        self.clients.handle(self.alice, requests, NOW)  # type: ignore[arg-type]

    def answers(self) -> list[tuple[int, object]]:
        sent = [call.args[1] for call in self.outgoing.send.call_args_list]
        return [(each.ack_id, each.error.name if each.error else None) for each in sent if isinstance(each, Ack)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_messages_in_a_row_are_published_together(scene: Scene) -> None:
    handed: list[int] = []
    scene.publishing.publish.side_effect = lambda session, requests, now: handed.append(len(list(requests)))
    scene.handle(SendToGroup("g", TEXT, 1), SendToGroup("g", TEXT, 2), Ping(), SendToGroup("g", TEXT, 3))
    assert handed == [2, 1]
    scene.outgoing.send.assert_called_once_with(scene.alice, Pong())


def test_an_ack_commits_nothing_by_itself(scene: Scene) -> None:
    scene.handle(SequenceAck(7))
    scene.delivery.acknowledge.assert_called_once_with(scene.alice, 7, NOW)
    scene.publishing.commit_staged.assert_not_called()


def test_all_that_came_together_is_committed_together(scene: Scene) -> None:
    scene.publishing.publish.side_effect = lambda session, requests, now: session.staged.add(append("m"), 1)
    scene.handle(SendToGroup("g", TEXT, 1), SequenceAck(7), SendToGroup("g", TEXT, 2))
    scene.publishing.commit_staged.assert_called_once_with(scene.alice)
    assert len(scene.alice.staged.appends) == 2


def test_what_was_published_before_a_change_is_committed_before_it(scene: Scene) -> None:
    scene.alice.staged.add(append("m"), 1)
    order: list[str] = []

    def commit(session: Session) -> None:
        session.staged = StagedPublishes()
        order.append("commit")

    scene.publishing.commit_staged.side_effect = commit
    scene.groups.change.side_effect = lambda *change: order.append("change")
    scene.handle(JoinGroup("h", 2))
    assert order == ["commit", "change"]


def test_after_its_socket_was_closed_a_client_is_not_served(scene: Scene) -> None:
    scene.alice.detach()
    scene.handle(SequenceAck(7))
    scene.delivery.acknowledge.assert_not_called()


def test_a_join_is_not_claimed_before_it_is_decided(scene: Scene) -> None:
    scene.handle(JoinGroup("h", 2))
    assert scene.groups.change.call_args.args[:3] == (scene.alice, "h", RecordKind.JOIN)
    assert scene.alice.acks.waiting == {2: 0}
    assert 2 not in scene.alice.acks.claimed
    scene.groups.change.call_args.args[4]([])
    scene.bench.complete()
    assert 2 in scene.alice.acks.taken


def test_a_join_that_changes_nothing_is_answered_when_its_ack_id_is_durable(scene: Scene) -> None:
    scene.handle(JoinGroup("g", 2))
    scene.groups.change.assert_not_called()
    scene.outgoing.send_acks.assert_not_called()
    scene.bench.complete()
    scene.outgoing.send_acks.assert_called_once_with(scene.alice, [2])


def test_a_join_that_changes_nothing_and_wants_no_answer_writes_only_what_is_owed(scene: Scene) -> None:
    scene.handle(JoinGroup("g"))
    assert scene.bench.commits() == []
    scene.alice.versions.owes_row = True
    scene.handle(JoinGroup("g"))
    assert len(scene.bench.commits()) == 1


def test_who_may_not_join_or_leave_is_told(scene: Scene) -> None:
    scene.alice.permit(Permissions.of_roles(()))
    scene.handle(JoinGroup("h", 1), LeaveGroup("g", 2))
    assert scene.answers() == [(1, ErrorName.FORBIDDEN), (2, ErrorName.FORBIDDEN)]


def test_an_event_that_was_sent_before_is_not_sent_again(scene: Scene) -> None:
    scene.alice.acks.wait_for(1)
    scene.handle(SendEvent("e", TEXT, 1), SendEvent("e", TEXT, 2))
    assert [call.args[1].ack_id for call in scene.events.send.call_args_list] == [2]
