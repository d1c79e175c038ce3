"""Connections of Django: `django.db.connection`, or one of `django.db.connections`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semel.errors import InputError
from semel.kernel.ops import Op, Result
from semel.kernel.store import Store, Tx
from semel.runtime.transactions.base import need_postgres, need_sqlite

FIX_ATOMIC = "use `with transaction.atomic():`"


def bind(store: Store, connection: Any) -> Tx:
    return DjangoTx(store, connection)


class DjangoTx:
    """Django has a driver's connection inside `atomic`, and that one is bound: on PostgreSQL it is psycopg's, because
    Django takes that where it is installed, as it is for every store on PostgreSQL."""

    def __init__(self, store: Store, connection: Any) -> None:
        self._store = store
        self._connection = connection
        self._driver()

    def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        return self._driver().apply(ops, wait=wait)

    def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        return self._driver().keep_result(scope, identity, result)

    def _driver(self) -> Tx:
        connection = self._connection
        if connection.vendor == "sqlite":
            need_sqlite(self._store)
        elif connection.vendor == "postgresql":
            need_postgres(self._store)
        else:
            raise InputError(f"Semel has no store on {connection.vendor}", fix="use SQLite or PostgreSQL")
        if connection.get_autocommit():
            raise InputError("no transaction is open: each statement would be committed alone", fix=FIX_ATOMIC)
        if connection.needs_rollback:
            raise InputError("the transaction has failed already", fix="leave the atomic block and begin again")
        return self._store.bind(connection.connection)
