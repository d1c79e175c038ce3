from __future__ import annotations

from unittest.mock import Mock, call

import pytest

from semel.errors import InputError
from semel.spark.audit import run, sources
from semel.spark.audit.result import CellFigures, WindowState
from semel.spark.audit.run import (
    NEWEST,
    WINDOWS_FILLED_MAX,
    AuditOptions,
    _filled,
    _window_us,
    judged_at,
)

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"deadline_s": -1}, "deadline of -1 s"),
        ({"window_s": 0}, "window of 0 s"),
        ({"examples_max": -1}, "-1 examples"),
        ({"since": 5, "until": 5}, "ends before it begins"),
        ({"session_class": "("}, "no regular expression"),
        ({"session_class": "vip"}, "has no group"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        AuditOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("span_s", "window_s"), [(0, 1), (120, 1), (121, 2), (86_400, 1800), (10**9, 604_800)])
def test_a_window_is_chosen_that_gives_about_a_hundred_of_them(span_s: int, window_s: int) -> None:
    assert _window_us(span_s * SECOND) == window_s * SECOND


def test_when_it_is_judged() -> None:
    """Silence of a live store counts; an export is judged as of its newest event."""
    assert judged_at(AuditOptions(now=7), (1, 5), 9) == 7
    assert judged_at(AuditOptions(), (1, 5), None) == 5
    assert judged_at(AuditOptions(now=NEWEST), (1, 5), 9) == 5
    assert judged_at(AuditOptions(), None, None) == 0
    assert judged_at(AuditOptions(), (1, 5), 4) == 4


def test_the_clock_is_read_before_the_sources_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what was sent before and accepted after they were looked at would have had its time."""
    calls = Mock()
    calls.find.side_effect = LookupError
    monkeypatch.setattr(run, "clock_us", calls.clock)
    monkeypatch.setattr(sources, "find", calls.find)
    with pytest.raises(LookupError), run.prepared(Mock(), ["lake"]):
        pass
    assert calls.mock_calls == [call.clock(), call.find(["lake"])]


def cell(window: int, hop: str = "a>b") -> CellFigures:
    return CellFigures("p", hop, "", window, WindowState.SETTLED, sent=1)


def test_windows_without_anything_sent_are_filled_in_by_hop() -> None:
    filled = _filled([cell(0), cell(30), cell(10, "b>c")], 10)
    assert [(each.hop, each.window, each.state.value) for each in filled] == [
        ("a>b", 0, "settled"),
        ("a>b", 10, "empty"),
        ("a>b", 20, "empty"),
        ("a>b", 30, "settled"),
        ("b>c", 10, "settled"),
    ]


def test_a_gap_of_years_is_not_filled_in() -> None:
    cells = [cell(0), cell((WINDOWS_FILLED_MAX + 1) * 10)]
    assert _filled(cells, 10) == cells
