"""SQL lives in files, under names. `-- name: claim_rows` begins a query that ends where the next one begins."""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: ([a-z_]+)\s*$", re.MULTILINE)


def load_queries(file: str) -> dict[str, str]:
    """The queries of one file in this package, by name."""
    text = resources.files("semel.stores").joinpath(file).read_text()
    parts = _NAME.split(text)
    return {name: sql.strip() for name, sql in zip(parts[1::2], parts[2::2], strict=True)}


def load_migrations(engine: str) -> list[tuple[int, str]]:
    """The steps of the schema, in order: files `migrations/<engine>/0001_what.sql`."""
    folder = resources.files("semel.stores").joinpath("migrations").joinpath(engine)
    steps = [(int(entry.name[:4]), entry.read_text()) for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return sorted(steps)


def sqlite_record_sql(schema: int) -> str:
    """For tables that somebody makes by hand: the row that a migration leaves, with a name that no other store has."""
    return f"INSERT INTO semel_store VALUES (1, lower(hex(randomblob(16))), {schema}, 1, 0, 0, 0, 0, 0);\n"


def postgres_record_sql(schema: int) -> str:
    return load_queries("postgres.sql")["record_schema"].replace("$1", str(schema)) + ";\n"
