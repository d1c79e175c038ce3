"""How long a sender's confirm may still be under way. A timeout that is shorter resends what is not lost.

The calculus lets a confirm that is not lost come before the next attempt. That holds when the timeout is longer than
all that the confirm waits for: the way there and back, and the waits of the senders in between that may have to send
again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from semel.pipes.language.options import ConfirmOn, Options
from semel.pipes.language.path import Hop, Path, Pipe
from semel.pipes.plan.elements import Stretch, all_options, inner_paths, stretches

_BARE = {"loss", "duplicate", "confirm_loss", "delay"}


def confirms_within_s(found: Sequence[Stretch], durable: frozenset[str]) -> list[float]:
    """For each stretch, the longest time in which its confirm may still come; `math.inf` if there is no longest.

    From the end of the path to its start: with cascade each waits for what lies behind it."""
    times: list[float] = []
    onward_s, loses = 0.0, False
    for stretch in reversed(found):
        options = stretch.options
        waits = options is not None and options.confirm is ConfirmOn.CASCADE
        times.append(_there_and_back_s(stretch) + (onward_s if waits else 0.0))
        loses = loses or _may_lose(stretch)
        if stretch.resends:
            assert options is not None
            onward_s = times[-1] + (waits_s(options, endless=stretch.start in durable) if loses else 0.0)
        else:
            onward_s = _there_and_back_s(stretch) + (0.0 if stretch.end in durable else onward_s)
    return times[::-1]


def shortest_wait_s(options: Options) -> float:
    return options.timeout * (1 - options.jitter)


def waits_s(options: Options, *, endless: bool) -> float:
    """All waits of one message together, when every attempt fails."""
    if endless or options.attempts is None:
        return math.inf
    total, wait = 0.0, options.timeout
    for attempt in range(options.attempts):
        if wait >= options.longest_wait or options.backoff == 1:
            return total + wait * (options.attempts - attempt)
        total += wait
        wait = min(wait * options.backoff, options.longest_wait)
    return total


def is_counted_late(stretch: Stretch) -> bool:
    """Whether the calculus knows how many attempts are sent while a confirm is late: over bare links, with a fixed
    wait, and when a confirm and the end of a wait do not fall together."""
    options = stretch.options
    if options is None or options.confirm is not ConfirmOn.RECEIPT or options.backoff > 1 or options.jitter:
        return False
    if isinstance(stretch.part, Pipe) and any(set(each.stated()) - _BARE for each in all_options(stretch.part.inner)):
        return False
    times = stretch.rtt_s / options.timeout
    return abs(times - round(times)) > 1e-9


def _there_and_back_s(stretch: Stretch) -> float:
    if isinstance(stretch.part, Hop):
        return 2 * stretch.part.options.delay
    return max(_through_s(path) for path in inner_paths(stretch)) + _slowest_s(stretch)


def _slowest_s(stretch: Stretch) -> float:
    """One way over the slowest branch, when nothing is lost."""
    return max(math.fsum(each.one_way_s for each in stretches(path)[1]) for path in inner_paths(stretch))


def _through_s(path: Path) -> float:
    """Until the last copy of a message has come through, with the waits of the senders on the way."""
    return math.fsum(_pass_s(stretch) for stretch in stretches(path)[1])


def _pass_s(stretch: Stretch) -> float:
    inner_s = stretch.one_way_s if isinstance(stretch.part, Hop) else max(map(_through_s, inner_paths(stretch)))
    if not stretch.resends:
        return inner_s
    assert stretch.options is not None
    if _may_lose(stretch):
        return inner_s + waits_s(stretch.options, endless=False)
    return inner_s + (stretch.rtt_s if stretch.rtt_s >= shortest_wait_s(stretch.options) else 0.0)


def _may_lose(stretch: Stretch) -> bool:
    return stretch.survives < 1 or any(_lossy(options) for options in _options(stretch)) or _crashes_inside(stretch)


def _lossy(options: Options) -> bool:
    return options.loss > 0 or options.confirm_loss > 0


def _options(stretch: Stretch) -> Iterator[Options]:
    if stretch.options is not None:
        yield stretch.options
    for path in inner_paths(stretch):
        yield from all_options(path)


def _crashes_inside(stretch: Stretch) -> bool:
    return any(point.crash for path in inner_paths(stretch) for point in path.points())
