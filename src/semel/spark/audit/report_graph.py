"""The hops of one pipeline as a graph in SVG: points are boxes, hops are arrows with their figures on them.

Points stand in layers from left to right, one more layer for each hop on the longest way. A long path goes on in the
next row, as text does. A hop back (an answer) is drawn between the same layers with its arrow at the other end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from semel.spark.audit.report import HopHealth, ReportHop, duration, ratio, spelled
from semel.spark.audit.result import Finding
from semel.svg import along, box, element, label, line, picture, title

_BOX = (124, 40)
_GAP = 216
_LABEL = (178, 66)
_SLOT = 80
_PASSING = 20
_DOWN_MAX = 3 * _SLOT
_GUTTER = 26
_MARGIN = 10
_LAYERS_IN_ONE_ROW = 5
_LAYERS_A_ROW = 4
_NAME_CHARS = 15
_SHORT = {
    Finding.LOST: "lost",
    Finding.DUPLICATE: "doubled",
    Finding.ORDER: "disorder",
    Finding.PHANTOM: "phantom",
    Finding.UNBALANCED: "unbalanced",
}
_MARKS = {HopHealth.GOOD: "✓ holds", HopHealth.OPEN: "… in flight", HopHealth.NONE: "no messages"}


@dataclass(slots=True, eq=False)
class _Node:
    """A point, or the place where a long arrow passes through a layer (`name` is None)."""

    name: str | None
    layer: int = 0
    arrows: list[_Arrow] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0

    @property
    def height(self) -> float:
        return _PASSING if self.name is None else max(_BOX[1] + 24, _SLOT * len(self.arrows))


@dataclass(slots=True, eq=False)
class _Arrow:
    """A piece of a hop from one layer to the next; the last piece has the label."""

    source: _Node
    target: _Node
    hop: ReportHop
    number: int
    backward: bool
    first: bool = True
    last: bool = True


def draw_graph(hops: Sequence[tuple[int, ReportHop]]) -> str:
    """The hops with the numbers by which the page knows them."""
    nodes, arrows = _layout(hops)
    layers = _layers(nodes)
    width, height, folded = _place(layers)
    names = ", ".join(spelled(hop.name) for _, hop in hops[:8])
    more = f" and {len(hops) - 8} more" if len(hops) > 8 else ""
    parts = [_arrow_svg(arrow, folded) for arrow in arrows]
    parts += [_label_svg(arrow) for arrow in arrows if arrow.last]
    parts += [_box_svg(node) for node in nodes if node.name is not None]
    return picture(
        width, height, *parts, class_="graph", role="group", aria_label=f"Hops: {names}{more}",
        style=f"width:{width:g}px;min-width:{min(width, 900):g}px",
    )  # fmt: skip


# -- where everything is


def _layout(hops: Sequence[tuple[int, ReportHop]]) -> tuple[list[_Node], list[_Arrow]]:
    points: dict[str, _Node] = {}
    ways: list[tuple[_Node, _Node, int, ReportHop]] = []
    extra: list[_Node] = []
    for number, hop in hops:
        first, last = (points.setdefault(name, _Node(name)) for name in hop.points)
        if first is last:
            last = _Node(first.name)
            extra.append(last)
        ways.append((first, last, number, hop))
    nodes = [*points.values(), *extra]
    turned = _turned(nodes, ways)
    straight = [
        (last, first, number, hop, True) if (first, last) in turned else (first, last, number, hop, False)
        for first, last, number, hop in ways
    ]
    _set_layers(nodes, [(first, last) for first, last, *_ in straight])
    arrows = []
    for first, last, number, hop, backward in straight:
        pieces = _pieces(first, last, number, hop, backward)
        arrows += pieces
        nodes += [piece.target for piece in pieces[:-1]]
    return nodes, arrows


def _turned(nodes: Sequence[_Node], ways: Sequence[tuple[_Node, _Node, int, ReportHop]]) -> set[tuple[_Node, _Node]]:
    """The ways that lead back to where one came from. Without them there is no circle. No recursion: a path may be
    longer than Python's stack."""
    onward: dict[_Node, list[_Node]] = {node: [] for node in nodes}
    for first, last, *_ in ways:
        onward[first].append(last)
    turned = set()
    done: set[_Node] = set()
    for root in nodes:
        if root in done:
            continue
        trail = [(root, iter(onward[root]))]
        on_trail = {root}
        while trail:
            node, rest = trail[-1]
            following = next(rest, None)
            if following is None:
                trail.pop()
                on_trail.discard(node)
                done.add(node)
            elif following in on_trail:
                turned.add((node, following))
            elif following not in done:
                trail.append((following, iter(onward[following])))
                on_trail.add(following)
    return turned


def _set_layers(nodes: Sequence[_Node], ways: Sequence[tuple[_Node, _Node]]) -> None:
    """As many hops from the start as the longest way has, so that every arrow goes to the right."""
    waiting = dict.fromkeys(nodes, 0)
    onward: dict[_Node, list[_Node]] = {node: [] for node in nodes}
    for first, last in ways:
        waiting[last] += 1
        onward[first].append(last)
    ready = [node for node in nodes if not waiting[node]]
    while ready:
        node = ready.pop()
        for last in onward[node]:
            last.layer = max(last.layer, node.layer + 1)
            waiting[last] -= 1
            if not waiting[last]:
                ready.append(last)


def _pieces(first: _Node, last: _Node, number: int, hop: ReportHop, backward: bool) -> list[_Arrow]:
    between = [_Node(None, layer) for layer in range(first.layer + 1, last.layer)]
    stops = [first, *between, last]
    pieces = [
        _Arrow(source, target, hop, number, backward, source is first, target is last)
        for source, target in itertools.pairwise(stops)
    ]
    for piece in pieces:
        piece.target.arrows.append(piece)
    return pieces


def _layers(nodes: Sequence[_Node]) -> list[list[_Node]]:
    """Each layer in the order of where its arrows come from, so that few of them cross."""
    layers: list[list[_Node]] = [[] for _ in range(max(node.layer for node in nodes) + 1)]
    for node in nodes:
        layers[node.layer].append(node)
    for above, layer in itertools.pairwise(layers):
        rank = {node: number for number, node in enumerate(above)}
        layer.sort(key=lambda node: _mean_rank(node, rank))
        for node in layer:
            node.arrows.sort(key=lambda arrow: rank.get(arrow.source, 0))
    return layers


def _mean_rank(node: _Node, rank: dict[_Node, int]) -> float:
    ranks = [rank[arrow.source] for arrow in node.arrows if arrow.source in rank]
    return sum(ranks) / len(ranks) if ranks else 0.0


def _place(layers: list[list[_Node]]) -> tuple[float, float, bool]:
    """Sets x (left) and y (middle) of every node; returns the size, and whether there is more than one row."""
    folded = len(layers) > _LAYERS_IN_ONE_ROW
    a_row = _LAYERS_A_ROW if folded else len(layers)
    step = _BOX[0] + _GAP
    left = _MARGIN + (_GAP if folded else 0)
    top = float(_MARGIN)
    for begin in range(0, len(layers), a_row):
        row = layers[begin : begin + a_row]
        height = max(sum(node.height for node in layer) for layer in row)
        for column, layer in enumerate(row):
            # in the middle, but not so far down that one has to look for it
            y = top + min((height - sum(node.height for node in layer)) / 2, _DOWN_MAX)
            for node in layer:
                node.x, node.y = left + column * step, y + node.height / 2
                y += node.height
        top += height + _GUTTER
    width = left + a_row * step - _GAP + _MARGIN + (16 if folded else 0)
    return width, top - _GUTTER + _MARGIN, folded


def _slot(arrow: _Arrow) -> float:
    """The height at which an arrow comes to its target."""
    target = arrow.target
    place = target.arrows.index(arrow) - (len(target.arrows) - 1) / 2
    return target.y + place * _SLOT


# -- how it is drawn


def _arrow_svg(arrow: _Arrow, folded: bool) -> str:
    source, target = arrow.source, arrow.target
    start_x = source.x + (_BOX[0] if source.name is not None else _BOX[0] / 2)
    end_x = target.x if target.name is not None else target.x + _BOX[0] / 2
    y = _slot(arrow)
    label_x = end_x - 22 - _LABEL[0] if arrow.last else end_x
    if target.x <= source.x and folded:
        way = _folded_way(start_x, source.y, label_x, y, target.x)
    else:
        bend = max(12.0, (label_x - start_x) / 2)
        way = along("M", start_x, source.y, "C", start_x + bend, source.y, label_x - bend, y, label_x, y)
    if arrow.last:
        label_end = end_x - 22
        way += along("M", label_end, y, "C", label_end + 9, y, end_x - 12, target.y, end_x - 3, target.y)
    head = []
    if arrow.last and not arrow.backward:
        head = [line("M", end_x - 10, target.y - 5, "L", end_x - 1, target.y, "l", -9, 5, "z", class_="head")]
    elif arrow.first and arrow.backward:
        head = [line("M", start_x + 10, source.y - 5, "L", start_x + 1, source.y, "l", 9, 5, "z", class_="head")]
    return element("g", line(way, class_="way"), *head, class_=f"edge {arrow.hop.health.value}")


def _folded_way(start_x: float, start_y: float, end_x: float, end_y: float, row_x: float) -> str:
    """Out on the right, back between the rows, in on the left."""
    out, back = start_x + 14, row_x - _GAP + 4
    between = end_y - _LABEL[1] / 2 - _GUTTER / 2 - 6
    return along(
        "M", start_x, start_y, "H", out - 6, "Q", out, start_y, out, start_y + 6, "V", between - 6,
        "Q", out, between, out - 6, between, "H", back + 6, "Q", back, between, back, between + 6,
        "V", end_y - 6, "Q", back, end_y, back + 6, end_y, "H", end_x,
    )  # fmt: skip


def _label_svg(arrow: _Arrow) -> str:
    hop = arrow.hop
    x = arrow.target.x - 22 - _LABEL[0]
    y = _slot(arrow) - _LABEL[1] / 2
    middle = x + _LABEL[0] / 2
    delivery = hop.measures[1]
    figures = f"R {ratio(delivery.reliability)}  UR {ratio(delivery.uniqueness)}"
    lines = [("figure", figures), *(("found", line) for line in _found_lines(hop))]
    lines.append(("rest", _rest(hop)))
    lead = 15.0
    first = y + (_LABEL[1] - lead * len(lines)) / 2 + 11.5
    texts = [label(middle, first + lead * at, text, class_=style) for at, (style, text) in enumerate(lines)]
    words = f"{spelled(hop.name)}: {'; '.join(text for _, text in lines)}"
    return element(
        "a", title(words), box(x, y, *_LABEL, class_="label", rx=7), *texts,
        class_=f"edge {hop.health.value}", href=f"#hop-{arrow.number}", aria_label=words,
    )  # fmt: skip


def _found_lines(hop: ReportHop) -> list[str]:
    """In one line, or in two when it is too much for one."""
    if hop.health is not HopHealth.BAD:
        return [_MARKS[hop.health]]
    words = [f"{compact(count)} {_SHORT[finding]}" for finding, count in hop.findings]
    if len(words) < 3:
        return [f"✗ {' · '.join(words)}"]
    return [f"✗ {' · '.join(words[:2])}", " · ".join(words[2:4]) + (" …" if len(words) > 4 else "")]


def _rest(hop: ReportHop) -> str:
    p99 = duration(hop.total.latency.p99)
    bound = "≤" if hop.latency_is_bound else ""
    return f"p99 {bound}{p99} · {compact(hop.total.sent)} sent"


def compact(count: int) -> str:
    """A count in at most five characters."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if count >= size:
            return f"{count / (1000 if unit == 'k' else size):.3g}{unit}"
    return f"{count:,}"


def _box_svg(node: _Node) -> str:
    name = spelled(node.name or "") or "(no name)"
    short = name if len(name) <= _NAME_CHARS else f"{name[:8]}…{name[-6:]}"
    width, height = _BOX
    shape = box(node.x, node.y - height / 2, width, height, rx=9)
    return element("g", title(name), shape, label(node.x + width / 2, node.y + 4, short), class_="point")
