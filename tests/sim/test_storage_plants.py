"""The storage pipe keeps its promises in bad weather, and every known mistake of its clients is noticed there."""

from __future__ import annotations

import pytest
from tests.sim.storage_world import StorageWorld

from semel.errors import ConfigError
from semel.pipes.services.consumer import Consumer
from semel.testing.storage_plants import STORAGE_PLANTS, planted_in_storage

SEEDS = 200
REQUIRED = {
    "storage-constant-request": "a confirmed message is not in the store",
    "storage-reordered-after-timeout": "the stream is out of order",
    "storage-index-past-error": "a message took no effect",
    "storage-save-not-confirmed": "an index was taken for saved that was not",
}


def run(seed: int, plant: str | None = None) -> list[str]:
    with planted_in_storage(plant):
        return StorageWorld(seed, durable=seed % 2 == 0, window=1 if seed % 3 else 4).run()


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, 60, 15))
def test_nothing_is_lost_doubled_or_out_of_order(first: int) -> None:
    for seed in range(first, first + 15):
        assert run(seed) == [], f"seed {seed}"


@pytest.mark.sim
@pytest.mark.parametrize("name", REQUIRED)
def test_the_mistake_is_caught_and_the_seed_holds_without_it(name: str) -> None:
    caught = next((seed for seed in range(SEEDS) if REQUIRED[name] in run(seed, name)), None)
    assert caught is not None, f"{name} was not caught in {SEEDS} seeds"
    assert run(caught) == [], "the seed must hold without the plant"


def test_every_plant_has_its_violation() -> None:
    assert set(STORAGE_PLANTS) == set(REQUIRED)
    for name, plant in STORAGE_PLANTS.items():
        assert name == plant.name
        assert len(plant.description.split()) > 4


def test_a_plant_is_gone_afterwards_even_after_an_error() -> None:
    before = Consumer._failed
    with planted_in_storage("storage-index-past-error"):
        assert Consumer._failed is not before
    assert Consumer._failed is before
    with pytest.raises(ZeroDivisionError), planted_in_storage("storage-index-past-error"):
        raise ZeroDivisionError
    assert Consumer._failed is before


def test_an_unknown_plant_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="storage-index-past-error"), planted_in_storage("no-such-bug"):
        pass
