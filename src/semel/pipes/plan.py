"""What a path promises before it is built: reliability R, uniqueness UR, copies, attempts, time; and what would help.

`plan` calculates a path as it is. `solve` goes the other way: the smallest retries, dedup memory and window that reach
what is wanted, or why nothing does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from semel import calculus
from semel.calculus import DeliveryMode, Element, Figures, Series, Unreachable, figures
from semel.calculus.elements import Pair
from semel.calculus.values import Value
from semel.errors import ConfigError
from semel.pipes.build import build
from semel.pipes.elements import (
    Stretch,
    all_options,
    durable_points,
    element,
    folded,
    inner_paths,
    pipes_deep,
    stretches,
)
from semel.pipes.notation import format_hop, format_options
from semel.pipes.options import show_option
from semel.pipes.path import Branch, ConfirmOn, DedupBy, Hop, Options, Parallel, Path, Pipe, Point
from semel.pipes.waits import confirms_within_s, is_counted_late, shortest_wait_s

TOLERANCE = 1e-3
"""What is this near to 1 "tends to" it."""

RUNNING_MAX = 100
"""Beyond so many stretches only the end of the path is calculated, not every point on the way."""

PIPES_DEEP_MAX = 8
"""Every pipe around a pipe doubles the work, or more."""

BUILT_MAX = 200
"""Up to so many points a path is also built: what no worker could do is refused with the builder's own words."""

RETRIES_MAX = 100_000
"""Where more would be needed, `solve` takes retries without end."""

_CLOSE = 1e-12
_BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class HopPlan:
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
    inside: tuple[HopPlan, ...] = ()

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
    hops: tuple[HopPlan, ...]
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
    hops: list[HopPlan] = []
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
    end = replace(end, uniqueness=1.0 if end.uniqueness > 1 - _CLOSE else end.uniqueness)
    end = _with_leaks(end, path, found, hops)
    doubts = list(_doubts(path, found, hops, rate))
    end = replace(end, exact=end.exact and not doubts and all(hop.alone.exact for hop in hops))
    notes = [*doubts, *end.notes, *(f"{hop.name}: {note}" for hop in hops for note in hop.alone.notes)]
    notes += _advice(found, hops, end)
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
) -> HopPlan:
    onward = None
    if rest is not None:
        onward = folded(each for later in rest for each in (*later.elements, *later.behind))
    alone = _alone(stretch, rate)
    sends = _times(entering, alone.attempts if stretch.resends else 1.0)
    if onward is not None and isinstance(stretch.alone, calculus.Pipe) and stretch.alone.cascade:
        sends = _sends_in_cascade(stretch, stretch.alone, before, rest or ())
        alone = _in_cascade(stretch, alone, sends / entering if entering else 1.0)
    inner = tuple(_planned(path, rate) for path in inner_paths(stretch))
    inside = tuple(hop for planned in inner for hop in planned.hops)
    doubts = [note for planned in inner for note in planned.doubts]
    alone = replace(alone, exact=alone.exact and all(planned.exact for planned in inner), notes=(*alone.notes, *doubts))
    each = math.fsum(hop.transmissions for hop in inside)
    if isinstance(stretch.part, Hop):
        each = 1.0 + stretch.part.options.repeats
    return HopPlan(
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


def _sends_in_cascade(stretch: Stretch, pipe: calculus.Pipe, before: Series, rest: Sequence[Stretch]) -> float:
    """Attempts on this stretch for one message of the path: what lies behind it makes it send again."""
    onward = [*stretch.behind, *(each for later in rest for each in (*later.elements, *later.behind))]
    # a copy that a memory drops is confirmed again: for the confirms, every copy counts
    u, g = Series(each for each in onward if not isinstance(each, calculus.Dedup)).apply(0.0, 1.0, True)
    counted = replace(pipe, inner=Series((calculus.Meter(calculus.Jet.variable(1.0)), pipe.inner)))
    total = Series([*before.elements, counted]).apply(u, g)[1]
    return total.first if isinstance(total, calculus.Jet) else 0.0


def _in_cascade(stretch: Stretch, alone: Figures, attempts: float) -> Figures:
    assert stretch.options is not None
    time_s = math.inf
    if math.isfinite(attempts):
        time_s = calculus.time_per_message(max(1.0, attempts), stretch.rtt_s, stretch.options.timeout)
    return replace(alone, attempts=attempts, time_s=time_s)


def _figures(element: Element) -> Figures:
    """The figures of a series whose first pipe may get its confirms late: its overlap says so already."""
    parts = Series((element,)).elements
    late = parts[0].overlap if parts and isinstance(parts[0], calculus.Pipe) else 0
    return figures(element, rtt_s=late + 1.0 if late else 0.0)


def _with_leaks(end: Figures, path: Path, found: Sequence[Stretch], hops: Sequence[HopPlan]) -> Figures:
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
    assert stretch.options is not None
    if stretch.options.window == 1:
        return 0.0
    if rate is None and stretch.rtt_s:
        rate = stretch.options.window / stretch.rtt_s
    return None if rate is None else rate * _widest_wait_s(stretch.options)


def _widest_wait_s(options: Options) -> float:
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
        keep_s=None if options.keep is None else options.keep * options.timeout / _widest_wait_s(options),
        size=None if others is None else options.size,
        others_per_timeout=others or 0.0,
    )
    unknown = options.size is not None and others is None
    return replace(found, leak=None) if unknown else found


def _so_far(before: Series, stretch: Stretch, onward: Series) -> Figures:
    """With what follows at work: under cascade that makes the stretch send again."""
    here = folded([*before.elements, *stretch.elements, *stretch.behind])
    if not any(isinstance(each, calculus.Pipe) and each.cascade for each in here.elements):
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
        if isinstance(each, calculus.Pipe):
            return each.cascade
        if isinstance(each, calculus.Store):
            return False
    return False


def _text(part: Hop | Parallel | Pipe) -> str:
    if isinstance(part, Parallel):
        return " | ".join(_branch_text(branch) for branch in part.branches)
    return format_options(part.options)


def _branch_text(branch: Branch) -> str:
    return " ".join(format_hop(step) if isinstance(step, Hop) else step.name for step in branch.steps)


# -- words


def _doubts(path: Path, found: Sequence[Stretch], hops: Sequence[HopPlan], rate: float | None) -> Iterator[str]:
    """Where the figures are not those of the path to the last digit."""
    durable = durable_points(path)
    within_s = confirms_within_s(found, durable)
    crashing = {point.name for point in path.points() if point.crash and point.name not in durable}
    doubles = asked = together = False
    for at, (stretch, hop) in enumerate(zip(found, hops, strict=True)):
        options = stretch.options
        late = options is not None and options.confirm is ConfirmOn.CASCADE
        if options is not None and options.dedup is DedupBy.INDEX and stretch.resends and options.window > 1:
            yield (
                f"{stretch.name}: dedup=index drops what was overtaken, and with window={options.window} a resend is: "
                "R is lower than shown; use dedup=strict or dedup=id"
            )
        yield from _late_confirms(stretch, within_s[at])
        yield from _unknown_leak(stretch, doubles, rate)
        passes_on = asked and not stretch.resends
        asked = passes_on or (options is not None and options.confirm is not ConfirmOn.RECEIPT)
        # the resends of the sender that asks come one after the other
        together = (together if passes_on else doubles) or _doubles(stretch)
        yield from _copies_that_meet(path, stretch, together, asked, durable)
        if options is not None and options.dedup is DedupBy.ID and late and doubles and stretch is not found[-1]:
            yield f"{stretch.name}: the memory is calculated for the copies of this hop alone, so UR is a lower bound"
        if doubles and isinstance(stretch.part, Parallel) and _remembers(stretch):
            yield (
                f"{stretch.name}: a memory inside a branch is calculated for each copy that enters the branches by "
                "itself, so UR is a lower bound"
            )
        if stretch.end in crashing and _is_rough_at_crash(stretch):
            yield f"{stretch.end} forgets its memory when it crashes, which is calculated only roughly here"
        if any(options.confirm is ConfirmOn.CASCADE for each in inner_paths(stretch) for options in all_options(each)):
            yield f"{stretch.name}: a cascade that begins inside a pipe or a branch is calculated only roughly"
        if late and any(_dedups(other, other is found[-1]) for other in found[at + 1 :]):
            yield f"{stretch.name}: a dedup on the way behind it drops some of its resends, which is not calculated"
        doubles = doubles or hop.alone.copies > hop.alone.reliability + _CLOSE


def _late_confirms(stretch: Stretch, longest_s: float) -> Iterator[str]:
    """Where a sender's time is up while what it waits for may still confirm."""
    options = stretch.options
    if options is None or not stretch.resends or is_counted_late(stretch) or shortest_wait_s(options) > longest_s:
        return
    if math.isinf(longest_s):
        least = "no timeout is long enough, since what it waits for resends without end"
    elif options.jitter == 1:
        least = "jitter=1 may leave no wait at all"
    else:
        jitter = " less its jitter" if options.jitter else ""
        least = (
            f"its timeout of {options.timeout:g} s{jitter} is not longer than the {longest_s:g} s in which a confirm "
            f"may still come, it should be more than {longest_s / (1 - options.jitter):g} s"
        )
    yield f"{stretch.name}: {least}; it sends again what is still under way, which is not calculated"


def _unknown_leak(stretch: Stretch, doubles: bool, rate: float | None) -> Iterator[str]:
    options = stretch.options
    if options is None or (options.keep is None and options.size is None):
        return
    if options.size is not None and stretch.resends and sent_between(stretch, rate) is None:
        yield (
            f"{stretch.name}: how many duplicates leak past a memory of size={options.size} depends on how many "
            "messages are sent in a timeout, which is not known without a rate; keep says how long an id is remembered"
        )
    if doubles or not stretch.resends:
        yield f"{stretch.name}: the leak of its memory is not calculated for the copies that others have made"


def _copies_that_meet(
    path: Path, stretch: Stretch, together: bool, asked: bool, durable: frozenset[str]
) -> Iterator[str]:
    """Two copies of one message at a point: the second finds what the first has left there.

    `together`: they may come at the same time. `asked`: a sender before waits for what lies behind this stretch."""
    crashes = any(point.crash for point in path.points() if point.name == stretch.end)
    if together and asked:
        yield (
            f"{stretch.name}: of the copies of one attempt that arrive together, one is passed on and the others wait "
            "for its confirm; they are calculated each for itself"
        )
    if (together or stretch.resends) and crashes and stretch.end in durable and path.last.name != stretch.end:
        yield f"{stretch.end} sends what is under way again when it starts anew, which is not calculated"


def _doubles(stretch: Stretch) -> bool:
    """Whether copies of one attempt come together."""
    if isinstance(stretch.part, Parallel):
        return True
    return any(each.duplicate or each.repeats for each in (stretch.part.options, *_options_inside(stretch)))


def _options_inside(stretch: Stretch) -> Iterator[Options]:
    for path in inner_paths(stretch):
        yield from all_options(path)


def _is_rough_at_crash(stretch: Stretch) -> bool:
    """A strict memory loses what waits in it; branches that meet at a point have a memory there each."""
    if isinstance(stretch.part, Parallel):
        return any(options.dedup is not DedupBy.NONE for each in inner_paths(stretch) for options in all_options(each))
    return stretch.part.options.dedup is DedupBy.STRICT


def _dedups(stretch: Stretch, last: bool) -> bool:
    """Whether it drops copies that a cascade before it needs. At the end of the path, by id and without a crash, it
    confirms them all the same."""
    if stretch.options is None or stretch.options.dedup is DedupBy.NONE:
        return False
    return not last or stretch.options.dedup is not DedupBy.ID or _crashes(stretch)


def _remembers(stretch: Stretch) -> bool:
    """Whether a branch drops copies by id."""
    for path in inner_paths(stretch):
        if durable_points(path) or any(options.dedup is DedupBy.ID for options in all_options(path)):
            return True
    return False


def _advice(found: Sequence[Stretch], hops: Sequence[HopPlan], end: Figures) -> Iterator[str]:
    for at, (stretch, hop) in enumerate(zip(found, hops, strict=True)):
        options = stretch.options
        if _crashes(stretch) and (stretch.resends or found[-1] is not stretch):
            yield f"{stretch.end} loses all that waits in it when it crashes: the figures are for one message at a time"
        if options is None:
            continue
        if stretch.resends and stretch.rtt_s > options.timeout:
            times = calculus.copies_without_loss(stretch.rtt_s, options.timeout)
            yield (
                f"{stretch.name}: the timeout of {options.timeout:g} s is below the round trip of {stretch.rtt_s:g} s, "
                f"so a message is sent {times:g} times even if nothing is lost"
            )
        confirm_loss = stretch.alone.inner.way_back_loss() if isinstance(stretch.alone, calculus.Pipe) else 0.0
        if (
            stretch.resends
            and confirm_loss
            and hop.alone.leak is None
            and options.dedup is DedupBy.NONE
            and end.uniqueness < 1 - _CLOSE
        ):
            yield (
                f"{stretch.name}: with more retries uniqueness tends to 1 - confirm loss = {1 - confirm_loss:.6g} "
                "and no higher; only dedup lifts it"
            )
        if stretch.resends and (options.backoff > 1 or options.jitter):
            yield f"{stretch.name}: the time is calculated for a fixed wait, without backoff and jitter"
        if hop.alone.leak:
            yield f"{stretch.name}: one message in {1 / hop.alone.leak:,.0f} leaks a duplicate past the memory of ids"
        if options.dedup is DedupBy.ID and at < len(found) - 1 <= RUNNING_MAX and end.reliability < 1 - _CLOSE:
            yield from _dedup_moved(found, at, end)
        if stretch.resends and options.confirm is ConfirmOn.RECEIPT and _crashes(stretch):
            yield (
                f"{stretch.end} confirms before it has passed a message on, so its crash loses it; confirm=cascade, "
                f"or durable=yes at {stretch.end}, would mend that"
            )
    if found and end.uniqueness < 1 - _CLOSE and not end.leak:
        where = f"{found[-1].end}" if found[-1].options is not None else f"a hop behind {found[-1].end}"
        yield f"dedup=id at {where} would lift uniqueness from {end.uniqueness:.6g} to 1"
    elif found and end.leak:
        yield f"a memory that outlasts the resends would lift uniqueness from {end.uniqueness:.6g}"


def _crashes(stretch: Stretch) -> bool:
    return any(isinstance(each, calculus.Crash) for each in stretch.behind)


def _dedup_moved(found: Sequence[Stretch], at: int, end: Figures) -> Iterator[str]:
    """A dedup on the way takes away copies that were second chances further on."""
    elements = [
        each
        for place, stretch in enumerate(found)
        for each in (*stretch.elements, *stretch.behind)
        if not (place == at and isinstance(each, calculus.Dedup))
    ]
    better = _figures(folded(elements)).reliability
    if better > end.reliability + 1e-9:
        yield (
            f"{found[at].name}: dedup here takes second chances from the hops behind it; at the end of the path "
            f"instead, reliability would be {better:.6g}"
        )


# -- the other way round


@dataclass(frozen=True, slots=True)
class Change:
    """One option to set: `where` is the name of a hop or pipe, `new` the value as it is written."""

    where: str
    option: str
    old: str
    new: str
    why: str

    def as_dict(self) -> dict[str, str]:
        return {"where": self.where, "option": self.option, "old": self.old, "new": self.new, "why": self.why}


@dataclass(frozen=True, slots=True)
class Solution:
    """`path` is the path with the `changes`, `plan` what it then promises. `why` says what cannot be reached."""

    path: Path
    changes: tuple[Change, ...]
    plan: Plan
    reached: bool
    why: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        return {
            "reached": self.reached,
            "path": str(self.path),
            "changes": [change.as_dict() for change in self.changes],
            "reliability": self.plan.reliability,
            "uniqueness": self.plan.uniqueness,
            "why": list(self.why),
        }


def solve(
    path: Path, *, reliability: float | None = None, uniqueness: float | None = None, rate: float | None = None
) -> Solution:
    """The smallest retries, dedup memory and windows with which `path` reaches this R, this UR and this many messages
    a second. Retries that are there already are only raised."""
    for name, wanted in (("reliability", reliability), ("uniqueness", uniqueness)):
        if wanted is not None and not 0 <= wanted <= 1:
            raise ConfigError(f"the wanted {name} is {wanted}", fix="use a number from 0 to 1")
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"the wanted rate is {rate}", fix="use a positive number of messages a second")
    draft = _Draft(path, rate)
    if reliability is not None:
        draft.raise_reliability(reliability)
    if rate is not None:
        draft.raise_rate(rate)
    if uniqueness is not None:
        draft.raise_uniqueness(uniqueness)
    return draft.solution(reliability, uniqueness)


Address = tuple[int, ...]
"""Where an option stands: a step of the path; in branches also which branch, and which step of it."""


class _Draft:
    """A path that is being changed, and what was changed in it."""

    def __init__(self, path: Path, rate: float | None) -> None:
        self.rate = rate
        self.first = path
        self.path = path
        self.why: list[str] = []
        self.reasons: dict[tuple[Address, str], str] = {}

    def solution(self, reliability: float | None, uniqueness: float | None) -> Solution:
        changes = []
        for (address, option), why in self.reasons.items():
            old, new = (getattr(options_at(each, address), option) for each in (self.first, self.path))
            if old != new:
                changes.append(
                    Change(_name_at(self.path, address), option, _shown(option, old), _shown(option, new), why)
                )
        planned = plan(self.path, rate=self.rate)
        if not self.why:
            self.why += self._missed(planned, reliability, uniqueness)
        return Solution(self.path, tuple(changes), planned, not self.why, tuple(self.why))

    def _missed(self, planned: Plan, reliability: float | None, uniqueness: float | None) -> Iterator[str]:
        """The last word has the plan of the path as it is now."""
        if reliability is not None and not self._reaches(self.path, reliability):
            yield f"reliability {reliability:.9g} is out of reach: the plan gives {planned.reliability:.9g}"
        if uniqueness is not None and planned.uniqueness < uniqueness - _CLOSE:
            yield f"uniqueness {uniqueness:.9g} is out of reach: the plan gives {planned.uniqueness:.9g}"

    # reliability

    def raise_reliability(self, wanted: float) -> None:
        if self._reaches(self.path, wanted):
            return
        lossy = [address for address in _addresses(self.path) if self._may_resend(address)]
        count = self._fewest_retries(lossy, wanted)
        if isinstance(count, Unreachable):
            self.why.append(self._limit(lossy, wanted))
            return
        for address in lossy:
            self._set_retries(address, max(count, self._retries(address)), wanted)
        for address in lossy:
            self._lower(address, wanted)

    def _fewest_retries(self, lossy: Sequence[Address], wanted: float) -> float | Unreachable:
        def reached(count: float) -> bool:
            return self._reaches(_with_retries(self.path, lossy, count), wanted)

        if not reached(math.inf):
            return Unreachable("", 0.0)
        if wanted == 1:
            return math.inf  # a finite number only tends to it, though rounding may hide that
        low, high = -1, 1
        while high < RETRIES_MAX and not reached(high):
            low, high = high, high * 2
        if not reached(high):
            return math.inf
        return _bisect(low, high, reached)

    def _lower(self, address: Address, wanted: float) -> None:
        """The fewest for this hop alone, all others as they are now. Never below what it had."""
        least = options_at(self.first, address).retries
        now = self._retries(address)
        if math.isinf(now):
            return

        def reached(count: float) -> bool:
            return self._reaches(_with_retries(self.path, [address], count, exactly=True), wanted)

        if least is None and reached(-1):
            self.path = _with_retries(self.path, [address], -1, exactly=True)
            return
        floor = -1 if least is None else int(least) - 1
        self._set_retries(address, _bisect(floor, int(now), reached), wanted)

    def _set_retries(self, address: Address, count: float, wanted: float) -> None:
        self.path = _with_retries(self.path, [address], count, exactly=True)
        self.reasons[address, "retries"] = f"the fewest for a reliability of {wanted:.9g}"

    def _retries(self, address: Address) -> float:
        retries = options_at(self.path, address).retries
        return -1 if retries is None else retries

    def _may_resend(self, address: Address) -> bool:
        """Retries help where something is lost, and may not stand beside repeats."""
        options = options_at(self.path, address)
        if options.repeats or options.retries == math.inf:
            return False
        return isinstance(part_at(self.path, address), Pipe) or options.loss > 0

    def _limit(self, lossy: Sequence[Address], wanted: float) -> str:
        best = 1 - self._loss(_with_retries(self.path, lossy, math.inf))
        durable = durable_points(self.path)
        crashing = [point.name for point in self.path.points() if point.crash and point.name not in durable]
        words = f"reliability {wanted:.9g} is out of reach: {best:.9g} is the best that retries can do"
        if crashing:
            return (
                f"{words}. {' and '.join(crashing)} may crash with a message in hand: make it durable "
                f"({crashing[0]}{{durable=yes}}), put a pipe around it, or let the hop to it confirm by cascade"
            )
        dead = [_name_at(self.path, address) for address in _addresses(self.path) if self._is_dead(address)]
        return f"{words}. Nothing arrives over {' or '.join(dead)}" if dead else words

    def _is_dead(self, address: Address) -> bool:
        return options_at(self.path, address).loss == 1

    def _reaches(self, path: Path, wanted: float) -> bool:
        """By what is lost: a loss too small to be seen in 1 - loss is still a loss."""
        return self._loss(path) <= (1 - wanted) * (1 + 1e-9)

    def _loss(self, path: Path) -> float:
        return float(element(path).apply(0.0, 0.0)[1])

    # uniqueness

    def raise_uniqueness(self, wanted: float) -> None:
        if element_uniqueness(self.path) < wanted:
            at = len(self.path.steps) - 1 if isinstance(self.path.steps[-1], Pipe) else len(self.path.steps) - 2
            if at < 0 or isinstance(self.path.steps[at], Parallel):
                self.why.append(
                    f"uniqueness {wanted:.9g} needs a dedup behind the place where the branches meet: add a hop there, "
                    "such as -[dedup=id]-> C"
                )
                return
            old = options_at(self.path, (at,))
            if old.dedup is DedupBy.NONE:
                self._set((at,), "dedup", DedupBy.ID, "at the end of the path it drops every duplicate")
            elif old.dedup is not DedupBy.ID:
                self._set((at,), "dedup", DedupBy.ID, f"{old.dedup.value} drops only the duplicates of its own hop")
        self._lengthen_memory(1 - wanted)

    def _lengthen_memory(self, leak: float) -> None:
        """A memory of ids with an end must outlast the resends."""
        for address in _addresses(self.path):
            options = options_at(self.path, address)
            if options.dedup is not DedupBy.ID or (options.keep is None and options.size is None):
                continue
            spans = list(self._spans(leak))
            if not spans:
                continue
            if options.keep is not None:
                self._raise_bound(address, "keep", max(span * timeout for span, timeout, _ in spans))
            if options.size is not None:
                self._raise_size(address, spans)

    def _raise_size(self, address: Address, spans: Sequence[tuple[int, float, float | None]]) -> None:
        others = [(span, between) for span, _, between in spans if between is not None]
        if len(others) == len(spans):
            self._raise_bound(address, "size", max(calculus_size(span, between) for span, between in others))
            return
        why = "without a rate nobody knows which size outlasts the resends; a time does"
        self._set(address, "size", None, why)
        least = max(span * timeout for span, timeout, _ in spans)
        self._set(address, "keep", max(least, options_at(self.path, address).keep or 0.0), why)

    def _spans(self, leak: float) -> Iterator[tuple[int, float, float | None]]:
        """Of every sender that resends: for how many of its attempts an id must be kept, the time between two of them
        and the others that are sent in it, None if not known."""
        for stretch in stretches(self.path)[1]:
            if not stretch.resends or not isinstance(stretch.alone, calculus.Pipe) or stretch.options is None:
                continue
            loss, confirm_loss = attempt_losses(stretch.alone)
            span = calculus.span_for_leak(loss, confirm_loss, leak) if leak > 0 else None
            most = stretch.options.attempts
            if span is None and most is None:
                self.why.append(
                    f"{stretch.name} resends without end, and no memory of ids with an end then has a leak of 0"
                )
                continue
            yield (
                min(each for each in (span, most) if each is not None),
                _widest_wait_s(stretch.options),
                sent_between(stretch, self.rate),
            )

    def _raise_bound(self, address: Address, option: str, least: float) -> None:
        if getattr(options_at(self.path, address), option) < least:
            self._set(address, option, least, "the shortest memory that outlasts the resends")

    # rate

    def raise_rate(self, wanted: float) -> None:
        found = {stretch.name: hop for stretch, hop in zip(stretches(self.path)[1], plan(self.path).hops, strict=True)}
        for address in _addresses(self.path):
            hop = found.get(_name_at(self.path, address))
            if hop is None or not options_at(self.path, address).resends or len(address) > 1:
                continue
            window = calculus.window_for_throughput(wanted, hop.time_s)
            if isinstance(window, Unreachable):
                self.why.append(f"{hop.name}: {window.why}")
            elif window > options_at(self.path, address).window:
                self._set(address, "window", window, f"{wanted:g} messages a second, {hop.time_s:.3g} s each")

    def _set(self, address: Address, option: str, value: object, why: str) -> None:
        options = replace(options_at(self.path, address), **{option: value})  # type: ignore[arg-type]
        self.path = with_options(self.path, address, options)
        self.reasons[address, option] = why


def element_uniqueness(path: Path) -> float:
    """With memories that are large enough."""
    return _figures(element(path)).uniqueness


def attempt_losses(pipe: calculus.Pipe) -> tuple[float, float]:
    """Of one whole attempt: how often nothing arrives, and how often no confirm comes back although something did."""
    loss = min(1.0, max(0.0, float(pipe.inner.apply(0.0, 0.0)[1])))
    unconfirmed = float(pipe.inner.apply(0.0, 1.0)[0])
    return loss, min(1.0, max(0.0, (unconfirmed - loss) / (1 - loss))) if loss < 1 else 0.0


def calculus_size(span: int, others: float) -> int:
    """How many ids outlast `span` attempts, when `others` come between two of them."""
    return math.ceil((span - 1) * others) + 1


def _bisect(low: int, high: int, reached: Callable[[float], bool]) -> int:
    """The smallest above `low` that reaches it, where `high` does."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _shown(option: str, value: object) -> str:
    return "none" if value is None else show_option(option, value)


# -- options in place


def _addresses(path: Path) -> list[Address]:
    """Hops, pipes, and the hops of branches. What lies inside a pipe is the pipe's business."""
    found: list[Address] = []
    for at, step in enumerate(path.steps):
        if isinstance(step, Hop | Pipe):
            found.append((at,))
        elif isinstance(step, Parallel):
            found += [
                (at, number, place)
                for number, branch in enumerate(step.branches)
                for place, each in enumerate(branch.steps)
                if isinstance(each, Hop)
            ]
    return found


def part_at(path: Path, address: Address) -> Hop | Pipe:
    step: object = path.steps[address[0]]
    if isinstance(step, Parallel):
        step = step.branches[address[1]].steps[address[2]]
    assert isinstance(step, Hop | Pipe)
    return step


def options_at(path: Path, address: Address) -> Options:
    return part_at(path, address).options


def with_options(path: Path, address: Address, options: Options) -> Path:
    steps = list(path.steps)
    step = steps[address[0]]
    if isinstance(step, Parallel):
        branches = list(step.branches)
        inner = list(branches[address[1]].steps)
        inner[address[2]] = Hop(options)
        branches[address[1]] = Branch(tuple(inner))
        steps[address[0]] = Parallel(tuple(branches))
    else:
        steps[address[0]] = replace(part_at(path, address), options=options)
    return Path(tuple(steps), path.name)


def _with_retries(path: Path, addresses: Sequence[Address], count: float, *, exactly: bool = False) -> Path:
    """With at least, or exactly, so many retries at each address; -1 stands for none at all."""
    for address in addresses:
        options = options_at(path, address)
        now = -1 if options.retries is None else options.retries
        wanted = count if exactly else max(count, now)
        path = with_options(path, address, replace(options, retries=None if wanted < 0 else wanted))
    return path


def _name_at(path: Path, address: Address) -> str:
    points = [point.name for point in _points_around(path, address)]
    return ">".join(points)


def _points_around(path: Path, address: Address) -> tuple[Point, Point]:
    at = address[0]
    step = path.steps[at]
    if isinstance(step, Pipe):
        return step.sender, step.receiver
    before, after = Path(path.steps[:at]).last, Path(path.steps[at + 1 :]).first
    if isinstance(step, Parallel):
        inner = (before, *step.branches[address[1]].steps, after)
        start, end = inner[address[2]], inner[address[2] + 2]
        assert isinstance(start, Point)
        assert isinstance(end, Point)
        return start, end
    return before, after
