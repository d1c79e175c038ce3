"""One server on a SQLite file, which says where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.errors import ConfigError, StoreBusy
from semel.runtime.server.server_lock import Running, running_on, server_lock


def test_a_second_server_on_the_same_file_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "semel.db"
    with server_lock(path), pytest.raises(StoreBusy, match="another server uses"), server_lock(path):
        pass
    with server_lock(path):
        pass


def test_commands_find_the_server_while_it_runs(tmp_path: Path) -> None:
    path, here = tmp_path / "semel.db", Running("http://127.0.0.1:8080", is_dev=True)
    assert running_on(path) is None
    with server_lock(path) as announce:
        assert running_on(path) is None
        announce(here)
        assert running_on(path) == here
    assert running_on(path) is None


def test_what_a_killed_server_left_is_gone_when_the_next_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "semel.db"
    (tmp_path / "semel.db-server").write_text('{"endpoint": "http://gone"}')
    assert running_on(path) == Running("http://gone")
    with server_lock(path):
        assert running_on(path) is None


@pytest.mark.parametrize("left", ["", "{", "[]", '{"endpoint": "a", "more": 1}'])
def test_what_cannot_be_read_is_no_server(tmp_path: Path, left: str) -> None:
    (tmp_path / "semel.db-server").write_text(left)
    assert running_on(tmp_path / "semel.db") is None


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"), server_lock(tmp_path / "missing" / "semel.db"):
        pass
