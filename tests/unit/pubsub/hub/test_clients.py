from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, STREAM, Bench, append, live

from semel.kernel.effects import Committed
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX
from semel.kernel.ops import Advanced, Append, Duplicate, Fresh, PutBlob, Result
from semel.kernel.position import Position
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.clients import Clients, Publishing
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.context import SessionCommits
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.in_order import REFUSED
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing
from semel.pubsub.hub.records import MESSAGE_ID, RecordKind
from semel.pubsub.hub.session import Session, StagedPublishes
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
from semel.websocket import CloseCode

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


# -- publishing


def send(ack_id: int | None = 1, group: str = "g", body: bytes = b"x", **fields: object) -> SendToGroup:
    return SendToGroup(group, Data(DataType.TEXT, body), ack_id, **fields)  # type: ignore[arg-type]


class PublishingScene:
    def __init__(self, alice: Session | None = None) -> None:
        self.bench, self.alice = Bench(), alice or live()
        self.bench.tail.on_messages = self.bench.tail.listener = Mock()
        self.outgoing, self.closing = Mock(spec=Outgoing), Mock(spec=Closing)
        commits = SessionCommits(self.bench.context, self.bench.tail)
        acks = ClientAcks(self.bench.context, self.outgoing)
        self.publishing = Publishing(
            self.bench.context, self.bench.tail, commits, acks, Mock(spec=Streams), self.closing
        )

    def publish(self, *requests: SendToGroup) -> None:
        self.publishing.publish(self.alice, requests, NOW)
        if self.alice.staged.appends:
            self.publishing.commit_staged(self.alice)

    def ids(self) -> list[str]:
        return [op.envelope.id for op in self.bench.ops() if isinstance(op, Append)]

    def answers(self) -> list[tuple[int, object]]:
        sent = [call.args[1] for call in self.outgoing.send.call_args_list]
        return [(each.ack_id, each.error.name if each.error else None) for each in sent if isinstance(each, Ack)]


@pytest.fixture
def publishing() -> PublishingScene:
    return PublishingScene()


def test_all_that_comes_in_one_event_is_one_commit_and_one_row(publishing: PublishingScene) -> None:
    publishing.publish(send(1), send(2), send(3, "h"))
    [commit] = publishing.bench.commits()
    assert len(commit.ops) == 4
    assert publishing.ids() == ["alice#1", "alice#2", "alice#3"]
    publishing.bench.complete()
    publishing.outgoing.send_acks.assert_called_once_with(publishing.alice, [1, 2, 3])
    assert publishing.bench.context.counts.accepted == 3


def test_no_ack_before_the_commit_is_done(publishing: PublishingScene) -> None:
    publishing.publish(send(1))
    publishing.outgoing.send_acks.assert_not_called()
    publishing.outgoing.send.assert_not_called()


def test_the_same_ack_id_is_published_once(publishing: PublishingScene) -> None:
    publishing.publish(send(1), send(1))
    assert publishing.ids() == ["alice#1"]
    publishing.bench.complete()
    assert publishing.answers() == [(1, None), (1, ErrorName.DUPLICATE)]


def test_what_failed_may_be_sent_again_under_the_same_ack_id(publishing: PublishingScene) -> None:
    publishing.publish(send(1))
    publishing.bench.fail()
    assert publishing.answers() == [(1, ErrorName.INTERNAL)]
    publishing.publish(send(1))
    assert publishing.ids() == ["alice#1"]


def test_behind_a_failure_nothing_overtakes(publishing: PublishingScene) -> None:
    publishing.alice.attach("socket", in_order=True)
    publishing.publish(send(1))
    publishing.bench.fail()
    publishing.publish(send(2))
    assert publishing.bench.commits() == []
    assert publishing.outgoing.send.call_args.args[1] == Ack(2, REFUSED)
    publishing.publish(send(1), send(2))
    assert publishing.ids() == ["alice#1", "alice#2"]


def test_who_may_not_send_is_told(publishing: PublishingScene) -> None:
    publishing.alice.permit(Permissions.of_roles(()))
    publishing.publish(send(1))
    assert (publishing.answers(), publishing.bench.commits()) == ([(1, ErrorName.FORBIDDEN)], [])


def test_a_simple_client_that_may_not_send_is_thrown_out() -> None:
    alice = live(permissions=Permissions.of_roles(()))
    alice.subprotocol = ""
    publishing = PublishingScene(alice)
    publishing.publish(send(None))
    assert publishing.closing.expel.call_args.args[:2] == (alice, CloseCode.POLICY)


def test_a_large_body_is_beside_the_row(publishing: PublishingScene) -> None:
    publishing.publish(send(1, body=b"x" * (DATA_INLINE_BYTES_MAX + 1)))
    assert any(isinstance(op, PutBlob) for op in publishing.bench.ops())
    assert publishing.bench.tail.bodies == 1
    publishing.bench.fail()
    assert publishing.bench.tail.bodies == 0


def completed(publishing: PublishingScene, *results: Result) -> None:
    [commit] = publishing.bench.commits()
    publishing.bench.context.committed(Committed(commit.token, (*results, Advanced(version=2))), NOW)


def test_the_ack_id_of_a_message_with_its_own_id_is_claimed_when_that_is_decided(publishing: PublishingScene) -> None:
    publishing.publish(send(1, metadata={MESSAGE_ID: "order-7"}))
    assert publishing.ids() == ["order-7"]
    assert 1 not in publishing.alice.acks.claimed
    completed(publishing, Fresh(Position(STREAM, 1, 1)))
    assert 1 in publishing.alice.acks.claimed
    assert publishing.alice.acks.waiting == {}


@pytest.mark.parametrize(
    ("differs", "error", "is_claimed"), [(False, ErrorName.DUPLICATE, True), (True, ErrorName.CONFLICT, False)]
)
def test_an_id_that_was_used_before(
    publishing: PublishingScene, differs: bool, error: ErrorName, is_claimed: bool
) -> None:
    publishing.publish(send(1, metadata={MESSAGE_ID: "order-7"}))
    completed(publishing, Duplicate(Position(STREAM, 1, 1), differs))
    assert publishing.answers() == [(1, error)]
    assert (1 in publishing.alice.acks.claimed) == is_claimed


def test_a_conflict_of_which_nobody_would_hear_is_reported(publishing: PublishingScene) -> None:
    publishing.publish(send(None, metadata={MESSAGE_ID: "order-7"}))
    [commit] = publishing.bench.commits()
    publishing.bench.context.committed(Committed(commit.token, (Duplicate(Position(STREAM, 1, 1), True),)), NOW)
    assert publishing.bench.notes() == ["id-conflict"]
