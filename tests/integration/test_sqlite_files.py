"""The files of a SQLite store disappear or change under a process that uses them, and under one that starts."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel import Envelope, errors
from semel.kernel.ops import Append, Duplicate, Enqueue, Fresh, Unit
from semel.stores.points import on_reach
from semel.stores.sqlite import SqliteStore
from semel.testing.limits import scaled

Damage = Callable[[Path], None]


def append(id: str) -> Unit:
    return Unit((Append("hub/x", Envelope(id=id, data=b"body"), identity=id),))


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder / "semel.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}")
    store.commit([append("a")])
    yield store
    store.close()


def replace_database(path: Path) -> None:
    other = beside(path, "-other")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(other)) as target:
        source.backup(target)
    other.replace(path)


def link_elsewhere(path: Path) -> None:
    moved = path.with_name("elsewhere.db")
    shutil.copy(path, moved)
    path.unlink()
    path.symlink_to(moved)


DAMAGES: dict[str, Damage] = {
    "the database is deleted": Path.unlink,
    "the database is moved away": lambda path: path.rename(path.with_name("moved.db")).touch(),
    "the database is replaced": replace_database,
    "the path leads elsewhere": link_elsewhere,
    "the log is deleted": lambda path: beside(path, "-wal").unlink(),
    "the log is replaced": lambda path: shutil.copy(beside(path, "-wal"), path.with_name("x")).replace(
        beside(path, "-wal")
    ),
    "the index of the log is deleted": lambda path: beside(path, "-shm").unlink(),
    "the folder is deleted": lambda path: shutil.rmtree(path.parent),
    "the folder is renamed": lambda path: path.parent.rename(path.parent.with_name("renamed")).touch(),
}


def all_damages() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())


@all_damages()
def test_nothing_is_committed_into_files_that_are_gone(store: SqliteStore, path: Path, damage: Damage) -> None:
    """The first one may be in doubt, where it is not the database itself that went."""
    damage(path)
    with pytest.raises((errors.StoreGone, errors.CommitInDoubt)):
        store.commit([append("b")])
    with pytest.raises(errors.StoreGone) as caught:
        store.commit([append("c")])
    assert "restart" in caught.value.fix
    assert not caught.value.retryable


@all_damages()
def test_what_was_committed_while_they_went_is_in_doubt(store: SqliteStore, path: Path, damage: Damage) -> None:
    on_reach(lambda point: damage(path) if point == "commit.applied" else None)
    try:
        with pytest.raises(errors.CommitInDoubt) as caught:
            store.commit([append("b")])
    finally:
        on_reach(None)
    with pytest.raises(errors.StoreGone):
        store.resolve(caught.value.marker)
    with pytest.raises(errors.StoreGone):
        store.commit([append("c")])


@all_damages()
def test_they_are_not_made_anew_by_whoever_reads(store: SqliteStore, path: Path, damage: Damage) -> None:
    damage(path)
    there = path.exists() and path.stat().st_ino
    with pytest.raises(errors.StoreGone):
        store.check()
    with pytest.raises(errors.StoreGone):
        store.read("hub/x")
    store.close()
    assert (path.exists() and path.stat().st_ino) == there


def test_a_new_reader_does_not_make_an_empty_store(store: SqliteStore, path: Path) -> None:
    path.unlink()
    with pytest.raises(errors.StoreGone):
        store._connect()
    assert not path.exists()


def test_what_comes_back_is_used_again_only_after_a_restart(store: SqliteStore, path: Path) -> None:
    away = path.rename(path.with_name("away.db"))
    with pytest.raises(errors.StoreGone):
        store.commit([append("b")])
    away.rename(path)
    with pytest.raises(errors.StoreGone):
        store.commit([append("b")])
    store.close()
    with closing(SqliteStore(f"sqlite:///{path}")) as again:
        assert again.epoch == 1
        [outcome] = again.commit([append("a")])
        assert isinstance(outcome.results[0], Duplicate)


def test_away_and_back_between_two_commits_is_nothing(store: SqliteStore, path: Path) -> None:
    path.rename(path.with_name("away.db")).rename(path)
    [outcome] = store.commit([append("b")])
    assert isinstance(outcome.results[0], Fresh)


def test_a_database_that_is_gone_refuses_and_leaves_no_doubt(store: SqliteStore, path: Path) -> None:
    path.unlink()
    with pytest.raises(errors.StoreGone):
        store.commit([append("b")])


def test_a_users_transaction_does_not_write_into_nowhere(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as user:
        tx = store.bind(user)
        path.unlink()
        with pytest.raises(errors.StoreGone):
            tx.apply([Enqueue("outbox/shop", "7", Envelope(id="7"))])
        with pytest.raises(errors.StoreGone):
            store.bind(user)


def test_a_store_named_by_a_relative_path_is_missed_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stays in its folder when that is renamed; whoever starts next looks under the old name."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with closing(SqliteStore("sqlite:///semel.db")) as store:
        store.commit([append("a")])
        folder.rename(tmp_path / "renamed")
        with pytest.raises(errors.StoreGone):
            store.commit([append("b")])


def test_a_store_behind_a_link_is_in_order(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with closing(SqliteStore(f"sqlite:///{link}")) as store:
        store.commit([append("a")])
        beside(path, "-wal").unlink()
        with pytest.raises(errors.CommitInDoubt):
            store.commit([append("b")])


def test_contents_that_went_back_in_time_are_noticed(path: Path) -> None:
    """A copy written over the file keeps its inode. What the store has counted tells."""
    with closing(SqliteStore(f"sqlite:///{path}")) as store:
        store.commit([append("a")])
        store.commit([append("b")])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE semel_store SET commits = commits - 1")
        with pytest.raises(errors.StoreGone, match="older"):
            store.commit([append("c")])


def test_what_is_in_a_deleted_log_is_saved_when_the_store_is_closed(store: SqliteStore, path: Path) -> None:
    store.commit([append("b")])
    beside(path, "-wal").unlink()
    with pytest.raises(errors.CommitInDoubt):
        store.commit([append("c")])
    store.close()
    with closing(SqliteStore(f"sqlite:///{path}")) as again:
        assert again.epoch == 1
        assert [record.envelope.id for record in again.read("hub/x").records] == ["a", "b", "c"]


def test_a_log_that_is_anothers_by_now_is_left_alone(store: SqliteStore, path: Path) -> None:
    """The last one to close a database removes its log, by name."""
    beside(path, "-wal").unlink()
    beside(path, "-wal").write_text("theirs")
    store.close()
    assert beside(path, "-wal").read_text() == "theirs"


def test_a_process_that_ends_leaves_anothers_log_alone(path: Path) -> None:
    program = (
        "import os, sqlite3, sys; from semel.stores.sqlite import SqliteStore\n"
        "path = sys.argv[1]; store = SqliteStore(f'sqlite:///{path}')\n"
        "os.unlink(path + '-wal'); open(path + '-wal', 'w').write('theirs')\n"
        "try: store.check()\n"
        "except Exception as error: print(type(error).__name__)\n"
        "store.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=scaled(300)
    )
    assert (done.stdout, done.stderr, done.returncode) == ("StoreGone\n", "", 0)
    assert beside(path, "-wal").read_text() == "theirs"


class TestTheSidecar:
    def test_it_is_written_anew_when_it_is_deleted(self, store: SqliteStore, path: Path) -> None:
        beside(path, "-semel").unlink()
        store.commit([append("b")])
        store.close()
        with closing(SqliteStore(f"sqlite:///{path}")) as again:
            assert again.epoch == 1

    def test_it_is_written_anew_when_it_is_replaced(self, store: SqliteStore, path: Path) -> None:
        other = path.with_name("other")
        other.write_bytes(beside(path, "-semel").read_bytes())
        other.replace(beside(path, "-semel"))
        store.commit([append("b")])
        noted = store._sidecar.read()
        assert noted is not None
        assert noted.commits == store._commits

    def test_alone_it_is_refused(self, store: SqliteStore, path: Path) -> None:
        store.close()
        path.unlink()
        with pytest.raises(errors.StoreGone) as caught:
            SqliteStore(f"sqlite:///{path}")
        assert "semel.db-semel" in caught.value.fix
        assert "put" in caught.value.fix
        assert "remove" in caught.value.fix
        assert not path.exists()
        with pytest.raises(errors.StoreGone):
            SqliteStore(f"sqlite:///{path}", create=False)
        beside(path, "-semel").unlink()
        with closing(SqliteStore(f"sqlite:///{path}")) as again:
            assert again.read("hub/x").records == ()

    @pytest.mark.parametrize("emptied", [lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 0)])
    def test_beside_an_empty_file_it_is_refused(self, store: SqliteStore, path: Path, emptied: Damage) -> None:
        store.close()
        emptied(path)
        with pytest.raises(errors.StoreGone):
            SqliteStore(f"sqlite:///{path}")
        assert path.stat().st_size == 0

    def test_beside_a_store_that_was_never_used_a_new_epoch_begins_above_the_old_one(
        self, store: SqliteStore, path: Path, tmp_path: Path
    ) -> None:
        store.commit([append("b")])
        given_out = store.head("hub/x").offset
        store.close()
        new = tmp_path / "new.db"
        SqliteStore(f"sqlite:///{new}").close()
        new.replace(path)
        with closing(SqliteStore(f"sqlite:///{path}")) as again:
            assert again.epoch == 2
            [outcome] = again.commit([append("c")])
            assert outcome.results[0].position.offset > given_out


def test_a_file_that_is_replaced_while_a_process_starts_is_noticed(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the new file would pass for the one that is open."""
    store.close()
    check_rewind = SqliteStore._check_rewind

    def and_replace(self: SqliteStore) -> None:
        check_rewind(self)
        replace_database(path)

    monkeypatch.setattr(SqliteStore, "_check_rewind", and_replace)
    with pytest.raises(errors.StoreGone, match="replaced"):
        SqliteStore(f"sqlite:///{path}")
