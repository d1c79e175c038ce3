"""The Parquet folder: any reader finds each row once, whatever became of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from tests.unit.spark.sinks import SCHEMA, ids, new_store, raw, told

from semel.errors import ConfigError, StaleFence, StoreError, StoreUnavailable
from semel.kernel.ledger import Kind
from semel.kernel.store import Store
from semel.runtime.host.lease_holder import Holder
from semel.spark import parquet as module
from semel.spark.landing import Job
from semel.spark.parquet import FolderTarget, listed, local_folder
from semel.spark.sink import SinkOptions
from semel.spark.staging import Staged, Task

HOP = "input>spark/orders"


class Killed(BaseException):
    pass


class Folder:
    def __init__(self, tmp_path: Path, store: str | None = None, fence: int | None = None) -> None:
        self.path = tmp_path / "out"
        self.options = SinkOptions(
            pipeline="orders", path=str(self.path), store=store, staging=str(tmp_path / "staging"), fence=fence
        )

    def target(self) -> FolderTarget:
        schema = SCHEMA if self.options.store else from_arrow_schema(pa.schema([("id", pa.string())]))
        return FolderTarget(self.options, schema)

    def stage(self, batch: int, *names: str, partition: int = 0, query: str = "q1") -> Staged:
        return self.stage_rows(batch, raw(id=list(names)), partition, query)

    def stage_rows(self, batch: int, rows: pa.RecordBatch, partition: int = 0, query: str = "q1") -> Staged:
        return self.target().stage(iter([rows]), Task(query, batch, partition, 0, partition))

    def commit(self, batch: int, *staged: Staged, query: str = "q1") -> None:
        self.target().commit(Job("orders", query, batch), staged)

    @property
    def rows(self) -> list[str]:
        """As a reader sees them that knows nothing of the manifest."""
        return [id for path in sorted(self.path.glob("*.parquet")) for id in pq.read_table(path)["id"].to_pylist()]

    @property
    def listed_rows(self) -> list[str]:
        names = [file.name for batch in listed(self.path) for file in batch.files]
        return [id for name in names for id in pq.read_table(self.path / name)["id"].to_pylist()]

    @property
    def left_over(self) -> list[str]:
        return [path.name for path in (self.path / "_tmp").iterdir()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(new_store(tmp_path)) as store:
        yield store


def test_batches_become_files_with_their_numbers(folder: Folder) -> None:
    folder.commit(0, folder.stage(0, "b", partition=1), folder.stage(0, "a", partition=0))
    folder.commit(1, folder.stage(1, "c"))
    assert [path.name for path in sorted(folder.path.glob("*.parquet"))] == [
        "part-00000000-00000.parquet", "part-00000000-00001.parquet", "part-00000001-00000.parquet",
    ]  # fmt: skip
    assert folder.rows == folder.listed_rows == ["a", "b", "c"]
    assert [(each.batch, each.rows) for each in listed(folder.path)] == [(0, 2), (1, 1)]
    assert folder.left_over == []


def test_the_whole_folder_is_one_table_for_arrow(folder: Folder) -> None:
    folder.commit(0, folder.stage(0, "a"))
    folder.commit(1, folder.stage(1, "b"))
    assert pq.read_table(folder.path)["id"].to_pylist() == ["a", "b"]


def test_a_batch_that_comes_again_changes_nothing(folder: Folder) -> None:
    folder.commit(0, folder.stage(0, "a"), folder.stage(0, "b", partition=1))
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*.*")}
    folder.commit(0, folder.stage(0, "b"), folder.stage(0, "a", partition=1))
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*.*")} == before


def test_only_the_attempts_that_are_named_count(folder: Folder) -> None:
    folder.stage(0, "a", "half")
    folder.commit(0, folder.stage(0, "a", "b"))
    assert folder.rows == ["a", "b"]
    assert folder.left_over == []


POINTS = ["plan", "first rename", "all renamed", "listed"]


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_dies_at_any_step(folder: Folder, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """The replay cuts the rows in another way, and must not mix its files with those of the first attempt."""
    folder.commit(0, folder.stage(0, "z"))
    staged = [folder.stage(1, "a", "b"), folder.stage(1, "c", partition=1)]
    die_at(monkeypatch, point)
    with pytest.raises(Killed):
        folder.commit(1, *staged)
    monkeypatch.undo()
    folder.target().abort(Job("orders", "q1", 1), staged)
    again = [folder.stage(1, "a"), folder.stage(1, "b", "c", partition=1)]
    folder.commit(1, *again)
    assert folder.rows == folder.listed_rows == ["z", "a", "b", "c"]
    assert folder.left_over == []
    folder.commit(2, folder.stage(2, "d"))
    assert folder.rows == ["z", "a", "b", "c", "d"]


def die_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    rename = Path.rename
    renames = iter(range(100))

    def dying_rename(self: Path, target: Path) -> Path:
        if self.suffix == ".parquet" and next(renames) == {"plan": 0, "first rename": 1}.get(point):
            raise Killed
        return rename(self, target)

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(Path, "rename", dying_rename)
    if point == "all renamed":
        monkeypatch.setattr(FolderTarget, "_check", die)
    if point == "listed":
        monkeypatch.setattr(FolderTarget, "_sweep", die)


def test_a_driver_that_dies_before_its_plan_leaves_nothing_to_see(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = folder.stage(0, "a")

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(module, "sync", die)
    monkeypatch.setattr(FolderTarget, "_claim", lambda self, job: None)
    with pytest.raises(Killed):
        folder.commit(0, staged)
    monkeypatch.undo()
    folder.target().abort(Job("orders", "q1", 0), [staged])
    assert list((folder.path / "_tmp").iterdir()) == []
    folder.commit(0, folder.stage(0, "a"))
    assert folder.rows == ["a"]


def test_two_drivers_at_once_make_one_batch(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = folder.stage(0, "a", "b"), [folder.stage(0, "a"), folder.stage(0, "b", partition=1)]
    turns = iter([True])
    put_once = FolderTarget._put_once

    def overtaken(self: FolderTarget, job: Job, path: Path, content: bytes) -> None:
        if path.parent.name == "_plan" and next(turns, None):
            folder.commit(0, *theirs)
        put_once(self, job, path, content)

    monkeypatch.setattr(FolderTarget, "_put_once", overtaken)
    folder.commit(0, mine)
    assert sorted(folder.rows) == sorted(folder.listed_rows) == ["a", "b"]


class TestZombie:
    """A driver that was taken for dead, and does not know it."""

    @pytest.fixture
    def drivers(self, tmp_path: Path, store: Store) -> tuple[Folder, Folder]:
        old = Holder(store, "pipeline/orders", job="running", lease_s=0.0, owner="old")
        old.acquire()
        new = Holder(store, "pipeline/orders", job="running", owner="new")
        new.acquire()
        return Folder(tmp_path, store.url, old.fence), Folder(tmp_path, store.url, new.fence)

    def test_it_shows_nothing_and_what_it_left_is_swept(self, drivers: tuple[Folder, Folder], store: Store) -> None:
        zombie, living = drivers
        with pytest.raises(StaleFence, match="another driver has taken over"):
            zombie.commit(0, zombie.stage(0, "a"))
        assert not list(zombie.path.glob("*.parquet"))
        assert not (zombie.path / "_plan").exists()
        living.commit(0, living.stage(0, "a"))
        late = zombie.stage(0, "a")
        with pytest.raises(StaleFence):
            zombie.commit(0, late)
        living.commit(1, living.stage(1, "b"))
        assert living.rows == living.listed_rows == ["a", "b"]
        assert living.left_over == []
        assert told(store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.HANDLED) for id in "ab"}

    def test_it_may_be_replaced_between_its_plan_and_the_first_file(
        self, drivers: tuple[Folder, Folder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        zombie, living = drivers
        checks = iter([True])
        check = module.check_fence

        def replaced(store: Store, job: Job, options: SinkOptions) -> None:
            """The first look finds all well."""
            if not next(checks, None):
                check(store, job, options)

        staged = zombie.stage(0, "a")
        with monkeypatch.context() as patched:
            patched.setattr(module, "check_fence", replaced)
            with pytest.raises(StaleFence):
                zombie.commit(0, staged)
        assert living.rows == []
        living.commit(0, living.stage(0, "a"))
        assert living.rows == living.listed_rows == ["a"]
        assert living.left_over == []


def test_files_of_another_query_are_swept(folder: Folder) -> None:
    folder.commit(0, folder.stage(0, "a"))
    foreign = folder.stage(0, "a", query="q2")
    with pytest.raises(ConfigError, match="written by query q1"):
        folder.commit(0, foreign, query="q2")
    folder.target().abort(Job("orders", "q2", 0), [foreign])
    assert folder.left_over == []
    folder.stage(5, "late", query="q2")
    coming = folder.stage(2, "c")
    folder.commit(1, folder.stage(1, "b"))
    assert folder.left_over == [coming.part]


def test_what_a_driver_left_when_it_died_writing_a_plan_is_swept(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.commit(0, folder.stage(0, "a"))

    def die(*_: object) -> None:
        raise Killed

    staged = folder.stage(1, "b")
    with monkeypatch.context() as patched:
        patched.setattr(module, "rename_unless_there", die)
        with pytest.raises(Killed):
            folder.commit(1, staged)
    assert len(folder.left_over) == 2
    folder.commit(1, folder.stage(1, "b"))
    assert folder.rows == ["a", "b"]
    assert folder.left_over == []


def test_an_abort_keeps_what_a_plan_names(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise Killed

    planned, other = folder.stage(0, "a"), folder.stage(0, "a")
    with monkeypatch.context() as patched:
        patched.setattr(FolderTarget, "_carry_out", die)
        with pytest.raises(Killed):
            folder.commit(0, planned)
    folder.target().abort(Job("orders", "q1", 0), [planned, other])
    assert folder.left_over == [planned.part]
    folder.commit(0, folder.stage(0, "a"))
    assert folder.rows == ["a"]


def test_an_abort_after_the_commit_undoes_nothing(folder: Folder) -> None:
    staged = folder.stage(0, "a")
    folder.commit(0, staged)
    folder.target().abort(Job("orders", "q1", 0), [staged])
    assert folder.rows == ["a"]


def test_a_batch_without_rows_has_no_file(folder: Folder) -> None:
    empty = folder.target().stage(iter([]), Task("q1", 0, 0, 0, 0))
    assert (empty.part, empty.part_rows) == ("", 0)
    folder.commit(0, empty)
    assert folder.rows == []
    assert [each.rows for each in listed(folder.path)] == [0]


def test_a_task_that_fails_leaves_no_file(folder: Folder) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield raw(id=["a"])
        raise Killed

    with pytest.raises(Killed):
        folder.target().stage(rows(), Task("q1", 0, 0, 0, 0))
    assert list((folder.path / "_tmp").iterdir()) == []


def test_a_folder_of_another_query_is_refused_with_both_ways_out(folder: Folder) -> None:
    folder.commit(0, folder.stage(0, "a"))
    with pytest.raises(ConfigError, match="written by query q1 of pipeline 'orders'") as caught:
        folder.commit(0, folder.stage(0, "a", query="q2"), query="q2")
    assert "checkpoint of that query, or write into an empty folder" in caught.value.fix
    assert folder.rows == ["a"]


def test_a_folder_with_files_of_somebody_else_is_refused(folder: Folder) -> None:
    folder.path.mkdir()
    pq.write_table(pa.table({"id": ["x"]}), folder.path / "x.parquet")
    with pytest.raises(ConfigError, match="no query of Semel wrote"):
        folder.commit(0, folder.stage(0, "a"))


def test_a_planned_file_that_was_removed_or_changed_is_named(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    die_at(monkeypatch, "all renamed")
    with pytest.raises(Killed):
        folder.commit(0, folder.stage(0, "a"))
    monkeypatch.undo()
    part = folder.path / "part-00000000-00000.parquet"
    pq.write_table(pa.table({"id": ["x", "y"]}), part)
    with pytest.raises(StoreError, match="has 2 rows, planned were 1"):
        folder.commit(0, folder.stage(0, "a"))
    part.unlink()
    with pytest.raises(StoreError, match=r"part-00000000-00000.parquet is planned"):
        folder.commit(0, folder.stage(0, "a"))


def test_what_does_not_pass_is_told_and_not_written(tmp_path: Path, store: Store) -> None:
    folder = Folder(tmp_path, store.url)
    rows = raw(
        id=["a", "b", "c", "d", "e"],
        outcome=[None, "dead", "duplicate", "", "handled"],
        data=[b"1", b"2", b"3", b"4", b"5"],
    )
    for _ in range(2):
        folder.commit(0, folder.stage_rows(0, rows))
    assert folder.rows == ["a", "d"]
    assert pq.read_table(folder.path)["data"].to_pylist() == [b"1", b"4"]
    assert "outcome" not in pq.read_table(folder.path).column_names
    assert ids(store, "dead/input") == ["b"]
    counts = told(store)
    assert [counts[HOP, Kind.HANDLED, id] for id in "abcde"] == [1, 0, 0, 1, 1]
    assert counts[HOP, Kind.DUPLICATE, "c"] == 1
    assert list((tmp_path / "staging").rglob("*.arrow")) == []


def test_events_that_were_missed_are_made_up_for_when_the_batch_comes_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path, store.url)

    def die(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(module, "land", die)
    with pytest.raises(Killed):
        folder.commit(0, folder.stage(0, "a"))
    monkeypatch.undo()
    assert folder.rows == ["a"]
    folder.commit(0, folder.stage(0, "a"))
    assert folder.rows == ["a"]
    assert told(store) == {(HOP, Kind.ACCEPTED, "a"): 1, (HOP, Kind.HANDLED, "a"): 1}


def test_outcomes_need_a_store_and_an_id(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ConfigError, match="nowhere to tell of them"):
        FolderTarget(Folder(tmp_path).options, SCHEMA)
    with pytest.raises(ConfigError, match="need an id"):
        FolderTarget(Folder(tmp_path, store.url).options, from_arrow_schema(pa.schema([("outcome", pa.string())])))


def test_only_a_real_folder_can_hold_it(tmp_path: Path) -> None:
    assert local_folder(f"file://{tmp_path}") == tmp_path
    with pytest.raises(ConfigError, match=r"cannot be used|store of objects"):
        local_folder("mock://bucket/out")


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.path.write_text("a file")
    with pytest.raises(StoreUnavailable, match="cannot write in"):
        folder.stage(0, "a")
