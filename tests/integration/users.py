"""Users' transactions in all the forms in which `semel.runtime.transactions` takes them, with one face for tests."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from semel.kernel.ops import Op, Result
from semel.kernel.store import Store
from semel.runtime.transactions import bind

AUTOCOMMIT = "AUTOCOMMIT"


class User:
    """A transaction that has begun or is about to. `wait` gives the result of a call, awaited where it has to be."""

    def __init__(
        self,
        connection: Any,
        execute: Callable[[str], Any],
        wait: Callable[[Any], Any] = lambda result: result,
    ) -> None:
        self.connection = connection
        self._execute = execute
        self.wait = wait

    def apply(self, store: Store, *ops: Op, wait: bool = True) -> tuple[Result, ...]:
        tx = bind(store, self.connection)
        results: tuple[Result, ...] = self.wait(tx.apply(ops, wait=wait))
        return results

    def execute(self, sql: str) -> None:
        self.wait(self._execute(sql))

    def commit(self) -> None:
        self.wait(self.connection.commit())

    def rollback(self) -> None:
        self.wait(self.connection.rollback())


Way = Callable[..., AbstractContextManager[User]]


# -- drivers


@contextmanager
def by_sqlite3(url: str, autocommit: bool = False) -> Iterator[User]:
    level: Any = None if autocommit else ""
    with closing(sqlite3.connect(urlsplit(url).path[1:], isolation_level=level)) as connection:
        yield User(connection, connection.execute)


@contextmanager
def by_psycopg(url: str, autocommit: bool = False) -> Iterator[User]:
    with closing(psycopg.connect(url, autocommit=autocommit)) as connection:
        yield User(connection, lambda sql: connection.execute(sql.encode()))


@contextmanager
def by_async_psycopg(url: str, autocommit: bool = False) -> Iterator[User]:
    with asyncio.Runner() as runner:
        connection = runner.run(psycopg.AsyncConnection.connect(url, autocommit=autocommit))
        yield User(connection, lambda sql: connection.execute(sql.encode()), _waiter(runner))
        runner.run(connection.close())


def _waiter(runner: asyncio.Runner) -> Callable[[Awaitable[Any]], Any]:
    async def wait(result: Awaitable[Any]) -> Any:
        return await result

    return lambda result: runner.run(wait(result))


# -- SQLAlchemy


def by_sqlalchemy(driver: str, *, session: bool = False) -> Way:
    @contextmanager
    def way(url: str, autocommit: bool = False) -> Iterator[User]:
        engine = _engine(sqlalchemy.create_engine, driver, url, autocommit)
        with Session(engine) if session else engine.connect() as connection:
            yield User(connection, lambda sql: connection.execute(sqlalchemy.text(sql)))
        engine.dispose()

    return way


def by_async_sqlalchemy(driver: str, *, session: bool = False) -> Way:
    @contextmanager
    def way(url: str, autocommit: bool = False) -> Iterator[User]:
        with asyncio.Runner() as runner:
            wait = _waiter(runner)
            engine = _engine(create_async_engine, driver, url, autocommit)
            opening: Any = AsyncSession(engine) if session else engine.connect()
            connection = wait(opening.__aenter__())
            yield User(connection, lambda sql: connection.execute(sqlalchemy.text(sql)), wait)
            wait(opening.__aexit__(None, None, None))
            wait(engine.dispose())

    return way


def _engine(make: Callable[..., Any], driver: str, url: str, autocommit: bool) -> Any:
    level = {"isolation_level": AUTOCOMMIT} if autocommit else {}
    if url.startswith("sqlite:"):
        return make(f"sqlite+{driver}:{url.removeprefix('sqlite:')}", **level)
    params = _params(url)
    host = params.pop("host")
    made = sqlalchemy.URL.create(f"postgresql+{driver}", query={"host": host}, **params)
    return make(made, **level)


def engine_of(make: Callable[..., Any], driver: str, url: str, **options: Any) -> Any:
    """An engine of SQLAlchemy on the database of a store."""
    return _engine(lambda made, **level: make(made, **level, **options), driver, url, False)


def _params(url: str) -> dict[str, Any]:
    """The parts of a URL that names a socket: postgresql://user@/database?host=/folder."""
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    host = query.get("host") or parts.hostname or ""
    found = {
        "username": parts.username,
        "password": parts.password,
        "port": parts.port or int(query.get("port", 0)),
        "host": host,
    }
    return {**{name: value for name, value in found.items() if value}, "database": parts.path[1:]}


# -- Django


@contextmanager
def by_django(url: str, autocommit: bool = False) -> Iterator[User]:
    connection = django_connection(url)
    connection.set_autocommit(autocommit)
    try:
        yield User(connection, lambda sql: connection.cursor().execute(sql))
    finally:
        connection.close()


def django_connection(url: str) -> BaseDatabaseWrapper:
    if not settings.configured:
        settings.configure(USE_TZ=True, DATABASES={"default": {}})
        django.setup()
    if url.startswith("sqlite:"):
        given = {"ENGINE": "django.db.backends.sqlite3", "NAME": urlsplit(url).path[1:]}
    else:
        params = {
            {"username": "USER", "database": "NAME"}.get(name, name.upper()): value
            for name, value in _params(url).items()
        }
        given = {"ENGINE": "django.db.backends.postgresql", **params}
    alias = f"users{len(connections.settings)}"
    connections.settings |= {alias: connections.configure_settings({"default": {}, alias: given})[alias]}
    made: BaseDatabaseWrapper = connections[alias]
    return made


SQLITE: dict[str, Way] = {
    "sqlite3": by_sqlite3,
    "sqlalchemy-connection": by_sqlalchemy("pysqlite"),
    "sqlalchemy-session": by_sqlalchemy("pysqlite", session=True),
    "sqlalchemy-async-connection": by_async_sqlalchemy("aiosqlite"),
    "sqlalchemy-async-session": by_async_sqlalchemy("aiosqlite", session=True),
    "django": by_django,
}
POSTGRES: dict[str, Way] = {
    "psycopg": by_psycopg,
    "psycopg-async": by_async_psycopg,
    "sqlalchemy-psycopg": by_sqlalchemy("psycopg"),
    "sqlalchemy-psycopg-session": by_sqlalchemy("psycopg", session=True),
    "sqlalchemy-psycopg2": by_sqlalchemy("psycopg2"),
    "sqlalchemy-psycopg2-session": by_sqlalchemy("psycopg2", session=True),
    "sqlalchemy-psycopg-async": by_async_sqlalchemy("psycopg"),
    "sqlalchemy-asyncpg": by_async_sqlalchemy("asyncpg"),
    "sqlalchemy-asyncpg-session": by_async_sqlalchemy("asyncpg", session=True),
    "django": by_django,
}
GENERAL = frozenset({"psycopg", "sqlalchemy-psycopg", "sqlalchemy-psycopg-session", "django"})
"""Those that take other ops too."""
