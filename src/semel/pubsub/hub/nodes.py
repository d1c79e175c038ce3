"""Which nodes live. Each holds a lease on its own name for each hub and renews it; one whose lease has run out is dead,
and whoever claims the lease takes over the sessions that it had.

A node that was only asleep hears that its lease is gone, and begins anew. What it writes for its sessions until then is
refused if they have been taken over (`takeover.py`), so nothing hangs on when it notices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import StoreError
from semel.kernel.effects import CommitUnknown, LoadAll, Loaded, LoadedAll, LoadFailed
from semel.kernel.envelope import Envelope
from semel.kernel.lease import Guard, renew_at
from semel.kernel.ops import Claim, Claimed, Enqueue, Finish, Op, Put, Renew, Result, Stale, WorkRow, WorkState
from semel.pubsub.hub.commits import Failure, nothing_more
from semel.pubsub.hub.floors import floor_key
from semel.pubsub.hub.session import read_session, session_key

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

PAGE = 1000
ADOPT_LEASE_S = 60.0
DEAD_MAX = 4
AGAIN_S = 1.0
KEEP_S = 60.0

ANNOUNCED = "hubs/"


def announcement_key(hub: str) -> str:
    """A row that names the hub, so that other nodes find all that there are with one look."""
    return f"{ANNOUNCED}{hub}"


class Nodes:
    """`is_in`: this node has its lease, and its floor is written down."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._queue = f"{hub.stream}/nodes"
        self._fence: int | None = None
        self._until = 0.0
        self._at: float | None = None

    @property
    def is_in(self) -> bool:
        return self._fence is not None

    @property
    def guard(self) -> Guard | None:
        """Refuses what comes so late that another has claimed the lease."""
        return Guard(self._queue, self._hub.node, self._fence) if self._fence is not None else None

    def is_over(self, now: float) -> bool:
        """Nothing was heard of the lease for so long that others may take this node for dead, and give up what its
        sessions need: it may not go on serving them. It knew before they can."""
        return self._fence is not None and now >= self._until

    def start(self, now: float) -> None:
        """Under a name that nobody has used. Only who looks for dead nodes in the same transaction can have the lease:
        the hub that was here before, whose last commit was still on its way."""
        node, lease_s = self._hub.node, self._hub.options.lease_s
        row = Enqueue(self._queue, node, Envelope(id=node, type="node"))
        claim = Claim(self._queue, node, lease_s=lease_s, identity=node)
        announcement = Put(announcement_key(self._hub.hub), b"")
        asked = now

        def done(results: tuple[Result, ...], now: float) -> None:
            claimed = results[1]
            assert isinstance(claimed, Claimed)
            if not claimed.rows:
                self._hub.begin_anew("another has claimed the name")
                return
            self._fence, self._until = claimed.rows[0].fence, asked + lease_s
            self._at = renew_at(asked, lease_s)
            self._hub.let_in(now)

        self._at = None
        self._hub.commit((row, claim, self._hub.floors.first(), announcement), done, self._not_in)

    def _not_in(self, failure: Failure, now: float) -> None:
        """If it is not known whether the name is used by now, another one is needed."""
        if isinstance(failure, CommitUnknown):
            self._hub.begin_anew("the store did not answer")
            return
        self._hub.report("node", failure, f"{self._hub.node} cannot begin")
        self._at = now + AGAIN_S

    def next_deadline(self) -> float | None:
        return self._at

    def on_timer(self, now: float) -> None:
        if self._at is None or self._at > now:
            return
        if self._fence is None:
            self.start(now)
        else:
            self._renew(now, self._fence)

    def _renew(self, now: float, fence: int) -> None:
        """And look for one whose lease has run out."""
        node, lease_s = self._hub.node, self._hub.options.lease_s
        self._at = renew_at(now, lease_s)
        renew = Renew(self._queue, node, fence, lease_s)
        look = Claim(self._queue, node, limit=DEAD_MAX, lease_s=ADOPT_LEASE_S)
        asked = now

        def done(results: tuple[Result, ...], now: float) -> None:
            self._until = asked + lease_s
            claimed = results[1]
            assert isinstance(claimed, Claimed)
            for row in claimed.rows:
                _Adoption(self._hub, self._queue, row).begin(now)

        def failed(failure: Failure, now: float) -> None:
            if any(isinstance(each, Stale) for each in getattr(failure, "results", ())):
                self._hub.begin_anew("another node has taken over")
            else:
                self._hub.report("node", failure, f"{node} cannot renew its lease")

        self._hub.commit((renew, look), done, failed)


class _Adoption:
    """The sessions of a dead node come here, page by page. When all have, its name and its floor are forgotten. If some
    have not, it is done again; if this node dies, its claim runs out and another does it."""

    def __init__(self, hub: Hub, queue: str, row: WorkRow) -> None:
        self._hub, self._queue, self._row = hub, queue, row
        self._after = ""
        self._left = 0
        self._is_last, self._is_decided = False, True
        hub.notify("node", f"{row.identity} is dead: its sessions come to {hub.node}")

    def begin(self, now: float) -> None:
        """What the dead node had taken from this one may not have been read of here, and would be held for our own. It
        can take no more: its lease is claimed."""
        self._hub.current.when(lambda now: self.go_on(), lambda why: self._give_back(), now)

    def go_on(self) -> None:
        self._hub.load_all(LoadAll(session_key(self._hub.hub, ""), self._after, PAGE), self._found)

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
            self._hub.take_over.take_from(self._row.identity, connection, self._one_less)
        self._one_less(True)

    def _may_be_theirs(self, value: bytes) -> bool:
        """One that cannot be read may be, and is not forgotten with its node: a newer Semel takes it."""
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
            self.go_on()
            return
        if self._is_decided:
            self._forget()
        else:
            self._give_back()

    def _forget(self) -> None:
        name, fence = self._row.identity, self._row.fence
        done = Finish(self._queue, name, WorkState.DONE, fence=fence, keep_s=KEEP_S)
        self._commit(done, Put(floor_key(self._hub.hub, name), None))

    def _give_back(self) -> None:
        """Something could not be read, or is not decided: whoever looks next does it again. Holding on to the claim
        would keep others from it until that runs out, long after the sessions could have been served."""
        name, fence = self._row.identity, self._row.fence
        self._commit(Finish(self._queue, name, WorkState.SCHEDULED, fence=fence, delay_s=AGAIN_S))

    def _commit(self, *ops: Op) -> None:
        self._hub.commit(ops, nothing_more, lambda failure, now: None)
