"""Staged files: every attempt has its own, only named ones are read, and what has landed is swept."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.spark.sinks import row, stage

from semel.errors import ConfigError, StoreUnavailable
from semel.spark.landing import Job, SourceRange
from semel.spark.rows import rows_of
from semel.spark.staging import Staged, Staging, Task, current_task, filesystem_of, query_of, source_ranges

JOB = Job("orders", "q1", 3)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path / "staging"), "orders")


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "staging").rglob("*.arrow"))


def read(staging: Staging, *staged: Staged) -> list[str]:
    return [row.envelope.id for _, batch in staging.read(staged) for row in rows_of(batch)]


def test_rows_come_back_by_partition_and_in_their_order(staging: Staging) -> None:
    second = stage(staging, [row("c"), row("a")], JOB, partition=10)
    first = stage(staging, [row("b"), row("d")], JOB, partition=9)
    assert read(staging, second, first) == ["b", "d", "c", "a"]
    assert (first.rows, second.rows) == (2, 2)


def test_attempts_of_one_task_never_share_a_file(staging: Staging, tmp_path: Path) -> None:
    staged = [stage(staging, [row(name)], JOB) for name in "ab"]
    assert len(files(tmp_path)) == 2
    assert read(staging, staged[1]) == ["b"]


def test_a_task_without_rows_has_no_file(staging: Staging, tmp_path: Path) -> None:
    empty = stage(staging, [], JOB)
    assert (empty.file, empty.rows) == ("", 0)
    assert read(staging, empty) == []
    assert files(tmp_path) == []


def test_an_attempt_that_fails_leaves_a_file_that_nobody_names(staging: Staging, tmp_path: Path) -> None:
    def rows():  # type: ignore[no-untyped-def]
        yield pa.record_batch({"id": ["a"]})
        raise RuntimeError("the task is killed")

    with pytest.raises(RuntimeError, match="killed"):
        staging.write(rows(), Task("q1", 3, 0, 0, 0))
    assert len(files(tmp_path)) == 1
    staging.sweep({"q1": 3})
    assert files(tmp_path) == []


def test_a_sweep_takes_landed_batches_and_no_others(staging: Staging, tmp_path: Path) -> None:
    kept = [stage(staging, [row("a")], Job("orders", *which)) for which in (("q1", 4), ("q2", 1), ("q3", 0))]
    for which in (("q1", 2), ("q1", 3), ("q2", 0)):
        stage(staging, [row("a")], Job("orders", *which))
    stage(Staging(staging.folder, "others"), [row("a")], Job("others", "q1", 0))
    staging.sweep({"q1": 3, "q2": 0})
    left = {path.relative_to(tmp_path / "staging").as_posix().rpartition("/")[0] for path in files(tmp_path)}
    assert left == {"orders/q1/4", "orders/q2/1", "orders/q3/0", "others/q1/0"}
    assert [read(staging, each) for each in kept] == [["a"]] * 3


def test_ending_a_query_leaves_nothing_of_it(staging: Staging, tmp_path: Path) -> None:
    stage(staging, [row("a")], JOB)
    staging.end("q1")
    staging.end("never there")
    assert not (tmp_path / "staging" / "orders" / "q1").exists()


def test_a_file_that_is_gone_or_cut_is_named(staging: Staging) -> None:
    staged = stage(staging, [row(str(n)) for n in range(1000)], JOB)
    Path(staged.file).write_bytes(Path(staged.file).read_bytes()[:-200])
    with pytest.raises(StoreUnavailable, match=r"staged rows .*arrow"):
        read(staging, staged)
    staging.remove([staged])
    staging.remove([staged])
    with pytest.raises(StoreUnavailable, match="start the query again"):
        read(staging, staged)


def test_a_file_of_another_machine_asks_for_a_shared_folder(staging: Staging) -> None:
    elsewhere = Staged("q1", 3, 0, "/nowhere/x.arrow", 1, "worker-7")
    with pytest.raises(StoreUnavailable, match="written on worker-7"):
        read(staging, elsewhere)


def test_a_file_with_fewer_rows_than_were_written_is_refused(staging: Staging) -> None:
    staged = stage(staging, [row("a")], JOB)
    with pytest.raises(StoreUnavailable, match="it has 1 rows, 2 were written"):
        read(staging, Staged("q1", 3, 0, staged.file, 2, staged.host))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match="cannot stage rows in"):
        stage(Staging(str(tmp_path / "file"), "orders"), [row("a")], JOB)


def test_names_of_pipelines_stay_inside_the_folder(tmp_path: Path) -> None:
    odd = Staging(str(tmp_path / "staging"), "a/../../b c")
    staged = stage(odd, [row("a")], Job("a/../../b c", "q", 0))
    assert Path(staged.file).is_relative_to(tmp_path / "staging")
    assert ".." not in Path(staged.file).parts
    assert read(odd, staged) == ["a"]


@pytest.mark.parametrize("place", ["file:/tmp/x", "file:///tmp/x", "/tmp/x"])
def test_local_folders_may_be_spelled_in_several_ways(place: str) -> None:
    assert filesystem_of(place)[1] == "/tmp/x"


def test_a_place_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="nowhere://x"):
        filesystem_of("nowhere://x")


def test_only_a_task_writes() -> None:
    with pytest.raises(ConfigError, match="task of Spark"):
        current_task()


def test_the_checkpoint_tells_the_query_and_what_a_batch_took(tmp_path: Path) -> None:
    assert query_of(str(tmp_path)) is None
    assert source_ranges(str(tmp_path), 0) == []
    (tmp_path / "metadata").write_text('{"id":"q-1"}')
    taken = {"store": "s1", "stream": "hub/chat", "epoch": 1, "after": 5, "offset": 9}
    (tmp_path / "offsets").mkdir()
    lines = ["v1", '{"batchWatermarkMs":0,"conf":{}}', json.dumps(taken), "-", '{"topic":{"0":3}}']
    (tmp_path / "offsets" / "0").write_text("\n".join(lines))
    assert query_of(f"file:{tmp_path}") == "q-1"
    assert source_ranges(str(tmp_path), 0) == [SourceRange("s1", "hub/chat", 1, 5, 9)]
    (tmp_path / "metadata").write_text("[]")
    assert query_of(str(tmp_path)) is None
