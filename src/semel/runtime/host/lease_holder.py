"""Holding a lease: one process at a time does a job, and one that was taken for dead can do no harm.

The lease is a work row of the store. Whoever holds it puts its `guard` on what it writes, so that a write of a process
that was replaced in the meantime is refused, whatever its clock says.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from semel.errors import CommitInDoubt, SemelError, StaleFence, StoreBusy
from semel.kernel.envelope import Envelope
from semel.kernel.lease import Guard, renew_at
from semel.kernel.ops import Claim, Claimed, Enqueue, Finish, Op, Outcome, Refused, Renew, Result, Unit, WorkState
from semel.kernel.store import Store

LEASE_QUEUE = "lease"
LOOK_AGAIN_S = 0.2


def owner_name(store: Store) -> str:
    """Who holds it, as people would want to know: the node, the machine and the process."""
    return f"{store.node}@{socket.gethostname()}:{os.getpid()}"


def commit_unit(store: Store, ops: tuple[Op, ...]) -> Outcome:
    """Commit one unit, and after a broken connection find out whether it happened before doing it again."""
    while True:
        try:
            return store.commit([Unit(ops)])[0]
        except CommitInDoubt as doubt:
            outcomes = store.resolve(doubt.marker)
            if outcomes is not None:
                return outcomes[0]


class Holder:
    """One process's hold on the lease `name`. `job` says in errors what its owner does: "exporting the ledger"."""

    def __init__(self, store: Store, name: str, *, job: str, lease_s: float = 30.0, owner: str = "") -> None:
        self.store = store
        self.name = name
        self.job = job
        self.lease_s = lease_s
        self.owner = owner or owner_name(store)
        self.fence = 0
        self._renew_at = 0.0

    @property
    def guard(self) -> Guard:
        return Guard(LEASE_QUEUE, self.name, self.fence)

    def acquire(
        self,
        wait_s: float = 0.0,
        *,
        waiting: Callable[[str], None] = lambda owner: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take the lease, or wait for whoever has it. A dead one's lease runs out by the store's clock."""
        until = time.monotonic() + wait_s
        claim = Claim(LEASE_QUEUE, self.owner, lease_s=self.lease_s, identity=self.name)
        while True:
            claimed = self.commit(Enqueue(LEASE_QUEUE, self.name, Envelope(id=self.name, type="lease")), claim)[1]
            assert isinstance(claimed, Claimed)
            if claimed.rows:
                self.fence = claimed.rows[0].fence
                self._renew_at = renew_at(time.monotonic(), self.lease_s)
                return
            owner = self._other()
            if time.monotonic() >= until or stop():
                raise StoreBusy(
                    f"{owner} is {self.job}",
                    fix=f"let it finish; if it was killed, its claim ends within {self.lease_s:g} s: try then",
                )
            waiting(owner)
            time.sleep(LOOK_AGAIN_S)

    def _other(self) -> str:
        row = self.store.work(LEASE_QUEUE, self.name)
        return row.owner if row is not None and row.owner else "another process"

    def renew(self, *, now: bool = False) -> None:
        """Renew when it is time to. Raises `StaleFence` when somebody else has taken over."""
        if now or time.monotonic() >= self._renew_at:
            self.commit(Renew(LEASE_QUEUE, self.name, self.fence, self.lease_s))
            self._renew_at = renew_at(time.monotonic(), self.lease_s)

    def release(self) -> None:
        """Let the next one begin at once. When this fails, the lease runs out by itself."""
        try:
            self.commit(Finish(LEASE_QUEUE, self.name, WorkState.READY, fence=self.fence))
        except SemelError:
            return

    def commit(self, *ops: Op) -> tuple[Result, ...]:
        """Write under this lease. Raises `StaleFence` when an op with its guard is refused."""
        outcome = commit_unit(self.store, ops)
        if isinstance(outcome, Refused):
            raise self.taken_over()
        return outcome.results

    def taken_over(self) -> StaleFence:
        return StaleFence(
            f"another process has taken over and is {self.job}",
            fix="nothing is lost: it goes on from the same place; stop one of the two",
        )
