"""Attempts and seconds: how long a sender works on one message, and what a late confirm does.

Stop and wait: the sender sends, waits for `timeout_s`, and sends again. Its confirm needs `rtt_s`.
"""

from __future__ import annotations

import math

from semel.calculus import checks
from semel.calculus.values import powers


def expected_attempts(unconfirmed: float, attempts: int | None, overlap: int = 0) -> float:
    """How often a message is sent, when one attempt ends unconfirmed with probability `unconfirmed`.

    (1 - F^N) / (1 - F), without end 1 / (1 - F), infinite when no confirm ever comes. `overlap` more are sent while
    the confirm is on its way.
    """
    checks.probability("unconfirmed", unconfirmed)
    checks.whole("overlap", overlap, 0)
    if attempts is None:
        return math.inf if unconfirmed == 1 else overlap + 1 / (1 - unconfirmed)
    checks.whole("attempts", attempts, 1)
    surely = min(attempts, overlap + 1)
    return surely + unconfirmed * float(powers(unconfirmed, attempts - surely)[1])


def time_per_message(attempts: float, rtt_s: float, timeout_s: float, given_up: float = 0.0) -> float:
    """How long a sender works on one message until it is confirmed, or given up after its last timeout.

    `attempts` is the expected number without overlap, `given_up` the probability that none of them is confirmed.
    """
    checks.not_negative("rtt_s", rtt_s)
    checks.positive("timeout_s", timeout_s)
    checks.probability("given_up", given_up)
    return max(0.0, attempts - 1) * timeout_s + (1 - given_up) * rtt_s + given_up * max(rtt_s, timeout_s)


def copies_without_loss(rtt_s: float, timeout_s: float, newest_only: bool = False) -> float:
    """Copies of one message on a perfect link, when the confirm may be slower than the timeout.

    ceil(rtt / timeout) where the confirm of any attempt counts. Where only that of the newest attempt counts, a
    confirm that is slower than the timeout is always too late: the sender sends for ever.
    """
    late = overlap(rtt_s, timeout_s)
    return math.inf if newest_only and late else 1.0 + late


def overlap(rtt_s: float, timeout_s: float) -> int:
    """How many more attempts are sent before the confirm of one can be there: `Pipe.overlap`."""
    checks.not_negative("rtt_s", rtt_s)
    checks.positive("timeout_s", timeout_s)
    return max(1, math.ceil(rtt_s / timeout_s)) - 1
