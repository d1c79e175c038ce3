"""What tests do to all connections of a proxy at once."""

from __future__ import annotations

from semel.testing.byte_faults import ByteProxy


def hold_answers(proxy: ByteProxy, for_s: float) -> None:
    """What the target says on the connections that there are stays here for so long."""
    for link in proxy.links:
        link.down.stall(for_s)


def drop_all(proxy: ByteProxy) -> None:
    """Reset the connections that there are. What was held is lost."""
    for link in list(proxy.links):
        link.reset()
