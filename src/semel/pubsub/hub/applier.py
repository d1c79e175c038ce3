"""Applies the records of the stream to what this node knows: who is where in which group, and what nodes ask.

Every node applies all records in the same order. Messages with their bodies in the rows, nearly all there are, go to
`delivery` from the tail itself.
"""

from __future__ import annotations

from semel.kernel.ops import Append
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.orders import NodeCommands
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.records import RecordKind, opened_on
from semel.pubsub.hub.roster import Elsewhere, Here, Roster
from semel.pubsub.hub.runs import Run


class Applier:
    """The listener of the tail."""

    def __init__(
        self,
        context: HubContext,
        roster: Here,
        elsewhere: Roster[Elsewhere],
        endings: Endings,
        current: ReadBarrier,
        delivery: Delivery,
        closing: Closing,
        group_states: GroupStates,
        orders: NodeCommands,
    ) -> None:
        self._context, self._roster, self._elsewhere, self._endings = context, roster, elsewhere, endings
        self._current, self._delivery, self._closing = current, delivery, closing
        self._group_states, self._orders = group_states, orders

    def on_record(self, offset: int, append: Append, body: bytes | None, now: float) -> None:
        kind = append.kind
        if kind == RecordKind.MESSAGE:
            if append.envelope.blob is not None and body is None:
                self._context.notify("hub-body", f"the body of {append.envelope.id} is gone")
            else:
                self._delivery.fan_out(Run(offset, (append,), body), now)
        elif kind == RecordKind.JOIN or kind == RecordKind.LEAVE:
            self._change_member(kind, append, offset)
            if kind == RecordKind.LEAVE:
                self._group_states.on_leave(append.envelope.source, append.target[2:], now)
        elif kind == RecordKind.OPEN:
            self._opened(append, offset)
        elif kind == RecordKind.CLOSE:
            self._closed(append.envelope.source)
            self._group_states.on_close(append.envelope.source, now)
        elif kind == RecordKind.STATE:
            self._group_states.on_state(append, now)
        elif kind == RecordKind.ORDER or kind == RecordKind.REPLY:
            self._orders.on_record(append, offset, now)

    def on_end(self, number: int | None, now: float) -> None:
        self._current.has_read(number, now)
        if number:
            self._group_states.send_missed(now)

    def on_gap(self, offset: int, is_first: bool) -> None:
        """Sessions that are here may have needed what is gone. A node of several may have needed it to learn who is
        where: what it has applied so far may be older than the rows that it has read, and what is gone led from there
        to what they say. Only what was written before it read the rows, and before it has applied anything, is in
        them."""
        is_in_rows = is_first and offset <= self._context.head + 1
        if len(self._roster) or (self._context.options.is_shared and not is_in_rows):
            self._context.notify("hub-read", f"records before {offset} are gone that sessions may have needed")
            self._context.restart("messages are missing here")

    def on_epoch_changed(self) -> None:
        """The store has another history than the one that was followed: it was restored from a backup, or the database
        failed over. What the sessions are worth is in the rows, which are read again."""
        self.restart_in_new_epoch("a commit landed in another epoch than the hub's")

    def restart_in_new_epoch(self, why: str) -> None:
        self._context.notify("hub-read", why)
        self._context.restart("the store has another history")

    def _change_member(self, kind: int, append: Append, offset: int) -> None:
        """Records from before a session came here are skipped: its row says in which groups it was, and whatever the
        row does not say was never acknowledged to anybody."""
        group, connection = append.target[2:], append.envelope.source
        session = self._roster.get(connection)
        if session is not None:
            if offset > session.opened:
                (self._roster.join if kind == RecordKind.JOIN else self._roster.leave)(session, group, offset)
            return
        other = self._elsewhere.get(connection)
        if other is not None and offset > other.since:
            (self._elsewhere.join if kind == RecordKind.JOIN else self._elsewhere.leave)(other, group, offset)

    def _opened(self, append: Append, offset: int) -> None:
        """The node that wrote this has the session. If it is here, and another node wrote this later, it was taken
        over."""
        envelope = append.envelope
        node, groups = opened_on(envelope)
        known = self._elsewhere.get(envelope.source)
        is_old = known is not None and offset <= known.since
        if known is not None and not is_old:
            self._elsewhere.remove(known)
        session = self._roster.get(envelope.source)
        if session is not None and session.present_at is not None:
            session.present_at = min(session.present_at, offset)
        self._orders.has_moved(envelope.source, node)
        if node == self._context.node:
            return
        self._endings.mark_taken(envelope.source, offset)
        if session is not None and offset > session.opened:
            self._closing.release(session)
        if not is_old and (session is None or offset > session.opened):
            before = known or session
            if groups is None:
                groups = tuple(before.groups) if before is not None else ()
            self._elsewhere.add(Elsewhere(envelope.source, envelope.subject, node, dict.fromkeys(groups, offset)))

    def _closed(self, connection: str) -> None:
        session, other = self._roster.get(connection), self._elsewhere.get(connection)
        if session is not None:
            self._closing.release(session)
        if other is not None:
            self._elsewhere.remove(other)
            self._orders.has_ended(connection)
