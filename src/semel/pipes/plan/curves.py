"""How a path's figures change with its retries and with its loss: what a plot shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from semel.calculus.figures import figures
from semel.pipes.language.options import Options
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Place, Point, Way
from semel.pipes.plan.elements import all_options, element

RETRIES = 12
LOSSES = tuple(step / 40 for step in range(37))


@dataclass(frozen=True, slots=True)
class Curve:
    """`x` is called `label`; at each, the reliability and the uniqueness of the whole path."""

    label: str
    x: tuple[float, ...]
    reliability: tuple[float, ...]
    uniqueness: tuple[float, ...]


def over_retries(path: Path) -> Curve:
    """With 0, 1, 2 … retries wherever the path resends; where it resends nowhere, on every hop that loses."""
    resends = any(options.resends for options in all_options(path))

    def resend(options: Options, retries: float) -> Options:
        chosen = options.resends if resends else options.loss > 0 and not options.repeats
        return replace(options, retries=retries) if chosen else options

    return _curve("retries", path, range(RETRIES + 1), resend)


def over_loss(path: Path) -> Curve:
    """With the same loss on every link that loses now; where none does, on every link."""
    loses = any(options.loss for options in all_options(path))

    def with_loss(options: Options, loss: float) -> Options:
        return replace(options, loss=loss) if options.loss or not loses else options

    return _curve("loss", path, LOSSES, with_loss)


def _curve(label: str, path: Path, xs: Sequence[float], change: Callable[[Options, float], Options]) -> Curve:
    found = [figures(element(with_every_option(path, partial(_swapped, change, x)))) for x in xs]
    return Curve(label, tuple(xs), tuple(each.reliability for each in found), tuple(each.uniqueness for each in found))


def _swapped(change: Callable[[Options, float], Options], x: float, options: Options) -> Options:
    return change(options, x)


def with_every_option(path: Path, change: Callable[[Options], Options]) -> Path:
    """The path with `change` made to the options of every hop, and to the retries of every pipe."""

    def changed(step: Place | Way) -> Place | Way:
        if isinstance(step, Hop):
            return Hop(change(step.options))
        if isinstance(step, Pipe):
            options = replace(step.options, retries=change(step.options).retries)
            return Pipe(with_every_option(step.inner, change), options)
        if isinstance(step, Parallel):
            return Parallel(tuple(Branch(tuple(map(in_branch, branch.steps))) for branch in step.branches))
        return step

    def in_branch(step: Hop | Point) -> Hop | Point:
        return Hop(change(step.options)) if isinstance(step, Hop) else step

    return Path(tuple(map(changed, path.steps)), path.name)
