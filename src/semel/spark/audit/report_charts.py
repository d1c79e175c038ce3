"""The course of a hop over time as SVG: R and UR, what was found, and latency, one above the other on one time axis.

A stretch in which something may still arrive is hatched; a stretch without data is left empty, and no line crosses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from semel.spark.audit.report import (
    COLUMNS,
    WORDS,
    Axis,
    Bin,
    HopHealth,
    ReportHop,
    count_in_words,
    duration,
    health,
    measures,
    moment,
    ratio,
    spelled,
)
from semel.spark.audit.result import WindowState
from semel.svg import box, element, label, line, picture, title
from semel.words import plural

_WIDTH = 560
_LEFT, _RIGHT = 62, 10
_PANELS = {"ratio": 116, "found": 46, "latency": 92}
_SPACE = 22
_FOOT = 24
_FLOORS = (0.9999, 0.999, 0.99, 0.95, 0.9, 0.8, 0.5, 0.0)
_MARKERS_MAX = 30
_BAR_MAX = 40
_TIME_TICKS = 4
_HATCH = "url(#hatch)"
_DAY_US = 86_400_000_000
_MINUTE_US = 60_000_000

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class _Scale:
    """From values to heights: `low` is at the bottom, `high` at the top."""

    low: float
    high: float
    top: float
    height: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    def y(self, value: float) -> float:
        low, high, at = self.low, self.high, max(value, self.low)
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.top + self.height * (1 - (at - low) / (high - low))


def draw_course(hop: ReportHop, axis: Axis, number: int) -> str:
    bins = axis.bins(hop)
    panels = [name for name in _PANELS if _is_needed(name, hop, bins)]
    height = sum(_PANELS[name] + _SPACE for name in panels) + _FOOT
    title_id = f"course-{number}"
    parts = [title(f"R, UR and latency of {spelled(hop.name)} over time", id=title_id)]
    top = float(_SPACE)
    for name in panels:
        parts += _DRAWN[name](bins, axis, top)
        top += _PANELS[name] + _SPACE
    parts += _time_ticks(axis, top - _SPACE)
    parts += [_hover(each, axis, top - 2 * _SPACE) for each in bins]
    return picture(_WIDTH, height, *parts, class_="course", role="img", aria_labelledby=title_id)


def _is_needed(name: str, hop: ReportHop, bins: Sequence[Bin]) -> bool:
    if name == "found":
        return bool(hop.findings)
    return name == "ratio" or any(each.figures.latency.p50 is not None for each in bins)


# -- panels


def _ratio_panel(bins: Sequence[Bin], axis: Axis, top: float) -> list[str]:
    sides = [measures(each.figures) for each in bins]
    values = [value for pair in sides for side in pair for value in (side.reliability, side.uniqueness)]
    scale = _ratio_scale([value for value in values if value is not None], top)
    lines = []
    for side, name in ((0, "pipe"), (1, "delivery")):
        for what in ("uniqueness", "reliability"):
            points = [(_middle(each, axis), getattr(pair[side], what)) for each, pair in zip(bins, sides, strict=True)]
            lines += _line(points, scale, f"{what} {name}", axis, bins)
    return [*_frame(scale, "R and UR"), *_states(bins, axis, scale), *lines]


def _ratio_scale(values: Sequence[float], top: float) -> _Scale:
    """As close to 1 as the values are: a loss of one in a thousand should be seen."""
    lowest = min(values, default=1.0)
    floor = next((floor for floor in _FLOORS[2:] if lowest > floor), 0.0) if lowest < 1 else 0.99
    if lowest > 0.9985 and lowest < 1:
        floor = next(floor for floor in _FLOORS if lowest > floor)
    ticks = tuple((floor + (1 - floor) * part / 2, f"{floor + (1 - floor) * part / 2:.6g}") for part in range(3))
    return _Scale(floor, 1.0, top, _PANELS["ratio"], ticks)


def _found_panel(bins: Sequence[Bin], axis: Axis, top: float) -> list[str]:
    stacks = [[(finding, getattr(each.figures, column)) for finding, column in COLUMNS.items()] for each in bins]
    highest = max((sum(count for _, count in stack) for stack in stacks), default=0) or 1
    scale = _Scale(0, highest, top, _PANELS["found"], ((0, "0"), (highest, f"{highest:,}")))
    bars = []
    for each, stack in zip(bins, stacks, strict=True):
        left, right = _x(each.start, axis), _x(min(each.end, axis.end), axis)
        inset = max(min(2.0, (right - left) * 0.12), (right - left - _BAR_MAX) / 2)
        base = 0
        for finding, count in stack:
            if count:
                y = scale.y(base + count)
                width = max(1.5, right - left - 2 * inset)
                bars.append(box(left + inset, y, width, scale.y(base) - y, class_=f"bar {finding.value}"))
                base += count
    return [*_frame(scale, "found"), *bars]


def _latency_panel(bins: Sequence[Bin], axis: Axis, top: float) -> list[str]:
    values = [
        value for each in bins for value in (each.figures.latency.p50, each.figures.latency.p99) if value is not None
    ]
    scale = _latency_scale(values, top)
    lines = []
    for name in ("p50", "p99"):
        points = [(_middle(each, axis), getattr(each.figures.latency, name)) for each in bins]
        lines += _line(points, scale, name, axis, bins)
    return [*_frame(scale, "latency"), *_states(bins, axis, scale), *lines]


def _latency_scale(values: Sequence[float], top: float) -> _Scale:
    """From zero where that shows something, by powers of ten where the values are far apart."""
    highest, positive = max(values), [value for value in values if value > 0]
    lowest = min(positive, default=0.0)
    if lowest and highest / lowest > 50:
        first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
        step = max(1, math.ceil((last - first) / 4))
        ticks = tuple((10.0**power, duration(10.0**power)) for power in range(first, last + 1, step))
        return _Scale(10.0**first, 10.0**last, top, _PANELS["latency"], ticks, True)
    high = _nice_above(highest)
    return _Scale(
        0, high, top, _PANELS["latency"], tuple((high * part / 2, duration(high * part / 2)) for part in range(3))
    )


def _nice_above(value: float) -> float:
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * step for step in (1, 2, 4, 5, 10) if size * step >= value)


_DRAWN: dict[str, Callable[[Sequence[Bin], Axis, float], list[str]]] = {
    "ratio": _ratio_panel,
    "found": _found_panel,
    "latency": _latency_panel,
}


# -- pieces of a panel


def _x(at: float, axis: Axis) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at - axis.start) / (axis.end - axis.start)


def _middle(each: Bin, axis: Axis) -> float:
    return (_x(each.start, axis) + _x(min(each.end, axis.end), axis)) / 2


def _frame(scale: _Scale, name: str) -> list[str]:
    drawn = [label(_LEFT, scale.top - 7, name, class_="panel")]
    for value, text in scale.ticks:
        y = scale.y(value)
        drawn.append(line("M", _LEFT, y, "H", _WIDTH - _RIGHT, class_="grid"))
        drawn.append(label(_LEFT - 6, y + 3.5, text, class_="tick", text_anchor="end"))
    return drawn


def _states(bins: Sequence[Bin], axis: Axis, scale: _Scale) -> list[str]:
    """Where something may still arrive, neighbours as one."""
    spans: list[list[int]] = []
    for each in bins:
        if each.figures.state is not WindowState.OPEN:
            continue
        if spans and spans[-1][1] == each.start:
            spans[-1][1] = each.end
        else:
            spans.append([each.start, each.end])
    drawn = []
    for start, end in spans:
        left, right = _x(start, axis), _x(min(end, axis.end), axis)
        place = (left, scale.top, right - left, scale.height)
        drawn += [box(*place, class_="open-back"), box(*place, class_="open-hatch", fill=_HATCH)]
    return drawn


def _line(points: Sequence[Point], scale: _Scale, style: str, axis: Axis, bins: Sequence[Bin]) -> list[str]:
    """One path, broken where a bin has no value or is missing."""
    runs: list[list[tuple[float, float]]] = [[]]
    before: int | None = None
    for (x, value), each in zip(points, bins, strict=True):
        if before is not None and each.start != before and runs[-1]:
            runs.append([])
        if value is not None:
            runs[-1].append((x, scale.y(value)))
        elif runs[-1]:
            runs.append([])
        before = each.end
    joined = [run for run in runs if len(run) > 1]
    ways = [part for run in joined for at, (x, y) in enumerate(run) for part in ("L" if at else "M", x, y)]
    drawn = [line(*ways, class_=f"line {style}")] if ways else []
    alone = [run[0] for run in runs if len(run) == 1]
    marked = [at for run in runs for at in run] if len(points) <= _MARKERS_MAX else alone
    drawn += [element("circle", class_=f"dot {style}", cx=x, cy=y, r=2.6) for x, y in marked]
    return drawn


def _time_ticks(axis: Axis, top: float) -> list[str]:
    ticks = []
    span = axis.end - axis.start
    for part in range(_TIME_TICKS + 1):
        at = axis.start + (axis.end - axis.start) * part // _TIME_TICKS
        x = _x(at, axis)
        anchor = "start" if part == 0 else "end" if part == _TIME_TICKS else "middle"
        text = _tick_text(moment(at), span, at_edge=part in (0, _TIME_TICKS))
        ticks.append(line("M", x, top, "v", 4, class_="grid"))
        ticks.append(label(x, top + 17, text, class_="tick", text_anchor=anchor))
    return ticks


def _tick_text(text: str, span: int, *, at_edge: bool) -> str:
    """As much of a moment as tells it from its neighbours."""
    if span > 2 * _DAY_US:
        return text[:10]
    if span < 10 * _MINUTE_US:
        return text[11:]
    return text[5:16] if at_edge else text[11:16]


def _hover(each: Bin, axis: Axis, bottom: float) -> str:
    left, right = _x(each.start, axis), _x(min(each.end, axis.end), axis)
    return element("rect", title(bin_words(each)), class_="hover", x=left, y=_SPACE, width=right - left, height=bottom)


def bin_words(each: Bin) -> str:
    figures = each.figures
    pipe, delivery = measures(figures)
    found = ", ".join(
        count_in_words(finding, getattr(figures, column))
        for finding, column in COLUMNS.items()
        if getattr(figures, column)
    )
    return "\n".join(
        [
            f"{moment(each.start)} to {moment(each.end)[11:]} ({figures.state.value})",
            f"{figures.sent:,} sent, {found or 'nothing found'}"
            + (f", {figures.in_flight:,} in flight" if figures.in_flight else ""),
            f"delivery R {ratio(delivery.reliability)} UR {ratio(delivery.uniqueness)}",
            f"pipe R {ratio(pipe.reliability)} UR {ratio(pipe.uniqueness)}",
            f"p50 {duration(figures.latency.p50)}, p99 {duration(figures.latency.p99)}",
        ]
    )


# -- all hops at once


_ROW = 18
_NAME_WIDTH = 230
_STRIP_WIDTH = 1080


def draw_strip(hops: Iterable[tuple[int, ReportHop]], axis: Axis) -> str:
    """A row for each hop: when it held, when not. Stretches of the same kind are one rectangle."""
    rows = list(hops)
    height = len(rows) * _ROW + 26
    parts = [title("When each hop held, and when not", id="strip-title")]
    for row, (number, hop) in enumerate(rows):
        y = row * _ROW
        name = spelled(hop.name)
        short = name if len(name) <= 31 else f"{name[:17]}…{name[-13:]}"
        text = label(_NAME_WIDTH - 10, y + 13, short, class_="row", text_anchor="end")
        parts.append(element("a", title(name), text, href=f"#hop-{number}"))
        parts += [_strip_cell(run, axis, y) for run in _runs(axis.bins(hop))]
    for part in range(_TIME_TICKS + 1):
        at = axis.start + (axis.end - axis.start) * part // _TIME_TICKS
        anchor = "start" if part == 0 else "end" if part == _TIME_TICKS else "middle"
        text = _tick_text(moment(at), axis.end - axis.start, at_edge=True)
        parts.append(label(_strip_x(at, axis), height - 6, text, class_="tick", text_anchor=anchor))
    return picture(_STRIP_WIDTH, height, *parts, class_="strip", role="img", aria_labelledby="strip-title")


def _strip_x(at: int, axis: Axis) -> float:
    return _NAME_WIDTH + (_STRIP_WIDTH - _NAME_WIDTH) * (at - axis.start) / (axis.end - axis.start)


def _kind(each: Bin) -> HopHealth:
    kind = health(each.figures)
    return HopHealth.OPEN if kind is HopHealth.GOOD and each.figures.state is WindowState.OPEN else kind


def _runs(bins: Sequence[Bin]) -> list[list[Bin]]:
    runs: list[list[Bin]] = []
    for each in bins:
        if runs and runs[-1][-1].end == each.start and _kind(runs[-1][-1]) is _kind(each):
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


_KINDS = {HopHealth.GOOD: "holds", HopHealth.OPEN: "still open", HopHealth.NONE: "nothing sent"}


def _strip_cell(run: Sequence[Bin], axis: Axis, y: float) -> str:
    kind = _kind(run[0])
    left, right = _strip_x(run[0].start, axis), _strip_x(min(run[-1].end, axis.end), axis)
    sent = sum(each.figures.sent for each in run)
    counts = [(finding, sum(getattr(each.figures, column) for each in run)) for finding, column in COLUMNS.items()]
    found = ", ".join(f"{count:,} {WORDS[finding]}" for finding, count in counts if count)
    words = f"{moment(run[0].start)} to {moment(run[-1].end)}: {found or _KINDS[kind]}, {plural(sent, 'message')}"
    place = (left, y + 2, max(1.5, right - left - 0.6), _ROW - 4)
    hatch = [box(*place, fill=_HATCH)] if kind is HopHealth.OPEN else []
    return element("g", title(words), box(*place), *hatch, class_=f"cell {kind.value}")
