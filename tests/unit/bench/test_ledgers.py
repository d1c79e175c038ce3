"""Ledgers for measuring: as the exporter would write them, the same for the same seed, with something wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.bench.spark_audit import BEGIN_US, HOPS, PIPELINES, Generated, generate
from semel.kernel.ledger import Kind
from semel.runtime.export.exporter import dataset_schema
from semel.spark.audit.sources import find

EVENTS = 30_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Generated, Any]:
    folder = tmp_path_factory.mktemp("lake")
    generated = generate(folder, EVENTS, segment_rows=8_000)
    files = [part.path for part in find([folder]).parts]
    return folder, generated, pa.concat_tables(pq.read_table(file, partitioning=None) for file in files)


def test_an_audit_takes_the_folder_for_an_export(made: tuple[Path, Generated, Any]) -> None:
    folder, generated, rows = made
    evidence = find([folder])
    assert len(evidence.parts) == 4
    assert generated.bytes == sum(part.path.stat().st_size for part in evidence.parts)
    assert generated.events == rows.num_rows == pytest.approx(EVENTS, rel=0.02)
    assert rows.schema.equals(dataset_schema("ledger"))
    assert evidence.parts[0].oldest == BEGIN_US


def test_the_events_have_numbers_without_gaps_and_names_of_their_own(made: tuple[Path, Generated, Any]) -> None:
    rows = made[2].to_pylist()
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert {(row["pipeline"], row["hop"]) for row in rows} == {(name, hop) for name in PIPELINES for hop in HOPS}
    places = {row["message"]: (row["session"], row["idx"]) for row in rows}
    assert len(set(places.values())) == len(places) == pytest.approx(EVENTS / 9, rel=0.01)
    assert len({session for session, _ in places.values()}) == pytest.approx(EVENTS / 1000, rel=0.1)


def test_something_of_everything_is_wrong(made: tuple[Path, Generated, Any]) -> None:
    seen: dict[tuple[str, str], list[Kind]] = {}
    for row in made[2].to_pylist():
        seen.setdefault((row["hop"], row["message"]), []).append(Kind(row["kind"]))
    lost = sum(kinds == [Kind.SENT] for kinds in seen.values())
    twice = sum(kinds.count(Kind.ACCEPTED) == 2 for kinds in seen.values())
    repeated = sum(Kind.DUPLICATE in kinds for kinds in seen.values())
    for count in (lost, twice, repeated):
        assert 0 < count < len(seen) / 200
    assert sum(sorted(kinds) == [Kind.SENT, Kind.ACCEPTED, Kind.FORWARDED] for kinds in seen.values()) > 0.99 * len(
        seen
    )


def test_a_seed_says_it_all(made: tuple[Path, Generated, Any], tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    parts: list[float] = []
    assert generate(again, EVENTS, segment_rows=8_000, step=parts.append) == made[1]
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    generate(other, EVENTS, segment_rows=8_000, seed=2)
    sums = [[part.segment.sha256 for part in find([folder]).parts] for folder in (made[0], again, other)]
    assert sums[0] == sums[1]
    assert sums[0] != sums[2]
