from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

import pyarrow as pa
import pytest

from semel.errors import ConfigError
from semel.kernel.ledger import Kind
from semel.spark.audit import follow, sources
from semel.spark.audit.figures import Hop
from semel.spark.audit.follow import Follower, FollowOptions, Part, _one_part, revised
from semel.spark.audit.sources import Evidence


def windows(*cells: tuple[int, int, int], revisions: tuple[int, ...] = ()) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"code": code, "session_class": "", "window": window, "sent": sent, "sketch": bytes([number])}
        for number, (code, window, sent) in enumerate(cells)
    ]
    for row, revision in zip(rows, revisions, strict=False):
        row["revision"] = revision
    return pa.Table.from_pylist(rows)


def said(table: pa.Table) -> list[tuple[int, int, int, int]]:
    return [(row["code"], row["window"], row["sent"], row["revision"]) for row in table.to_pylist()]


def test_only_what_says_something_else_gets_a_new_number() -> None:
    first = revised(None, windows((1, 10, 5), (2, 10, 7)), 0)
    assert said(first) == [(1, 10, 5, 1), (2, 10, 7, 1)]
    second = revised(first, windows((3, 20, 1), (2, 10, 8), (1, 10, 5)), 0)
    assert said(second) == [(1, 10, 5, 1), (2, 10, 8, 2), (3, 20, 1, 1)]


def test_a_window_that_is_closed_stays_and_one_that_emptied_goes() -> None:
    old = revised(None, windows((1, 10, 5), (1, 20, 6), (1, 30, 7)), 0)
    assert said(revised(old, windows((1, 30, 7)), 20)) == [(1, 10, 5, 1), (1, 30, 7, 1)]
    assert said(revised(old, windows((1, 30, 7)).slice(0, 0), 0)) == []


def test_parts_become_one() -> None:
    hop = Hop("p", "a>b", 7, 1 << Kind.SENT, 3)
    more = Hop("p", "a>b", 7, 1 << Kind.ACCEPTED, 2)
    parts = [
        Part("0", (hop,), ("chat",), (("m>n", int(Kind.SENT), 4),), (5, 9)),
        Part("1"),
        Part("2", (more,), ("chat", "room"), (("m>n", int(Kind.SENT), 6),), (3, 4)),
    ]
    whole = _one_part("all", parts)
    assert whole.hops == (Hop("p", "a>b", 7, 1 << Kind.SENT | 1 << Kind.ACCEPTED, 5),)
    assert (whole.streams, whole.metered, whole.times) == (("chat", "room"), (("m>n", int(Kind.SENT), 10),), (3, 9))


def test_the_clock_is_read_before_the_stores_are(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock()
    calls.clock.return_value = 7
    follower = Mock(spec=Follower, evidence=Evidence(("sqlite:hub.db",)), _drain=calls.drain, _judge=calls.judge)
    monkeypatch.setattr(follow, "clock_us", calls.clock)
    monkeypatch.setattr(sources, "find", calls.find)
    Follower.step(follower)
    assert calls.mock_calls[:4] == [call.clock(), call.find(("sqlite:hub.db",)), call.drain(), call.judge(7)]


@pytest.mark.parametrize("given", [{"every_s": 0}, {"keep_s": -1}])
def test_times_that_make_no_sense_are_refused(given: dict[str, float], tmp_path: Any) -> None:
    with pytest.raises(ConfigError):
        FollowOptions(tmp_path, **given)  # type: ignore[arg-type]
