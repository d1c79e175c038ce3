"""What the figures of a path do not say: where they are not exact, and what would lift them.

Both are sentences for people. `find_doubts` says why a figure is a bound or an approximation, `find_advice` the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from semel.calculus.elements import Crash, Dedup, PipeElement
from semel.calculus.figures import Figures, figures
from semel.calculus.timing import copies_without_loss
from semel.pipes.language.options import ConfirmOn, DedupBy, Options
from semel.pipes.language.path import Parallel, Path
from semel.pipes.plan.elements import Stretch, all_options, durable_points, folded, inner_paths
from semel.pipes.plan.waits import confirms_within_s, is_counted_late, shortest_wait_s

CLOSE = 1e-12
"""What is this near to a figure differs from it by rounding alone."""

MOVED_MAX = 100
"""On a path of more stretches nobody tries what a dedup at another place would do: it would take too long."""


# -- what is not exact


def find_doubts(
    path: Path, found: Sequence[Stretch], alone: Sequence[Figures], between: Sequence[float | None]
) -> Iterator[str]:
    """Where the figures are not those of the path to the last digit.

    Of each stretch, `alone` are its own figures, and `between` is how many other messages are sent between two of its
    attempts, None when nobody knows."""
    durable = durable_points(path)
    within_s = confirms_within_s(found, durable)
    crashing = {point.name for point in path.points() if point.crash and point.name not in durable}
    doubles = asked = together = False
    for at, (stretch, own, others) in enumerate(zip(found, alone, between, strict=True)):
        options = stretch.options
        late = options is not None and options.confirm is ConfirmOn.CASCADE
        if options is not None and options.dedup is DedupBy.INDEX and stretch.resends and options.window > 1:
            yield (
                f"{stretch.name}: dedup=index drops what was overtaken, and with window={options.window} a resend is: "
                "R is lower than shown; use dedup=strict or dedup=id"
            )
        yield from _late_confirms(stretch, within_s[at])
        yield from _unknown_leak(stretch, doubles, others)
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
        doubles = doubles or own.copies > own.reliability + CLOSE


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


def _unknown_leak(stretch: Stretch, doubles: bool, others: float | None) -> Iterator[str]:
    options = stretch.options
    if options is None or (options.keep is None and options.size is None):
        return
    if options.size is not None and others is None:
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
        yield f"{stretch.end} sends what is under way again when it starts again, which is not calculated"


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


# -- what would help


def find_advice(found: Sequence[Stretch], alone: Sequence[Figures], end: Figures) -> Iterator[str]:
    """What to look at, and what would lift the figures at the `end`."""
    for at, (stretch, own) in enumerate(zip(found, alone, strict=True)):
        options = stretch.options
        if _crashes(stretch) and (stretch.resends or found[-1] is not stretch):
            yield f"{stretch.end} loses all that waits in it when it crashes: the figures are for one message at a time"
        if options is None:
            continue
        if stretch.resends and stretch.rtt_s > options.timeout:
            times = copies_without_loss(stretch.rtt_s, options.timeout)
            yield (
                f"{stretch.name}: the timeout of {options.timeout:g} s is below the round trip of {stretch.rtt_s:g} s, "
                f"so a message is sent {times:g} times even if nothing is lost"
            )
        confirm_loss = stretch.alone.inner.way_back_loss() if isinstance(stretch.alone, PipeElement) else 0.0
        if (
            stretch.resends
            and confirm_loss
            and own.leak is None
            and options.dedup is DedupBy.NONE
            and end.uniqueness < 1 - CLOSE
        ):
            yield (
                f"{stretch.name}: with more retries uniqueness tends to 1 - confirm loss = {1 - confirm_loss:.6g} "
                "and no higher; only dedup lifts it"
            )
        if stretch.resends and (options.backoff > 1 or options.jitter):
            yield f"{stretch.name}: the time is calculated for a fixed wait, without backoff and jitter"
        if own.leak:
            yield f"{stretch.name}: one message in {1 / own.leak:,.0f} leaks a duplicate past the memory of ids"
        if options.dedup is DedupBy.ID and at < len(found) - 1 <= MOVED_MAX and end.reliability < 1 - CLOSE:
            yield from _dedup_moved(found, at, end)
        if stretch.resends and options.confirm is ConfirmOn.RECEIPT and _crashes(stretch):
            yield (
                f"{stretch.end} confirms before it has passed a message on, so its crash loses it; confirm=cascade, "
                f"or durable=yes at {stretch.end}, would fix that"
            )
    if found and end.uniqueness < 1 - CLOSE and not end.leak:
        where = f"{found[-1].end}" if found[-1].options is not None else f"a hop behind {found[-1].end}"
        yield f"dedup=id at {where} would lift uniqueness from {end.uniqueness:.6g} to 1"
    elif found and end.leak:
        yield f"a memory that outlasts the resends would lift uniqueness from {end.uniqueness:.6g}"


def _crashes(stretch: Stretch) -> bool:
    return any(isinstance(each, Crash) for each in stretch.behind)


def _dedup_moved(found: Sequence[Stretch], at: int, end: Figures) -> Iterator[str]:
    """A dedup on the way takes away copies that were second chances further on."""
    elements = [
        each
        for place, stretch in enumerate(found)
        for each in (*stretch.elements, *stretch.behind)
        if not (place == at and isinstance(each, Dedup))
    ]
    better = figures(folded(elements)).reliability
    if better > end.reliability + 1e-9:
        yield (
            f"{found[at].name}: dedup here takes second chances from the hops behind it; at the end of the path "
            f"instead, reliability would be {better:.6g}"
        )
