"""The made-up world keeps its own rules: a simulator that cheats proves nothing."""

from __future__ import annotations

from random import Random

import pytest

from semel.kernel.hop import ReceiveOrder
from semel.sim.kernel.database import Disk
from semel.sim.kernel.weather import KernelWorld, Weather, draw_weather
from semel.sim.world import Clock, Drift
from semel.stores.memory import Frame

pytestmark = pytest.mark.sim


def frame(number: int) -> Frame:
    return Frame("commit", ((),), number)


def crashed(seed: int, *, synced: int, unsynced: int) -> list[int]:
    disk = Disk(KernelWorld(seed))
    for number in range(synced):
        disk.append(frame(number))
        disk.sync()
    for number in range(unsynced):
        disk.append(frame(synced + number))
    disk.crash()
    return [each.now for each in disk.frames()]


def test_what_is_synced_survives_every_crash() -> None:
    assert all(crashed(seed, synced=3, unsynced=2)[:3] == [0, 1, 2] for seed in range(50))


def test_what_is_not_synced_survives_in_part_or_not_at_all() -> None:
    """Always a beginning of it: a frame after a torn one is never read."""
    assert {tuple(crashed(seed, synced=1, unsynced=2)) for seed in range(50)} == {(0,), (0, 1), (0, 1, 2)}


def test_a_sync_that_the_power_cut_met_protects_nothing() -> None:
    left = set()
    for seed in range(20):
        disk = Disk(KernelWorld(seed))
        disk.cut_next_sync = True
        disk.append(frame(0))
        disk.sync()
        disk.crash()
        left.add(len(disk))
    assert left == {0, 1}


def test_what_is_due_together_happens_in_the_order_of_asking() -> None:
    clock, happened = Clock(), []
    for name in ("b", "a"):
        clock.after(1.0, name, happened.append, name)
    clock.after(0.5, "first", happened.append, "first")
    while clock.step(until=2.0):
        pass
    assert happened == ["first", "b", "a"]
    assert clock.now == 2.0


def test_nothing_happens_before_its_time() -> None:
    clock, happened = Clock(), []
    clock.after(1.0, "late", happened.append, "late")
    assert not clock.step(until=0.9)
    assert happened == []


def test_the_trace_covers_time_and_name() -> None:
    hashes = set()
    for delay, name in ((1.0, "a"), (1.0, "b"), (1.5, "a")):
        clock = Clock()
        clock.after(delay, name, lambda: None)
        clock.step(until=2.0)
        hashes.add(clock.trace_hash())
    assert len(hashes) == 3


def test_a_drifting_clock_can_be_read_backwards() -> None:
    drift = Drift(offset_s=-3.5, rate=1.3)
    assert drift.world(drift.local(17.25)) == pytest.approx(17.25)
    assert drift.local(2.0) - drift.local(1.0) == pytest.approx(1.3)


def test_faults_end_when_the_weather_clears() -> None:
    world = KernelWorld(1)
    assert any(world.strikes("fault", 0.5) for _ in range(50))
    world.is_clear = True
    assert not any(world.strikes("fault", 1.0) for _ in range(50))


def weathers() -> list[Weather]:
    return [draw_weather(Random(seed)) for seed in range(500)]


def test_no_weather_asks_for_what_cannot_be_promised() -> None:
    for weather in weathers():
        for hop in (weather.inbound, *(sub.hop for sub in weather.subscriptions)):
            assert hop.order is not ReceiveOrder.MONOTONIC or hop.policy.window == 1
        for sub in weather.subscriptions:
            by_session = sub.hop.order is not ReceiveOrder.ID and not sub.hop.hop_index
            assert weather.inbound.in_order or not by_session
            assert not weather.restore or not (sub.hop.order is ReceiveOrder.STRICT and sub.hop.hop_index)


def test_some_weathers_have_one_kind_of_fault_alone() -> None:
    """A fault that never comes alone may hide behind another."""
    alone = {
        kinds[0]
        for weather in weathers()
        if len(kinds := [
            name
            for name, rate in (
                ("loss", weather.links.loss),
                ("crash", weather.nodes.crash_every_s),
                ("pause", weather.nodes.pause_every_s),
                ("doubt", weather.stores.doubt),
                ("strike", weather.stores.strike),
            )
            if rate
        ]) == 1
    }  # fmt: skip
    assert alone == {"loss", "crash", "pause", "doubt", "strike"}
