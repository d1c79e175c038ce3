from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.tools.ledgers import Book, Letter

from semel.errors import StoreError
from semel.spark.audit import compact, sources
from semel.spark.audit.compact import Day, File, Manifest


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    book = Book(tmp_path / "hub.db", "hub")
    book.accept([Letter("m1", "s", 1)])
    book.export(tmp_path / "lake")
    book.store.close()
    return tmp_path / "lake"


def put(lake: Path, *days: Day, version: int = compact.VERSION) -> None:
    top = compact.events_folder(lake)
    top.mkdir(parents=True)
    for day in days:
        (top / day.path).mkdir(parents=True, exist_ok=True)
        for file in day.files:
            (top / day.path / file.name).write_bytes(b"x" * file.bytes)
    (top / "_manifest.json").write_bytes(msgspec.json.encode(Manifest(version=version, days=days)))


def day(*covers: str) -> Day:
    return Day("2026-01-01", "gen-1/day=2026-01-01", 2, (File("part-0.parquet", 3),), covers, (), ())


def tokens(lake: Path) -> list[str]:
    return [compact.token(part) for part in sources.find([lake]).parts]


def test_a_day_replaces_the_segments_that_it_covers(lake: Path) -> None:
    put(lake, day(*tokens(lake)))
    found, rest = compact.split(sources.find([lake]))
    assert [each.day for item in found for each in item.days] == ["2026-01-01"]
    assert rest == []


def test_what_a_day_does_not_cover_is_read_beside_it(lake: Path) -> None:
    ledger, index = tokens(lake)
    put(lake, day(ledger))
    found, rest = compact.split(sources.find([lake]))
    assert len(found) == 1
    assert [compact.token(part) for part in rest] == [index]


def test_a_day_that_covers_what_no_longer_counts_is_passed_over(lake: Path) -> None:
    put(lake, day(*tokens(lake), "ledger/day=2026-01-01/seg-gone.parquet"))
    found, rest = compact.split(sources.find([lake]))
    assert found == []
    assert len(rest) == 2


def test_a_manifest_of_another_version_is_passed_over(lake: Path) -> None:
    put(lake, day(*tokens(lake)), version=99)
    assert compact.split(sources.find([lake]))[0] == []


@pytest.mark.parametrize("harm", ["missing", "short"])
def test_a_harmed_file_of_a_day_is_named(lake: Path, harm: str) -> None:
    put(lake, day(*tokens(lake)))
    path = compact.events_folder(lake) / "gen-1/day=2026-01-01/part-0.parquet"
    path.unlink() if harm == "missing" else path.write_bytes(b"x")
    with pytest.raises(StoreError, match=str(path)):
        compact.split(sources.find([lake]))


def test_a_broken_manifest_is_named(lake: Path) -> None:
    put(lake)
    (compact.events_folder(lake) / "_manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"_manifest\.json cannot be read"):
        compact.split(sources.find([lake]))
