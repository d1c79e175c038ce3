"""What a listener allows cannot contradict itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError
from semel.runtime.server.limits import ListenerLimits, Rate, is_loopback, source_of


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


# -- how often somebody may come


def test_what_a_burst_allows_comes_at_once_and_then_one_at_a_time() -> None:
    rate = Rate(2.0, burst_s=5.0)
    assert [rate.wait_s("a", 0.0) for _ in range(10)] == [0.0] * 10
    assert rate.wait_s("a", 0.0) == rate.wait_s("a", 0.0) == 0.5
    assert rate.wait_s("b", 0.0) == 0.0
    assert rate.wait_s("a", 0.5) == 0.0
    assert rate.wait_s("a", 0.5) == 0.5
    assert [rate.wait_s("a", 100.0) for _ in range(11)] == [0.0] * 10 + [0.5]


def test_without_a_rate_anybody_may_come_and_nobody_is_remembered() -> None:
    rate = Rate(0)
    assert not any(rate.wait_s("a", 0.0) for _ in range(1000))
    assert len(rate) == 0


@given(st.lists(st.tuples(st.floats(0, 0.5), st.sampled_from("abc")), max_size=200))
def test_nobody_comes_more_often_than_it_may(steps: list[tuple[float, str]]) -> None:
    rate, now, came = Rate(4.0, burst_s=2.0), 0.0, dict.fromkeys("abc", 0)
    for step, source in steps:
        now += step
        came[source] += not rate.wait_s(source, now)
        assert came[source] <= 4 * now + 8 + 1e-6


def test_memory_is_for_those_who_came_lately_and_bounded() -> None:
    rate = Rate(1.0, burst_s=10.0, known_max=100)
    for number in range(1000):
        rate.wait_s(f"once {number}", 0.0)
    assert len(rate) == 100
    for number in range(1000):
        rate.wait_s("always", 100.0 + 2 * number)
    assert len(rate) == 1


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("", ""),
        ("not an address", "not an address"),
    ],
)
def test_who_is_taken_for_one(address: str, source: str) -> None:
    assert source_of(address) == source


def test_who_is_on_this_machine() -> None:
    here = ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "")
    assert all(is_loopback(source_of(address)) for address in here)
    assert not any(is_loopback(source_of(address)) for address in ("192.0.2.1", "2001:db8::1", "10.0.0.1", "strange"))
