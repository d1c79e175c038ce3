"""Rows of Arrow through the stateful processors, without a JVM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given as generated
from hypothesis import strategies as st
from pyspark.sql.streaming.tws_tester import TwsTester

from semel.errors import ConfigError, InputError
from semel.kernel.dedup import GapPolicy, OnGap
from semel.kernel.text import ID_CHARS_MAX
from semel.spark import processors
from semel.spark.ordering import Bucket, Rules
from semel.spark.processors import (
    BUCKET,
    GAP_ROWS_MAX,
    NOW,
    BatchInOrder,
    Counted,
    OrderingProcessor,
    Pack,
    Settled,
    Unpack,
    decide,
    from_bytes,
    given,
    to_bytes,
)
from semel.spark.rows import ARROW, RowOutcome
from semel.spark.transforms import _with_unplaced
from semel.spark.waiting import rows_waiting

SKIP = Rules(gap=GapPolicy(OnGap.SKIP, 10.0))
KEY = 7

Arrival = tuple[str | None, int | None, str]


def rows(arrivals: Sequence[Arrival], schema: pa.Schema = ARROW, **more: pa.Array) -> pa.Table:
    """Messages of which only session, index and stream matter; the offset is the order of arrival."""
    columns: dict[str, list[Any]] = {
        "id": [f"{session}-{index}" for session, index, _ in arrivals],
        "session": [session for session, _, _ in arrivals],
        "index": [index for _, index, _ in arrivals],
        "stream": [stream for _, _, stream in arrivals],
        "epoch": [1] * len(arrivals),
        "offset": list(range(len(arrivals))),
        "headers": [[("n", str(at))] for at in range(len(arrivals))],
        "time": [1_700_000_000_000_001] * len(arrivals),
        "data": [b"\x00\xff"] * len(arrivals),
    }
    table = pa.table(
        [pa.array(columns.get(field.name, [None] * len(arrivals)), field.type) for field in schema], schema=schema
    )
    for name, column in more.items():
        table = table.append_column(name, column)
    return table


def frame(table: pa.Table, now_ms: int) -> pd.DataFrame:
    return pd.DataFrame({NOW: [now_ms], "rows": [to_bytes(table)]})


class Query:
    """One bucket of a streaming query."""

    def __init__(self, rules: Rules = SKIP, *, verdicts: bool = True, waiting: bool = False) -> None:
        processor = OrderingProcessor(rules, verdicts=verdicts, waiting=waiting)
        self.tester = TwsTester(processor, timeMode=processor.time_mode)
        self.now_ms = 0

    def batch(self, table: pa.Table) -> list[tuple[Any, ...]]:
        return told(self.tester.testInPandas(KEY, frame(table, self.now_ms)))

    def wait_until(self, now_ms: int) -> list[tuple[Any, ...]]:
        self.now_ms = now_ms
        return told(self.tester.setProcessingTime(now_ms))

    def timers(self) -> list[int]:
        self.tester.handle.setGroupingKey(KEY)
        return list(self.tester.handle.listTimers())


def told(out: pd.DataFrame) -> list[tuple[Any, ...]]:
    if not len(out):
        return []
    table = from_bytes(list(out["rows"]))
    names = [name for name in ("id", "outcome") if name in table.column_names]
    return [tuple(row.values()) for row in table.select(names).to_pylist()]


def passing(*ids: str) -> list[tuple[Any, ...]]:
    return [(id, None) for id in ids]


def test_two_regional_copies_come_out_once_and_in_order() -> None:
    query = Query()
    east = [("s", index, "east") for index in (3, 1, 4)]
    west = [("s", index, "west") for index in (2, 1, 3)]
    out = query.batch(rows([*east, *west]))
    assert out == [*passing("s-1", "s-2", "s-3", "s-4"), ("s-1", "duplicate"), ("s-3", "duplicate")]


def test_the_first_position_passes_whatever_the_order_of_arrival() -> None:
    table = rows([("s", 1, "west"), ("s", 1, "east")])
    for arrived in (table, table.take(pa.array([1, 0]))):
        decided, of = decide(Bucket(SKIP), None, arrived, 0.0)
        assert given(decided, of, True).column("stream").to_pylist() == ["east", "west"]


def test_early_rows_wait_in_the_state_with_all_they_hold() -> None:
    query = Query()
    assert query.batch(rows([("s", 3, "east"), ("s", 2, "east")])) == []
    out = query.tester.testInPandas(KEY, frame(rows([("s", 1, "east")]), 5))
    table = from_bytes(list(out["rows"])).drop_columns(["outcome", "cause"])
    first, second = rows([("s", 3, "east"), ("s", 2, "east")]), rows([("s", 1, "east")])
    assert table == pa.concat_tables([second, first.take(pa.array([1, 0]))])


def test_sessions_are_told_of_when_their_rows_begin_and_cease_to_wait() -> None:
    """Where it is asked for. Of a session that goes on waiting as before nothing is said."""
    query = Query(Rules(), waiting=True)

    def heard(*arrivals: tuple[str, int]) -> list[tuple[Any, ...]]:
        given = rows([(session, index, "east") for session, index in arrivals])
        out = query.tester.testInPandas(KEY, frame(given, 0))
        table = from_bytes(list(out["rows"])).to_pylist() if len(out) else []
        return [(r["session"], r["index"], rows_waiting(r["cause"])) for r in table if r["outcome"] == "waiting"]

    assert heard(("a", 1), ("a", 3), ("a", 4), ("b", 1)) == [("a", 2, 2)]
    assert heard(("b", 2), ("c", 2)) == [("c", 1, 1)]
    assert heard(("b", 3)) == []
    assert heard(("a", 2), ("a", 6)) == [("a", 5, 1)]
    assert heard(("a", 5), ("c", 1)) == [("a", 5, 0), ("c", 1, 0)]
    skipping = Query(SKIP, waiting=True)
    assert skipping.batch(rows([("a", 2, "east")])) == [("a#waits", "waiting")]
    assert skipping.wait_until(10_000) == [*passing("a-2"), ("a#1", "skipped"), ("a#waits", "waiting")]


def test_a_gap_is_given_up_after_its_time_and_each_index_is_named() -> None:
    query = Query()
    query.now_ms = 1_000
    query.batch(rows([("s", 3, "east"), ("s", 6, "east")]))
    assert query.timers() == [11_000]
    assert query.wait_until(10_999) == []
    assert query.wait_until(11_000) == [("s-3", None), ("s#1", "skipped"), ("s#2", "skipped")]
    assert query.timers() == [21_000]
    assert query.batch(rows([("s", 2, "west")])) == [("s-2", "dead")]
    assert query.wait_until(21_500) == [("s-6", None), ("s#4", "skipped"), ("s#5", "skipped")]


def test_there_is_one_timer_and_the_earliest_deadline_has_it() -> None:
    query = Query(Rules(gap=GapPolicy(OnGap.SKIP, 10.0), forget_s=60.0))
    query.batch(rows([("calm", 1, "east")]))
    assert query.timers() == [60_000]
    query.wait_until(2_000)
    query.batch(rows([("gap", 2, "east")]))
    assert query.timers() == [12_000]
    query.batch(rows([("gap", 1, "east")]))
    assert query.wait_until(12_000) == []
    assert query.timers() == [60_000]


def test_quiet_sessions_are_forgotten_and_leave_no_state() -> None:
    query = Query(Rules(gap=GapPolicy(OnGap.SKIP, 10.0), forget_s=60.0))
    query.batch(rows([("s", 1, "east")]))
    query.wait_until(60_000)
    assert query.tester.peekValueState("bucket", KEY) is None
    assert query.timers() == []
    assert query.batch(rows([("s", 1, "east")])) == passing("s-1")


def test_without_timers_quiet_sessions_are_forgotten_when_others_come_unless_gaps_are_waited_for() -> None:
    for order, again in (("monotonic", None), ("strict", "duplicate")):
        query = Query(Rules(order, forget_s=60.0))
        assert OrderingProcessor(Rules(order), verdicts=True).time_mode == "None"
        query.batch(rows([("s", 1, "east")]))
        query.now_ms = 60_000
        query.batch(rows([("other", 1, "east")]))
        assert query.batch(rows([("s", 1, "east")])) == [("s-1", again)]


def test_without_verdicts_only_what_passes_comes_out_with_its_own_columns() -> None:
    query = Query(verdicts=False)
    out = query.tester.testInPandas(KEY, frame(rows([("s", 1, "a"), ("s", 1, "b"), (None, None, "a")]), 0))
    table = from_bytes(list(out["rows"]))
    assert table.schema.names == ARROW.names
    assert table.column("id").to_pylist() == ["s-1", "None-None"]


def test_without_verdicts_a_row_without_a_place_stops_the_query_instead_of_vanishing() -> None:
    with pytest.raises(InputError, match="s-None cannot be put in order: it has no index"):
        Query(verdicts=False).batch(rows([("s", None, "a")]))
    query = Query(Rules(unplaced=RowOutcome.DEAD))
    assert query.batch(rows([("s", None, "a")])) == [("s-None", "dead")]


def test_a_row_without_a_place_is_only_dead_where_its_verdict_comes_out() -> None:
    assert _with_unplaced(Rules(buffer=7), verdicts=True) == Rules(buffer=7, unplaced=RowOutcome.DEAD)
    assert _with_unplaced(Rules(), verdicts=False).unplaced is RowOutcome.REJECTED


def test_rows_with_an_outcome_travel_on_and_the_dead_keep_their_place() -> None:
    arrivals = [("s", 1, "a"), ("s", 2, "a"), ("s", 3, "a"), ("s", 3, "a")]
    outcomes = pa.array(["dead", None, "duplicate", None])
    assert Query().batch(rows(arrivals, outcome=outcomes)) == [
        ("s-1", "dead"), ("s-2", None), ("s-3", None), ("s-3", "duplicate"),
    ]  # fmt: skip


def test_copies_without_a_session_are_told_apart_by_id() -> None:
    query = Query(Rules(ids=10))
    table = rows([(None, None, "east"), (None, None, "west")])
    assert query.batch(table) == [("None-None", None), ("None-None", "duplicate")]
    assert query.batch(table) == [("None-None", "duplicate")] * 2


def test_a_gap_wider_than_any_list_is_told_in_few_rows_with_ids_that_fit() -> None:
    session = "s" * ID_CHARS_MAX
    query = Query(Rules(gap=GapPolicy(OnGap.SKIP, 10.0), buffer=1))
    out = query.batch(rows([(session, 10**15, "a"), (session, 10**15 + 2, "a")]))
    assert len(out) == 1 + GAP_ROWS_MAX + 1
    ids = [id for id, outcome in out if outcome == "skipped"]
    assert all(len(id) <= ID_CHARS_MAX for id in ids)
    assert ids[-1].endswith(f"#{GAP_ROWS_MAX + 1}..{10**15 - 1}")
    assert len(set(ids)) == len(ids)


def test_rows_kept_under_other_columns_come_out_with_those_of_today() -> None:
    query = Query()
    query.batch(rows([("s", 2, "a")], gone=pa.array([1])))
    out = query.tester.testInPandas(KEY, frame(rows([("s", 1, "a")], added=pa.array(["x"])), 0))
    today = pa.schema([*ARROW, pa.field("added", pa.string()), pa.field("outcome", pa.string())])
    unpacked = pa.Table.from_batches(Unpack(today)([pa.RecordBatch.from_pandas(out)]))
    assert unpacked.schema.names == today.names
    assert unpacked.column("added").to_pylist() == ["x", None]
    assert unpacked.column("id").to_pylist() == ["s-1", "s-2"]


def test_rows_kept_with_a_column_of_another_type_are_explained() -> None:
    query = Query()
    query.batch(rows([("s", 2, "a")], extra=pa.array([b"x"])))
    with pytest.raises(ConfigError, match="do not fit its columns of today"):
        query.batch(rows([("s", 1, "a")], extra=pa.array([1])))


def test_packing_keeps_every_row_its_bucket_and_its_type() -> None:
    buckets = [3, 1, 3, 0, 1]
    table = rows([("s", index, "a") for index in range(1, 6)])
    keyed = table.append_column(BUCKET, pa.array(buckets, pa.int32())).append_column(NOW, pa.array([9] * 5, pa.int64()))
    for pack in (Pack(), Pack(rows_max=2), Pack(bytes_max=1)):
        batches = list(pack(keyed.to_batches(max_chunksize=1)))
        found = [(bucket.as_py(), row) for batch in batches for bucket, packed in zip(batch[0], batch[2], strict=True)
                 for row in from_bytes([packed.as_py()]).to_pylist()]  # fmt: skip
        expected = list(zip(buckets, table.to_pylist(), strict=True))
        for bucket in set(buckets):
            assert [r for b, r in found if b == bucket] == [r for b, r in expected if b == bucket]
        assert {now.as_py() for batch in batches for now in batch[1]} == {9}
        assert len(found) == 5
    assert list(Pack()([])) == []


def test_many_rows_come_out_in_several_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "PACK_ROWS_MAX", 2)
    out = Query().tester.testInPandas(KEY, frame(rows([("s", index, "a") for index in range(1, 6)]), 0))
    assert len(out) == 3
    assert told(out) == passing(*(f"s-{index}" for index in range(1, 6)))


arrivals = st.lists(
    st.tuples(st.sampled_from(["s", "t", None]), st.integers(1, 6) | st.none(), st.sampled_from(["east", "west"])),
    max_size=25,
)


@generated(arrivals, st.lists(st.integers(0, 25), max_size=4))
def test_no_row_is_lost_or_doubled_however_the_batches_are_cut(arrivals: list[Arrival], cuts: list[int]) -> None:
    query = Query()
    table = rows(arrivals)
    edges = [0, *sorted(cut for cut in cuts if cut < len(arrivals)), len(arrivals)]
    out: list[tuple[Any, ...]] = []
    for start, end in pairwise(edges):
        if end > start:
            out += query.batch(table.slice(start, end - start))
        out += query.wait_until(query.now_ms + 4_000)
    for _ in range(10):
        out += query.wait_until(query.now_ms + 11_000)
    assert len([id for id, outcome in out if outcome != "skipped"]) == len(arrivals)
    for session in ("s", "t"):
        passed = [id for id, outcome in out if outcome is None and id.startswith(session)]
        assert passed == sorted(set(passed))


def test_a_batch_is_ordered_by_the_same_rules() -> None:
    table = rows([("s", 4, "a"), ("s", 1, "a"), ("s", 1, "b"), (None, None, "a")])
    keyed = table.append_column(BUCKET, pa.array([0] * 4, pa.int32()))
    out = BatchInOrder(SKIP, verdicts=True)(keyed)
    assert list(zip(out.column("id").to_pylist(), out.column("outcome").to_pylist(), strict=True)) == [
        ("s-1", None), ("None-None", None), ("s-4", None), ("s-1", "duplicate"), ("s#2", "skipped"), ("s#3", "skipped"),
    ]  # fmt: skip
    with pytest.raises(InputError, match="index 2 of session 's' is missing"):
        BatchInOrder(Rules(), verdicts=True)(keyed)


def test_an_order_does_not_depend_on_the_hash_seed() -> None:
    """Workers are other processes, and a replay is another run."""
    script = (
        "from tests.unit.spark.test_processors import Query, rows; "
        "print(Query().batch(rows([(f's{n}', i, r) for r in 'ba' for i in (2, 1) for n in range(5)])))"
    )
    outs = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outs) == 1


MINUTE_MS = 60_000


class Windows:
    """One window, from 0 to 1 minute, of one group."""

    KEY = (0, MINUTE_MS * 1000, "east")

    def __init__(self) -> None:
        self.tester = TwsTester(
            Settled(forget_ms=10 * MINUTE_MS), timeMode="EventTime", eventTimeExtractor=lambda _: 2**60
        )
        self.tester._usingPandas = True

    def count(self, *counts: int) -> list[tuple[int, int]]:
        # the tester wraps a key in a tuple, as Spark does with its columns
        handle, processor = self.tester.handle, self.tester.processor
        handle.setGroupingKey(self.KEY)
        frames = iter([pd.DataFrame({"count": list(counts)})])
        out = list(processor.handleInputRows(self.KEY, frames, self.tester._getTimerValues()))
        return [pair for each in out for pair in self._pairs(each)]

    def watermark(self, ms: int) -> list[tuple[int, int]]:
        original = self.tester.processor.handleExpiredTimer
        self.tester.processor.handleExpiredTimer = lambda key, *rest: original(key[0], *rest)
        try:
            return self._pairs(self.tester.setWatermark(ms))
        finally:
            self.tester.processor.handleExpiredTimer = original

    def _pairs(self, out: Any) -> list[tuple[int, int]]:
        return [
            (row.count_, row.revision) for row in pd.DataFrame(out).rename(columns={"count": "count_"}).itertuples()
        ]


def test_a_window_is_told_once_when_it_is_settled() -> None:
    windows = Windows()
    assert windows.count(3, 4) == []
    assert windows.watermark(MINUTE_MS - 1) == []
    assert windows.count(1) == []
    assert windows.watermark(MINUTE_MS) == [(8, 0)]
    assert windows.watermark(2 * MINUTE_MS) == []


def test_late_rows_open_a_window_again_with_the_next_revision() -> None:
    windows = Windows()
    windows.count(8)
    windows.watermark(MINUTE_MS)
    assert windows.count(1) == [(9, 1)]
    assert windows.count(2) == [(11, 2)]


def test_a_window_whose_first_rows_are_late_is_told_at_once() -> None:
    windows = Windows()
    windows.watermark(5 * MINUTE_MS)
    assert windows.count(2) == [(2, 0)]
    assert windows.count(1) == [(3, 1)]


def test_a_window_is_forgotten_and_what_comes_after_is_not_counted() -> None:
    windows = Windows()
    windows.count(8)
    windows.watermark(MINUTE_MS)
    windows.watermark(11 * MINUTE_MS)
    assert windows.tester.peekValueState("window", Windows.KEY) is None
    assert windows.count(5) == []
    assert windows.tester.peekValueState("window", Windows.KEY) is None


def test_a_watermark_that_jumps_far_ahead_tells_and_then_forgets() -> None:
    windows = Windows()
    windows.count(8)
    assert windows.watermark(100 * MINUTE_MS) == [(8, 0)]
    windows.watermark(101 * MINUTE_MS)
    assert windows.tester.peekValueState("window", Windows.KEY) is None


def test_rows_are_counted_before_they_are_exchanged() -> None:
    batch = pa.record_batch({"0": [1, 1, 2], "1": ["a", "a", None]})
    out = pa.Table.from_batches(Counted(("0", "1"))([batch])).to_pylist()
    assert out == [{"0": 1, "1": "a", "count": 2}, {"0": 2, "1": None, "count": 1}]
