from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench, append, live

from semel.pubsub.events.queue import Events
from semel.pubsub.hub.clients import Clients, Publishing
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.session import Session, StagedPublishes
from semel.pubsub.hub.streams import Streams
from semel.pubsub.protocol.messages import (
    Data,
    DataType,
    JoinGroup,
    LeaveGroup,
    Ping,
    Pong,
    SendEvent,
    SendToGroup,
    SequenceAck,
)

TEXT = Data(DataType.TEXT, b"x")


class Scene:
    def __init__(self) -> None:
        self.bench, self.alice = Bench(), live(groups=["g"])
        context = self.bench.context
        self.outgoing = Mock(spec=Outgoing)
        self.publishing, self.delivery, self.groups = Mock(spec=Publishing), Mock(spec=Delivery), Mock(spec=Groups)
        self.events, self.acks = Mock(spec=Events), ClientAcks(context, self.outgoing)
        self.clients = Clients(
            self.outgoing, self.acks, self.publishing, self.delivery, self.groups, Mock(spec=Streams),
            Mock(spec=GroupStates), self.events,
        )  # fmt: skip

    def handle(self, *requests: object) -> None:
        self.clients.handle(self.alice, requests, NOW)  # type: ignore[arg-type]


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
    scene.groups.ask.side_effect = lambda *asked: order.append("change")
    scene.handle(JoinGroup("h", 2))
    assert order == ["commit", "change"]


def test_after_its_socket_was_closed_a_client_is_not_served(scene: Scene) -> None:
    scene.alice.detach()
    scene.handle(SequenceAck(7))
    scene.delivery.acknowledge.assert_not_called()


def test_joins_and_leaves_are_for_the_groups(scene: Scene) -> None:
    join, leave = JoinGroup("h", 2), LeaveGroup("g", 3)
    scene.handle(join, leave)
    asked = [call.args[:3] for call in scene.groups.ask.call_args_list]
    assert asked == [(scene.alice, join, RecordKind.JOIN), (scene.alice, leave, RecordKind.LEAVE)]


def test_an_event_that_was_sent_before_is_not_sent_again(scene: Scene) -> None:
    scene.alice.acks.wait_for(1)
    scene.handle(SendEvent("e", TEXT, 1), SendEvent("e", TEXT, 2))
    assert [call.args[1].ack_id for call in scene.events.send.call_args_list] == [2]
