"""What an endpoint of this process may take: nothing while its circuit breaker is open or somebody has paused it.

A breaker counts in this process alone: another process has its own, and finds out by itself. What says nothing about
whether handlers work is not counted: a message that cannot be read, a duplicate, a store that is away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable

from semel.errors import DuplicateMessage, MessageRefused, StoreError
from semel.inbox.breaker import Breaker, BreakerOptions, BreakerState
from semel.kernel.ops import WorkRow

log = logging.getLogger(__name__)

SAYS_NOTHING = (MessageRefused, DuplicateMessage, StoreError)

OnChange = Callable[[float | None], None]
"""Called with the time until which a breaker is open, or None when it has closed."""
OnRun = Callable[[BaseException | None], None]
"""Called when a run of a handler has ended, with its error or None."""


class EndpointGate:
    """The gate of one endpoint in one process. Each message that goes to a handler has a ticket: `enter`, then
    `succeeded` or `failed`, then `leave`. One that leaves without an end says nothing, and another may be tried.

    Deliveries may come from several loops and threads, so every step is under a lock.
    """

    def __init__(
        self,
        endpoint: str,
        options: BreakerOptions | None,
        on_change: OnChange = lambda until: None,
        on_run: OnRun = lambda error: None,
    ) -> None:
        self._endpoint = endpoint
        self._on_run = on_run
        self._breaker = Breaker(options) if options is not None else None
        self._on_change = on_change
        self._paused_until = 0.0
        self._is_held = False
        self._turns: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    # -- as a worker asks for it (kernel.work_gate.WorkGate)

    def room(self, now: float, asked: int) -> int:
        with self._lock:
            return self._room(now, asked)

    def next_deadline(self, now: float) -> float | None:
        with self._lock:
            until = self._breaker.next_deadline() if self._breaker is not None else None
            return max((at for at in (until, self._paused_until) if at is not None and at > now), default=None)

    def taken(self, row: WorkRow, now: float) -> None:
        with self._lock:
            self._enter(ticket_of(row), now)

    def returned(self, row: WorkRow) -> None:
        self.leave(ticket_of(row))

    # -- as a delivery asks for it

    def enter(self, ticket: Hashable, now: float) -> bool:
        """Whether the message may go to its handler."""
        with self._lock:
            if self._room(now, 1) == 0:
                return False
            self._enter(ticket, now)
            return True

    def succeeded(self, ticket: Hashable, now: float) -> None:
        self._on_run(None)
        with self._lock:
            turn = self._turns.pop(ticket, None)
            if self._breaker is None or turn is None:
                return
            was_trying = self._breaker.state(now) is BreakerState.TRYING
            self._breaker.succeeded(turn, now)
            has_closed = was_trying and self._breaker.state(now) is BreakerState.CLOSED
        if has_closed:
            log.warning(
                "the breaker of endpoint %r is closed: a message was handled",
                self._endpoint,
                extra={"endpoint": self._endpoint},
            )
            self._on_change(None)

    def failed(self, ticket: Hashable, error: BaseException, now: float) -> None:
        self._on_run(error)
        if isinstance(error, SAYS_NOTHING):
            self.leave(ticket)
            return
        with self._lock:
            turn = self._turns.pop(ticket, None)
            has_opened = self._breaker is not None and turn is not None and self._breaker.failed(turn, now)
            until = self._breaker.next_deadline() if self._breaker is not None else None
        if has_opened and until is not None:
            log.warning(
                "the breaker of endpoint %r is open for %g s, too many messages failed; the last: %s: %s",
                self._endpoint, until - now, type(error).__name__, error, extra={"endpoint": self._endpoint},
            )  # fmt: skip
            self._on_change(until)

    def leave(self, ticket: Hashable) -> None:
        with self._lock:
            turn = self._turns.pop(ticket, None)
            if self._breaker is not None and turn is not None:
                self._breaker.released(turn)

    def pause(self, until: float) -> None:
        """A rule for a failure asks for it, where no worker does it by itself."""
        with self._lock:
            self._paused_until = max(self._paused_until, until)

    def hold(self, is_held: bool) -> None:
        """An operator has paused the endpoint, or lets it go on."""
        with self._lock:
            self._is_held = is_held

    def takes_nothing(self, now: float) -> bool:
        """Whether nothing at all is taken: a breaker that tries one message does take something."""
        with self._lock:
            return (
                self._is_held
                or now < self._paused_until
                or (self._breaker is not None and self._breaker.state(now) is BreakerState.OPEN)
            )

    def _room(self, now: float, asked: int) -> int:
        if self._is_held or now < self._paused_until:
            return 0
        return asked if self._breaker is None else self._breaker.room(now, asked)

    def _enter(self, ticket: Hashable, now: float) -> None:
        if self._breaker is not None:
            self._turns[ticket] = self._breaker.began(now)


def ticket_of(row: WorkRow) -> Hashable:
    return row.queue, row.identity, row.fence
