"""The thread beside the writer: it must end when asked, whatever it is doing at that moment."""

import sqlite3
import threading
from typing import Any, cast

from semel.stores.checkpoint import LOG_BYTES, Checkpointer
from semel.testing.limits import scaled, wait_until


class SlowConnection:
    """Stays inside the copy until the test lets it go."""

    def __init__(self) -> None:
        self.copying = threading.Event()
        self.go_on = threading.Event()
        self.copies = 0

    def execute(self, sql: str) -> Any:
        self.copying.set()
        assert self.go_on.wait(scaled(30))
        self.copies += 1
        return self

    def fetchall(self) -> list[Any]:
        return []


def test_closing_during_a_copy_ends_the_thread() -> None:
    slow = SlowConnection()
    checkpointer = Checkpointer(lambda: cast(sqlite3.Connection, slow))
    checkpointer.committed(cast(sqlite3.Connection, slow), LOG_BYTES)
    assert slow.copying.wait(scaled(30))
    closer = threading.Thread(target=checkpointer.close, daemon=True)
    closer.start()
    wait_until(lambda: checkpointer._requests.qsize() > 0, "the request to end")
    assert closer.is_alive(), "it waits for the copy under way"
    slow.go_on.set()
    closer.join(scaled(30))
    assert not closer.is_alive(), "the request to end was lost while a copy was under way"


def test_one_copy_at_a_time_and_then_the_rest_by_the_writer() -> None:
    slow, writer = SlowConnection(), SlowConnection()
    writer.go_on.set()
    checkpointer = Checkpointer(lambda: cast(sqlite3.Connection, slow))
    for _ in range(3):
        checkpointer.committed(cast(sqlite3.Connection, writer), LOG_BYTES)
    assert writer.copies == 0
    slow.go_on.set()
    checkpointer.close()
    assert slow.copies == 1
    checkpointer.committed(cast(sqlite3.Connection, writer), 0)
    assert writer.copies == 1


def test_a_checkpointer_that_was_never_needed_closes() -> None:
    Checkpointer(lambda: sqlite3.connect(":memory:")).close()
