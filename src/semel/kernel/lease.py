"""A lease lets one of several workers act; a fence makes the others harmless.

Expiry decides who may take over. It never decides whether a write is allowed: clocks drift and processes pause, so a
worker that believes in its lease may be wrong. The fence decides that. It comes from one counter that is never reset,
and a write that carries an older fence than the row is refused by the store.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guard:
    """Attached to a write: it lands only while the work row `identity` in `queue` is claimed under `fence`."""

    queue: str
    identity: str
    fence: int


RENEW_AT = 1 / 3
"""A worker renews after this part of its lease, which leaves two more tries before it runs out."""


def renew_at(claimed_at: float, lease_s: float) -> float:
    return claimed_at + lease_s * RENEW_AT
