from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from semel.errors import ConfigError, StoreUnavailable
from semel.stores.memory import MemoryStore
from semel.stores.open import absolute_url, open_store
from semel.stores.sqlite import SqliteStore


def test_memory() -> None:
    store = open_store("memory:", node="n1")
    assert isinstance(store, MemoryStore)
    assert (store.url, store.node) == ("memory:", "n1")


def test_sqlite(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/x.db", node="n1")
    assert isinstance(store, SqliteStore)
    assert store.node == "n1"
    store.close()


def test_a_store_that_must_exist_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        open_store(f"sqlite:///{tmp_path}/x.db", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["", "x", "mysql://h/d", "/path/to.db", "http://h", "sqlite", "://"])
def test_anything_else_is_refused_with_examples(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is not the URL of a store") as caught:
        open_store(url)
    assert "sqlite:///semel.db" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite:semel.db", "sqlite://host/x.db", "sqlite:///x.db?mode=ro"]
)
def test_a_sqlite_url_that_names_no_file_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is not the URL of a SQLite store"):
        open_store(url)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_psycopg(name: str, *args: Any, **more: Any) -> Any:
        if name == "semel.stores.postgres":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without_psycopg)
    with pytest.raises(ConfigError) as caught:
        open_store("postgresql://localhost/x")
    assert caught.value.fix == "in a checkout: make setup; elsewhere: pip install 'semel[postgres]'"


def test_a_file_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_store("sqlite:///my%20store.db").close()
    url = absolute_url("sqlite:///my%20store.db")
    monkeypatch.chdir("/")
    open_store(url, create=False).close()
    assert absolute_url(url) == url


@pytest.mark.parametrize("url", ["postgresql://user@host/db?host=%2Frun", "memory:"])
def test_other_places_do_not_depend_on_the_folder(url: str) -> None:
    assert absolute_url(url) == url
