"""The files of a store are for their owner alone, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Unit
from semel.runtime.server.key_file import load_keys
from semel.runtime.server.server_lock import Running, server_lock
from semel.stores.private_files import is_open_to_others, make_private, open_private
from semel.stores.sqlite import SqliteStore


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o177], ids=oct)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The folder is made before it: nobody but root can enter one that a umask of 177 has made."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


@pytest.mark.usefixtures("umask")
def test_all_files_of_a_new_store_and_its_server_are_for_their_owner(tmp_path: Path) -> None:
    file = tmp_path / "semel.db"
    store = SqliteStore(f"sqlite:///{file}")
    store.commit([Unit((Append("a", Envelope("m", data=b"secret")),))])
    load_keys(tmp_path / "semel.keys")
    with server_lock(file) as tell:
        tell(Running("http://127.0.0.1:1"))
        found = {path.name: mode(path) for path in tmp_path.iterdir()}
    store.close()
    ends = ("", "-wal", "-shm", "-semel", "-semel-turns", "-server")
    assert found == dict.fromkeys(("semel.keys", *(f"semel.db{end}" for end in ends)), "0o600")


@pytest.mark.usefixtures("umask")
def test_a_link_leads_to_a_file_for_its_owner(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    SqliteStore(f"sqlite:///{link}").close()
    assert mode(tmp_path / "real.db") == "0o600"


def test_files_that_are_there_keep_their_rights(tmp_path: Path) -> None:
    file = tmp_path / "semel.db"
    SqliteStore(f"sqlite:///{file}").close()
    for path in tmp_path.iterdir():
        path.chmod(0o640)
    store = SqliteStore(f"sqlite:///{file}")
    store.commit([Unit((Append("a", Envelope("m")),))])
    with server_lock(file):
        pass
    assert mode(file) == mode(tmp_path / "semel.db-semel") == mode(tmp_path / "semel.db-wal") == "0o640"
    assert is_open_to_others(file)
    store.close()
    make_private(file)
    assert mode(file) == "0o640"


def test_a_link_to_nowhere_is_an_error_and_no_end_of_trying(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere" / "file")
    with pytest.raises(FileNotFoundError):
        open_private(link, os.O_RDWR)
    assert not is_open_to_others(link)
