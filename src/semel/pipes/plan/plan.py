"""What a path promises before it is built: reliability R, uniqueness UR, copies, attempts and time.

`plan` calculates a path as it is. What is not exact in it, and what would help, is found in `doubts`; `solve` goes the
other way, from what is wanted to the path that reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from semel.calculus.elements import Dedup, DurableElement, Element, MeterElement, Pair, PipeElement, Series
from semel.calculus.figures import Figures, figures
from semel.calculus.jet import Jet
from semel.calculus.mode import DeliveryMode
from semel.calculus.timing import time_per_message
from semel.calculus.values import Value
from semel.errors import ConfigError
from semel.pipes.language.notation import format_hop, format_options
from semel.pipes.language.options import DedupBy, Options
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe
from semel.pipes.plan.doubts import CLOSE, find_advice, find_doubts
from semel.pipes.plan.elements import Stretch, durable_points, folded, inner_paths, pipes_deep, stretches
from semel.pipes.workers.build import build

TOLERANCE = 1e-3
"""What is this near to 1 "tends to" it."""

RUNNING_MAX = 100
"""Beyond so many stretches only the end of the path is calculated, not every point on the way."""

PIPES_DEEP_MAX = 8
"""Every pipe around a pipe doubles the work, or more."""

BUILT_MAX = 200
"""Up to so many points a path is also built: what no worker could do is refused with the builder's own words."""

_BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class StretchPlan:
    """One stretch of a path: a hop, branches, or a pipe.

    `alone` are its own figures, for a message that enters it once; `so_far` those from the start of the path to where
    the point at its end passes it on, None on very long paths. Under cascade `alone` counts the attempts that what
    lies behind it causes. `transmissions` is all data sent on it for one message of the path."""

    name: str
    kind: str
    text: str
    alone: Figures
    so_far: Figures | None
    mode: str
    transmissions: float
    time_s: float
    inside: tuple[StretchPlan, ...] = ()

    def as_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind,
            "options": self.text,
            **figures_dict(self.alone),
            "time_s": finite(self.time_s),
            "mode": self.mode,
            "transmissions": finite(self.transmissions),
            "so_far": None if self.so_far is None else figures_dict(self.so_far),
            "inside": [each.as_dict() for each in self.inside],
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """`end` are the figures from the first point to the last; `product` is the source's rule, a lower bound of them."""

    path: Path
    hops: tuple[StretchPlan, ...]
    end: Figures
    product: DeliveryMode
    element: Element
    time_s: float
    transmissions: float
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    """Those of the notes that say why a figure is not exact."""

    @property
    def reliability(self) -> float:
        return self.end.reliability

    @property
    def uniqueness(self) -> float:
        return self.end.uniqueness

    @property
    def mode(self) -> str:
        words = _mode(self.end, self.element)
        is_safe = self.exact or words.startswith(("tends", "unreliable"))
        return words if is_safe else f"{words} as far as it is calculated"

    @property
    def exact(self) -> bool:
        return self.end.exact

    def as_dict(self) -> dict[str, object]:
        product = {"reliability": self.product.reliability, "uniqueness": self.product.uniqueness}
        return {
            "path": str(self.path),
            "reliability": self.reliability,
            "uniqueness": self.uniqueness,
            "copies": finite(self.end.copies),
            "mode": self.mode,
            "exact": self.exact,
            "time_s": finite(self.time_s),
            "transmissions": finite(self.transmissions),
            "product": product,
            "hops": [hop.as_dict() for hop in self.hops],
            "notes": list(self.notes),
        }


def figures_dict(found: Figures) -> dict[str, object]:
    return {
        "reliability": found.reliability,
        "uniqueness": found.uniqueness,
        "copies": finite(found.copies),
        "attempts": finite(found.attempts),
        "leak": found.leak,
        "exact": found.exact,
    }


def finite(value: float) -> float | None:
    """JSON has no infinity: None stands for "without end"."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class _Rest:
    """What follows a point, for the figures at that point: a copy that comes here counts, whatever becomes of it."""

    unconfirmed: float

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        return self.unconfirmed * g, g

    def way_back_loss(self) -> float:
        return 0.0


def plan(path: Path, *, rate: float | None = None) -> Plan:
    """All figures of `path`, exact under independent losses unless `Plan.exact` and the notes say otherwise.

    `rate` is how many messages a second are sent: what a memory of so many ids forgets depends on it.
    """
    if sum(1 for _ in path.points()) <= BUILT_MAX and len(path.steps) > 1:
        build(path)
    return _planned(path, rate)


def _planned(path: Path, rate: float | None) -> Plan:
    if pipes_deep(path) > PIPES_DEEP_MAX:
        raise ConfigError(
            f"more than {PIPES_DEEP_MAX} pipes lie inside each other", fix="plan the inner ones by themselves"
        )
    first, found = stretches(path)
    before = folded(first)
    product = _figures(before).delivery_mode
    entering = _figures(before).copies
    hops: list[StretchPlan] = []
    for at, stretch in enumerate(found):
        rest = found[at + 1 :] if len(found) <= RUNNING_MAX else None
        hop = _hop_plan(stretch, before, entering, rest, rate)
        hops.append(hop)
        behind = _figures(folded(stretch.behind))
        product = product * hop.alone.delivery_mode * DeliveryMode(stretch.survives, 1.0)
        before = folded([*before.elements, *stretch.elements, *stretch.behind])
        entering = _times(entering, _times(hop.alone.copies, behind.copies))
        if hop.so_far is not None or len(before.elements) == 1:
            entering = (hop.so_far or _figures(before)).copies
    end = _figures(before)
    # UR is a quotient: what rounding takes from 1 is no duplicate
    end = replace(end, uniqueness=1.0 if end.uniqueness > 1 - CLOSE else end.uniqueness)
    end = _with_leaks(end, path, found, hops)
    alone = [hop.alone for hop in hops]
    doubts = list(find_doubts(path, found, alone, [sent_between(stretch, rate) for stretch in found]))
    end = replace(end, exact=end.exact and not doubts and all(each.exact for each in alone))
    notes = [*doubts, *end.notes, *(f"{hop.name}: {note}" for hop in hops for note in hop.alone.notes)]
    notes += find_advice(found, alone, end)
    return Plan(
        path,
        tuple(hops),
        end,
        product,
        before,
        math.fsum(hop.time_s for hop in hops),
        math.fsum(hop.transmissions for hop in hops),
        tuple(dict.fromkeys(notes)),
        tuple(doubts),
    )


def _hop_plan(
    stretch: Stretch, before: Series, entering: float, rest: Sequence[Stretch] | None, rate: float | None
) -> StretchPlan:
    onward = None
    if rest is not None:
        onward = folded(each for later in rest for each in (*later.elements, *later.behind))
    alone = _alone(stretch, rate)
    sends = _times(entering, alone.attempts if stretch.resends else 1.0)
    if onward is not None and isinstance(stretch.alone, PipeElement) and stretch.alone.cascade:
        sends = _sends_in_cascade(stretch, stretch.alone, before, rest or ())
        alone = _in_cascade(stretch, alone, sends / entering if entering else 1.0)
    inner = tuple(_planned(path, rate) for path in inner_paths(stretch))
    inside = tuple(hop for planned in inner for hop in planned.hops)
    doubts = [note for planned in inner for note in planned.doubts]
    alone = replace(alone, exact=alone.exact and all(planned.exact for planned in inner), notes=(*alone.notes, *doubts))
    each = math.fsum(hop.transmissions for hop in inside)
    if isinstance(stretch.part, Hop):
        each = 1.0 + stretch.part.options.repeats
    return StretchPlan(
        stretch.name,
        {Hop: "hop", Parallel: "branches", Pipe: "pipe"}[type(stretch.part)],
        _text(stretch.part),
        alone,
        None if onward is None else _so_far(before, stretch, onward),
        _mode(alone, stretch.alone),
        _times(sends, each),
        alone.time_s if stretch.resends else stretch.one_way_s,
        inside,
    )


def _sends_in_cascade(stretch: Stretch, pipe: PipeElement, before: Series, rest: Sequence[Stretch]) -> float:
    """Attempts on this stretch for one message of the path: what lies behind it makes it send again."""
    onward = [*stretch.behind, *(each for later in rest for each in (*later.elements, *later.behind))]
    # a copy that a memory drops is confirmed again: for the confirms, every copy counts
    u, g = Series(each for each in onward if not isinstance(each, Dedup)).apply(0.0, 1.0, True)
    counted = replace(pipe, inner=Series((MeterElement(Jet.variable(1.0)), pipe.inner)))
    total = Series([*before.elements, counted]).apply(u, g)[1]
    return total.first if isinstance(total, Jet) else 0.0


def _in_cascade(stretch: Stretch, alone: Figures, attempts: float) -> Figures:
    assert stretch.options is not None
    time_s = math.inf
    if math.isfinite(attempts):
        time_s = time_per_message(max(1.0, attempts), stretch.rtt_s, stretch.options.timeout)
    return replace(alone, attempts=attempts, time_s=time_s)


def _figures(element: Element) -> Figures:
    """The figures of a series whose first pipe may get its confirms late: its overlap says so already."""
    parts = Series((element,)).elements
    late = parts[0].overlap if parts and isinstance(parts[0], PipeElement) else 0
    return figures(element, rtt_s=late + 1.0 if late else 0.0)


def _with_leaks(end: Figures, path: Path, found: Sequence[Stretch], hops: Sequence[StretchPlan]) -> Figures:
    """The copies that leak past a memory arrive, unless a later memory without such bounds drops them."""
    durable = durable_points(path)
    kept, leak = 1.0, 0.0
    for stretch, hop in zip(found, hops, strict=True):
        if hop.alone.leak:
            kept *= hop.alone.uniqueness
            leak = max(leak, hop.alone.leak)
        elif stretch.end in durable or (stretch.options is not None and stretch.options.dedup is DedupBy.ID):
            kept, leak = 1.0, 0.0
    if not leak:
        return end
    copies = end.copies / kept if kept else math.inf
    return replace(end, uniqueness=end.uniqueness * kept, copies=copies, leak=leak, exact=False)


def sent_between(stretch: Stretch, rate: float | None) -> float | None:
    """How many others are sent between two attempts of one message; None when nobody can know without a rate."""
    options = stretch.options
    if options is None or not stretch.resends or options.window == 1:
        return 0.0
    if rate is None and stretch.rtt_s:
        rate = options.window / stretch.rtt_s
    return None if rate is None else rate * widest_wait_s(options)


def widest_wait_s(options: Options) -> float:
    """The longest time between two attempts."""
    if options.backoff == 1:
        return options.timeout
    most = math.log(options.longest_wait / options.timeout, options.backoff)
    times = min(most, math.inf if options.attempts is None else options.attempts - 1)
    return min(options.longest_wait, options.timeout * options.backoff**times)


def _alone(stretch: Stretch, rate: float | None) -> Figures:
    options = stretch.options
    if options is None or not stretch.resends:
        return figures(stretch.alone)
    others = sent_between(stretch, rate)
    found = figures(
        stretch.alone,
        rtt_s=stretch.rtt_s,
        timeout_s=options.timeout,
        # the memory holds as many attempts as the widest wait leaves room for
        keep_s=None if options.keep is None else options.keep * options.timeout / widest_wait_s(options),
        size=None if others is None else options.size,
        others_per_timeout=others or 0.0,
    )
    unknown = options.size is not None and others is None
    return replace(found, leak=None) if unknown else found


def _so_far(before: Series, stretch: Stretch, onward: Series) -> Figures:
    """With what follows at work: under cascade that makes the stretch send again."""
    here = folded([*before.elements, *stretch.elements, *stretch.behind])
    if not any(isinstance(each, PipeElement) and each.cascade for each in here.elements):
        return _figures(here)
    unconfirmed = float(onward.apply(0.0, 1.0, _is_asked(here))[0])
    return _figures(Series([*here.elements, _Rest(unconfirmed)]))


def _mode(found: Figures, element: Element) -> str:
    """In words. A loss that rounding hides is still a loss, and a leak still a duplicate."""
    loses = float(element.apply(0.0, 0.0)[1]) > 0
    reliability = min(found.reliability, _BELOW_ONE) if loses else found.reliability
    uniqueness = min(found.uniqueness, _BELOW_ONE) if found.leak else found.uniqueness
    return DeliveryMode(reliability, uniqueness).tends_to(TOLERANCE)


def _times(one: float, two: float) -> float:
    """Nothing, however often, is nothing."""
    return one * two if one and two else 0.0


def _is_asked(elements: Series) -> bool:
    for each in reversed(elements.elements):
        if isinstance(each, PipeElement):
            return each.cascade
        if isinstance(each, DurableElement):
            return False
    return False


def _text(part: Hop | Parallel | Pipe) -> str:
    if isinstance(part, Parallel):
        return " | ".join(_branch_text(branch) for branch in part.branches)
    return format_options(part.options)


def _branch_text(branch: Branch) -> str:
    return " ".join(format_hop(step) if isinstance(step, Hop) else step.name for step in branch.steps)
