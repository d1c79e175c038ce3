from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, STREAM, Bench, live

from semel.kernel.effects import Committed
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX
from semel.kernel.ops import Advanced, Append, Duplicate, Fresh, PutBlob, Result
from semel.kernel.position import Position
from semel.pubsub.hub.clients import Publishing
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.context import SessionCommits
from semel.pubsub.hub.in_order import REFUSED
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.streams import Streams
from semel.pubsub.protocol.messages import Ack, Data, DataType, ErrorName, SendToGroup
from semel.pubsub.protocol.permissions import Permissions
from semel.websocket import CloseCode


def send(ack_id: int | None = 1, group: str = "g", body: bytes = b"x", **fields: object) -> SendToGroup:
    return SendToGroup(group, Data(DataType.TEXT, body), ack_id, **fields)  # type: ignore[arg-type]


class Scene:
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
def scene() -> Scene:
    return Scene()


def test_all_that_comes_in_one_event_is_one_commit_and_one_row(scene: Scene) -> None:
    scene.publish(send(1), send(2), send(3, "h"))
    [commit] = scene.bench.commits()
    assert len(commit.ops) == 4
    assert scene.ids() == ["alice#1", "alice#2", "alice#3"]
    scene.bench.complete()
    scene.outgoing.send_acks.assert_called_once_with(scene.alice, [1, 2, 3])
    assert scene.bench.context.counts.accepted == 3


def test_no_ack_before_the_commit_is_done(scene: Scene) -> None:
    scene.publish(send(1))
    scene.outgoing.send_acks.assert_not_called()
    scene.outgoing.send.assert_not_called()


def test_the_same_ack_id_is_published_once(scene: Scene) -> None:
    scene.publish(send(1), send(1))
    assert scene.ids() == ["alice#1"]
    scene.bench.complete()
    assert scene.answers() == [(1, None), (1, ErrorName.DUPLICATE)]


def test_what_failed_may_be_sent_again_under_the_same_ack_id(scene: Scene) -> None:
    scene.publish(send(1))
    scene.bench.fail()
    assert scene.answers() == [(1, ErrorName.INTERNAL)]
    scene.publish(send(1))
    assert scene.ids() == ["alice#1"]


def test_behind_a_failure_nothing_overtakes(scene: Scene) -> None:
    scene.alice.attach("socket", in_order=True)
    scene.publish(send(1))
    scene.bench.fail()
    scene.publish(send(2))
    assert scene.bench.commits() == []
    assert scene.outgoing.send.call_args.args[1] == Ack(2, REFUSED)
    scene.publish(send(1), send(2))
    assert scene.ids() == ["alice#1", "alice#2"]


def test_who_may_not_send_is_told(scene: Scene) -> None:
    scene.alice.permit(Permissions.of_roles(()))
    scene.publish(send(1))
    assert (scene.answers(), scene.bench.commits()) == ([(1, ErrorName.FORBIDDEN)], [])


def test_a_simple_client_that_may_not_send_is_thrown_out() -> None:
    alice = live(permissions=Permissions.of_roles(()))
    alice.subprotocol = ""
    scene = Scene(alice)
    scene.publish(send(None))
    assert scene.closing.expel.call_args.args[:2] == (alice, CloseCode.POLICY)


def test_a_large_body_is_beside_the_row(scene: Scene) -> None:
    scene.publish(send(1, body=b"x" * (DATA_INLINE_BYTES_MAX + 1)))
    assert any(isinstance(op, PutBlob) for op in scene.bench.ops())
    assert scene.bench.tail.bodies == 1
    scene.bench.fail()
    assert scene.bench.tail.bodies == 0


def completed(scene: Scene, *results: Result) -> None:
    [commit] = scene.bench.commits()
    scene.bench.context.committed(Committed(commit.token, (*results, Advanced(version=2))), NOW)


def test_the_ack_id_of_a_message_with_its_own_id_is_claimed_when_that_is_decided(scene: Scene) -> None:
    scene.publish(send(1, metadata={MESSAGE_ID: "order-7"}))
    assert scene.ids() == ["order-7"]
    assert 1 not in scene.alice.acks.claimed
    completed(scene, Fresh(Position(STREAM, 1, 1)))
    assert 1 in scene.alice.acks.claimed
    assert scene.alice.acks.waiting == {}


@pytest.mark.parametrize(
    ("differs", "error", "is_claimed"), [(False, ErrorName.DUPLICATE, True), (True, ErrorName.CONFLICT, False)]
)
def test_an_id_that_was_used_before(scene: Scene, differs: bool, error: ErrorName, is_claimed: bool) -> None:
    scene.publish(send(1, metadata={MESSAGE_ID: "order-7"}))
    completed(scene, Duplicate(Position(STREAM, 1, 1), differs))
    assert scene.answers() == [(1, error)]
    assert (1 in scene.alice.acks.claimed) == is_claimed


def test_a_conflict_of_which_nobody_would_hear_is_reported(scene: Scene) -> None:
    scene.publish(send(None, metadata={MESSAGE_ID: "order-7"}))
    [commit] = scene.bench.commits()
    scene.bench.context.committed(Committed(commit.token, (Duplicate(Position(STREAM, 1, 1), True),)), NOW)
    assert scene.bench.notes() == ["id-conflict"]
