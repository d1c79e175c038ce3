"""The engines beside Semel, on a few events of which the counts are known."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.bench import spark_peers
from semel.bench.spark_audit import difference
from semel.bench.spark_peers import COUNTS, PEERS, BenchQuestion, ask
from semel.errors import ConfigError

SECOND = 1_000_000
HOP, OTHER = 7, -8
SENT, RESENT, ACCEPTED, DUPLICATE, REJECTED, ACTION, FORWARDED, EXPIRED, RECORD = 1, 2, 4, 5, 6, 12, 21, 25, 0
STORY = [
    # on time, in order
    (HOP, "a", 1, SENT, 1), (HOP, "a", 1, ACCEPTED, 2), (HOP, "a", 1, FORWARDED, 3),
    # sent twice, accepted twice, after its successor
    (HOP, "a", 2, SENT, 1), (HOP, "a", 2, RESENT, 2), (HOP, "a", 3, SENT, 2), (HOP, "a", 3, ACCEPTED, 3),
    (HOP, "a", 2, ACCEPTED, 4), (HOP, "a", 2, ACCEPTED, 5), (HOP, "a", 2, DUPLICATE, 6),
    # lost, given up, in flight, rejected on the way, and one that nobody sent
    (HOP, "b", 1, SENT, 1), (HOP, "b", 2, SENT, 1), (HOP, "b", 2, EXPIRED, 2), (HOP, "b", 3, SENT, 95),
    (HOP, "b", 4, SENT, 95), (HOP, "b", 4, REJECTED, 96), (HOP, "b", 5, ACCEPTED, 3),
    # another window, another hop; what operators do and what streams hold is not counted
    (HOP, "a", 4, SENT, 12), (HOP, "a", 4, ACCEPTED, 13), (OTHER, "a", 1, SENT, 1), (OTHER, "a", 1, ACCEPTED, 2),
    (OTHER, "a", 1, ACTION, 3), (OTHER, "z", 1, RECORD, 3),
]  # fmt: skip
WANTED = {
    (HOP, 0): {
        "sent": 5, "arrivals": 5, "arrivals_unique": 3, "accepted": 4, "accepted_unique": 3, "duplicates": 1,
        "lost": 1, "doubled": 1, "disorder": 1, "phantoms": 1, "given_up": 1,
    },
    (HOP, 10): {"sent": 1, "arrivals": 1, "arrivals_unique": 1, "accepted": 1, "accepted_unique": 1},
    (HOP, 90): {"sent": 2, "in_flight": 2},
    (OTHER, 0): {"sent": 1, "arrivals": 1, "arrivals_unique": 1, "accepted": 1, "accepted_unique": 1},
}  # fmt: skip


@pytest.fixture
def question(tmp_path: Path) -> BenchQuestion:
    codes, sessions, idx, kinds, times = zip(*STORY, strict=True)
    table = pa.table({
        "code": pa.array(codes, pa.int64()),
        "session": pa.array(sessions),
        "key": pa.array([hash((session, number)) for session, number in zip(sessions, idx, strict=True)], pa.int64()),
        "idx": pa.array(idx, pa.int64()),
        "kind": pa.array(kinds, pa.int16()),
        "ord": pa.array(range(len(STORY)), pa.int64()),
        "at": pa.array([second * SECOND for second in times], pa.timestamp("us", tz="UTC")),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "events.parquet")
    return BenchQuestion((str(tmp_path / "events.parquet"),), 10 * SECOND, 10 * SECOND, 100 * SECOND, 1, str(tmp_path))


@pytest.mark.parametrize("engine", PEERS)
def test_an_engine_counts_by_the_definitions(engine: str, question: BenchQuestion) -> None:
    found = ask(engine, question)
    assert found.cells == {
        (code, start * SECOND): tuple(counts.get(name, 0) for name in COUNTS)
        for (code, start), counts in WANTED.items()
    }  # fmt: skip
    assert found.seconds > 0


@pytest.mark.parametrize("engine", PEERS)
def test_an_engine_that_fails_says_why(engine: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "no.parquet")
    found = ask(engine, BenchQuestion((missing,), 1, 1, 1, 1, str(tmp_path)))
    assert found.cells is None
    assert missing in found.why


def test_an_engine_that_is_ended_by_the_system_is_no_end_of_the_bench(tmp_path: Path) -> None:
    found = ask("no_such_package", BenchQuestion((), 1, 1, 1, 1, str(tmp_path)))
    assert found.cells is None
    assert "ended with 1" in found.why


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_peers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the duckdb package") as caught:
        spark_peers.check_installed()
    assert "semel[bench,spark]" in caught.value.fix


def test_a_difference_names_the_count_and_the_cell() -> None:
    one, two = tuple(range(len(COUNTS))), (*range(len(COUNTS) - 1), 99)
    ours = {(1, 0): one, (1, None): one}
    assert difference(ours, ours) == ""
    assert difference(ours, {(1, 0): one}) == ""
    assert difference(ours, {(1, None): one}) == ""
    assert difference(ours, {(1, 0): two}) == f"in_flight of (1, 0) is 99 and not {len(COUNTS) - 1}"
    assert difference(ours, {(1, 0): one, (1, 10): one}) == "it has 2 cells and not 1"
    assert difference(ours, {}) == "it has 0 cells and not 2"
