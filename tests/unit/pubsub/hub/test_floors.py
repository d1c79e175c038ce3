from __future__ import annotations

import msgspec
import pytest
from tests.unit.pubsub.hub.parts import HUB, NOW, STREAM, Bench, live, run

from semel.errors import StoreError
from semel.kernel.ledger import Kind
from semel.kernel.ops import Put, Trim
from semel.kernel.store import State
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.floors import Floors, floor_key
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.roster import Here, UnreadableSessions


class Scene:
    def __init__(self, is_shared: bool = False) -> None:
        self.bench = Bench(is_shared=is_shared)
        self.bench.tail.offset = 20
        self.lease = NodeLease("hub/chat/nodes", "node", is_shared)
        self.roster, self.endings, self.left_out = Here(), Endings(), UnreadableSessions(self.bench.context)
        self.floors = Floors(
            self.bench.context, self.lease, self.bench.tail, self.roster, self.endings, self.left_out, 0
        )

    def written(self) -> int | None:
        puts = [op for op in self.bench.ops() if isinstance(op, Put)]
        assert all(put.key == floor_key(HUB, "node") and put.value is not None for put in puts)
        return msgspec.msgpack.decode(puts[-1].value) if puts else None  # type: ignore[arg-type]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_hub_without_debts_needs_nothing(scene: Scene) -> None:
    scene.roster.add(live())
    scene.floors.update()
    assert scene.written() == 20
    assert Trim(STREAM, 21) in scene.bench.ops()


def test_what_anybody_is_owed_is_kept(scene: Scene) -> None:
    scene.roster.add(alice := live("alice"))
    alice.backlog.push(run(9))
    scene.floors.update()
    assert scene.written() == 8
    scene.endings.begin(bob := live("bob"), Kind.CANCELLED, "", None)
    bob.backlog.push(run(5))
    assert min(scene.floors._needed()) == 4
    scene.left_out.add("carol", 3, StoreError("too new"))
    assert min(scene.floors._needed()) == 3
    scene.floors.expect("dave", 2)
    assert min(scene.floors._needed()) == 2
    scene.floors.arrived("dave")
    assert (min(scene.floors._needed()), len(scene.floors)) == (3, 0)


def test_the_floor_does_not_rise_for_nothing(scene: Scene) -> None:
    scene.floors.update()
    scene.bench.complete()
    scene.floors.update()
    assert scene.bench.commits() == []


def test_the_floor_falls_with_the_commit_that_brings_a_session(scene: Scene) -> None:
    scene.floors.update()
    put = scene.floors.expect("alice", 5)
    assert put.value is not None
    assert msgspec.msgpack.decode(put.value) == 5


def test_of_several_nodes_the_lowest_floor_counts() -> None:
    scene = Scene(is_shared=True)
    scene.lease.hold(7, NOW + 10)
    scene.floors.update()
    [put] = scene.bench.ops()
    assert isinstance(put, Put)
    assert put.guard == scene.lease.guard
    scene.bench.complete()
    scene.bench.load_all([(f"hub/{HUB}/floor/{node}", State(msgspec.msgpack.encode(at), 1)) for node, at in
                          (("node", 20), ("other", 11))])  # fmt: skip
    assert scene.bench.ops() == [Trim(STREAM, 12)]
    scene.bench.complete()
    scene.floors.update()
    scene.bench.load_all([(f"hub/{HUB}/floor/other", State(msgspec.msgpack.encode(11), 1))])
    assert scene.bench.ops() == []


def test_a_trim_that_failed_is_reported(scene: Scene) -> None:
    scene.floors.update()
    scene.bench.fail()
    assert scene.bench.notes() == ["hub-trim"]
