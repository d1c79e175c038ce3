"""Durations, what may be shown of a URL, and what a store is opened with."""

from pathlib import Path

import pytest

from semel.cli.options import opened, parse_duration, shown
from semel.config import load_config
from semel.errors import ConfigError
from semel.stores.memory import MemoryStore


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("30", 30), ("1.5m", 90), ("12h", 43200), ("7d", 604800), ("2w", 1209600), ("0", 0)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration("--every", text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1s", "7 days", "1h30m", "nan", "1e3"])
def test_anything_else_is_refused_by_the_name_of_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="--every") as caught:
        parse_duration("--every", text)
    assert "7d" in caught.value.fix


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://user:secret@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:s@cr@t@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:secret@[::1]:5432/db", "postgresql://user:***@[::1]:5432/db"),
        ("postgresql://host/db?user=u&password=secret&x=1", "postgresql://host/db?user=u&password=***&x=1"),
        ("postgresql://user@host:5432/db", "postgresql://user@host:5432/db"),
        ("sqlite:////var/lib/a:b@c.db", "sqlite:////var/lib/a:b@c.db"),
        ("memory:", "memory:"),
    ],
)
def test_a_password_is_never_shown(url: str, seen: str) -> None:
    assert shown(url) == seen


def test_for_how_long_the_ledger_is_kept_reaches_the_store(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text("[ledger]\nkeep_s = 86400\n")
    for folder, keep_s in ((tmp_path, 86400.0), (tmp_path / "elsewhere", None)):
        with opened("memory:", load_config(folder=folder)) as store:
            assert isinstance(store, MemoryStore)
            assert store.ledger_keep_s == keep_s
