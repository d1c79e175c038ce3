"""From a path to the elements of the calculus.

What the elements take from a path, and where:

* A hop is a link; with retries, a pipe around the link. A pipe is a pipe around all that lies inside it.
* With confirm on receipt, a point that crashes has confirmed already: its crash stands behind the pipe. So it does with
  cascade and processing, but then the pipe waits for what stands behind it.
* `dedup=id` goes by the id that a message has had since the path began (inside a pipe: since the pipe sent it), so it
  also drops copies that an earlier hop has made. `index` and `strict` go by the numbers of their own hop, which gives
  every copy a number of its own, so they drop only what that hop has doubled. `session` goes by the producer's numbers,
  and its durable end drops by id as well.
* A point that crashes forgets the ids and numbers that it knew, so its crash stands before its dedup: the next copy of
  what died in its hand is new to it.
* A durable point loses nothing by a crash, only the confirm that it owed. Its commit knows what it has, so it drops
  copies, by id unless it goes by numbers; and what it has to send it sends until it is confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from semel.calculus.elements import (
    Crash,
    Dedup,
    DurableElement,
    Element,
    LinkElement,
    ParallelElement,
    Passage,
    PipeElement,
    Series,
)
from semel.calculus.timing import overlap
from semel.errors import ConfigError
from semel.pipes.language.options import ConfirmOn, DedupBy, Options
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Place, Point, Way


@dataclass(frozen=True, slots=True)
class Stretch:
    """A hop, branches side by side, or a pipe: what a message passes between two points of the path.

    `elements` are as they stand in the path, `alone` is the same for one message by itself. `behind` is the point at
    its end, unless its crash is part of `elements`; `survives` is how often it does not crash."""

    start: str
    end: str
    part: Hop | Parallel | Pipe
    elements: tuple[Element, ...]
    alone: Element
    behind: tuple[Element, ...]
    one_way_s: float
    rtt_s: float
    survives: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.start}>{self.end}"

    @property
    def resends(self) -> bool:
        """By its options, or because its sender is durable."""
        return isinstance(self.alone, PipeElement)

    @property
    def options(self) -> Options | None:
        return None if isinstance(self.part, Parallel) else self.part.options


def stretches(path: Path) -> tuple[tuple[Element, ...], tuple[Stretch, ...]]:
    """What happens at the first point, and then every stretch in the order in which a message passes them."""
    durable = durable_points(path)
    _check_promises(path, durable)
    parts = list(_parts(path))
    found = []
    for at, (start, part, end) in enumerate(parts):
        rtt_s = 2 * (_one_way_s(part) + _awaited_s([each for _, each, _ in parts[at:]]))
        ends = _Ends(start, end, durable, at == len(parts) - 1)
        elements, behind = _of_part(part, ends, rtt_s)
        alone = _alone(part, ends, rtt_s)
        survives = 1.0 if ends.keeps else 1 - end.crash
        found.append(Stretch(start.name, end.name, part, elements, alone, behind, _one_way_s(part), rtt_s, survives))
    return tuple(_of_point(path.first, durable)), tuple(found)


def inner_paths(stretch: Stretch) -> Iterator[Path]:
    """What a pipe goes around, and each branch, as paths by themselves."""
    part = stretch.part
    if isinstance(part, Pipe):
        yield part.inner
    elif isinstance(part, Parallel):
        for branch in part.branches:
            yield Path((Point(stretch.start), *branch.steps, Point(stretch.end)))


def element(path: Path) -> Element:
    """The whole path."""
    first, rest = stretches(path)
    return folded([*first, *(each for stretch in rest for each in (*stretch.elements, *stretch.behind))])


def folded(elements: Iterable[Element]) -> Series:
    """The series of these, shorter and with the same figures.

    What makes no second copy is one link with the loss of all its parts. A dedup leaves one copy or none of what came
    before it, so that everything up to it is such a link too."""
    kept: list[Element] = []
    for each in elements:
        if isinstance(each, Dedup):
            kept = [_first_copy(Series(kept))] if kept else []
            continue
        link = _as_link(each)
        before = _as_link(kept[-1]) if kept else None
        if link is not None and before is not None:
            kept[-1] = _joined(before, link)
        else:
            kept.append(each)
    return Series(kept)


def _first_copy(before: Series) -> LinkElement:
    nothing = min(1.0, max(0.0, float(before.apply(0.0, 0.0)[1])))
    return LinkElement(loss=nothing, confirm_loss=min(1.0, max(0.0, before.way_back_loss())))


def _as_link(element: Element) -> LinkElement | None:
    """The element as a link that never makes a second copy, if it is one."""
    if isinstance(element, Crash):
        return LinkElement(loss=element.probability)
    if isinstance(element, LinkElement) and not element.duplicate and not element.repeats:
        return element
    return None


def _joined(one: LinkElement, two: LinkElement) -> LinkElement:
    """Calculated from the losses and not from what gets through: small losses keep their digits."""
    loss = one.loss + two.loss - one.loss * two.loss
    confirm_loss = one.confirm_loss + two.confirm_loss - one.confirm_loss * two.confirm_loss
    return LinkElement(loss=min(1.0, loss), confirm_loss=min(1.0, confirm_loss))


def pipes_deep(path: Path) -> int:
    """How many pipes lie inside each other."""
    return max((1 + pipes_deep(step.inner) for step in path.steps if isinstance(step, Pipe)), default=0)


def durable_points(path: Path) -> frozenset[str]:
    """The points that keep what they have in a store: by their own word, or by that of a hop or a pipe at them.

    A hop inside a pipe says nothing of the pipe's ends: they hand over to workers of their own, who have the store."""
    return _durable(path, path.points())


def _durable_inside(path: Path) -> frozenset[str]:
    """The durable points inside a pipe. In there the names of the ends stand for the workers that they hand over to, so
    that an end is durable does not make its namesake inside durable."""
    return _durable(path, (point for point in path.points() if point not in (path.first, path.last)))


def _durable(path: Path, points: Iterable[Point]) -> frozenset[str]:
    names = {point.name for point in points if point.durable}
    for start, part, end in _parts(path):
        if isinstance(part, Hop | Pipe) and part.options.durable:
            names |= {start.name, end.name}
        if isinstance(part, Pipe):
            names |= _durable_inside(part.inner) - {start.name, end.name}
        elif isinstance(part, Parallel):
            for branch in part.branches:
                for begin, hop, stop in _branch_parts(start, branch, end):
                    names |= {begin.name, stop.name} if hop.options.durable else set()
    return frozenset(names)


# -- the parts of a path


def all_options(path: Path) -> Iterator[Options]:
    """The options of every hop and pipe, inside pipes and branches too."""
    for step in path.steps:
        if isinstance(step, Hop | Pipe):
            yield step.options
        if isinstance(step, Pipe):
            yield from all_options(step.inner)
        if isinstance(step, Parallel):
            yield from (each.options for branch in step.branches for each in branch.steps if isinstance(each, Hop))


def _parts(path: Path) -> Iterator[tuple[Point, Hop | Parallel | Pipe, Point]]:
    """Ways and pipes with the points at their ends. Ways and pipes meet at the ends of pipes."""
    for at, step in enumerate(path.steps):
        if isinstance(step, Pipe):
            yield step.sender, step, step.receiver
        elif isinstance(step, Hop | Parallel):
            yield _last(path.steps[at - 1]), step, _first(path.steps[at + 1])


def _all_parts(path: Path) -> Iterator[tuple[Point, Hop | Parallel | Pipe, Point]]:
    for start, part, end in _parts(path):
        yield start, part, end
        if isinstance(part, Pipe):
            yield from _all_parts(part.inner)
        elif isinstance(part, Parallel):
            for branch in part.branches:
                yield from _branch_parts(start, branch, end)


def _branch_parts(start: Point, branch: Branch, end: Point) -> Iterator[tuple[Point, Hop, Point]]:
    points = [start, *(step for step in branch.steps if isinstance(step, Point)), end]
    hops = [step for step in branch.steps if isinstance(step, Hop)]
    yield from zip(points, hops, points[1:], strict=False)


def _first(step: Place | Way) -> Point:
    assert isinstance(step, Point | Pipe)
    return step if isinstance(step, Point) else step.sender


def _last(step: Place | Way) -> Point:
    assert isinstance(step, Point | Pipe)
    return step if isinstance(step, Point) else step.receiver


def _check_promises(path: Path, durable: frozenset[str]) -> None:
    """What no worker could keep is refused here as it is where workers are built."""
    for _, part, end in _all_parts(path):
        if isinstance(part, Parallel):
            continue
        if part.options.confirm is ConfirmOn.PROCESSING and end != path.last:
            raise ConfigError(
                f"confirm=processing at {end.name}, which passes messages on and processes none",
                fix="use confirm=cascade there, and confirm=processing at the end of the path",
            )
        if part.options.dedup is DedupBy.SESSION and not part.options.durable and end.name not in durable:
            raise ConfigError(
                f"dedup=session at {end.name} needs a memory that survives",
                fix=f"make it durable: {end.name}{{durable=yes}}",
            )


# -- their elements


@dataclass(frozen=True, slots=True)
class _Ends:
    """The points at the two ends of a part."""

    start: Point
    end: Point
    durable: frozenset[str]
    last: bool = False
    """Nothing follows: a cascade ends here."""

    @property
    def keeps(self) -> bool:
        return self.end.name in self.durable

    def resends(self, options: Options) -> bool:
        return options.resends or self.start.name in self.durable

    def attempts(self, options: Options) -> int | None:
        return None if self.start.name in self.durable else options.attempts


def _of_point(point: Point, durable: frozenset[str]) -> Iterator[Element]:
    if point.name in durable:
        yield Dedup()
        yield DurableElement()
    elif point.crash:
        yield Crash(point.crash)


def _of_part(part: Hop | Parallel | Pipe, ends: _Ends, rtt_s: float) -> tuple[tuple[Element, ...], tuple[Element, ...]]:
    """The elements of the part, and of the point at its end."""
    behind = tuple(_of_point(ends.end, ends.durable))
    by_number = _dedup_at_end(part) in (DedupBy.INDEX, DedupBy.STRICT)
    if ends.keeps and by_number:
        behind = (DurableElement(),)
    if isinstance(part, Parallel):
        return (ParallelElement(_of_branch(branch, ends) for branch in part.branches),), behind
    sent = _sent(part, ends, rtt_s)
    if part.options.dedup is DedupBy.NONE or (ends.keeps and not by_number):
        return (sent,), behind
    if part.options.confirm is not ConfirmOn.RECEIPT and not ends.keeps:
        # at the end of the path an id has one handling, whoever made its copies
        whole_path = ends.last and part.options.dedup is DedupBy.ID
        return (_sent(part, ends, rtt_s, dedup=True),), (*behind, Dedup()) if whole_path else behind
    if part.options.dedup is DedupBy.ID:
        return (sent,), (*behind, Dedup())
    if ends.resends(part.options) or ends.last:
        # a copy that is dropped is confirmed again, so the link's own confirms have to stay
        return (_remembering(sent, 0.0 if ends.keeps else ends.end.crash),), behind if ends.keeps else ()
    if ends.keeps:
        return (folded([sent, Dedup()]),), behind
    return (folded([sent, *behind, Dedup()]),), ()


def _remembering(sent: Element, forgets: float) -> PipeElement:
    """With a memory of the numbers of its own hop."""
    pipe = sent if isinstance(sent, PipeElement) else PipeElement(sent, 1)
    return replace(pipe, dedup=True, forgets=0.0 if pipe.cascade else forgets)


def _dedup_at_end(part: Hop | Parallel | Pipe) -> DedupBy:
    """What the point at the end goes by. Branches that meet at a durable point have to agree about it."""
    if not isinstance(part, Parallel):
        return part.options.dedup
    last = part.branches[0].steps[-1]
    assert isinstance(last, Hop)
    return last.options.dedup


def _sent(part: Hop | Pipe, ends: _Ends, rtt_s: float, *, dedup: bool = False) -> Element:
    """The link or the middle, with the attempts around it."""
    inner = _inner(part)
    options = part.options
    if not ends.resends(options):
        return inner
    if ends.keeps and ends.end.crash:
        # it has committed what it received, and died before it confirmed
        inner = folded([inner, LinkElement(confirm_loss=ends.end.crash)])
    late = options.confirm is not ConfirmOn.RECEIPT
    return PipeElement(inner, ends.attempts(options), dedup, late, overlap(rtt_s, options.timeout))


def _alone(part: Hop | Parallel | Pipe, ends: _Ends, rtt_s: float) -> Element:
    """The part for one message by itself: then all kinds of dedup are one, and it may be the pipe's own."""
    if isinstance(part, Parallel):
        return Series(_of_part(part, ends, rtt_s)[0])
    dedup = part.options.dedup is not DedupBy.NONE or ends.keeps
    sent = _sent(part, ends, rtt_s, dedup=dedup)
    return folded([sent, Dedup()]) if dedup and not ends.resends(part.options) else sent


def _inner(part: Hop | Pipe) -> Element:
    if isinstance(part, Hop):
        options = part.options
        return LinkElement(options.loss, options.duplicate, options.confirm_loss, options.repeats)
    return Passage(folded(_inside(part.inner)), _way_back_loss(part.inner))


def _way_back_loss(path: Path) -> float:
    """How often a confirm is lost on the way back: it passes every link, and of several branches the first."""
    passes = 1.0
    for _, part, _ in _parts(path):
        if isinstance(part, Pipe):
            passes *= 1 - _way_back_loss(part.inner)
        else:
            steps = (part,) if isinstance(part, Hop) else part.branches[0].steps
            passes *= math.prod(1 - step.options.confirm_loss for step in steps if isinstance(step, Hop))
    return 1 - passes


def _inside(path: Path) -> Iterator[Element]:
    """All but the first and the last point, which belong to the pipe around it."""
    durable = _durable_inside(path)
    parts = list(_parts(path))
    for at, (start, part, end) in enumerate(parts):
        last = at == len(parts) - 1
        ends = _Ends(start, Point(end.name) if last else end, durable, last)
        elements, behind = _of_part(part, ends, 2 * _one_way_s(part))
        yield from (*elements, *behind)


def _of_branch(branch: Branch, ends: _Ends) -> Series:
    """Up to the point where the branches meet, which is not part of any of them."""
    elements: list[Element] = []
    meet = Point(ends.end.name)
    for start, hop, end in _branch_parts(ends.start, branch, meet):
        durable = ends.durable - {meet.name} if end is meet else ends.durable
        of_hop, behind = _of_part(hop, _Ends(start, end, durable, ends.last and end is meet), 2 * hop.options.delay)
        elements += (*of_hop, *behind)
    return folded(elements)


# -- time


def _one_way_s(part: Hop | Parallel | Pipe) -> float:
    """How long one copy is under way if nothing is lost. Of branches, the quickest counts."""
    if isinstance(part, Hop):
        return part.options.delay
    if isinstance(part, Pipe):
        return sum(_one_way_s(each) for _, each, _ in _parts(part.inner))
    return min(sum(step.options.delay for step in branch.steps if isinstance(step, Hop)) for branch in part.branches)


def _awaited_s(parts: Sequence[Hop | Parallel | Pipe]) -> float:
    """How far behind the first of these parts its confirm comes from: with cascade, from where the next one does."""
    if not _cascades(parts[0]):
        return 0.0
    total = 0.0
    for part in parts[1:]:
        total += _one_way_s(part)
        if not isinstance(part, Parallel) and part.options.resends and not _cascades(part):
            break
    return total


def _cascades(part: Hop | Parallel | Pipe) -> bool:
    return not isinstance(part, Parallel) and part.options.confirm is not ConfirmOn.RECEIPT
