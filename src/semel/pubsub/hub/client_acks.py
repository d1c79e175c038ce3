"""Answers to the ackIds of clients.

A request with an ackId is answered once it is durable, and its ackId with it: who asks again is told `Duplicate`. A
request that failed is forgotten, so the same ackId may be tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.pubsub.hub.commits import Failure, hint
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.hub.session import Session
from semel.pubsub.protocol.messages import Ack, ErrorName, Fault

NOTHING: Mapping[int, str] = {}


class ClientAcks:
    def __init__(self, context: HubContext, outgoing: Outgoing) -> None:
        self._context, self._outgoing = context, outgoing

    def answer(self, session: Session, ack_id: int | None, error: Fault | None = None) -> None:
        if ack_id is not None:
            self._outgoing.send(session, Ack(ack_id, error))

    def is_repeated(self, session: Session, ack_id: int | None) -> bool:
        """Whether it came before. One that is durable is answered at once; one on its way when it is decided."""
        acks = session.acks
        if ack_id is None or not acks.is_known(ack_id):
            return False
        if ack_id in acks.taken:
            self._context.counts.duplicates += 1
            self.answer(session, ack_id, _duplicate(ack_id))
        else:
            acks.repeat(ack_id)
        return True

    def accept(self, session: Session, ack_ids: Sequence[int], repeated: Mapping[int, str] = NOTHING) -> None:
        """They are durable. `repeated` are those whose messages were there before, and under which ids."""
        acks = session.acks
        acks.taken.add_all(ack_ids)
        if not repeated and not acks.waiting:
            self._outgoing.send_acks(session, ack_ids)
            return
        for ack_id in ack_ids:
            self.answer(session, ack_id, _known(repeated[ack_id]) if ack_id in repeated else None)
            for _ in range(acks.take_repeats(ack_id)):
                self.answer(session, ack_id, _duplicate(ack_id))

    def fail(self, session: Session, ack_ids: Sequence[int], failure: Failure) -> None:
        """The store did not take them. Clients get no more than a hint, so whoever runs the server has to be told."""
        self._context.report_once("hub-commit", failure)
        self.refuse(session, ack_ids, Fault(ErrorName.INTERNAL, hint(failure)))

    def refuse(self, session: Session, ack_ids: Sequence[int], fault: Fault) -> None:
        """They are forgotten, and may be tried again."""
        for ack_id in ack_ids:
            for _ in range(1 + session.acks.take_repeats(ack_id)):
                self.answer(session, ack_id, fault)


def forbidden(verb: str, group: str) -> Fault:
    return Fault(ErrorName.FORBIDDEN, f"The client does not have permission to {verb} group '{group}'.")


def _duplicate(ack_id: int) -> Fault:
    return Fault(ErrorName.DUPLICATE, f"Message with ack-id: {ack_id} has been processed")


def _known(id: str) -> Fault:
    """A message with this id is there already, whichever session published it."""
    return Fault(ErrorName.DUPLICATE, f"Message with {MESSAGE_ID}: {id} has been processed")
