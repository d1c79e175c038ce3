"""Semel's tables in a schema of their own, on PostgreSQL.

They are made in it once, by whoever may. Afterwards everybody finds them by the search path, in which the schema comes
behind the user's own: Semel's connections and the user's, of which `app.first` and `bind` need the same.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from semel.errors import InputError
from semel.stores.open import open_store

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


def check_schema(url: str, schema: str) -> str:
    if not url.startswith("postgres"):
        raise InputError("only PostgreSQL has schemas", fix="leave --schema out")
    if not _NAME.match(schema) or schema.startswith("pg_"):
        raise InputError(f"{schema!r} cannot be the name of the schema", fix="use a-z, 0-9 and _, such as semel")
    return schema


def with_search_path(url: str, *schemas: str) -> str:
    """The URL for connections that look for tables in these schemas, and make them in the first."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    query["options"] = f"{query.get('options', '')} -csearch_path={','.join(schemas)}".strip()
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def make_in_schema(url: str, schema: str) -> int:
    """Make the schema and the tables in it, or bring them up to date. Returns the number of their version."""
    import psycopg

    check_schema(url, schema)
    with psycopg.connect(url, autocommit=True) as db:
        if db.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,):
            db.execute(f'CREATE SCHEMA "{schema}"'.encode())
    store = open_store(with_search_path(url, schema))
    try:
        return store.status().schema
    finally:
        store.close()


def schema_prologue(schema: str) -> str:
    """Before the statements that make the tables."""
    return f'CREATE SCHEMA IF NOT EXISTS "{schema}";\nSET search_path TO "{schema}";\n'


def fix_search_path(schema: str) -> str:
    return f"ALTER ROLE <role> IN DATABASE <database> SET search_path = public, {schema};"
