"""What a server finds of hubs in the store."""

from __future__ import annotations

from tests.unit.pubsub.hub.world import HUB, World

from semel.kernel.ops import Put, Unit
from semel.kernel.store import State
from semel.pubsub.hub.loading import announced_hubs, known_hubs
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.nodes import announcement_key
from semel.stores.memory import MemoryStore


class Counting(MemoryStore):
    """Counts how often it is asked."""

    looks = 0

    def states(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, State]]:
        self.looks += 1
        return super().states(prefix, after, limit)


def test_a_hub_is_known_by_its_sessions() -> None:
    world = World()
    assert list(known_hubs(world.store)) == []
    world.connect("alice")
    assert list(known_hubs(world.store)) == [HUB]


def test_one_of_several_nodes_announces_its_hubs_to_the_others() -> None:
    assert list(announced_hubs(World(HubOptions(is_shared=True)).store)) == [HUB]
    assert list(announced_hubs(World().store)) == []


def test_announced_hubs_are_found_with_one_look_however_many_there_are() -> None:
    store = Counting()
    names = [f"hub{number:03}" for number in range(999)]
    store.commit([Unit(tuple(Put(announcement_key(name), b"") for name in names))])
    assert list(announced_hubs(store)) == names
    assert store.looks == 1
