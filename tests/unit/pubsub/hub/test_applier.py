from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, STREAM, Bench, live

from semel.kernel.envelope import Blob, Envelope
from semel.kernel.ops import Append
from semel.pubsub.hub.applier import Applier
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.orders import NodeCommands
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.records import RecordKind, closed, membership, opened
from semel.pubsub.hub.roster import Elsewhere, Here, Roster


class Scene:
    def __init__(self, *, head: int = 0, is_shared: bool = True) -> None:
        self.bench = Bench(head=head, is_shared=is_shared)
        self.restarts: list[str] = []
        self.bench.context.on_restart = (self.restarts.append,)
        self.roster, self.elsewhere = Here(), Roster[Elsewhere]()
        self.delivery, self.closing = Mock(spec=Delivery), Mock(spec=Closing)
        self.states, self.orders, self.current = Mock(spec=GroupStates), Mock(spec=NodeCommands), Mock(spec=ReadBarrier)
        self.applier = Applier(
            self.bench.context, self.roster, self.elsewhere, Endings(), self.current, self.delivery, self.closing,
            self.states, self.orders,
        )  # fmt: skip

    def apply(self, offset: int, record: Append, body: bytes | None = None) -> None:
        self.applier.on_record(offset, record, body, NOW)

    def runs(self) -> list[tuple[int, int]]:
        return [(call.args[0].first, call.args[0].last) for call in self.delivery.fan_out.call_args_list]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def join(offset: int, kind: RecordKind = RecordKind.JOIN) -> tuple[int, Append]:
    return offset, membership(STREAM, kind, "g", "alice", None, 0, "j")


def open_on(node: str, offset: int, *groups: str) -> tuple[int, Append]:
    return offset, opened(STREAM, live(groups=groups), node, 0, "o")


def test_a_large_body_that_is_gone_is_reported(scene: Scene) -> None:
    scene.apply(1, Append(STREAM, Envelope("m", blob=Blob("b", 5)), target="g/g"))
    assert (scene.runs(), scene.bench.notes()) == ([], ["hub-body"])


def test_members_come_and_go_by_their_records(scene: Scene) -> None:
    scene.roster.add(alice := live())
    scene.apply(*join(5))
    assert alice.groups == {"g": 5}
    scene.apply(*join(6, RecordKind.LEAVE))
    assert alice.groups == {}
    scene.states.on_leave.assert_called_once_with("alice", "g", NOW)


def test_records_from_before_a_session_came_here_are_in_its_row(scene: Scene) -> None:
    scene.roster.add(alice := live())
    alice.opened = 5
    scene.apply(*join(5))
    assert alice.groups == {}


def test_members_on_other_nodes_are_known_too(scene: Scene) -> None:
    scene.apply(*open_on("two", 3))
    scene.apply(*join(5))
    assert list(scene.elsewhere.groups) == ["g"]


def test_a_session_that_opens_on_another_node_is_there(scene: Scene) -> None:
    scene.apply(*open_on("two", 3, "g"))
    other = scene.elsewhere.sessions["alice"]
    assert (other.node, other.groups) == ("two", {"g": 3})
    scene.orders.has_moved.assert_called_once_with("alice", "two")


def test_one_that_was_here_is_released(scene: Scene) -> None:
    scene.roster.add(alice := live())
    scene.apply(*open_on("two", 3))
    scene.closing.release.assert_called_once_with(alice)


def test_an_older_record_does_not_take_it_away(scene: Scene) -> None:
    scene.roster.add(alice := live())
    alice.opened = 5
    scene.apply(*open_on("two", 4))
    scene.closing.release.assert_not_called()
    assert len(scene.elsewhere) == 0


def test_an_old_record_of_ours_does_not_say_that_nobody_has_it(scene: Scene) -> None:
    scene.elsewhere.add(Elsewhere("alice", None, "", {}, since=7))
    scene.apply(*open_on("node", 6))
    assert "alice" in scene.elsewhere.sessions
    scene.apply(*open_on("node", 8))
    assert "alice" not in scene.elsewhere.sessions


def test_a_session_that_has_ended_is_nowhere(scene: Scene) -> None:
    scene.apply(*open_on("two", 3))
    scene.apply(4, closed(STREAM, "alice", None, 3, 0, "c"))
    assert len(scene.elsewhere) == 0
    scene.orders.has_ended.assert_called_once_with("alice")
    scene.states.on_close.assert_called_once_with("alice", NOW)


@pytest.mark.parametrize(
    ("is_shared", "has_session", "is_first", "offset", "restarts"),
    [
        (False, False, True, 50, False),
        (False, True, True, 5, True),
        (True, False, True, 11, False),
        (True, False, True, 12, True),
        (True, False, False, 5, True),
    ],
)
def test_a_gap_loads_the_hub_again_if_something_may_be_missing(
    is_shared: bool, has_session: bool, is_first: bool, offset: int, restarts: bool
) -> None:
    scene = Scene(head=10, is_shared=is_shared)
    if has_session:
        scene.roster.add(live())
    scene.applier.on_gap(offset, is_first)
    assert bool(scene.restarts) == restarts


def test_another_epoch_loads_the_hub_again(scene: Scene) -> None:
    scene.applier.on_epoch_changed()
    assert (scene.restarts, scene.bench.notes()) == (["the store has another history"], ["hub-read"])


def test_snapshots_that_waited_are_sent_only_at_the_end(scene: Scene) -> None:
    for number in (None, 0):
        scene.applier.on_end(number, NOW)
    scene.states.send_missed.assert_not_called()
    scene.applier.on_end(3, NOW)
    scene.states.send_missed.assert_called_once_with(NOW)
    assert scene.current.has_read.call_count == 3
