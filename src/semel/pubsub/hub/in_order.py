"""For a client that promises to send again in order what was not taken: none of its messages overtakes another.

Messages are sent one behind the other without waiting for answers. When the store does not take one, those that were on
their way behind it come all the same, and if they were taken, the first would be published after them. So they are
refused as well, until the client begins again.

That it does is seen by its ackIds, which count upwards: one that is not above the one before it is sent again. Such a
client begins with the lowest that has no answer, and continues with all others that have none, before it sends anything
new. So whatever comes is behind all that is below it: either all of that was taken, or it is refused too. It need not
begin with the one that was refused first, because the client may have given that up. What is here is for one socket: on
a new one it begins again anyway.
"""

from __future__ import annotations

from semel.pubsub.protocol.messages import ErrorName, Fault

REFUSED = Fault(ErrorName.INTERNAL, "a message before it was not taken; send them again in their order")


class InOrder:
    """`last` is the last ackId that came with a message. `is_held`: what comes with a higher one is refused."""

    __slots__ = ("is_held", "last")

    def __init__(self) -> None:
        self.last: int | None = None
        self.is_held = False

    def receive(self, ack_id: int) -> None:
        if self.last is not None and ack_id <= self.last:
            self.is_held = False
        self.last = ack_id

    def hold(self) -> None:
        """The store did not take one. A socket on which nothing came yet has nothing on its way behind it."""
        self.is_held = self.last is not None
