"""kill -9 of a real exporter at every point of its way, again and again, while the ledger grows."""

import hashlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Event, Kind, Mark
from semel.kernel.ops import Append, Unit
from semel.kernel.store import Store
from semel.runtime.export import exporter as module
from semel.runtime.export.exporter import DATASETS, ExportOptions, dataset_folder, export, segments
from semel.stores.open import open_store
from semel.stores.points import POINTS, on_reach
from semel.testing.limits import scaled

EXPORT_POINTS = [point for point in POINTS if point.startswith("export.")]
COMMIT_POINTS = ["commit.begin", "commit.applied", "commit.committed"]
OPTIONS = ExportOptions(segment_rows=40, lease_s=0.25, wait_s=scaled(60))
READ_ROWS = 20


def child(url: str, lake: str, point: str, count: int) -> None:
    """Export both datasets and die when `point` is reached for the `count`-th time."""
    module.READ_ROWS = READ_ROWS
    left = count

    def die(reached: str) -> None:
        nonlocal left
        left -= reached == point
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    store = open_store(url)
    on_reach(die)
    for dataset in DATASETS:
        export(store, Path(lake), dataset, OPTIONS)
    on_reach(None)
    store.close()


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.connected)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/semel.db"
    else:
        yield request.getfixturevalue("postgres_url")


def grow(store: Store, name: str, rows: int) -> None:
    accepted = Event(Kind.ACCEPTED, "client>hub/chat", "chat", delivery="d", message="m")
    appends = (Append("hub/chat", Envelope(id=f"{name}-{n}", data=b"x"), on_fresh=accepted) for n in range(rows))
    store.commit([Unit(tuple(appends))])


def export_and_die(url: str, lake: Path, point: str, count: int) -> int:
    return subprocess.run([sys.executable, __file__, url, str(lake), point, str(count)], timeout=scaled(120)).returncode


def check(store: Store, lake: Path, rows: int) -> None:
    """Every row in exactly one file; every file listed, as it is listed; nothing left over."""
    seqs: Counter[Mark] = Counter()
    offsets: Counter[int] = Counter()
    for dataset in DATASETS:
        base = dataset_folder(lake, dataset)
        listed = segments(lake, dataset)
        assert {segment.path for segment in listed} == {str(path.relative_to(base)) for path in base.glob("day=*/*")}
        for segment in listed:
            content = (base / segment.path).read_bytes()
            table = pq.read_table(base / segment.path)
            assert (hashlib.sha256(content).hexdigest(), table.num_rows) == (segment.sha256, segment.rows)
            if dataset == "ledger":
                seqs.update(Mark(row["xid"] or 0, row["seq"]) for row in table.select(["xid", "seq"]).to_pylist())
            else:
                offsets.update(table["offset"].to_pylist())
        assert list((base / "_tmp").iterdir()) == []
    assert seqs == Counter(entry.mark for entry in store.ledger(START, 1_000_000))
    assert offsets == Counter(range(1, rows + 1))
    assert sum(seqs.values()) == rows


@pytest.mark.parametrize("point", EXPORT_POINTS)
def test_killed_at_each_step_the_next_one_ends_it(point: str, url: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    store = open_store(url)
    grow(store, "before", 100)
    rows = 100
    for count in (1, 3, 2):
        assert export_and_die(url, lake, point, count) == -signal.SIGKILL
        grow(store, f"after-{count}", 90)
        rows += 90
    assert export_and_die(url, lake, "never", 1) == 0
    check(store, lake, rows)
    store.close()


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_killed_inside_each_of_its_commits(point: str, url: str, tmp_path: Path) -> None:
    """Lease, mark, plan, done, release: the export's own writes are as safe as everybody's."""
    lake = tmp_path / "lake"
    store = open_store(url)
    rows = 0
    for count in range(1, 8) if url.startswith("sqlite") else (1, 3, 4, 7):
        grow(store, f"{count}", 50)
        rows += 50
        assert export_and_die(url, lake, point, count) == -signal.SIGKILL
    assert export_and_die(url, lake, "never", 1) == 0
    check(store, lake, rows)
    store.close()
