"""What a process must not carry over a fork: connections, locks and threads of its parent.

Celery's prefork and `gunicorn --preload` define an application in one process and use it in children. A child that
spoke on its parent's PostgreSQL connection would mix its bytes with the parent's, and SQLite forbids it as well. So
each application forgets in the child what its parent had opened, and opens it anew with the first call that needs it.

It forgets and does not close: to close a connection says goodbye on a socket that is the parent's.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Forkable(Protocol):
    def forget_parent(self) -> object:
        """Called in a child that was forked. Returns what must neither be used nor closed here."""
        ...


_KNOWN: weakref.WeakSet[Any] = weakref.WeakSet()
_OF_PARENTS: list[object] = []
"""Kept for as long as the process lives, so that nothing closes it."""


def forget_in_children(app: Forkable) -> None:
    _KNOWN.add(app)


def _in_child() -> None:
    _OF_PARENTS.extend([app.forget_parent() for app in _KNOWN])


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)
