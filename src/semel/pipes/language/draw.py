"""A path as a picture: with box characters for a terminal, and as SVG for a page.

Points are boxes (double when durable), hops are arrows with their options above, branches lie below each other, a pipe
is a frame around what lies inside it. On a terminal a line that would be too long goes on in the next row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.pipes.language.notation import char_columns, printable
from semel.pipes.language.options import Options, show_option
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Place, Point, Way
from semel.svg import box, element, label, line, picture, title

WIDTH = 80
_LABEL_COLUMNS = 18
_NAME_COLUMNS = 24


def draw_text(path: Path, width: int = WIDTH) -> str:
    """The picture in at most `width` columns where that is possible at all: a name and an arrow need about 30."""
    lines = _flow(path.steps, width).lines
    return "\n".join(line.rstrip() for line in lines)


def columns(text: str) -> int:
    return sum(map(char_columns, text))


# -- for a terminal


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines of equal width; what comes before and after it is joined at line `base`."""

    lines: tuple[str, ...]
    base: int

    @property
    def width(self) -> int:
        return columns(self.lines[0])

    def padded(self, above: int, below: int) -> tuple[str, ...]:
        blank = " " * self.width
        return (*[blank] * above, *self.lines, *[blank] * below)


def _flow(steps: Sequence[Place | Way], width: int) -> _Block:
    """Steps one behind the other, in as many rows as they need."""
    rows: list[list[_Block]] = [[]]
    used = 0
    for step in steps:
        block = _block(step, width)
        if rows[-1] and used + block.width > width:
            rows.append([])
            used = 0
        rows[-1].append(block)
        used += block.width
    drawn = [_row(row) for row in rows]
    lines = [line for at, row in enumerate(drawn) for line in ([""] if at else []) + list(row.lines)]
    return _Block(_even(lines), drawn[0].base)


def _row(blocks: Sequence[_Block]) -> _Block:
    above = max(block.base for block in blocks)
    below = max(len(block.lines) - block.base for block in blocks)
    padded = [block.padded(above - block.base, below - (len(block.lines) - block.base)) for block in blocks]
    return _Block(tuple("".join(parts) for parts in zip(*padded, strict=True)), above)


def _block(step: Place | Way, width: int) -> _Block:
    if isinstance(step, Point):
        return _point_block(step)
    if isinstance(step, Hop):
        return _arrow(_labels(step.options), head="▶")
    if isinstance(step, Pipe):
        return _frame(_flow(step.inner.steps, width - 4), f"pipe {' '.join(_stated(step.options))}".strip(), width)
    return _side_by_side(step, width)


def _point_block(point: Point) -> _Block:
    texts = [_cut(("0#" if point.local else "") + point.name, _NAME_COLUMNS)]
    if point.crash:
        texts.append(f"crash={show_option('crash', point.crash)}")
    inner = max(map(columns, texts))
    left, right, across, side = ("╔╚", "╗╝", "═", "║") if point.durable else ("┌└", "┐┘", "─", "│")
    lines = [f"{side} {_fill(text, inner)} {side}" for text in texts]
    top, bottom = (f"{left[at]}{across * (inner + 2)}{right[at]}" for at in (0, 1))
    return _Block((top, *lines, bottom), 1)


def _arrow(labels: Sequence[str], head: str) -> _Block:
    inner = max([3, *map(columns, labels)])
    lines = [f" {_fill(label, inner)} " for label in labels]
    return _Block((*lines, f"{'─' * (inner + 1)}{head}"), len(labels))


def _side_by_side(parallel: Parallel, width: int) -> _Block:
    rows = [_row(_branch_blocks(branch)) for branch in parallel.branches]
    if max(row.width for row in rows) + 5 > width:
        return _listed(parallel, width)
    inner = max(row.width for row in rows)
    lines: list[str] = []
    bases: list[int] = []
    for row in rows:
        bases.append(len(lines) + row.base)
        lines += [_fill(line, inner, "─" if at == row.base else " ") for at, line in enumerate(row.lines)]
    joined = [
        f"{_joint(at, bases, '─┬', ' ├', ' └')}{line}{_joint(at, bases, '┬─▶', '┤  ', '┘  ')}"
        for at, line in enumerate(lines)
    ]
    return _Block(tuple(joined), bases[0])


def _branch_blocks(branch: Branch) -> list[_Block]:
    last = len(branch.steps) - 1
    return [
        _arrow(_labels(step.options), head="─" if at == last else "▶") if isinstance(step, Hop) else _point_block(step)
        for at, step in enumerate(branch.steps)
    ]


def _joint(at: int, bases: Sequence[int], first: str, middle: str, last: str) -> str:
    """The piece of the line that joins the branches, at one of their lines."""
    if at == bases[0]:
        return first
    if at == bases[-1]:
        return last
    if at in bases:
        return middle
    blank = " " * len(first)
    if not bases[0] < at < bases[-1]:
        return blank
    return "".join("│" if char in "┬├└┤┘" else " " for char in middle)


def _listed(parallel: Parallel, width: int) -> _Block:
    """Branches that are too long to lie between two joints: a frame with one below the other."""
    lines: list[str] = []
    for number, branch in enumerate(parallel.branches, 1):
        lines += [f"{number}:", *_flow(branch.steps, width - 4).lines]
    return _frame(_Block(_even(lines), 1), "side by side", width)


def _frame(inside: _Block, title: str, width: int) -> _Block:
    title = _cut(title, max(width - 6, 8))
    inner = max(inside.width, columns(title) + 1)
    top = f"╭ {title} {'─' * (inner - columns(title))}╮"
    middle = [f"│ {_fill(line, inner)} │" for line in inside.lines]
    return _Block((top, *middle, f"╰{'─' * (inner + 2)}╯"), inside.base + 1)


def _labels(options: Options) -> list[str]:
    """The options, packed into short lines."""
    lines: list[str] = []
    for each in _stated(options):
        if lines and columns(lines[-1]) + 1 + columns(each) <= _LABEL_COLUMNS:
            lines[-1] += f" {each}"
        else:
            lines.append(each)
    return lines


def _stated(options: Options) -> list[str]:
    return [f"{name}={show_option(name, value)}" for name, value in options.stated().items()]


def _even(lines: Sequence[str]) -> tuple[str, ...]:
    width = max(map(columns, lines))
    return tuple(_fill(line, width) for line in lines)


def _fill(text: str, width: int, with_: str = " ") -> str:
    return text + with_ * (width - columns(text))


def _cut(text: str, width: int) -> str:
    text = _shown(text)
    if columns(text) <= width:
        return text
    kept = ""
    for char in text:
        if columns(kept) + char_columns(char) > width - 1:
            break
        kept += char
    return f"{kept}…"


# -- for a page

_CHAR = 7.3
_LINE = 16
_GAP = 14
_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1b1f24}"
    ".o{fill:#57606a;font-size:11px}"
    ".p{fill:#fff;stroke:#1b1f24;stroke-width:1.3}"
    ".d{fill:#fff;stroke:#1b1f24;stroke-width:3.5}"
    ".f{fill:none;stroke:#0969da;stroke-width:1.3;stroke-dasharray:5 3}"
    ".l{fill:none;stroke:#1b1f24;stroke-width:1.3}"
)
_HEAD = "url(#semel-arrow)"
_MARKER = element(
    "defs",
    element(
        "marker", line("M", 0, 0, "L", 8, 4, "L", 0, 8, "z"), id="semel-arrow", viewBox="0 0 8 8", refX=7, refY=4,
        markerWidth=8, markerHeight=8, orient="auto",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Shape:
    """Something to draw at (x, y): `base` is how far below y the line runs that joins it to its neighbours."""

    width: float
    height: float
    base: float
    draw: Callable[[float, float], list[str]]


def draw_svg(path: Path) -> str:
    """The picture as one `<svg>` element that needs nothing from outside."""
    whole = _svg_row([_svg_step(step) for step in path.steps])
    width, height = round(whole.width + 2 * _GAP), round(whole.height + 2 * _GAP)
    parts = [title(_shown(str(path))), element("style", _STYLE), _MARKER, *whole.draw(_GAP, _GAP)]
    return picture(width, height, *parts, xmlns="http://www.w3.org/2000/svg", width=width, height=height, role="img")


def _svg_step(step: Place | Way, *, head: bool = True) -> _Shape:
    if isinstance(step, Point):
        return _svg_point(step)
    if isinstance(step, Hop):
        return _svg_arrow(step, head=head)
    if isinstance(step, Pipe):
        return _svg_frame(_svg_row([_svg_step(each) for each in step.inner.steps]), step.options)
    return _svg_parallel(step)


def _svg_point(point: Point) -> _Shape:
    texts = [_cut(("0#" if point.local else "") + point.name, _NAME_COLUMNS)]
    if point.crash:
        texts.append(f"crash={show_option('crash', point.crash)}")
    width = max(map(columns, texts)) * _CHAR + 18
    height = len(texts) * _LINE + 12

    def draw(x: float, y: float) -> list[str]:
        names = [
            label(x + 9, y + 18 + at * _LINE, _shown(text), class_="o" if at else "n") for at, text in enumerate(texts)
        ]
        return [box(x, y, width, height, class_="d" if point.durable else "p", rx=4), *names]

    return _Shape(width, height, 14, draw)


def _svg_arrow(hop: Hop, *, head: bool) -> _Shape:
    labels = _labels(hop.options)
    width = max([40.0, *(columns(text) * _CHAR + 16 for text in labels)])
    base = len(labels) * _LINE + 6.0

    def draw(x: float, y: float) -> list[str]:
        texts = [label(x + 6, y + 12 + at * _LINE, _shown(text), class_="o") for at, text in enumerate(labels)]
        return [*texts, line("M", x, y + base, "h", width, class_="l", marker_end=_HEAD if head else None)]

    return _Shape(width, base + 6, base, draw)


def _svg_row(shapes: Sequence[_Shape]) -> _Shape:
    base = max(shape.base for shape in shapes)
    height = base + max(shape.height - shape.base for shape in shapes)

    def draw(x: float, y: float) -> list[str]:
        drawn: list[str] = []
        for shape in shapes:
            drawn += shape.draw(x, y + base - shape.base)
            x += shape.width
        return drawn

    return _Shape(sum(shape.width for shape in shapes), height, base, draw)


def _svg_parallel(parallel: Parallel) -> _Shape:
    rows = [
        _svg_row([_svg_step(step, head=at < len(branch.steps) - 1) for at, step in enumerate(branch.steps)])
        for branch in parallel.branches
    ]
    inner = max(row.width for row in rows)
    tops = [sum(row.height + _GAP for row in rows[:at]) for at in range(len(rows))]

    def draw(x: float, y: float) -> list[str]:
        left, right = x + _GAP, x + _GAP + inner
        lines = [top + row.base + y for top, row in zip(tops, rows, strict=True)]
        drawn = [
            line("M", x, lines[0], "H", left, "V", lines[-1], class_="l"),
            line("M", right, lines[-1], "V", lines[0], class_="l"),
            line("M", right, lines[0], "h", 2 * _GAP, class_="l", marker_end=_HEAD),
        ]
        for row, top, level in zip(rows, tops, lines, strict=True):
            drawn += row.draw(left, y + top)
            drawn.append(line("M", left + row.width, level, "H", right, class_="l"))
        return drawn

    return _Shape(inner + 3 * _GAP, tops[-1] + rows[-1].height, rows[0].base, draw)


def _svg_frame(inside: _Shape, options: Options) -> _Shape:
    name = f"pipe {' '.join(_stated(options))}".strip()
    width = max(inside.width, columns(name) * _CHAR) + 2 * _GAP
    head = _LINE + _GAP

    def draw(x: float, y: float) -> list[str]:
        frame = box(x, y, width, inside.height + head + _GAP, class_="f", rx=8)
        return [frame, label(x + _GAP, y + _LINE, _shown(name), class_="o"), *inside.draw(x + _GAP, y + head)]

    return _Shape(width, inside.height + head + _GAP, inside.base + head, draw)


def _shown(text: str) -> str:
    return "".join(map(printable, text))
