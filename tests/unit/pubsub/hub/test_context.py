from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import HUB, NOW, STREAM, Bench, append, live

from semel.errors import StoreUnavailable
from semel.kernel.effects import (
    Close,
    CommitFailed,
    Committed,
    CommitUnknown,
    LoadAll,
    Loaded,
    LoadFailed,
    LoadHead,
    Notify,
)
from semel.kernel.ops import Advanced, Conflict, Put
from semel.kernel.position import Position
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import SessionCommits


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_each_commit_is_answered_to_whoever_asked_for_it(bench: Bench) -> None:
    heard: list[str] = []
    for name in ("first", "second"):
        bench.context.commit(
            (Put(name, b""),), lambda results, now, name=name: heard.append(name), lambda failure, now: None, "alice"
        )
    first, second = bench.commits()
    assert (first.chain, second.chain, len(bench.context)) == ("alice", "alice", 2)
    bench.context.committed(Committed(second.token, (Advanced(),)), NOW)
    bench.context.committed(Committed(first.token, (Advanced(),)), NOW)
    assert (heard, len(bench.context)) == (["second", "first"], 0)


def test_a_failed_commit_counts(bench: Bench) -> None:
    heard: list[object] = []
    bench.context.commit((), lambda results, now: None, lambda failure, now: heard.append(failure))
    [commit] = bench.commits()
    bench.context.commit_failed(failure := CommitFailed(commit.token), NOW)
    assert (heard, bench.context.counts.failed_commits) == ([failure], 1)


def test_a_failure_for_a_prefix_is_one_for_all_its_pages(bench: Bench) -> None:
    heard: list[str] = []
    bench.context.load_all(LoadAll("hub/a", "", 10), lambda found, now: heard.append("first page"))
    bench.context.load_all(LoadAll("hub/a", "x", 10), lambda found, now: heard.append("second page"))
    bench.context.load("hub/a/b", lambda found, now: heard.append("key"))
    bench.context.loaded(LoadFailed("hub/a", StoreUnavailable("away")), NOW)
    assert heard == ["first page", "second page"]
    bench.context.loaded(Loaded("hub/a/b", None), NOW)
    assert heard[2:] == ["key"]


def test_the_end_of_the_stream(bench: Bench) -> None:
    found: list[int | None] = []
    for end in (Position(STREAM, 1, 7), Position(STREAM, 2, 3)):
        bench.context.load_end(lambda offset, now: found.append(offset))
        bench.context.end_loaded(end, NOW)
    bench.context.load_end(lambda offset, now: found.append(offset))
    bench.context.loaded(LoadFailed(STREAM, StoreUnavailable("away")), NOW)
    assert found == [7, None, None]
    assert bench.effects == [LoadHead(STREAM)] * 3
    bench.context.end_loaded(Position(STREAM, 1, 9), NOW)  # an answer to the hub before this one


def test_what_hits_all_sessions_is_reported_once_until_a_commit_succeeds(bench: Bench) -> None:
    context = bench.context
    context.report_once("hub-commit", CommitFailed(1))
    context.report_once("hub-commit", CommitFailed(2))
    context.report_once("hub-commit", CommitFailed(3, (Conflict(1),)))
    assert bench.notes() == ["hub-commit"]
    context.commit((), lambda results, now: None, lambda failure, now: None)
    bench.complete()
    context.report_once("hub-commit", CommitFailed(4))
    assert bench.notes() == ["hub-commit"] * 2


def test_a_conflict_is_no_trouble_of_the_store(bench: Bench) -> None:
    bench.context.report("node", CommitFailed(1, (Conflict(1),)), "it")
    bench.context.report("node", CommitFailed(2, error=StoreUnavailable("away")))
    notes = [effect for effect in bench.effects if isinstance(effect, Notify)]
    assert [(each.detail, each.is_store) for each in notes] == [
        ("hub/chat: it: the store could not take it", False), ("hub/chat: away", True),
    ]  # fmt: skip


def test_before_the_hub_is_loaded_again_nobody_is_left_waiting(bench: Bench) -> None:
    heard: list[str] = []
    bench.context.on_restart = (heard.append, lambda reason: heard.append("and the next"))
    bench.context.restart("because")
    assert (heard, bench.context.take_effects()) == (["because", "and the next"], [Close("reload")])
    assert bench.effects == []


# -- commits in the name of a session


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
