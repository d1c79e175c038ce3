"""Transactions for handlers: committed at their end, rolled back by an exception, and used again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from semel.errors import ConfigError, StoreUnavailable
from semel.runtime.inbox.providers import Provider, given_provider, own_providers
from semel.stores.memory import MemoryStore
from semel.stores.sqlite import SqliteStore


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with closing(SqliteStore(f"sqlite:///{tmp_path}/shop.db")) as store:
        [provider] = own_providers(store)
        with begin(provider) as db:
            db.execute("CREATE TABLE effect (id text)")
        yield provider
        provider.close()


def begin(provider: Provider) -> Any:
    return provider.begin()


def count(provider: Provider) -> int:
    with begin(provider) as db:
        return int(db.execute("SELECT count(*) FROM effect").fetchone()[0])


def test_the_end_commits_and_the_connection_is_used_again(provider: Provider) -> None:
    assert (provider.kind, provider.is_async) == (sqlite3.Connection, False)
    with begin(provider) as first:
        first.execute("INSERT INTO effect VALUES ('a')")
    with begin(provider) as second:
        assert second is first
    assert count(provider) == 1


def test_an_exception_rolls_back_and_the_connection_is_not_used_again(provider: Provider) -> None:
    with suppress(ValueError), begin(provider) as first:
        first.execute("INSERT INTO effect VALUES ('a')")
        raise ValueError
    with begin(provider) as second:
        assert second is not first
    assert count(provider) == 0


def test_the_lock_begins_with_the_first_write(provider: Provider) -> None:
    with begin(provider) as reader, begin(provider) as writer:
        assert reader.execute("SELECT count(*) FROM effect").fetchone() == (0,)
        writer.execute("INSERT INTO effect VALUES ('a')")
        writer.commit()
    assert count(provider) == 1


def test_after_the_close_nothing_is_opened(provider: Provider) -> None:
    provider.close()
    with pytest.raises(StoreUnavailable, match="the application is closed"), begin(provider):
        pass


def test_a_store_in_memory_has_no_connections() -> None:
    assert own_providers(MemoryStore()) == []


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("kind", "begin", "problem", "fix"),
    [
        ("Session", print, "'Session' is not a type", "name what handlers annotate"),
        (dict, 7, "7 does not open a transaction of dict", "sessions.begin"),
        (dict, coroutine, "coroutine is a coroutine function", "asynccontextmanager"),
    ],
)
def test_what_opens_no_transaction_is_refused(kind: Any, begin: Any, problem: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        given_provider(kind, begin)
    assert fix in refused.value.fix
