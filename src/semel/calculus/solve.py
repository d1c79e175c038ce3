"""The other way round: from what is wanted to the smallest setting that reaches it, or why none does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from semel.calculus import checks
from semel.calculus import dedup as memory
from semel.calculus.figures import Figures

_SLACK = 1e-9  # a quotient that is a whole number but for rounding is that number

SEARCH_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No setting reaches what is wanted: `why`, and the `best` that can be had."""

    why: str
    best: float


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
    retries = max(0, math.ceil(math.log1p(-reliability) / math.log(loss) - _SLACK) - 2)
    while loss ** (retries + 1) > (1 - reliability) * (1 + _SLACK):
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
    span = memory.span_for_leak(loss, confirm_loss, leak)
    return _no_span(loss, confirm_loss) if span is None else span * timeout_s


def size_for_leak(loss: float, confirm_loss: float, leak: float, others_per_timeout: float) -> int | Unreachable:
    """How many ids must be kept for the same, when so many other new ids come between two attempts."""
    checks.not_negative("others_per_timeout", others_per_timeout)
    span = memory.span_for_leak(loss, confirm_loss, leak)
    if not others_per_timeout:
        return 1
    return _no_span(loss, confirm_loss) if span is None else _size_of(span, others_per_timeout)


def _size_of(span: int, others_per_timeout: float) -> int:
    """The least size whose span is `span`: one more id than come in the spans before."""
    return max(1, math.floor((span - 1) * others_per_timeout + _SLACK) + 1)


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


def window_for_throughput(messages_per_s: float, time_s: float) -> int | Unreachable:
    """How many messages must be unconfirmed at once: rate times the time of one message (`Figures.time_s`)."""
    checks.not_negative("messages_per_s", messages_per_s)
    if math.isinf(time_s):
        return Unreachable("a message is never confirmed, so no window keeps moving", 0.0)
    checks.not_negative("time_s", time_s)
    return max(1, math.ceil(messages_per_s * time_s - _SLACK))
