"""Marks that could not be written when their effect had happened. They are written once the store is back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from semel.errors import StoreError
from semel.inbox.reservation import DIED
from semel.kernel.ops import Finish, Log, Op, Refused, WorkState
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Store
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.host.log_fields import about_many

log = logging.getLogger(__name__)

RETRY = RetryPolicy(interval_s=0.2, factor=2.0, interval_max_s=10.0)


class LateMarks:
    """Each has a thread of its own until it is written. Closing gives each one last try."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._closing = threading.Event()
        self._threads: set[threading.Thread] = set()

    def write(self, ops: tuple[Op, ...]) -> None:
        thread = threading.Thread(target=self._until_written, args=(ops,), name="semel-inbox-mark", daemon=True)
        self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        self._closing.set()
        for thread in list(self._threads):
            thread.join()
        self._closing.clear()

    def _until_written(self, ops: tuple[Op, ...]) -> None:
        attempt = 1
        try:
            while not self._is_written(ops):
                if self._closing.is_set():
                    log.warning(
                        "a mark was not written: when its claim has run out, on_crash says what it means",
                        extra=_about(ops),
                    )
                    return
                self._closing.wait(RETRY.wait_s(attempt, 0.0))
                attempt += 1
        finally:
            self._threads.discard(threading.current_thread())

    def _is_written(self, ops: tuple[Op, ...]) -> bool:
        try:
            if isinstance(commit_unit(self._store(), ops), Refused):
                self._write_put_aside(ops)
        except StoreError:
            return False
        return True

    def _write_put_aside(self, ops: tuple[Op, ...]) -> None:
        """The claim has run out meanwhile, and a worker has put the message aside: that its effect has happened is what
        nobody knew. What another delivery has taken up is that one's."""
        finish, *rest = ops
        assert isinstance(finish, Finish), "a mark begins with the end of its row"
        row = self._store().work(finish.queue, finish.identity)
        if row is not None and row.state is WorkState.DEFERRED and row.cause == DIED:
            commit_unit(self._store(), (msgspec.structs.replace(finish, fence=None, was=WorkState.DEFERRED), *rest))


def _about(ops: tuple[Op, ...]) -> dict[str, Any]:
    [queue] = [op.queue for op in ops[:1] if isinstance(op, Finish)] or [""]
    ids = [op.event.message for op in ops if isinstance(op, Log) and op.event.message is not None]
    return about_many(queue.removeprefix("inbox/"), ids)
