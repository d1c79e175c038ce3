"""What the tests of the PostgreSQL store do with stores and servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Applied, Fresh, Outcome, Unit
from semel.kernel.position import Position
from semel.kernel.store import Records
from semel.stores.postgres import PostgresStore
from semel.testing import limits

STREAM = "hub/orders"
DEADLINE_S = 60.0


def append(store: PostgresStore, id: str) -> Position:
    return position(store.commit([Unit((Append(STREAM, Envelope(id=id), identity=id),))]))


def position(outcomes: list[Outcome]) -> Position:
    """Where the one message went that was appended."""
    [outcome] = outcomes
    assert isinstance(outcome, Applied)
    [result] = outcome.results
    assert isinstance(result, Fresh)
    return result.position


def ids(store: PostgresStore) -> list[str]:
    found = store.read(STREAM)
    assert isinstance(found, Records)
    return [record.envelope.id for record in found.records]


def execute(url: str, statement: str, *params: object) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), params or None)
        return cursor.fetchall() if cursor.description else []


def members(url: str) -> int:
    [(count,)] = execute(url, "SELECT count(*) FROM semel_member")
    return int(count)


def wait_until(is_so: Callable[[], object]) -> None:
    limits.wait_until(is_so, "what the test waits for", DEADLINE_S)
