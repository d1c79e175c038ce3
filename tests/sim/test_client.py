"""The world of the clients: each of its checkers fires when there is something to find, and keeps silent when not."""

from __future__ import annotations

from collections import Counter

import pytest

from semel.sim import run
from semel.sim.client.scenario import SCENES, ClientScenario

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("scene", SCENES)
def test_every_scene_can_be_played(scene: str) -> None:
    scenario = ClientScenario(1, scene=scene)
    assert scenario.run()["events"] > 100
    assert scenario.world.violations == []


def test_the_weather_is_rough_enough() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        seen.update(run(seed, world="client").seen)
    faults = (
        "cut", "half_open", "silence", "restart", "die_in_commit", "hold", "outage", "slow", "refuse",
        "close_from_outside", "long_outage", "doubt", "crash",
    )  # fmt: skip
    assert not [fault for fault in faults if not seen[f"fault.{fault}"]]


FINDS = [
    ("a message is in the stream twice", "hub-forgets-ids", 50),
    ("twice or out of order", "client-no-memory", 1),
    ("acknowledged before the application had it", "client-early-acks", 1),
    ("changed places", "hub-takes-behind-refused", 5),
    ("have held up others", "client-forgets-given-up", 7),
    ("still waits", "client-parts-not-resent", 2),
    ("is whole without all its parts", "client-end-overtakes", 190),
    ("sees what is not there, or not all", "client-snapshot-adds", 29),
    ("and there is", "client-state-not-restored", 3),
]


@pytest.mark.parametrize(("violation", "plant", "first"), FINDS)
def test_a_checker_fires_with_a_plant_and_not_without_it(violation: str, plant: str, first: int) -> None:
    """Seeds change their meaning with the code, so it may be found a few seeds later."""
    seeds = range(first, first + 60)
    found = (seed for seed in seeds if any(violation in each for each in run(seed, plant).violations))
    assert run(next(found), world="client").holds
