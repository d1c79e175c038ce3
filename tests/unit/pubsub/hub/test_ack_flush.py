from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import HUB, NOW, Bench, live, run

from semel.kernel.ops import Put
from semel.pubsub.hub.ack_flush import FLUSH_S, AckFlush
from semel.pubsub.hub.context import SessionCommits
from semel.pubsub.hub.roster import Here
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_rows import SpillRow, acks_key, read_acks


class Flushing:
    def __init__(self) -> None:
        self.bench, self.roster = Bench(), Here()
        commits = SessionCommits(self.bench.context, self.bench.tail)
        commits.on_refused = Mock()
        self.flush = AckFlush(self.bench.context, commits, self.roster)
        self.alice = live("alice")
        self.roster.add(self.alice)
        self.alice.backlog.push(run(1, 4))

    def acknowledge(self, offset: int) -> Session:
        self.alice.backlog.acknowledge(offset)
        self.flush.add(self.alice)
        return self.alice


@pytest.fixture
def scene() -> Flushing:
    return Flushing()


def test_it_is_written_down_within_a_second(scene: Flushing) -> None:
    scene.acknowledge(2)
    scene.flush.plan(NOW)
    assert scene.flush.next_deadline() == NOW + FLUSH_S
    scene.flush.on_timer(NOW + 0.5)
    assert scene.bench.commits() == []
    scene.flush.on_timer(NOW + FLUSH_S)
    [put] = [op for op in scene.bench.ops() if isinstance(op, Put)]
    assert put.key == acks_key(HUB, "alice")
    assert put.value is not None
    assert read_acks(put.value).acked == 2
    assert scene.bench.logged() == [("confirmed", 1, 2, 2)]
    scene.bench.complete()
    assert (scene.alice.backlog.flushed, scene.bench.context.counts.acknowledged, len(scene.flush)) == (2, 2, 0)


def test_what_the_store_did_not_take_is_written_down_with_the_next(scene: Flushing) -> None:
    scene.flush.flush(scene.acknowledge(2))
    scene.bench.fail()
    assert len(scene.flush) == 1
    assert scene.bench.notes() == ["hub-flush"]
    scene.flush.flush(scene.acknowledge(3))
    assert scene.bench.logged() == [("confirmed", 1, 3, 3)]


def test_what_failed_for_a_session_that_ends_is_left_to_its_end(scene: Flushing) -> None:
    scene.flush.flush(scene.acknowledge(2))
    scene.roster.remove(scene.alice)
    scene.bench.fail()
    assert len(scene.flush) == 0
    assert scene.alice.backlog.confirmed is not None


def test_copies_of_what_is_acknowledged_are_deleted_with_it(scene: Flushing) -> None:
    scene.alice.spill.rows = scene.alice.spill.stored = (SpillRow(1, 2), SpillRow(3, 4))
    scene.flush.flush(scene.acknowledge(2))
    deleted = [op.key for op in scene.bench.ops() if isinstance(op, Put) and op.value is None]
    assert deleted == [f"hub/{HUB}/spill/alice/{1:016}/0000"]
    scene.bench.complete()
    assert scene.alice.spill.stored == (SpillRow(3, 4),)


def test_whoever_flushes_with_something_else_learns_whether_it_was_done(scene: Flushing) -> None:
    heard: list[bool] = []
    scene.flush.flush(scene.acknowledge(1), [Put("more", b"")], heard.append)
    scene.bench.complete()
    scene.flush.flush(scene.acknowledge(2), [], heard.append)
    scene.bench.fail()
    assert heard == [True, False]
