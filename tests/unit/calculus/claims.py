"""What is commonly said of links, retries and memories, in closed form: the tests hold the calculus against it."""

from __future__ import annotations

import math
from collections.abc import Callable

from semel.calculus import checks
from semel.calculus.dedup import leak, span_for_leak, span_of_size, span_of_time
from semel.calculus.figures import SLACK, Figures, Unreachable
from semel.calculus.mode import MessageCounts
from semel.kernel.retry import RetryPolicy

# -- what a memory lets through


def leak_by_time(
    loss: float, confirm_loss: float, keep_s: float, timeout_s: float, attempts: int | None = None
) -> float:
    return leak(loss, confirm_loss, span_of_time(keep_s, timeout_s), attempts)


def leak_by_size(
    loss: float, confirm_loss: float, size: int, others_per_timeout: float, attempts: int | None = None
) -> float:
    return leak(loss, confirm_loss, span_of_size(size, others_per_timeout), attempts)


def leaky_uniqueness(loss: float, confirm_loss: float, span: int | None) -> float:
    """UR behind a window, without end of attempts: 1 - leak. A copy that leaks is remembered again like the first."""
    return 1 - leak(loss, confirm_loss, span)


# -- from what is wanted to the smallest setting


SEARCH_MAX = 1 << 20


def smallest(
    figures_of: Callable[[int], Figures],
    reached: Callable[[Figures], bool],
    *,
    figure: Callable[[Figures], float],
    least: int = 0,
    most: int = SEARCH_MAX,
) -> int | Unreachable:
    """The smallest n in [least, most] whose figures reach what is wanted, where more is never worse."""
    checks.whole("least", least, 0)
    checks.whole("most", most, least)
    low, step = least - 1, 1
    while True:
        high = min(most, low + step)
        if reached(figures_of(high)):
            break
        if high == most:
            best = figure(figures_of(most))
            return Unreachable(f"even {most} does not reach it: {best:.9g} is the best", best)
        low, step = high, step * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(figures_of(middle)) else (middle, high)
    return high


def retries_for_reliability(loss: float, reliability: float) -> int | Unreachable:
    """The fewest retries on one link with R = 1 - loss^(retries + 1) >= `reliability`. Lost confirms do not matter."""
    checks.probability("loss", loss)
    checks.probability("reliability", reliability)
    if 1 - loss >= reliability:
        return 0
    if loss == 1:
        return Unreachable("nothing arrives on this link, however often it is sent", 0.0)
    if reliability == 1:
        return Unreachable("a finite number of retries only tends to R = 1: let them be infinite", 1.0)
    retries = max(0, math.ceil(math.log1p(-reliability) / math.log(loss) - SLACK) - 2)
    while loss ** (retries + 1) > (1 - reliability) * (1 + SLACK):
        retries += 1
    return retries


def retries_for(figures_of: Callable[[int], Figures], reliability: float, most: int = SEARCH_MAX) -> int | Unreachable:
    """The fewest retries of any path, given its figures by number of retries."""
    checks.probability("reliability", reliability)
    return smallest(
        figures_of, lambda got: got.reliability >= reliability, figure=lambda got: got.reliability, most=most
    )


def keep_for_leak(loss: float, confirm_loss: float, leak: float, timeout_s: float) -> float | Unreachable:
    """How many seconds ids must be kept so that a message leaks a duplicate with probability `leak` at most."""
    checks.positive("timeout_s", timeout_s)
    span = span_for_leak(loss, confirm_loss, leak)
    return _no_span(loss, confirm_loss) if span is None else span * timeout_s


def size_for_leak(loss: float, confirm_loss: float, leak: float, others_per_timeout: float) -> int | Unreachable:
    """How many ids must be kept for the same, when so many other new ids come between two attempts."""
    checks.not_negative("others_per_timeout", others_per_timeout)
    span = span_for_leak(loss, confirm_loss, leak)
    if not others_per_timeout:
        return 1
    return _no_span(loss, confirm_loss) if span is None else _size_of(span, others_per_timeout)


def _size_of(span: int, others_per_timeout: float) -> int:
    """The least size whose span is `span`: one more id than come in the spans before."""
    return max(1, math.floor((span - 1) * others_per_timeout + SLACK) + 1)


def _no_span(loss: float, confirm_loss: float) -> Unreachable:
    if loss + (1 - loss) * confirm_loss == 1:
        return Unreachable("no confirm ever comes back, so the sender outlives any memory", confirm_loss)
    return Unreachable("a leak of 0 needs a memory for good", 0.0)


def keep_for_uniqueness(loss: float, confirm_loss: float, uniqueness: float, timeout_s: float) -> float | Unreachable:
    """How many seconds ids must be kept for this UR, when the sender never gives up: UR = 1 - leak."""
    checks.probability("uniqueness", uniqueness)
    return keep_for_leak(loss, confirm_loss, 1 - uniqueness, timeout_s)


def uniqueness_without_dedup(confirm_loss: float, uniqueness: float) -> float | Unreachable:
    """The UR of a link whose sender never gives up is 1 - q, whatever its loss: enough, or not without dedup."""
    checks.probability("confirm_loss", confirm_loss)
    checks.probability("uniqueness", uniqueness)
    best = 1 - confirm_loss
    if best >= uniqueness:
        return best
    return Unreachable(f"UR is limited to 1 - confirm loss = {best:.9g} without dedup: add dedup at the end", best)


# -- outages and late confirms


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


# -- what counts show


def rule_of_three(counts: MessageCounts) -> float | None:
    """With 95 % confidence no more than this share is lost, when none was. None when one was, or none sent."""
    return min(1.0, 3 / counts.sent) if counts.sent and counts.unique == counts.sent else None
