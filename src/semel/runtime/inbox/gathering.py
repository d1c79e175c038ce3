"""Many requests, one commit: what comes while a commit is under way is stored by the next one.

Each request is stored whole or not at all, and answered for itself. If what came together cannot be stored together,
because the data of one is refused, each is stored on its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from semel.errors import InputError, LimitExceeded, StoreRefused
from semel.kernel.envelope import Envelope
from semel.runtime.inbox.definition import Verdict

ROWS_MAX = 1_000
"""Messages of one commit; more only if one request brings more."""
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""What may wait for its commit. A store that does not answer must not fill the memory."""

Receive = Callable[[Sequence[Envelope]], list[Verdict]]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    envelopes: tuple[Envelope, ...]
    answer: Future[list[Verdict]]
    size: int


class Gathering:
    """In front of one endpoint. It may be called from any thread; one thread of its own does the storing."""

    def __init__(self, name: str, receive: Receive) -> None:
        self._receive = receive
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._bytes = self._count = 0
        self._is_storing = False
        self._thread = ThreadPoolExecutor(1, f"semel-http-{name}")

    def put(self, envelopes: tuple[Envelope, ...]) -> Future[list[Verdict]]:
        """What became of each, when it is stored. Raises LimitExceeded while too much waits."""
        size = sum(envelope.size for envelope in envelopes)
        each = _Waiting(envelopes, Future(), size)
        with self._lock:
            if self._count + len(envelopes) > WAITING_MAX or self._bytes + size > WAITING_BYTES_MAX:
                raise LimitExceeded("too many messages wait to be stored", fix="send them again in a moment")
            self._waiting.append(each)
            self._count, self._bytes = self._count + len(envelopes), self._bytes + size
            if not self._is_storing:
                self._thread.submit(self._store_all)
                self._is_storing = True
        return each.answer

    def close(self) -> None:
        """What waits is still stored."""
        self._thread.shutdown(wait=False)

    # -- on its thread

    def _store_all(self) -> None:
        while group := self._next():
            self._store(group)

    def _next(self) -> list[_Waiting]:
        found: list[_Waiting] = []
        rows = 0
        with self._lock:
            while self._waiting and (not found or rows + len(self._waiting[0].envelopes) <= ROWS_MAX):
                each = self._waiting.popleft()
                self._count, self._bytes = self._count - len(each.envelopes), self._bytes - each.size
                if each.answer.set_running_or_notify_cancel():  # else nobody waits for it any more
                    found.append(each)
                    rows += len(each.envelopes)
            self._is_storing = bool(found)
        return found

    def _store(self, group: Sequence[_Waiting]) -> None:
        try:
            verdicts = self._receive([envelope for each in group for envelope in each.envelopes])
        except (InputError, StoreRefused) as error:
            if len(group) == 1:
                group[0].answer.set_exception(error)
                return
            for each in group:
                self._store([each])
        except BaseException as error:
            for each in group:
                each.answer.set_exception(error)
        else:
            at = 0
            for each in group:
                each.answer.set_result(verdicts[at : at + len(each.envelopes)])
                at += len(each.envelopes)
