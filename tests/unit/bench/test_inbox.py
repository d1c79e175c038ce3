"""What `semel bench inbox` makes of its figures, and one small run without peers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.console import Console

from semel.bench.inbox import (
    ONE_COMMIT,
    RAW,
    SEMEL,
    Case,
    InboxBenchOptions,
    InboxFigure,
    InboxResult,
    goals_of,
    run,
    tables,
)
from semel.bench.inbox_meter import Meter, Took, postmaster_of, server_time_s


def figure(side: str, wall_ms: float, client_ms: float, server_ms: float | None = None) -> InboxFigure:
    return InboxFigure("postgres", "handle", side, ONE_COMMIT, wall_ms, client_ms, server_ms)


def test_goals_compare_with_raw_sql_and_with_the_best_peer_that_guarantees_as_much() -> None:
    found = {
        RAW: figure(RAW, 1.0, 0.2, 0.4),
        SEMEL: figure(SEMEL, 2.0, 0.5, 0.5),
        "dbos": figure("dbos", 10.0, 4.0, 1.0),
        "python-cqrs": figure("python-cqrs", 5.0, 3.0, 1.0),
        "pgqueuer": figure("pgqueuer", 0.1, 0.1, 0.1),
    }
    goals = goals_of(Case("postgres", "handle", 4), found)
    assert [(goal.name.partition(": ")[2], round(goal.value, 2), goal.holds) for goal in goals] == [
        ("of raw SQL, processor", 0.6, True),
        ("of raw SQL, clock", 0.5, False),
        ("of python-cqrs, clock", 2.5, False),
        ("of python-cqrs, processor", 4.0, True),
    ]


def test_handlers_that_share_a_commit_have_a_goal_of_their_own() -> None:
    found = {RAW: figure(RAW, 1.0, 1.0), SEMEL: figure(SEMEL, 1.9, 2.1)}
    assert [goal.holds for goal in goals_of(Case("postgres", "handle", 1, 20), found)] == [False, True]


def test_a_meter_does_not_measure_the_first_messages() -> None:
    meter = Meter(20, None)
    for _ in range(19):
        meter.hit()
    assert not meter.done.is_set()
    meter.hit()
    took = meter.took()
    assert (took.messages, took.server_s) == (18, None)
    assert meter.done.is_set()


def test_times_can_be_added() -> None:
    assert Took(2, 1.0, 0.5, 0.25).and_then(Took(2, 1.0, 0.5, 0.25)) == Took(2, 2.0, 1.0, 0.5)
    assert Took(2, 1.0, 0.5, 0.25).and_then(Took(2, 1.0, 0.5, None)).server_s is None


def test_a_process_that_is_no_server_has_no_postmaster() -> None:
    assert postmaster_of(os.getpid()) is None
    assert server_time_s(None) is None


def test_what_was_not_measured_is_said() -> None:
    result = InboxResult(60, 1, 200, (figure(SEMEL, 1.0, 1.0),), (), ("dbos: not installed",))
    assert tables(result)[0].caption == "not measured: dbos: not installed"


@pytest.mark.connected
def test_a_small_run_beside_raw_sqlite(tmp_path: Path) -> None:
    options = InboxBenchOptions(parts=("sqlite",), workers=(2,), folder=tmp_path).quick()
    result = run(options, Console(quiet=True))
    assert [(each.what, each.side) for each in result.figures] == [
        (what, side)
        for what in ("store", "handle, 2 workers", "handle, 2 workers, 20 to a commit")
        for side in (RAW, SEMEL)
    ]
    assert all(each.wall_ms > 0 for each in result.figures)
    assert list(tmp_path.iterdir()) == []
