"""Files that outlive a power cut, and never replace what another process has put there first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semel.runtime.export.files import make_folder, rename_unless_there, write_synced


def test_folders_are_made_with_those_above_them(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_content_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    own = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append((tmp_path / "done").exists()), own(fd)))
    write_synced(tmp_path / "part", b"content")
    rename_unless_there(tmp_path / "part", tmp_path / "done")
    assert (tmp_path / "done").read_bytes() == b"content"
    assert synced == [False, True], "the content before the name, the folder after it"


def test_the_first_one_stays(tmp_path: Path) -> None:
    write_synced(tmp_path / "done", b"first")
    write_synced(tmp_path / "part", b"second")
    rename_unless_there(tmp_path / "part", tmp_path / "done")
    assert (tmp_path / "done").read_bytes() == b"first"
    assert not (tmp_path / "part").exists()


def test_where_there_are_no_links_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*paths: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", link)
    write_synced(tmp_path / "part", b"content")
    rename_unless_there(tmp_path / "part", tmp_path / "done")
    assert [file.name for file in tmp_path.iterdir()] == ["done"]
