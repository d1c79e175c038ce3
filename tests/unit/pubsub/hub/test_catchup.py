from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, STREAM, Bench, session

from semel.errors import StoreError, StoreUnavailable
from semel.kernel.effects import Read, ReadDone, ReadFailed, ReadTrimmed
from semel.kernel.envelope import Envelope
from semel.kernel.position import Position
from semel.kernel.store import Record
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.catchup import LOST, CatchUp
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.endings import CatchingUp
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.roster import Here
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionPhase
from semel.pubsub.hub.session_rows import Spilled, SpillRow
from semel.pubsub.hub.spills import Spills


class Scene:
    def __init__(self) -> None:
        self.bench, self.roster, self.behind = Bench(), Here(), CatchingUp()
        self.spills, self.acks, self.closing = Mock(spec=Spills), Mock(spec=AckFlush), Mock(spec=Closing)
        context = self.bench.context
        delivery = Delivery(context, Outgoing(context), self.roster, self.acks, self.closing)
        self.catch_up = CatchUp(
            context, self.bench.tail, self.roster, self.behind, self.spills, self.acks, delivery, self.closing
        )

    def add(self, id: str, acked: int, until: int = 9) -> Session:
        found = session(id, groups=["g"], since=acked)
        self.roster.add(found)
        self.catch_up.add(found, until, NOW)
        return found

    def reads(self) -> list[int | None]:
        return [effect.after.offset if effect.after else None for effect in self.bench.effects
                if isinstance(effect, Read)]  # fmt: skip

    def answer(self, *offsets: int) -> None:
        [read] = [effect for effect in self.bench.effects if isinstance(effect, Read)]
        self.bench.effects.remove(read)
        records = [Record(Position(STREAM, 1, at), Envelope(f"m{at}"), 0, 0, "g/g", None, None) for at in offsets]
        self.bench.tail.receive_read(ReadDone(STREAM, tuple(records), read.after, read.limit), NOW)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_one_pass_is_for_all_that_are_behind(scene: Scene) -> None:
    alice, bob = scene.add("alice", 4), scene.add("bob", 6)
    scene.catch_up.continue_reading()
    assert scene.reads() == [4]
    scene.answer(5, 7, 8)
    assert [run.first for run in alice.backlog.queue] == [5, 7, 8]
    assert [run.first for run in bob.backlog.queue] == [7, 8]
    assert alice.phase is bob.phase is SessionPhase.LIVE


def test_who_falls_behind_during_a_pass_waits_for_the_next(scene: Scene) -> None:
    scene.add("alice", 4)
    scene.catch_up.continue_reading()
    bob = scene.add("bob", 6)
    scene.answer(5)
    assert (scene.reads(), bob.phase) == ([6], SessionPhase.BEHIND)


def test_what_comes_after_its_place_it_gets_by_itself(scene: Scene) -> None:
    alice = scene.add("alice", 4, until=6)
    scene.catch_up.continue_reading()
    scene.answer(5, 6, 7)
    assert [run.first for run in alice.backlog.queue] == [5, 6]


def test_a_session_that_another_node_has_by_now_is_left_out(scene: Scene) -> None:
    scene.roster.remove(scene.add("alice", 4))
    scene.catch_up.continue_reading()
    assert scene.reads() == []


def test_a_read_that_failed_is_tried_again_when_it_is_time(scene: Scene) -> None:
    scene.add("alice", 4)
    scene.catch_up.continue_reading()
    [read] = [effect for effect in scene.bench.effects if isinstance(effect, Read)]
    scene.bench.effects.clear()
    scene.bench.tail.receive_read(ReadFailed(STREAM, StoreUnavailable("away"), read.after, read.limit), NOW)
    scene.catch_up.continue_reading()
    assert scene.reads() == []
    scene.catch_up.try_again()
    assert scene.reads() == [4]


def test_what_was_trimmed_nobody_needed(scene: Scene) -> None:
    scene.add("alice", 4)
    scene.catch_up.continue_reading()
    [read] = [effect for effect in scene.bench.effects if isinstance(effect, Read)]
    scene.bench.effects.clear()
    trimmed = ReadTrimmed(STREAM, Position(STREAM, 1, 8), read.after, read.limit)
    scene.bench.tail.receive_read(trimmed, NOW)
    assert scene.reads() == [7]


def test_the_end_of_one_that_is_over_comes_after_what_it_missed(scene: Scene) -> None:
    alice = scene.add("alice", 4)
    scene.roster.remove(alice)
    ended: list[int] = []
    scene.behind.when_caught_up(alice, lambda now: ended.append(alice.backlog.count))
    scene.catch_up.continue_reading()
    scene.answer(5, 6)
    assert ended == [2]


def spilled(scene: Scene, found: Spilled) -> Session:
    alice = session("alice", groups=["g"])
    alice.spill.rows = alice.spill.stored = (SpillRow(1, 4),)
    scene.roster.add(alice)
    scene.catch_up.add(alice, 9, NOW)
    scene.spills.load.call_args.args[2](found, NOW)
    return alice


def test_copies_that_are_gone_end_the_session(scene: Scene) -> None:
    alice = spilled(scene, Spilled(missing=(SpillRow(1, 4),)))
    scene.closing.discard.assert_called_once_with(alice, LOST, NOW)
    assert (alice.spill.lost, scene.bench.notes()) == ((SpillRow(1, 4),), ["hub-body"])


def test_copies_that_only_a_newer_semel_can_read_are_left_to_it(scene: Scene) -> None:
    error = StoreError("too new")
    alice = spilled(scene, Spilled(unreadable=(SpillRow(1, 4),), error=error))
    scene.closing.leave_out.assert_called_once_with(alice, error)


def test_copies_of_a_session_that_has_gone_meanwhile_are_nothing_to_us(scene: Scene) -> None:
    alice = session("alice")
    alice.spill.rows = (SpillRow(1, 4),)
    scene.catch_up.add(alice, 9, NOW)
    scene.spills.load.call_args.args[2](Spilled(missing=(SpillRow(1, 4),)), NOW)
    scene.closing.discard.assert_not_called()
    scene.catch_up.continue_reading()
    assert scene.reads() == []
