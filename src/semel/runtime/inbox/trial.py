"""What `app.memory()` needs to know: whether the handlers of an application can run on a store of its own."""

from __future__ import annotations

import sqlite3
import typing
from collections.abc import Iterable
from typing import Any

from semel.errors import ConfigError
from semel.runtime.inbox.endpoint import InboxEndpoint


def wants_sqlite(endpoints: Iterable[InboxEndpoint], provided: Iterable[type]) -> bool:
    """Whether a handler asks for a SQLite connection. Raises ConfigError for one that asks for a transaction which only
    its real database has: the mark of a message could not go with it."""
    others = tuple(provided)
    found = False
    for endpoint in endpoints:
        for each in endpoint.functions:
            for hint in _hints(each):
                if hint is sqlite3.Connection:
                    found = True
                elif hint in others or getattr(hint, "__module__", "").partition(".")[0] == "psycopg":
                    raise ConfigError(
                        f"handler {each.__qualname__} asks for {hint.__module__}.{hint.__qualname__}, and a store in"
                        " memory has no such connection",
                        fix="test it on a database of its kind: make the application with the URL of a test database",
                    )
    return found


def _hints(function: Any) -> list[Any]:
    hints = [hint for name, hint in typing.get_type_hints(function).items() if name != "return"]
    return [typing.get_origin(hint) or hint for hint in hints]
