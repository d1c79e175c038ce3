"""Which nodes live. Each holds a lease on its own name for each hub and renews it; one whose lease has run out is dead,
and whoever claims the lease takes over its sessions.

A node that was only asleep finds that its lease is gone, and loads the hub again. What it writes for its sessions until
then is refused if they have been taken over (`takeover.py`), so nothing depends on when it notices.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.errors import StoreError
from semel.kernel.effects import CommitUnknown, LoadAll, Loaded, LoadedAll, LoadFailed
from semel.kernel.envelope import Envelope
from semel.kernel.lease import renew_at
from semel.kernel.ops import Claim, Claimed, Enqueue, Finish, Op, Put, Renew, Result, Stale, WorkRow, WorkState
from semel.pubsub.hub.commits import Failure, nothing_more
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.floors import Floors, floor_key
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.session_rows import read_session, session_key
from semel.pubsub.hub.takeover import TakeOver

PAGE = 1000
ADOPT_LEASE_S = 60.0
DEAD_MAX = 4
AGAIN_S = 1.0
KEEP_S = 60.0

ANNOUNCED = "hubs/"


def announcement_key(hub: str) -> str:
    """A row that names the hub, so that other nodes find all hubs with one query."""
    return f"{ANNOUNCED}{hub}"


class Nodes:
    """Gets the lease of this node and keeps it, and looks for nodes that have lost theirs. `on_held` is called when
    this node has its lease, and its floor is written down."""

    def __init__(
        self,
        context: HubContext,
        lease: NodeLease,
        floors: Floors,
        current: ReadBarrier,
        take_over: TakeOver,
        on_held: Callable[[float], None],
    ) -> None:
        self._context, self._lease, self._floors = context, lease, floors
        self._current, self._take_over, self._on_held = current, take_over, on_held
        self._queue = lease.queue
        self._at: float | None = None

    def start(self, now: float) -> None:
        """The name was never used before, so nobody can hold its lease. Except the hub that this process had before: a
        commit of it that was still on its way may have claimed this row while it looked for dead nodes."""
        node, lease_s = self._context.node, self._context.options.lease_s
        row = Enqueue(self._queue, node, Envelope(id=node, type="node"))
        claim = Claim(self._queue, node, lease_s=lease_s, identity=node)
        announcement = Put(announcement_key(self._context.hub), b"")
        asked = now

        def done(results: tuple[Result, ...], now: float) -> None:
            claimed = results[1]
            assert isinstance(claimed, Claimed)
            if not claimed.rows:
                self._context.restart("another has claimed the name")
                return
            self._lease.hold(claimed.rows[0].fence, asked + lease_s)
            self._at = renew_at(asked, lease_s)
            self._on_held(now)

        self._at = None
        self._context.commit((row, claim, self._floors.first(), announcement), done, self._not_started)

    def _not_started(self, failure: Failure, now: float) -> None:
        """If it is unknown whether the name was taken, the hub is loaded again under another one."""
        if isinstance(failure, CommitUnknown):
            self._context.restart("the store did not answer")
            return
        self._context.report("node", failure, f"{self._context.node} cannot begin")
        self._at = now + AGAIN_S

    def next_deadline(self) -> float | None:
        return self._at

    def on_timer(self, now: float) -> None:
        if self._at is None or self._at > now:
            return
        if self._lease.fence is None:
            self.start(now)
        else:
            self._renew(now, self._lease.fence)

    def _renew(self, now: float, fence: int) -> None:
        """And look for nodes whose lease has run out."""
        node, lease_s = self._context.node, self._context.options.lease_s
        self._at = renew_at(now, lease_s)
        renew = Renew(self._queue, node, fence, lease_s)
        look = Claim(self._queue, node, limit=DEAD_MAX, lease_s=ADOPT_LEASE_S)
        asked = now

        def done(results: tuple[Result, ...], now: float) -> None:
            self._lease.until = asked + lease_s
            claimed = results[1]
            assert isinstance(claimed, Claimed)
            for row in claimed.rows:
                _Adoption(self._context, self._queue, row, self._current, self._take_over).begin(now)

        def failed(failure: Failure, now: float) -> None:
            if any(isinstance(each, Stale) for each in getattr(failure, "results", ())):
                self._context.restart("another node has taken over")
            else:
                self._context.report("node", failure, f"{node} cannot renew its lease")

        self._context.commit((renew, look), done, failed)


class _Adoption:
    """The sessions of a dead node come here, page by page. When all have, its name and its floor are forgotten. If some
    have not, it is done again; if this node dies, its claim runs out and another does it."""

    def __init__(
        self, context: HubContext, queue: str, row: WorkRow, current: ReadBarrier, take_over: TakeOver
    ) -> None:
        self._context, self._queue, self._row = context, queue, row
        self._current, self._take_over = current, take_over
        self._after = ""
        self._left = 0
        self._is_last, self._is_decided = False, True
        context.notify("node", f"{row.identity} is dead: its sessions come to {context.node}")

    def begin(self, now: float) -> None:
        """Read the stream to its end first: it may say that the dead node had taken sessions from this one, which this
        node would take for its own. The dead node can take no more of them, since its lease is claimed."""
        self._current.when(lambda now: self._load_page(), lambda why: self._give_back(), now)

    def _load_page(self) -> None:
        self._context.load_all(LoadAll(session_key(self._context.hub, ""), self._after, PAGE), self._found)

    def _found(self, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, LoadedAll):
            self._give_back()
            return
        self._is_last = len(found.states) < PAGE
        prefix = found.asked.prefix
        theirs = [key.removeprefix(prefix) for key, state in found.states if self._may_be_theirs(state.value)]
        if found.states:
            self._after = found.states[-1][0]
        self._left = 1 + len(theirs)
        for connection in theirs:
            self._take_over.take_from(self._row.identity, connection, self._one_less)
        self._one_less(True)

    def _may_be_theirs(self, value: bytes) -> bool:
        """A row that cannot be read may be theirs: then the node is not forgotten, and a newer Semel takes it."""
        try:
            return read_session(value).node == self._row.identity
        except StoreError:
            return True

    def _one_less(self, is_decided: bool) -> None:
        self._left -= 1
        self._is_decided &= is_decided
        if self._left:
            return
        if not self._is_last:
            self._load_page()
            return
        if self._is_decided:
            self._forget()
        else:
            self._give_back()

    def _forget(self) -> None:
        name, fence = self._row.identity, self._row.fence
        done = Finish(self._queue, name, WorkState.DONE, fence=fence, keep_s=KEEP_S)
        self._commit(done, Put(floor_key(self._context.hub, name), None))

    def _give_back(self) -> None:
        """Something could not be read, or is not decided: whoever looks next does it again. Holding on to the claim
        would keep others from it until that runs out, long after the sessions could have been served."""
        name, fence = self._row.identity, self._row.fence
        self._commit(Finish(self._queue, name, WorkState.SCHEDULED, fence=fence, delay_s=AGAIN_S))

    def _commit(self, *ops: Op) -> None:
        self._context.commit(ops, nothing_more, lambda failure, now: None)
