"""Attempts and seconds: how long a sender works on one message, and what a late confirm does.

Stop and wait: the sender sends, waits for `timeout_s`, and sends again. Its confirm needs `rtt_s`.
"""

from __future__ import annotations

import math

from semel.calculus import checks
from semel.calculus.values import powers
from semel.kernel.retry import RetryPolicy


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


def effective_confirm_loss(confirm_loss: float, in_time: float) -> float:
    """Where late confirms are ignored they count as lost: 1 - (1 - q) * P(rtt <= timeout)."""
    checks.probability("confirm_loss", confirm_loss)
    checks.probability("in_time", in_time)
    return 1 - (1 - confirm_loss) * in_time


def horizon_s(policy: RetryPolicy) -> float:
    """The least time from the first attempt to the last one: an outage that is longer loses the message."""
    if policy.retries is None:
        return math.inf
    waits = 0.0
    for attempt in range(1, policy.retries + 1):
        wait = policy.wait_s(attempt, 1.0)
        waits += wait
        if wait == policy.wait_s(policy.retries, 1.0):  # it has stopped growing
            return waits + (policy.retries - attempt) * wait
    return waits


def outlasts(time_s: float, outage_mean_s: float) -> float:
    """P(outage < time) for an outage of exponential length.

    With `horizon_s` it is the reliability of retries through an outage: the horizon matters, not the number of
    retries. With the retention of a store it is the part that is still there when the reader comes back.
    """
    if not time_s >= 0:
        checks.not_negative("time_s", time_s)
    checks.positive("outage_mean_s", outage_mean_s)
    return -math.expm1(-time_s / outage_mean_s)
