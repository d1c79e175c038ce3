from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import HUB, NOW, Bench, append, live

from semel.kernel.effects import CommitUnknown
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import SessionCommits


class Scene:
    def __init__(self) -> None:
        self.bench, self.alice = Bench(), live()
        self.listener = self.bench.tail.listener = Mock()
        self.bench.tail.on_messages = self.listener.on_messages
        self.commits = SessionCommits(self.bench.context, self.bench.tail)
        self.refused = self.commits.on_refused = Mock()
        self.done: list[str] = []
        self.failures: list[Failure] = []

    def commit(self, name: str = "m", more: bool = True) -> None:
        appends = [append(name)] if more else []
        self.commits.commit(
            self.alice, appends, [self.alice.put_acks(HUB)], lambda results, now: self.done.append(name),
            self.failures.append,
        )  # fmt: skip


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_record_is_applied_before_anybody_is_told(scene: Scene) -> None:
    order: list[str] = scene.done
    scene.listener.on_messages.side_effect = lambda first, appends, now: order.append("applied")
    scene.commit()
    assert scene.bench.commits()[0].chain == "alice"
    scene.bench.complete()
    assert order == ["applied", "m"]
    assert scene.alice.versions.acks_stored == 2


def test_one_that_was_refused_belongs_to_another_node(scene: Scene) -> None:
    scene.commit()
    scene.bench.fail(conflict=True)
    scene.refused.assert_called_once_with(scene.alice, NOW)
    assert (len(scene.failures), scene.alice.versions.generation) == (1, 0)


def test_all_that_were_on_their_way_behind_a_failure_fall_back_once(scene: Scene) -> None:
    scene.commit("first")
    scene.commit("second")
    scene.bench.fail()
    assert (len(scene.failures), scene.alice.versions.generation, scene.alice.versions.acks) == (2, 1, 1)


def test_nobody_knows_whether_it_was_made(scene: Scene) -> None:
    reasons: list[str] = []
    scene.bench.context.on_restart = (reasons.append,)
    scene.commit()
    scene.bench.context.commit_failed(CommitUnknown(scene.bench.commits()[0].token), NOW)
    assert (reasons, scene.failures) == (["the store did not answer"], [])


def test_what_is_staged_is_taken_once(scene: Scene) -> None:
    scene.commits.commit_at_end_of_event(scene.alice)
    assert list(scene.commits.take_staged()) == []
    scene.alice.staged.add(append("m"), 1)
    scene.commits.commit_at_end_of_event(scene.alice)
    scene.commits.commit_at_end_of_event(scene.alice)
    assert list(scene.commits.take_staged()) == [scene.alice]
    assert list(scene.commits.take_staged()) == []
