"""Where Semel's tables are on PostgreSQL, and what an application may do there once they are."""

from __future__ import annotations

from dataclasses import dataclass
from secrets import token_hex

import psycopg
import pytest

from semel import App
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


def test_once_the_tables_are_there_nobody_needs_the_right_to_make_any(postgres_url: str) -> None:
    App(postgres_url).store.close()
    clerk = f"clerk_{token_hex(4)}"
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {clerk} LOGIN")
        try:
            db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            db.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {clerk}")
            db.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {clerk}")
            assert handles_one(postgres_url.replace("postgres@", f"{clerk}@", 1))
        finally:
            db.execute(f"DROP OWNED BY {clerk}")
            db.execute(f"DROP ROLE {clerk}")


def test_the_tables_may_have_a_schema_of_their_own(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA own")
        assert handles_one(f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3Down")
        found = db.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'semel%'").fetchall()
    assert found == [("own",)]
