"""Two nodes of a hub. A module that needs others has its own."""

from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.two_nodes import ALICE, BOB, SHARED
from tests.unit.pubsub.hub.world import World


@pytest.fixture
def one() -> World:
    return World(SHARED, "one")


@pytest.fixture
def two(one: World) -> World:
    """With alice on `one` and bob here, both in the group g."""
    two = World(SHARED, "two", beside=one)
    one.connect(ALICE, groups=("g",))
    two.connect(BOB, groups=("g",))
    one.take(ALICE)
    two.take(BOB)
    return two
