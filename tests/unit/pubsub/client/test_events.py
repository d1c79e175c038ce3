"""Options that let nothing pass are refused before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ConfigError
from semel.pubsub.client.events import ClientOptions


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"queue_max": -1},
        {"stream_window": 0},
        {"stream_bytes_max": 0},
        {"inbox_max": 0},
        {"inbox_bytes_max": 0},
        {"queue_bytes_max": 0},
        {"ack_timeout_s": 0.0},
        {"ack_timeout_s": 31.0},
        {"ping_s": 0.0},
        {"ping_s": 45.0},
    ],
)
def test_options_that_cannot_work_are_refused_with_what_to_do(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        ClientOptions(**options)
    assert refused.value.fix


def test_the_smallest_that_works() -> None:
    assert ClientOptions(window=1, queue_max=0, stream_window=1, inbox_max=1).window == 1
