from __future__ import annotations

import random

import pytest
from tests.unit.calculus.claims import leak_by_time

from semel.calculus.elements import LinkElement, PipeElement
from semel.calculus.figures import figures
from semel.calculus.spec import PassOrder, PipeSpec
from semel.errors import ConfigError


def test_settings_become_a_path() -> None:
    got = PipeSpec(loss=0.3, confirm_loss=0.2, attempts=3, rtt_s=0.1).figures()
    assert got == figures(PipeElement(LinkElement(0.3, 0, 0.2), 3), rtt_s=0.1)


def test_a_memory_with_an_end() -> None:
    got = PipeSpec(loss=0.3, confirm_loss=0.2, timeout_s=2, dedup=True, keep_s=7).figures()
    leak = leak_by_time(0.3, 0.2, 7, 2)
    assert got.leak == pytest.approx(leak)
    assert (got.reliability, got.uniqueness) == (1, pytest.approx(1 - leak))
    assert not got.exact


def test_a_durable_sender_survives() -> None:
    assert PipeSpec(loss=0.3, crash=0.1).figures().reliability == pytest.approx(0.9)
    assert PipeSpec(loss=0.3, crash=0.1, durable=True).figures().reliability == 1


def test_a_slow_confirm_overlaps() -> None:
    got = PipeSpec(rtt_s=2.5, timeout_s=1).figures()
    assert got.copies == 3
    assert got.exact


def test_a_monotonic_receiver() -> None:
    got = PipeSpec(confirm_loss=0.5, order=PassOrder.MONOTONIC, burst=3).figures()
    assert (got.reliability, got.uniqueness, got.leak) == (pytest.approx((1 + 1 / 2 + 1 / 3) / 3), 1, 0)
    assert got.exact
    assert "late ones are lost" in got.notes[0]
    lossy = PipeSpec(loss=0.5, attempts=1, order=PassOrder.MONOTONIC, burst=3).figures()
    assert not lossy.exact
    assert lossy.reliability < played_monotonic(0.5, 3)
    assert PipeSpec(loss=0.5, attempts=2, order=PassOrder.MONOTONIC).figures().reliability == 0.75


def played_monotonic(loss: float, burst: int) -> float:
    chance, passed, rounds = random.Random(9), 0, 4_000
    for _ in range(rounds):
        arrived = [index for index in range(1, burst + 1) if chance.random() >= loss]
        chance.shuffle(arrived)
        last = 0
        for index in arrived:
            passed += index > last
            last = max(index, last)
    return passed / rounds / burst


def test_a_strict_receiver() -> None:
    got = PipeSpec(loss=0.1, attempts=1, order=PassOrder.STRICT, messages=3).figures()
    assert (got.reliability, got.uniqueness) == (pytest.approx((0.9 + 0.81 + 0.729) / 3), 1)
    assert got.exact
    assert "all wait" in got.notes[0]
    for harmless in (PipeSpec(loss=0.1, order=PassOrder.STRICT, messages=1000), PipeSpec(order=PassOrder.STRICT)):
        assert harmless.figures().reliability == 1
        assert not harmless.figures().notes


@pytest.mark.parametrize(
    "wrong", [{"loss": 2}, {"timeout_s": 0}, {"attempts": 0}, {"burst": 0}, {"messages": 0}, {"crash": -1}]
)
def test_wrong_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PipeSpec(**wrong)  # type: ignore[arg-type]
