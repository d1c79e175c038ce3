"""Real faults on real processes, each round once."""

from __future__ import annotations

import pytest

from semel.testing import chaos


@pytest.mark.parametrize("name", sorted(chaos.ROUNDS))
def test_round(name):
    found = chaos.ROUNDS[name](seed=1)
    assert found["holds"], found


def test_a_zombie_is_really_refused():
    """Otherwise the round would prove nothing: the stopped worker must come back with a stale fence."""
    assert chaos.zombie(seed=1)["refused_as_stale"] > 0


def test_an_unknown_round_is_a_usage_error(capsys):
    assert chaos.main(["nonsense"]) == 2
    assert "bad-link" in capsys.readouterr().err
