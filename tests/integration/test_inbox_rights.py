"""Where Semel's tables are on PostgreSQL, and what an application may do there once they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest

from semel import App
from semel.errors import InputError
from semel.runtime.inbox.operating import schema_sql
from semel.runtime.inbox.own_schema import make_in_schema, with_search_path
from semel.stores.open import open_store
from semel.stores.queries import load_migrations, postgres_record_sql
from semel.testing.limits import scaled

pytestmark = pytest.mark.connected


@dataclass
class Order:
    id: str


def handles_one(url: str) -> bool:
    app = App(url, name="shop")

    @app.endpoint("orders").on(Order)
    def handle(order: Order, db: psycopg.Connection) -> None:
        db.execute("SELECT 1")

    try:
        app.send(Order("a"), to="orders", id="a")
        return app.drain(scaled(30)) == 1
    finally:
        app.close()


@contextmanager
def clerk_of(postgres_url: str) -> Iterator[str]:
    """The database for somebody who may use its tables and make none."""
    clerk = f"clerk_{token_hex(4)}"
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {clerk} LOGIN")
        try:
            db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {clerk}")
            db.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {clerk}")
            yield postgres_url.replace("postgres@", f"{clerk}@", 1)
        finally:
            db.execute(f"DROP OWNED BY {clerk}")
            db.execute(f"DROP ROLE {clerk}")


def test_once_the_tables_are_there_nobody_needs_the_right_to_make_any(postgres_url: str) -> None:
    App(postgres_url).store.close()
    with clerk_of(postgres_url) as url:
        assert handles_one(url)


def test_printed_sql_makes_tables_that_a_role_without_rights_can_use(postgres_url: str) -> None:
    sql = schema_sql(App(postgres_url))
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(sql.encode())
    with clerk_of(postgres_url) as url:
        assert handles_one(url)


def test_printed_sql_makes_a_file_that_can_be_used(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.executescript(schema_sql(app))
    runs = []

    @app.endpoint("orders").on(Order)
    def handle(order: Order, db: sqlite3.Connection) -> None:
        runs.append(order.id)

    app.send(Order("a"), to="orders")
    app.drain(scaled(30))
    assert (runs, app.store.migrate()[0]) == (["a"], app.store.status().schema)
    app.close()


def test_the_tables_may_have_a_schema_of_their_own(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA own")
        assert handles_one(f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3Down")
        found = db.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'semel%'").fetchall()
    assert found == [("own",)]


def own_tables(db: psycopg.Connection) -> list[tuple[str]]:
    return db.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'semel%'").fetchall()


@pytest.mark.parametrize("way", ["run", "printed"])
def test_beside_the_users_own_tables_a_plain_connection_finds_them(postgres_url: str, way: str) -> None:
    """The recipe of how-to/postgresql.md."""
    if way == "run":
        make_in_schema(postgres_url, "semel")
    with psycopg.connect(postgres_url, autocommit=True) as db, clerk_of(postgres_url) as url:
        if way == "printed":
            db.execute(schema_sql(App(postgres_url), "semel").encode())
        clerk = urlsplit(url).username
        db.execute(f"GRANT USAGE ON SCHEMA semel TO {clerk}")
        db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA semel TO {clerk}")
        db.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA semel TO {clerk}")
        db.execute(f"ALTER ROLE {clerk} IN DATABASE {db.info.dbname} SET search_path = public, semel")
        db.execute("CREATE TABLE public.charge (id text)")
        db.execute(f"GRANT INSERT ON public.charge TO {clerk}")
        assert own_tables(db) == [("semel",)]
        app = App(url, name="first")
        with psycopg.connect(url) as own:
            assert app.first(own, "charges", "a")
            own.execute("INSERT INTO charge VALUES ('a')")
        with psycopg.connect(url) as own:
            assert not app.first(own, "charges", "a")
        app.close()
        assert handles_one(url)
        assert own_tables(db) == [("semel",)]


def test_a_newer_version_adds_its_tables_where_the_others_are(postgres_url: str) -> None:
    *older, (newest, _) = load_migrations("postgres")
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA semel; SET search_path TO semel")
        for _, sql in older:
            db.execute(sql.encode())
        db.execute(postgres_record_sql(older[-1][0]).encode())
        store = open_store(with_search_path(postgres_url, "public", "semel"))
        assert store.status().schema == newest
        store.close()
        assert own_tables(db) == [("semel",)]


@pytest.mark.parametrize("schema", ["", "Semel", "a b", 'a"; DROP', "pg_semel", "x" * 64])
def test_a_schema_has_a_plain_name(schema: str) -> None:
    with pytest.raises(InputError, match="cannot be the name"):
        schema_sql(App("postgresql://shop@db/shop"), schema)
    with pytest.raises(InputError, match="only PostgreSQL"):
        schema_sql(App("sqlite:///shop.db"), schema)


def test_a_search_path_goes_with_other_options() -> None:
    url = with_search_path("postgresql://a@/b?host=%2Fc&options=-cwork_mem%3D1MB", "public", "semel")
    assert dict(parse_qsl(urlsplit(url).query)) == {
        "host": "/c", "options": "-cwork_mem=1MB -csearch_path=public,semel",
    }  # fmt: skip
