"""Whether the epoch survives a switch to another server: only when it is proven that nothing was lost.

The store records the timeline of the server that it is on. The first connection to a server on another timeline finds
the recorded one there. Every member whose lease was valid at the switch must then vouch for the new server: everything
that it has acknowledged or shown to anybody is there. When all have vouched, the new timeline is recorded and the epoch
stays. When one of them misses something, or says nothing for too long, the epoch is raised. See ADR 19.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum

from semel.errors import StoreReadOnly, StoreUnavailable
from semel.stores.points import reach
from semel.stores.postgres_connection import PostgresConnection, Statements, errors
from semel.stores.postgres_members import LEASE_S, Membership
from semel.stores.postgres_sync import transaction
from semel.stores.postgres_witness import Witness

log = logging.getLogger(__name__)

DECIDE_S = 5.0
"""How long the members may take to vouch."""
LOOK_S = 0.05


class SwitchVerdict(Enum):
    WAIT = "wait"
    KEPT = "kept"
    LOST = "lost"


class Switch:
    """One process deciding about a switch to `timeline`."""

    def __init__(self, session: PostgresConnection, timeline: int, witness: Witness, membership: Membership) -> None:
        self._session, self._timeline = session, timeline
        self._witness, self._membership = witness, membership
        self.reason = ""
        self.is_kept_by_us = False
        """Everything that this process has answered for was there before anybody wrote on the new timeline, and it has
        answered nothing since, because its term ended before the first look."""

    def decide(self, note: Callable[[Statements], None]) -> bool:
        """Wait for a decision. True: the epoch was kept, by us or by another member. False: raise it, for `reason`.

        `note` writes down the new origin."""
        switch_lsn = find_switch_lsn(self._session, self._timeline, self._witness.timeline)
        if switch_lsn is None:
            self.reason = "the history of the timeline cannot be read"
            return False
        until = time.monotonic() + 2 * DECIDE_S
        while (verdict := self._look(switch_lsn, note)) is SwitchVerdict.WAIT:
            if time.monotonic() > until:
                raise StoreUnavailable("it is being decided whether the new primary has everything", fix="try again")
            time.sleep(LOOK_S)
        return verdict is SwitchVerdict.KEPT

    def _look(self, switch_lsn: int, note: Callable[[Statements], None]) -> SwitchVerdict:
        with transaction(self._session, "own_epoch", durable=False) as run:
            [(noted, members, pending, since, now)] = run.ask("read_switch")
            if noted == self._timeline:
                return SwitchVerdict.KEPT
            self.is_kept_by_us = False
            loss = self._find_loss(run, switch_lsn, members, now)
            if loss is not None:
                self.reason = loss
                return SwitchVerdict.LOST
            self.is_kept_by_us = True
            if pending != self._timeline:
                run.run("begin_switch", self._timeline)
                since = now
            if self._membership.is_joined and self._witness.has_lease:
                # without a lease we cannot know that nobody has joined since, so we may not vouch
                run.run("vouch", self._membership.member, self._timeline)
                reach("switch.vouched")
            [(count, silent)] = run.ask("read_vouchers", self._timeline)
            if count and not silent:
                drop_silent(run, self._timeline)
                note(run)
                reach("switch.kept")
                return SwitchVerdict.KEPT
            if now - since > DECIDE_S * 1_000_000:
                self.reason = f"no answer from {silent}" if count else "nobody was there who could tell what is lost"
                return SwitchVerdict.LOST
        return SwitchVerdict.WAIT

    def _find_loss(self, run: Statements, switch_lsn: int, members: int, now: int) -> str | None:
        if self._membership.is_joined:
            if run.ask("read_member", self._membership.member) != [(self._membership.number,)]:
                return "this process is not among the members there"
            if members < self._membership.known:
                return "a member has joined who is not known there"
        return self._witness.find_loss(self._session, switch_lsn, now, is_pending=True)


def drop_silent(run: Statements, timeline: int) -> None:
    """A member that has not vouched for this timeline is removed. If it is alive, it joins again."""
    run.run("drop_silent_members", timeline)
    run.run("restamp_members", int(LEASE_S * 1_000_000))


def find_switch_lsn(session: PostgresConnection, timeline: int, before: int | None) -> int | None:
    """Where in the log the timeline `before` ended on the way to this one; 0 without a `before`, None if the server
    will not say."""
    try:
        with errors(""):
            [(text,)] = Statements(session).ask("history", timeline)
    except (StoreReadOnly, StoreUnavailable):
        return None
    ends = dict(_parse(line) for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return 0 if before is None else ends.get(before)


def _parse(line: str) -> tuple[int, int]:
    timeline, lsn, *_ = line.split("\t")
    high, _, low = lsn.partition("/")
    return int(timeline), (int(high, 16) << 32) + int(low, 16)
