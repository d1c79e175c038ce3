"""The figures of a path: read off its generating function G(z) = E[z^K], K copies delivered of one message.

R = 1 - G(0), m = G'(1) copies, UR = R / m, Var K = G''(1) + m - m^2.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from semel.calculus import checks
from semel.calculus import dedup as memory
from semel.calculus.elements import (
    Crash,
    Dedup,
    DurableElement,
    Element,
    LinkElement,
    MeterElement,
    ParallelElement,
    Passage,
    PipeElement,
    Series,
)
from semel.calculus.jet import Jet
from semel.calculus.mode import DeliveryMode
from semel.calculus.timing import overlap, time_per_message
from semel.calculus.values import Value

_COUNTED = Jet.variable(1.0)

# Points beyond the wanted ones, and how small the circle is: what folds back over is below 1e-12 of the whole.
_CIRCLE_TIMES = 4
_CIRCLE_FOLD = 1e-12

_ROUNDING = 1e-14


@dataclass(frozen=True, slots=True)
class Figures:
    """What becomes of one message on a path.

    `attempts` and `time_s` are those of the first sender, for a message that reaches it, and of a redundant send
    those of the slowest one. `time_s` is how long it works on one message, 0 when it waits for no confirm. `leak` is
    the probability that a duplicate passes the first pipe's memory, None when it has none. `exact` is false when a
    figure is a bound or an approximation, and `notes` say which and why.
    """

    reliability: float
    uniqueness: float
    copies: float
    attempts: float
    time_s: float
    leak: float | None
    exact: bool
    notes: tuple[str, ...] = ()

    @property
    def delivery_mode(self) -> DeliveryMode:
        return DeliveryMode(self.reliability, self.uniqueness)


@dataclass(frozen=True, slots=True)
class Sigma:
    """The standard deviations of what a count of so many messages measures."""

    reliability: float
    copies: float
    uniqueness: float


def generating(element: Element, z: Value) -> Value:
    """G(z)."""
    return element.apply(0.0, z)[1]


def figures(
    element: Element,
    *,
    rtt_s: float = 0.0,
    timeout_s: float = 1.0,
    keep_s: float | None = None,
    size: int | None = None,
    others_per_timeout: float = 0.0,
) -> Figures:
    """All figures of a path. The times are those of its first sender, as are the bounds of its memory.

    `keep_s` and `size` (with `others_per_timeout` other messages between two attempts) bound the memory of a first
    pipe with dedup; without them it remembers for good. What leaks past it lowers UR, and then UR is approximate.
    """
    checks.not_negative("rtt_s", rtt_s)
    checks.positive("timeout_s", timeout_s)
    reliability, copies, _ = _moments(element)
    notes = list(_inexact(element))
    exact = not notes
    if not reliability:
        notes.append("nothing arrives: UR is undefined, and 1 by convention")
    if math.isinf(copies):
        notes.append("no confirm ever comes back and the sender never gives up: copies without end, UR 0")
    heads = list(_heads(element))
    late = overlap(rtt_s, timeout_s)
    if any(pipe.overlap < late for pipe, _ in heads):
        exact = False
        notes.append(f"a confirm needs {rtt_s} s and the timeout is {timeout_s} s: give the pipe overlap={late}")
    efforts = [_effort(pipe, onward, rtt_s, timeout_s) for pipe, onward in heads]
    attempts, time_s = max(efforts, default=(1.0, 0.0))
    span = _span(keep_s, size, others_per_timeout, timeout_s)
    uniqueness = _rounded(reliability / copies) if copies else 1.0
    leaks = [_leak(pipe, span) for pipe, _ in heads if pipe.dedup]
    if span is not None and any(pipe.dedup and (pipe.cascade or pipe.overlap) for pipe, _ in heads):
        exact = False
        notes.append("the leak is that of a pipe that confirms on receipt and in time")
    leak = max(leaks, default=None)
    if leak:
        exact = False
        uniqueness *= memory.uniqueness_of_leak(reliability, leak)
        copies = reliability / uniqueness if uniqueness else math.inf
    return Figures(_rounded(reliability), uniqueness, copies, attempts, time_s, leak, exact, tuple(notes))


def _moments(element: Element) -> tuple[float, float, float]:
    """R, m and Var K."""
    reliability = min(1.0, max(0.0, 1 - float(generating(element, 0.0))))
    jet = generating(element, _COUNTED)
    if not isinstance(jet, Jet):
        return reliability, 0.0, 0.0
    if math.isinf(jet.first):
        return reliability, math.inf, math.inf
    # m - G''(1)/2 <= R <= m: this keeps a tiny R exact, which 1 - G(0) would round away
    reliability = min(max(reliability, jet.first - jet.second / 2), jet.first, 1.0)
    return reliability, jet.first, max(0.0, jet.second + jet.first - jet.first**2)


def _rounded(share: float) -> float:
    """A share nearer to 1 than a long calculation is exact is 1, so that the mode can be named."""
    return 1.0 if share > 1 - _ROUNDING else share


def variance(element: Element) -> float:
    """Var K."""
    return _moments(element)[2]


def sigma(element: Element, messages: int) -> Sigma:
    """How far R, m and UR, measured over so many messages, may lie from the calculated ones.

    UR is a ratio of means; by the delta method its variance is (UR^2 Var K - R (1 - R)) / (m^2 messages).
    """
    checks.whole("messages", messages, 1)
    reliability, copies, spread = _moments(element)
    binomial = reliability * (1 - reliability)
    if not copies or math.isinf(copies):
        return Sigma(math.sqrt(binomial / messages), math.sqrt(spread / messages), 0.0)
    ratio = max(0.0, (reliability / copies) ** 2 * spread - binomial) / copies**2
    return Sigma(math.sqrt(binomial / messages), math.sqrt(spread / messages), math.sqrt(ratio / messages))


def distribution(element: Element, n: int) -> list[float]:
    """P(K = 0), ..., P(K = n-1). What is missing to 1 lies at n copies and more, or at copies without end.

    Read from G on a circle a little inside the unit circle; each is right to about 1e-12.
    """
    checks.whole("n", n, 1)
    points = _CIRCLE_TIMES * n
    radius = _CIRCLE_FOLD ** (1 / points)
    turns = [cmath.exp(2j * cmath.pi * k / points) for k in range(points)]
    values = [complex(generating(element, radius * turn)) for turn in turns]
    terms = (sum(value * turns[-j * k % points] for j, value in enumerate(values)).real for k in range(n))
    return [max(0.0, term / points / radius**k) for k, term in enumerate(terms)]


def product_bound(elements: Iterable[Element]) -> DeliveryMode:
    """The product of the delivery modes: a lower bound of the elements in series (see `DeliveryMode.__mul__`)."""
    bound = DeliveryMode(1.0, 1.0)
    for element in elements:
        bound = bound * figures(element).delivery_mode
    return bound


def transmissions(element: Element) -> float:
    """How often anything is sent over any link of the path, for one message. Confirms are not counted.

    An upper bound where a `Dedup` stands on its own behind a cascade, otherwise exact.
    """
    total = generating(_counting_links(element), 1.0)
    return total.first if isinstance(total, Jet) else 0.0


def _counting_links(element: Element) -> Element:
    match element:
        case LinkElement(repeats=repeats):
            return Series((MeterElement(_COUNTED ** (repeats + 1)), element))
        case Series(elements=elements):
            return Series(_counting_links(part) for part in elements)
        case ParallelElement(branches=branches):
            return ParallelElement(_counting_links(branch) for branch in branches)
        case PipeElement(inner=inner) | Passage(inner=inner):
            return replace(element, inner=_counting_links(inner))
    return element


def _heads(element: Element) -> Iterable[tuple[PipeElement, Series]]:
    """The pipes that a path begins with, one for each branch, and what follows each. Points have no senders."""
    first, *onward = Series((element,)).elements or (None,)
    if isinstance(first, PipeElement):
        yield first, Series(onward)
    elif isinstance(first, Crash | DurableElement | Dedup):
        yield from _heads(Series(onward))
    elif isinstance(first, Passage):
        yield from _heads(Series((first.inner, *onward)))
    elif isinstance(first, ParallelElement):
        for branch in first.branches:
            yield from _heads(Series((branch, *onward)))


def _effort(pipe: PipeElement, onward: Series, rtt_s: float, timeout_s: float) -> tuple[float, float]:
    u, g = onward.apply(0.0, 1.0, pipe.cascade)
    given_up = min(1.0, max(0.0, float(pipe.apply(u, g, True)[0])))
    one_by_one = _attempts(replace(pipe, overlap=0), u, g)
    return _attempts(pipe, u, g), time_per_message(one_by_one, rtt_s, timeout_s, given_up)


def _attempts(pipe: PipeElement, u: float, g: float) -> float:
    counted = replace(pipe, inner=Series((MeterElement(_COUNTED), pipe.inner)))
    total = counted.apply(u, g, True)[1]
    assert isinstance(total, Jet)
    return total.first


def _span(keep_s: float | None, size: int | None, others: float, timeout_s: float) -> int | None:
    spans = [
        None if keep_s is None else memory.span_of_time(keep_s, timeout_s),
        None if size is None else memory.span_of_size(size, others),
    ]
    return min((span for span in spans if span is not None), default=None)


def _leak(pipe: PipeElement, span: int | None) -> float:
    """The loss and confirm loss of a whole attempt, as if the inner path were one link."""
    loss = min(1.0, float(pipe.inner.apply(0.0, 0.0)[1]))
    unconfirmed = float(pipe.inner.apply(0.0, 1.0)[0])
    confirm_loss = min(1.0, max(0.0, (unconfirmed - loss) / (1 - loss))) if loss < 1 else 0.0
    return memory.leak(loss, confirm_loss, span, pipe.attempts)


def _inexact(element: Element) -> Iterable[str]:
    """Where the algebra itself gives a bound."""
    match element:
        case Series(elements=elements):
            for place, part in enumerate(elements):
                yield from _inexact(part)
                before = elements[:place]
                if isinstance(part, Dedup) and any(
                    isinstance(other, PipeElement) and other.cascade for other in before
                ):
                    yield "a dedup on its own after a cascade drops resends: attempts and time are lower bounds"
        case ParallelElement(branches=branches):
            for branch in branches:
                yield from _inexact(branch)
        case Passage(inner=inner):
            yield from _inexact(inner)
        case PipeElement(inner=inner):
            yield from _inexact(inner)
            if _uneven_inside_pipe(inner):
                yield "branches differ in confirm loss inside a pipe in a pipe: the worst is taken for all"


def _uneven_inside_pipe(element: Element, inside: bool = False) -> bool:
    match element:
        case Series(elements=elements):
            projected = any(isinstance(part, Dedup) for part in elements)
            return any(_uneven_inside_pipe(part, inside or projected) for part in elements)
        case ParallelElement(branches=branches):
            uneven = len({branch.way_back_loss() for branch in branches}) > 1
            return (inside and uneven) or any(_uneven_inside_pipe(branch, inside) for branch in branches)
        case PipeElement(inner=inner):
            return _uneven_inside_pipe(inner, True)
    return False


# -- the other way round: from what is wanted to the smallest setting that reaches it, or why none does

SLACK = 1e-9  # a quotient that is a whole number but for rounding is that number


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No setting reaches what is wanted: `why`, and the `best` that can be had."""

    why: str
    best: float


def window_for_throughput(messages_per_s: float, time_s: float) -> int | Unreachable:
    """How many messages must be unconfirmed at once: rate times the time of one message (`Figures.time_s`)."""
    checks.not_negative("messages_per_s", messages_per_s)
    if math.isinf(time_s):
        return Unreachable("a message is never confirmed, so no window keeps moving", 0.0)
    checks.not_negative("time_s", time_s)
    return max(1, math.ceil(messages_per_s * time_s - SLACK))
