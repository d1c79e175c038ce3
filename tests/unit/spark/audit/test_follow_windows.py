from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from semel.spark.audit.figures import SUMS
from semel.spark.audit.follow_windows import SCHEMA, Row, cell, put_right, revised


def row(code: int, window: int, **said: Any) -> Row:
    """A window with one message, unless said otherwise."""
    zero: Row = dict.fromkeys((*SUMS, "latencies", "skewed"), 0)
    largest: Row = {"latency_max": None, "skew": None, "sketch": []}
    return {"code": code, "session_class": "", "window": window, **zero, **largest, "messages": 1, **said}


def said(table: pa.Table | None) -> list[tuple[int, int, int, int]]:
    assert table is not None
    return [(each["code"], each["window"], each["sent"], each["revision"]) for each in table.to_pylist()]


def test_only_what_says_something_else_gets_a_new_number() -> None:
    first = revised(None, [row(1, 10, sent=5), row(2, 10, sent=7)], 0)
    assert said(first) == [(1, 10, 5, 1), (2, 10, 7, 1)]
    second = revised(first, [row(3, 20, sent=1), row(2, 10, sent=8), row(1, 10, sent=5, messages=2)], 0)
    assert said(second) == [(1, 10, 5, 1), (2, 10, 8, 2), (3, 20, 1, 1)]


def test_a_window_that_is_closed_stays_and_one_that_emptied_goes() -> None:
    old = revised(None, [row(1, 10, sent=5), row(1, 20, sent=6), row(1, 30, sent=7)], 0)
    assert said(revised(old, [row(1, 30, sent=7)], 20)) == [(1, 10, 5, 1), (1, 30, 7, 1)]
    assert said(revised(old, [], 0)) == []


def test_some_messages_are_taken_out_and_put_in_again_and_other_windows_stay() -> None:
    old = revised(None, [row(1, 10, sent=5, messages=5), row(2, 10, sent=1), row(1, 20, sent=3, messages=3)], 0)
    new = put_right(old, [row(1, 10, sent=2, messages=2)], [row(1, 10, sent=1), row(1, 30, sent=1)])
    assert said(new) == [(1, 10, 4, 2), (1, 20, 3, 1), (1, 30, 1, 1), (2, 10, 1, 1)]


def test_a_window_is_gone_with_its_last_message() -> None:
    old = revised(None, [row(1, 10, sent=1), row(1, 20)], 0)
    assert said(put_right(old, [row(1, 10, sent=1)], [])) == [(1, 20, 0, 1)]


def test_a_largest_latency_that_was_taken_out_cannot_be_told_while_there_are_others() -> None:
    of = [row(1, 10, latencies=3, latency_max=9, messages=3)]
    old, longest, shorter = revised(None, of, 0), row(1, 10, latencies=1, latency_max=9), row(1, 10, latency_max=8)
    assert put_right(old, [longest], [shorter | {"latencies": 1}]) is None
    assert put_right(old, [longest], []) is None
    for less, more, largest in (
        ([longest], [longest | {"latency_max": 10}], 10),
        ([shorter | {"latencies": 1}], [], 9),
        (of, [longest | {"latency_max": 2}], 2),
    ):
        table = put_right(old, less, more)
        assert table is not None
        assert table["latency_max"].to_pylist() == [largest]


def test_putting_right_says_what_adding_up_says() -> None:
    """Messages as windows of one each: they change and come. Most turns need no look at all messages."""
    rng, told = random.Random(1), 0
    mine = {number: _random(rng) for number in range(60)}
    old = revised(None, _added(mine.values()), 0)
    for _ in range(100):
        some = [*rng.sample(sorted(mine), 3), max(mine) + 1]
        less = _added(mine[number] for number in some if number in mine)
        mine |= {number: _random(rng) for number in some}
        new = put_right(old, less, _added(mine[number] for number in some))
        old = revised(old, _added(mine.values()), 0)
        if new is not None:
            told += 1
            assert new.to_pylist() == old.to_pylist()
    assert told > 50
    assert old.schema == SCHEMA


def _random(rng: random.Random) -> Row:
    latency = rng.choice([None, rng.randrange(1000)])
    known = {} if latency is None else {"latencies": 1, "latency_max": latency, "sketch": [(latency // 100, 1)]}
    return row(rng.randrange(2), rng.randrange(3) * 10, sent=1, lost=rng.randrange(2), **known)


def _added(rows: Any) -> list[Row]:
    found: dict[Any, Row] = {}
    for each in rows:
        known = found.get(cell(each))
        if known is None:
            found[cell(each)] = {**each, "sketch": sorted(each["sketch"])}
            continue
        for name in (*SUMS, "latencies", "skewed", "messages"):
            known[name] += each[name]
        known["latency_max"] = max(
            (x for x in (known["latency_max"], each["latency_max"]) if x is not None), default=None
        )
        bins = dict(known["sketch"])
        for bin, count in each["sketch"]:
            bins[bin] = bins.get(bin, 0) + count
        known["sketch"] = sorted(bins.items())
    return list(found.values())
