"""The transactions that handlers may ask for, in every form, each as a user would provide it."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy
from django.db.backends.base.base import BaseDatabaseWrapper
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.integration.users import django_connection, engine_of

from semel import App
from semel.runtime.inbox.providers import django_transaction

INSERT = "INSERT INTO effect VALUES ('{}')"

Insert = Callable[[Any, str], Any]


@dataclass(frozen=True)
class Form:
    """`kind` is what a handler annotates. `provide` lets an application have it; None where Semel has it itself."""

    engine: str
    kind: type
    insert: Insert
    provide: Callable[[App, str], Any] | None = None
    is_async: bool = False


def _sql(db: Any, id: str) -> Any:
    return db.execute(INSERT.format(id))


def _text(db: Any, id: str) -> Any:
    return db.execute(sqlalchemy.text(INSERT.format(id)))


def _cursor(db: Any, id: str) -> Any:
    return db.cursor().execute(INSERT.format(id))


def _connection(driver: str) -> Callable[[App, str], Any]:
    def provide(app: App, url: str) -> Any:
        engine = engine_of(sqlalchemy.create_engine, driver, url)
        app.provide(sqlalchemy.Connection, engine.begin)
        return engine

    return provide


def _session(driver: str) -> Callable[[App, str], Any]:
    def provide(app: App, url: str) -> Any:
        engine = engine_of(sqlalchemy.create_engine, driver, url)
        app.provide(Session, sessionmaker(engine).begin)
        return engine

    return provide


def _async_connection(driver: str) -> Callable[[App, str], Any]:
    def provide(app: App, url: str) -> Any:
        engine = engine_of(create_async_engine, driver, url, poolclass=sqlalchemy.NullPool)
        app.provide(AsyncConnection, engine.begin)
        return engine

    return provide


def _async_session(driver: str) -> Callable[[App, str], Any]:
    def provide(app: App, url: str) -> Any:
        engine = engine_of(create_async_engine, driver, url, poolclass=sqlalchemy.NullPool)
        app.provide(AsyncSession, async_sessionmaker(engine).begin)
        return engine

    return provide


def _django(app: App, url: str) -> Any:
    app.provide(BaseDatabaseWrapper, django_transaction(django_connection(url).alias))


FORMS: dict[str, Form] = {
    "sqlite3": Form("sqlite", sqlite3.Connection, _sql),
    "sqlite-connection": Form("sqlite", sqlalchemy.Connection, _text, _connection("pysqlite")),
    "sqlite-session": Form("sqlite", Session, _text, _session("pysqlite")),
    "aiosqlite-connection": Form("sqlite", AsyncConnection, _text, _async_connection("aiosqlite"), True),
    "aiosqlite-session": Form("sqlite", AsyncSession, _text, _async_session("aiosqlite"), True),
    "sqlite-django": Form("sqlite", BaseDatabaseWrapper, _cursor, _django),
    "psycopg": Form("postgres", psycopg.Connection, _sql),
    "psycopg-async": Form("postgres", psycopg.AsyncConnection, _sql, None, True),
    "psycopg-connection": Form("postgres", sqlalchemy.Connection, _text, _connection("psycopg")),
    "psycopg-session": Form("postgres", Session, _text, _session("psycopg")),
    "psycopg2-session": Form("postgres", Session, _text, _session("psycopg2")),
    "psycopg-async-session": Form("postgres", AsyncSession, _text, _async_session("psycopg"), True),
    "asyncpg-connection": Form("postgres", AsyncConnection, _text, _async_connection("asyncpg"), True),
    "asyncpg-session": Form("postgres", AsyncSession, _text, _async_session("asyncpg"), True),
    "postgres-django": Form("postgres", BaseDatabaseWrapper, _cursor, _django),
}


async def awaited(result: Awaitable[Any]) -> Any:
    return await result
