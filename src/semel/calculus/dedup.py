"""What a bounded memory at the receiver lets through, and what index rules cost when order is lost.

A window of ids remembers an id from its first arrival on; a repeat does not extend it. The sender repeats every
timeout until it is confirmed. The window holds the first `span` attempts, counted from the one that arrived first:
what arrives later passes as if it were new.
"""

from __future__ import annotations

import math

from semel.calculus import checks


def span_of_time(keep_s: float, timeout_s: float) -> int:
    """The span of a window that remembers for `keep_s`, when attempts are `timeout_s` apart."""
    checks.positive("keep_s", keep_s)
    checks.positive("timeout_s", timeout_s)
    return math.ceil(keep_s / timeout_s)


def span_of_size(size: int, others_per_timeout: float) -> int | None:
    """The span of a window of `size` ids, when so many other new ids come between two attempts.

    None when it never forgets: no other comes in between, as with stop and wait. A sender with a window of two or more
    has no such bound: while one message waits for its confirm, the others of the window are confirmed and make room
    for new ones, so what comes in between follows from the rate and not from the window.
    """
    checks.whole("size", size, 1)
    checks.not_negative("others_per_timeout", others_per_timeout)
    return math.ceil(size / others_per_timeout) if others_per_timeout else None


def leak(loss: float, confirm_loss: float, span: int | None, attempts: int | None = None) -> float:
    """P(a duplicate passes) for one message. Without end of attempts: q * f^(span - 1), f = p + (1 - p) q.

    The first arrival and all later attempts inside the span must end unconfirmed, and then one more must arrive.
    Without end it will; with `attempts` it must be one of those that are left.
    """
    checks.probability("loss", loss)
    checks.probability("confirm_loss", confirm_loss)
    if span is None or loss == 1:
        return 0.0
    checks.whole("span", span, 1)
    unconfirmed = loss + (1 - loss) * confirm_loss
    outlived = confirm_loss * unconfirmed ** (span - 1)
    if attempts is None:
        return outlived
    checks.whole("attempts", attempts, 1)
    left = attempts - span
    if left < 1:
        return 0.0
    # first arrival at attempt i+1, then one of the left - i attempts that follow the span arrives
    return outlived * math.fsum(loss**i * (1 - loss) * (1 - loss ** (left - i)) for i in range(left))


def uniqueness_of_leak(reliability: float, leak: float) -> float:
    """UR behind a memory past which a duplicate leaks with this probability, and past which the next one may too.

    R / (R + leak / (1 - leak)): 1 - leak without end of attempts, a lower bound with an end, since fewer are left.
    """
    checks.probability("leak", leak)
    if not reliability or leak == 1:
        return 1.0 if not reliability else 0.0
    return reliability / (reliability + leak / (1 - leak))


def span_for_leak(loss: float, confirm_loss: float, wanted: float) -> int | None:
    """The least span with a leak of at most `wanted`, or None when there is none: 1 + ln(wanted / q) / ln f."""
    checks.probability("wanted", wanted)
    if leak(loss, confirm_loss, 1) <= wanted:
        return 1
    unconfirmed = loss + (1 - loss) * confirm_loss
    if unconfirmed == 1 or wanted == 0:
        return None
    span = max(1, math.ceil(1 + math.log(wanted / confirm_loss) / math.log(unconfirmed)) - 1)
    while leak(loss, confirm_loss, span) > wanted:
        span += 1
    return span


def monotonic_reliability(burst: int) -> float:
    """R of a receiver that only lets a higher index pass, for a fully shuffled burst: H_n / n.

    A message passes when it comes before all those with a higher index.
    """
    checks.whole("burst", burst, 1)
    return math.fsum(1 / k for k in range(1, burst + 1)) / burst


def strict_reliability(given_up: float, sent: int) -> float:
    """R of a receiver that only lets the next index pass, when each message is given up for good with `given_up`.

    All that follow the first gap wait for ever: (1 - e)(1 - (1 - e)^S) / (S e).
    """
    checks.probability("given_up", given_up)
    checks.whole("sent", sent, 1)
    if given_up in (0, 1):
        return 1.0 - given_up
    return (1 - given_up) * -math.expm1(sent * math.log1p(-given_up)) / (sent * given_up)
