"""The access keys of a server: made once, kept, and for nobody else to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel.auth.keys import AccessKeys
from semel.errors import ConfigError
from semel.runtime.server.key_file import load_keys


def test_keys_are_made_once_and_stay(tmp_path: Path) -> None:
    file = tmp_path / "below" / "semel.keys"
    keys = load_keys(file)
    assert keys.secondary is not None
    assert keys.primary != keys.secondary
    assert load_keys(file) == keys
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["semel.keys"]


def test_keys_that_are_given_are_used(tmp_path: Path) -> None:
    file = tmp_path / "semel.keys"
    file.write_text(json.dumps({"primary": "p" * 32}))
    file.chmod(0o600)
    assert load_keys(file) == AccessKeys("p" * 32)


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("nonsense", 0o600, "does not hold keys"),
        ('{"primary": "short"}', 0o600, "primary key"),
        ('{"primary": "' + "p" * 32 + '", "other": 1}', 0o600, "does not hold keys"),
        ('{"primary": "' + "p" * 32 + '"}', 0o644, "others can read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_left_alone(text: str, mode: int, message: str, tmp_path: Path) -> None:
    file = tmp_path / "semel.keys"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=message):
        load_keys(file)
    assert file.read_text() == text


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be"):
        load_keys(tmp_path / "file" / "semel.keys")
