"""Connections of the standard library."""

from __future__ import annotations

from typing import Any

from semel.kernel.store import Store, Tx
from semel.runtime.transactions.base import need_sqlite


def bind(store: Store, connection: Any) -> Tx:
    return need_sqlite(store).bind(connection)
