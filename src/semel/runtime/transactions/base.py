"""Which family a user's connection belongs to. Libraries that are not installed are never imported."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Protocol

from semel.errors import InputError
from semel.kernel.store import AsyncTx, Store, Tx

FAMILIES = frozenset({"django", "psycopg", "sqlalchemy", "sqlite3"})
"""The packages whose objects can be bound. Each has a module of the same name here."""
OTHERS = {"aiosqlite": "AsyncConnection", "asyncpg": "AsyncConnection", "psycopg2": "Connection"}
"""Drivers that can be bound as what SQLAlchemy makes of them."""


class PostgresPlace(Protocol):
    """What is needed of a PostgreSQL store to write to it in a user's transaction."""

    url: str
    node: str
    store_id: str


def bind(store: Store, connection: Any) -> Tx | AsyncTx:
    """Semel's operations inside the user's transaction. It never commits and never rolls back.

    `connection` is one of sqlite3, psycopg or Django, or a Connection or Session of SQLAlchemy. If its own calls are
    awaited, so is `apply`.
    """
    family = family_of(connection)
    if family is None:
        return store.bind(connection)
    if family in OTHERS:
        raise InputError(
            f"a connection of {family} cannot be bound by itself",
            fix=f"pass the {OTHERS[family]} of SQLAlchemy that uses it",
        )
    tx: Tx | AsyncTx = import_module(f"semel.runtime.transactions.{family}").bind(store, connection)
    return tx


def family_of(connection: Any) -> str | None:
    """By the package in which its class, or one that it is derived from, is defined."""
    kind: Any = type(connection)
    return family_of_type(kind)


@cache
def family_of_type(kind: type) -> str | None:
    packages = [each.__module__.partition(".")[0] for each in kind.__mro__]
    return next((package for package in packages if package in FAMILIES or package in OTHERS), None)


def need_postgres(store: Store) -> PostgresPlace:
    if not store.url.startswith(("postgresql:", "postgres:")):
        raise other_engine("PostgreSQL", store)
    place: Any = store
    return place


def need_sqlite(store: Store) -> Store:
    if not store.url.startswith("sqlite:"):
        raise other_engine("SQLite", store)
    return store


def other_engine(engine: str, store: Store) -> InputError:
    scheme = store.url.partition(":")[0]
    return InputError(
        f"the connection leads to {engine}, the store is at {scheme}:",
        fix="open the store and the connection on the same database",
    )
