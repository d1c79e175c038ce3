"""Every known mistake is noticed when it is made on purpose, by a world of the simulator or by the contract suite."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

from semel.errors import ConfigError
from semel.kernel.ops import WorkState
from semel.sim import run
from semel.sim.plants import PLANTS, planted
from semel.sim.scenario import WORLDS
from semel.stores.memory import MemoryStore
from semel.testing.contract import ManualClock, Time
from semel.testing.contract.bodies import SweepSuite
from semel.testing.contract.streams import AppendSuite, EpochSuite, ReadSuite, TrimSuite
from semel.testing.contract.units import UnitSuite
from semel.testing.contract.work import ClaimSuite, EnqueueSuite, FinishSuite, KeySuite

SEEDS = 200

REQUIRED = {
    "ack-before-commit",
    "no-dedup",
    "index-dedup-off-by-one",
    "new-id-on-resend",
    "newest-confirm-only",
    "offsets-out-of-order",
    "missing-fence",
    "status-in-dedup-key",
    "cursor-before-effect",
    "resend-reordered",
    "retention-deletes-open",
    "epoch-ignored",
    "push-own-commit",
    "k-fails-k1-lands",
    "unknown-taken-for-failed",
    "trim-skips-silently",
}

CONTRACT: dict[str, Callable[..., Any]] = {
    "no-dedup": AppendSuite().test_a_second_append_of_an_identity_answers_with_the_first_position,
    "status-in-dedup-key": EnqueueSuite().test_an_identity_is_remembered_in_every_state,
    "offsets-out-of-order": ReadSuite().test_reading_goes_on_from_the_middle,
    "trim-ignores-pins": TrimSuite().test_trim_stops_at_the_lowest_pin,
    "trim-skips-silently": TrimSuite().test_a_read_below_the_trim_mark_says_where_to_go_on,
    "epoch-ignored": EpochSuite().test_raising_the_epoch_refuses_old_positions,
    "missing-fence": FinishSuite().test_the_wrong_fence_finishes_nothing,
    "fence-reused": ClaimSuite().test_every_claim_gets_a_higher_fence,
    "key-order-ignored": KeySuite().test_one_of_a_key_at_a_time,
    "unit-half-applied": UnitSuite().test_nothing_of_a_refused_unit_remains,
    "retention-deletes-open": SweepSuite().test_an_open_row_is_never_deleted,
}
FIXTURES = {"status-in-dedup-key": {"state": WorkState.DONE}, "retention-deletes-open": {"state": WorkState.READY}}


FIRST = {
    "hub-answers-at-earlier-end": 440,
    "hub-acks-passed-over": 390,
    "hub-spill-rows-nameless": 190,
    "client-repeats-after-loss": 50,
    "client-end-overtakes": 190,
    "hub-forgets-ids": 50,
    "inbox-discard-leaves-row": 50,
    "inbox-poison-blames-neighbours": 90,
    "inbox-breaker-waits-for-ever": 20,
    "inbox-cancel-also-sends": 12,
}
"""Some are seldom met: from which seed on a test looks for them."""


def test_all_required_bugs_can_be_planted() -> None:
    assert set(PLANTS) >= REQUIRED


CAUGHT = [(plant.name, plant.caught_by) for plant in PLANTS.values() if plant.caught_by in WORLDS]
CAUGHT += [
    (name, "inbox")
    for name in ("no-dedup", "status-in-dedup-key", "missing-fence", "key-order-ignored", "commit-not-synced")
]
CAUGHT += [("index-dedup-off-by-one", "pipes"), ("resend-reordered", "pipes")]


@pytest.mark.sim
@pytest.mark.parametrize(("name", "world"), CAUGHT)
def test_the_simulator_catches(name: str, world: str) -> None:
    first = FIRST.get(name, 0)
    seeds = range(first, first + SEEDS)
    report = next((report for seed in seeds if not (report := run(seed, name, world=world)).holds), None)
    assert report is not None, f"{name} was not caught in {SEEDS} seeds"
    in_world = f" --world {world}" if world != "kernel" else ""
    assert report.command == f"semel sim{in_world} --seed {report.seed} --plant {name}"
    without = run(report.seed, world=world)
    assert without.holds, f"the seed must hold without the plant: {without}"


@pytest.mark.contract
@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract_suite_catches(name: str) -> None:
    _check(name)
    with planted(name), pytest.raises((AssertionError, pytest.fail.Exception)):
        _check(name)


def test_what_only_the_contract_suite_catches_is_checked_there() -> None:
    assert {plant.name for plant in PLANTS.values() if plant.caught_by == "contract"} <= set(CONTRACT)


def test_a_plant_is_gone_afterwards() -> None:
    before = {(owner, name): owner.__dict__[name] for plant in PLANTS.values() for owner, name, _ in plant.patches}
    for name in PLANTS:
        with planted(name):
            assert {key: key[0].__dict__[key[1]] for key in before} != before
    assert {key: key[0].__dict__[key[1]] for key in before} == before


def test_a_plant_is_gone_after_an_error() -> None:
    before = MemoryStore.read
    with pytest.raises(ZeroDivisionError), planted("trim-skips-silently"):
        raise ZeroDivisionError
    assert MemoryStore.read is before


def test_an_unknown_plant_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no-dedup"):
        run(1, "no-such-bug")


def test_names_and_descriptions() -> None:
    for name, plant in PLANTS.items():
        assert name == plant.name
        assert name == name.lower().replace("_", "-").replace(" ", "-")
        assert len(plant.description.split()) > 4


def _check(name: str) -> None:
    """Call a test of the contract suite with the fixtures that it asks for."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    fixtures = {"store": store, "time": Time(store, clock), **FIXTURES.get(name, {})}
    test = CONTRACT[name]
    test(**{wanted: fixtures[wanted] for wanted in signature(test).parameters})
