from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench, live

from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.lost_sessions import LostSessions
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.roster import SOMEWHERE, Elsewhere, Here, Roster
from semel.pubsub.hub.takeover import TakeOver


class Scene:
    def __init__(self, is_shared: bool = True) -> None:
        self.bench = Bench(is_shared=is_shared)
        self.bench.context.on_restart = ((restarts := list[str]()).append,)
        self.restarts = restarts
        self.roster, self.elsewhere = Here(), Roster[Elsewhere]()
        self.current, self.closing, self.take_over = Mock(spec=ReadBarrier), Mock(spec=Closing), Mock(spec=TakeOver)
        self.missing = LostSessions(
            self.bench.context, self.roster, self.elsewhere, self.current, self.closing, self.take_over
        )

    def read_to_end(self) -> None:
        self.current.when.call_args.args[0](NOW)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_refused_session_is_somewhere_until_the_stream_names_its_node(scene: Scene) -> None:
    scene.roster.add(alice := live(groups=["g"]))
    scene.missing.on_refused(alice, NOW)
    scene.closing.release.assert_called_once_with(alice)
    other = scene.elsewhere.sessions["alice"]
    assert (other.node, other.groups) == (SOMEWHERE, {"g": 0})
    other.node = "two"
    scene.read_to_end()
    scene.take_over.take_from.assert_not_called()


def test_one_that_no_other_node_has_is_taken_over_from_this_node_itself(scene: Scene) -> None:
    scene.missing.add(live(), NOW)
    scene.read_to_end()
    assert scene.take_over.take_from.call_args.args[:2] == ("node", "alice")


def test_it_is_looked_for_again_until_it_is_found(scene: Scene) -> None:
    scene.missing.add(live(), NOW)
    scene.missing.try_again()
    assert scene.take_over.take_from.call_count == 1
    scene.elsewhere.remove(scene.elsewhere.sessions["alice"])
    scene.missing.try_again()
    scene.missing.try_again()
    assert scene.take_over.take_from.call_count == 1


def test_a_session_that_is_gone_already_is_not_looked_for(scene: Scene) -> None:
    scene.missing.on_refused(live(), NOW)
    scene.closing.release.assert_called_once()
    scene.current.when.assert_not_called()


def test_a_single_node_can_lose_a_session_to_nobody() -> None:
    scene = Scene(is_shared=False)
    scene.roster.add(alice := live())
    scene.missing.on_refused(alice, NOW)
    assert scene.restarts == ["the store holds something else"]
