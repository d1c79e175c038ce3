"""Pipes given as spans over a line of points, turned into the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semel.errors import ConfigError
from semel.pipes.language.options import Options
from semel.pipes.language.path import Path, Pipe, Place, Point, Way


@dataclass(frozen=True, slots=True)
class PipeSpan:
    """A pipe from one point of the line to a later one."""

    start: str
    end: str
    options: Options

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"


def nest_spans(line: Sequence[Point | Way], spans: Sequence[PipeSpan]) -> Path:
    """`line` with a pipe around the part that each span covers. Spans may lie inside each other, but not cross."""
    place = {point.name: at for at, point in enumerate(line) if isinstance(point, Point)}
    for span in spans:
        _check_ends(span, place)
    ordered = sorted(spans, key=lambda span: (place[span.start], -place[span.end]))
    _check_crossing(ordered, place)
    return Path(tuple(_build(line, ordered, place)))


def _build(line: Sequence[Point | Way], spans: Sequence[PipeSpan], place: dict[str, int]) -> list[Place | Way]:
    """Spans are in the order of their starts, the outer one first, and do not cross: a stack is enough."""
    waiting = list(reversed(spans))
    open_: list[tuple[PipeSpan, int]] = []
    steps: list[Place | Way] = []
    for at, step in enumerate(line):
        while waiting and place[waiting[-1].start] == at:
            open_.append((waiting.pop(), len(steps)))
        steps.append(step)
        while open_ and place[open_[-1][0].end] == at:
            span, first = open_.pop()
            steps[first:] = [Pipe(Path(tuple(steps[first:])), span.options)]
    return steps


def _check_ends(span: PipeSpan, place: dict[str, int]) -> None:
    for name in (span.start, span.end):
        if name not in place:
            raise ConfigError(
                f"the pipe {span} needs {name} on the line that every message takes",
                fix=f"choose from {', '.join(place)}: a point inside a branch cannot end a pipe",
            )
    if place[span.start] >= place[span.end]:
        raise ConfigError(f"the pipe {span} goes backwards", fix="name the end that comes first as its start")


def _check_crossing(spans: Sequence[PipeSpan], place: dict[str, int]) -> None:
    """In the order of their starts, a span must end inside every span that is still open where it begins."""
    open_: list[PipeSpan] = []
    for span in spans:
        while open_ and place[open_[-1].end] < place[span.start]:
            open_.pop()
        if open_ and place[open_[-1].end] < place[span.end]:
            raise ConfigError(
                f"the pipes {open_[-1]} and {span} cross", fix="put one inside the other, or one behind the other"
            )
        if open_ and (open_[-1].start, open_[-1].end) == (span.start, span.end):
            raise ConfigError(f"there are two pipes {span}", fix="keep one of them")
        open_.append(span)
