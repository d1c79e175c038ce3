from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import HUB, NOW, Bench, live, run, session

from semel.errors import StoreError
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Put
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.closing import BEHIND_S, Closing, SessionEvents
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.endings import CatchingUp, Endings
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.roster import Arrivals, Here, UnreadableSessions
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionChange, SessionPhase
from semel.pubsub.hub.session_rows import acks_key, session_key
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.hub.streams import Streams
from semel.websocket import CloseCode

RECOVERY_S = 90.0


class Scene:
    def __init__(self) -> None:
        self.bench = Bench(recovery_s=RECOVERY_S)
        self.bench.tail.on_messages = self.bench.tail.listener = Mock()
        self.outgoing, self.roster = Outgoing(self.bench.context), Here()
        self.arrivals, self.endings, self.behind = Arrivals(), Endings(), CatchingUp()
        self.left_out, self.acks = UnreadableSessions(self.bench.context), Mock(spec=AckFlush)
        streams = Mock(spec=Streams)
        streams.cancel.return_value = []
        self.closing = Closing(
            self.bench.context, self.outgoing, self.bench.tail, self.roster, self.arrivals, self.endings,
            self.left_out, self.behind, self.acks, streams,
        )  # fmt: skip
        self.events = self.closing.events = Mock(spec=SessionEvents)
        self.events.on_close.return_value = []
        self.closing.on_missing = self.missing = Mock()
        self.answers: list[Failure | None] = []

    def add(self, each: Session) -> Session:
        self.roster.add(each)
        if each.peer is not None:
            self.outgoing.sockets[each.peer] = each
        return each

    def close(self, each: Session) -> None:
        self.closing.close(each, Kind.CANCELLED, "enough", NOW, self.answers.append)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_an_end_deletes_the_rows_and_tells_the_ledger_what_is_left(scene: Scene) -> None:
    alice = scene.add(live())
    alice.backlog.push(run(1, 3))
    alice.backlog.acknowledge(1)
    scene.close(alice)
    appends = [op for op in scene.bench.ops() if isinstance(op, Append)]
    assert [each.kind for each in appends] == [RecordKind.CLOSE]
    deleted = {op.key for op in scene.bench.ops() if isinstance(op, Put) and op.value is None}
    assert deleted == {session_key(HUB, "alice"), acks_key(HUB, "alice")}
    assert scene.bench.logged() == [("confirmed", 1, 1, 1), ("cancelled", 2, 3, 2)]
    assert (len(scene.roster), scene.answers) == (0, [])
    scene.bench.complete()
    assert (scene.answers, alice.phase, len(scene.endings)) == ([None], SessionPhase.GONE, 0)
    assert scene.bench.context.counts.discarded == 2


def test_an_end_that_the_store_did_not_take_is_tried_again(scene: Scene) -> None:
    alice = scene.add(live())
    scene.close(alice)
    scene.bench.fail()
    assert [each is not None for each in scene.answers] == [True]
    assert (alice.phase, len(scene.endings)) == (SessionPhase.ENDING, 1)
    scene.closing.try_again(NOW)
    scene.bench.complete()
    assert (alice.phase, len(scene.endings)) == (SessionPhase.GONE, 0)


def test_one_that_somebody_else_has_ended_is_ended(scene: Scene) -> None:
    scene.close(scene.add(live()))
    scene.bench.fail(conflict=True, version=0)
    assert scene.answers == [None]
    scene.missing.assert_not_called()


def test_one_that_another_node_has_is_not_ours_to_end(scene: Scene) -> None:
    alice = scene.add(live())
    scene.close(alice)
    scene.bench.fail(conflict=True)
    assert [each is not None for each in scene.answers] == [True]
    scene.missing.assert_called_once_with(alice, NOW)
    assert len(scene.endings) == 0


def test_one_that_the_stream_gives_to_another_node_is_not_looked_for(scene: Scene) -> None:
    scene.close(scene.add(live()))
    scene.endings.mark_taken("alice", 7)
    scene.bench.fail(conflict=True)
    scene.missing.assert_not_called()


def test_whoever_asks_meanwhile_is_answered_with_the_others(scene: Scene) -> None:
    alice = scene.add(live())
    scene.close(alice)
    scene.closing.when_ended(alice, NOW, scene.answers.append)
    scene.bench.complete()
    assert scene.answers == [None, None]


def test_the_end_of_one_that_opens_waits_until_that_is_decided(scene: Scene) -> None:
    alice = session()
    alice.change(SessionChange.OPEN)
    scene.add(alice)
    scene.arrivals.begin(alice)
    scene.close(alice)
    assert (alice.phase, scene.bench.commits()) == (SessionPhase.ENDING_UNOPENED, [])
    alice.change(SessionChange.OPENED)
    scene.arrivals.decided(alice, NOW)
    assert len(scene.bench.commits()) == 1


def test_one_that_never_came_into_the_store_ends_without_a_commit(scene: Scene) -> None:
    alice = session()
    alice.versions.row_stored = 0
    scene.close(scene.add(alice))
    assert (scene.bench.commits(), scene.answers) == ([], [None])


def test_the_end_of_one_that_is_behind_waits_for_what_it_has_missed(scene: Scene) -> None:
    alice = session()
    alice.change(SessionChange.FALL_BEHIND)
    scene.close(scene.add(alice))
    assert (alice in scene.behind, scene.bench.commits()) == (True, [])
    alice.change(SessionChange.CAUGHT_UP)
    end = scene.behind.take(alice)
    assert end is not None
    end(NOW)
    assert len(scene.bench.commits()) == 1


def test_what_comes_in_after_the_end_is_not_owed(scene: Scene) -> None:
    alice = scene.add(live())
    scene.bench.tail.offset = 7
    scene.close(alice)
    scene.bench.tail.offset = 9
    scene.bench.fail()
    scene.closing.try_again(NOW)
    assert alice.end == 7


def test_a_client_that_does_not_come_back_loses_its_session(scene: Scene) -> None:
    alice = scene.add(live(peer=""))
    scene.closing.drop(alice, NOW)
    assert scene.closing.next_deadline() == NOW + RECOVERY_S
    scene.closing.on_timer(NOW + RECOVERY_S)
    assert alice.phase is SessionPhase.ENDING


def test_a_client_that_came_back_keeps_it(scene: Scene) -> None:
    alice = scene.add(live(peer=""))
    scene.closing.drop(alice, NOW)
    alice.attach("socket", in_order=False)
    scene.closing.on_timer(NOW + RECOVERY_S)
    assert alice.phase is SessionPhase.LIVE


def test_the_time_of_a_session_that_is_behind_is_not_over(scene: Scene) -> None:
    alice = session()
    alice.change(SessionChange.FALL_BEHIND)
    scene.closing.drop(scene.add(alice), NOW)
    scene.closing.on_timer(NOW + RECOVERY_S)
    assert alice.phase is SessionPhase.BEHIND
    assert scene.closing.next_deadline() == NOW + RECOVERY_S + BEHIND_S


def test_a_session_that_another_node_has_is_released_without_a_write(scene: Scene) -> None:
    alice = scene.add(live())
    scene.closing.release(alice)
    assert (len(scene.roster), scene.bench.commits(), alice.phase) == (0, [], SessionPhase.GONE)
    assert scene.bench.sent() == [
        ("socket of alice", ClosePeer(CloseCode.INTERNAL, "the session is not here any more"))
    ]
    scene.events.release.assert_called_once_with("alice")


def test_a_session_that_is_left_out_keeps_its_part_of_the_stream(scene: Scene) -> None:
    alice = session(since=3)
    alice.change(SessionChange.FALL_BEHIND)
    scene.closing.leave_out(scene.add(alice), StoreError("too new", fix="take a newer Semel"))
    assert list(scene.left_out.floors()) == [3]
    assert scene.bench.notes() == ["session-unreadable"]
