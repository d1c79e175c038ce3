"""`open_store("sqlite:///semel.db")`: one function for all stores."""

from __future__ import annotations

from urllib.parse import quote

from semel.errors import ConfigError
from semel.kernel.store import Store

EXAMPLES = "sqlite:///semel.db, sqlite:////var/lib/semel/semel.db, postgresql://user@host/database, memory:"


def open_store(url: str, *, node: str = "local", create: bool = True, ledger_keep_s: float | None = None) -> Store:
    """Open a store, and create it when it does not exist yet unless `create` is False. Its sweeps remove ledger entries
    that are older than `ledger_keep_s`, if nobody exports them."""
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if scheme == "sqlite":
        from semel.stores.sqlite import SqliteStore

        return SqliteStore(url, node=node, create=create, ledger_keep_s=ledger_keep_s)
    if scheme in ("postgresql", "postgres"):
        return _open_postgres(url, node, create, ledger_keep_s)
    if scheme == "memory":
        from semel.stores.memory import MemoryStore

        return MemoryStore(node=node, ledger_keep_s=ledger_keep_s)
    raise ConfigError(f"{url!r} is not the URL of a store", fix=f"use one of: {EXAMPLES}")


def absolute_url(url: str) -> str:
    """The same store for processes that work in other folders. Only a file has a place that depends on the folder."""
    if not url.lower().startswith("sqlite:"):
        return url
    from semel.stores.sqlite import path_of

    return f"sqlite:///{quote(str(path_of(url).absolute()))}"


def _open_postgres(url: str, node: str, create: bool, ledger_keep_s: float | None) -> Store:
    try:
        from semel.stores.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        fix = "in a checkout: make setup; elsewhere: pip install 'semel[postgres]'"
        raise ConfigError("PostgreSQL needs the psycopg package", fix=fix) from None
    return PostgresStore(url, node=node, create=create, ledger_keep_s=ledger_keep_s)
