"""From what is wanted to the path that reaches it: the smallest retries, dedup memory and window, or why nothing does.

`plan` goes the other way and has the last word: what `solve` proposes is planned before it is called reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from semel.calculus.dedup import span_for_leak
from semel.calculus.elements import PipeElement
from semel.calculus.figures import Unreachable, figures, window_for_throughput
from semel.errors import ConfigError
from semel.pipes.language.options import DedupBy, Options, show_option
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Point
from semel.pipes.plan.doubts import CLOSE
from semel.pipes.plan.elements import durable_points, element, stretches
from semel.pipes.plan.plan import Plan, plan, sent_between, widest_wait_s

RETRIES_MAX = 100_000
"""Where more would be needed, retries are without end."""


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
            self.why += self._unmet(planned, reliability, uniqueness)
        return Solution(self.path, tuple(changes), planned, not self.why, tuple(self.why))

    def _unmet(self, planned: Plan, reliability: float | None, uniqueness: float | None) -> Iterator[str]:
        """The last word has the plan of the path as it is now."""
        if reliability is not None and not self._reaches(self.path, reliability):
            yield f"reliability {reliability:.9g} is out of reach: the plan gives {planned.reliability:.9g}"
        if uniqueness is not None and planned.uniqueness < uniqueness - CLOSE:
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
        """For every sender that resends: for how many of its attempts an id must be kept, the time between two of them,
        and how many other messages are sent in that time (None if not known)."""
        for stretch in stretches(self.path)[1]:
            if not stretch.resends or not isinstance(stretch.alone, PipeElement) or stretch.options is None:
                continue
            loss, confirm_loss = attempt_losses(stretch.alone)
            span = span_for_leak(loss, confirm_loss, leak) if leak > 0 else None
            most = stretch.options.attempts
            if span is None and most is None:
                self.why.append(
                    f"{stretch.name} resends without end, and no memory of ids with an end then has a leak of 0"
                )
                continue
            yield (
                min(each for each in (span, most) if each is not None),
                widest_wait_s(stretch.options),
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
            window = window_for_throughput(wanted, hop.time_s)
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
    return figures(element(path)).uniqueness


def attempt_losses(pipe: PipeElement) -> tuple[float, float]:
    """How often nothing of a whole attempt arrives, and how often no confirm comes back although something did."""
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
