"""Real faults on real processes, each round once."""

from __future__ import annotations

import pytest
from tests.campaigns import chaos


@pytest.mark.parametrize("name", sorted(chaos.ROUNDS))
def test_round(name):
    found = chaos.ROUNDS[name](seed=1)
    assert found["holds"], found


def test_an_unknown_round_is_a_usage_error(capsys):
    assert chaos.main(["nonsense"]) == 2
    assert "bad-link" in capsys.readouterr().err
