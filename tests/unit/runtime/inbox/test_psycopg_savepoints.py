"""Savepoints go straight to libpq once a transaction is open, and by psycopg before, so that it begins one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.pq import ExecStatus, TransactionStatus

from semel.errors import StoreUnavailable
from semel.runtime.inbox.psycopg_savepoints import GO_BACK, SET_POINT, PsycopgSavepoints


class Line:
    """A connection that notes what it is asked, and how."""

    def __init__(self, status: TransactionStatus, answer: ExecStatus = ExecStatus.COMMAND_OK) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.info = SimpleNamespace(transaction_status=status)
        self.pgconn = self
        self._answer = answer

    def exec_(self, statement: bytes) -> Any:
        self.asked.append(("libpq", statement))
        return SimpleNamespace(status=self._answer, error_message=b"aborted")

    def execute(self, statement: bytes, *, prepare: bool) -> None:
        self.asked.append(("psycopg", statement))


@pytest.mark.parametrize(("status", "way"), [(TransactionStatus.INTRANS, "libpq"), (TransactionStatus.IDLE, "psycopg")])
def test_the_way_of_a_savepoint(status: TransactionStatus, way: str) -> None:
    line = Line(status)
    points = PsycopgSavepoints(line)
    points.begin()
    points.set()
    points.go_back()
    assert line.asked == [(way, SET_POINT), ("psycopg", GO_BACK)]


def test_a_savepoint_that_is_not_set_is_an_error() -> None:
    with pytest.raises(StoreUnavailable, match="no savepoint: aborted"):
        PsycopgSavepoints(Line(TransactionStatus.INTRANS, ExecStatus.FATAL_ERROR)).set()
