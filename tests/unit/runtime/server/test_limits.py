"""What a listener allows cannot contradict itself."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ConfigError
from semel.runtime.server.limits import ListenerLimits


class TestLimits:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"connections": 0},
            {"head_s": -1.0},
            {"ping_s": 60.0, "dead_s": 60.0},
            {"room_bytes": 10, "full_bytes": 5},
            {"full_bytes": 10, "room_bytes": 5, "stalled_bytes": 9},
        ],
    )
    def test_limits_that_contradict_each_other_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            ListenerLimits(**wrong)
