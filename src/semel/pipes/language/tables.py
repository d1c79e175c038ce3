"""A path as TOML: either the text form in `path`, or a graph of hops.

    [[hop]]
    from = "A"
    to = "P1"

    [[hop]]
    from = "P1"
    to = "P2"
    loss = 0.1

    [points.P1]
    crash = 0.05

    [[pipe]]
    from = "P1"
    to = "P2"
    retries = "inf"

Hops with the same ends are sent over side by side, and so are chains of hops that part at one point and meet again at
another. Between two such points every branch is a plain chain.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from semel.errors import ConfigError, InputError, PathSyntaxError
from semel.kernel.text import check_id
from semel.pipes.language.notation import HOPS_MAX, POINTS_MAX, TEXT_CHARS_MAX, TextSpan, parse_path, point_at
from semel.pipes.language.options import HOP_OPTIONS, PIPE_OPTIONS, POINT_OPTIONS, Options, read_option, unknown_option
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Place, Point, Way

_TOP = ("path", "name", "hop", "pipe", "points")


def parse_tables(text: str, name: str = "path") -> Path:
    """The path that the TOML in `text` describes."""
    if len(text) > TEXT_CHARS_MAX:
        raise PathSyntaxError(
            f"the file has {len(text):,} characters, the limit is {TEXT_CHARS_MAX:,}", fix="split it into several paths"
        )
    return _Reader(text, name).read()


@dataclass(frozen=True, slots=True)
class _Edge:
    start: str
    end: str
    hop: Hop


class _Circle(Exception):
    """The points of a circle, with the hop that closes it last."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(f"the path goes round in a circle: {' -> '.join(cycle)}")
        self.closing = (cycle[-2], cycle[-1])


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        try:
            self.tables: dict[str, Any] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise PathSyntaxError(f"this is not TOML: {error}", fix="see https://toml.io for the form") from None
        self.local: set[str] = set()

    def read(self) -> Path:
        for key in self.tables:
            if key not in _TOP:
                self._fail_key(key, _TOP, "the file", "", 0)
        name = self._text(self.tables.get("name", self.name), "name", "", 0)
        if "path" in self.tables:
            return self._from_text(name)
        edges = [self._edge(at, table) for at, table in enumerate(self._tables("hop"))]
        if not edges:
            self._fail("there is neither a path nor a hop", 'write path = "A -> B", or [[hop]] with from and to')
        if len(edges) > HOPS_MAX:
            self._fail(f"there are more than {HOPS_MAX:,} hops", "split the path into several")
        spans = [self._span(at, table) for at, table in enumerate(self._tables("pipe"))]
        try:
            line = _Graph(edges, self._points(edges)).line()
            path = nest_spans(line, spans)
        except PathSyntaxError:
            raise
        except _Circle as circle:
            closing = next(at for at, edge in enumerate(edges) if (edge.start, edge.end) == circle.closing)
            self._fail(str(circle), "take one of these hops away", self._header("hop", closing))
        except ConfigError as error:
            raise PathSyntaxError(error.message, fix=error.fix) from None
        return Path(path.steps, name)

    def _from_text(self, name: str) -> Path:
        for other in ("hop", "pipe", "points"):
            if other in self.tables:
                self._fail(f"path and [{other}] exclude each other", "say everything in path, or everything in tables")
        text = self._text(self.tables["path"], "path", "", 0)
        try:
            return parse_path(text, name)
        except PathSyntaxError as error:
            raise PathSyntaxError(f"in the value of path, {error.message}", fix=error.fix) from None

    # tables

    def _tables(self, key: str) -> list[dict[str, Any]]:
        found = self.tables.get(key, [])
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            self._fail(f"{key} is not a list of tables", f"write [[{key}]], with two brackets", self._header(key, 0))
        return found

    def _edge(self, at: int, table: dict[str, Any]) -> _Edge:
        start, end = self._ends("hop", at, table)
        if start == end:
            self._fail(f"a hop leads from {start} to itself", "give it two different ends", self._key("hop", at, "to"))
        return _Edge(start, end, Hop(self._options("hop", at, table, HOP_OPTIONS)))

    def _span(self, at: int, table: dict[str, Any]) -> PipeSpan:
        start, end = self._ends("pipe", at, table)
        return PipeSpan(start, end, self._options("pipe", at, table, PIPE_OPTIONS))

    def _ends(self, kind: str, at: int, table: dict[str, Any]) -> tuple[str, str]:
        for key in ("from", "to"):
            if key not in table:
                self._fail(f"the {kind} has no {key!r}", f'add {key} = "A"', self._header(kind, at))
        return self._point_name(table["from"], kind, at, "from"), self._point_name(table["to"], kind, at, "to")

    def _point_name(self, raw: object, kind: str, at: int, key: str) -> str:
        name = self._text(raw, key, kind, at)
        if found := re.match(r"([01])#", name):
            name = name[2:]
            if found[1] == "0":
                self.local.add(name)
        try:
            return check_id("the name of a point", name)
        except InputError as error:
            self._fail(error.message, error.fix, self._key(kind, at, key))

    def _options(self, kind: str, at: int, table: dict[str, Any], known: tuple[str, ...]) -> Options:
        stated = {key: value for key, value in table.items() if key not in ("from", "to")}
        values = self._values(stated, known, f"a {kind}", kind, at)
        try:
            return Options(**values)
        except ConfigError as error:
            self._fail(error.message, error.fix, self._header(kind, at))

    def _values(self, stated: dict[str, Any], known: tuple[str, ...], owner: str, kind: str, at: int) -> dict[str, Any]:
        values = {}
        for key, raw in stated.items():
            if key not in known:
                error = unknown_option(key, owner, (*known, "from", "to") if kind in ("hop", "pipe") else known)
                self._fail(error.message, error.fix, self._key(kind, at, key))
            try:
                values[key] = read_option(key, raw)
            except ConfigError as error:
                self._fail(error.message, error.fix, self._key(kind, at, key))
        return values

    def _points(self, edges: Sequence[_Edge]) -> dict[str, Point]:
        names = list(dict.fromkeys(name for edge in edges for name in (edge.start, edge.end)))
        if len(names) > POINTS_MAX:
            self._fail(f"there are more than {POINTS_MAX:,} points", "split the path into several")
        points = self.tables.get("points", {})
        if not isinstance(points, dict) or not all(isinstance(each, dict) for each in points.values()):
            self._fail("points is not a table of tables", "write [points.X]", self._header("points", 0))
        for name in points:
            if name not in names:
                hint = _nearest(name, names)
                self._fail(
                    f"no hop comes to the point {name}",
                    f"{hint}the points are {', '.join(names)}",
                    self._header(f"points.{name}", 0),
                )
        return {
            name: Point(
                name,
                local=name in self.local,
                **self._values(points.get(name, {}), POINT_OPTIONS, "a point", f"points.{name}", 0),
            )
            for name in names
        }

    def _text(self, raw: object, key: str, kind: str, at: int) -> str:
        if not isinstance(raw, str):
            self._fail(f"{key} is not text", f'write {key} = "…"', self._key(kind, at, key))
        return raw

    # where it stands: tomllib does not say, so the usual way of writing is searched

    def _header(self, kind: str, at: int) -> TextSpan | None:
        found = list(re.finditer(rf"(?m)^[ \t]*(\[+[ \t]*{re.escape(kind)}[ \t]*\]+)", self.text))
        return TextSpan(found[at].start(1), found[at].end(1)) if at < len(found) else None

    def _key(self, kind: str, at: int, key: str) -> TextSpan | None:
        header = self._header(kind, at) if kind else TextSpan(0, 0)
        if header is None:
            return None
        end = re.compile(r"(?m)^[ \t]*\[").search(self.text, header.end)
        found = re.compile(rf"(?m)^[ \t]*({re.escape(key)})[ \t]*=").search(
            self.text, header.end, end.start() if end else len(self.text)
        )
        return TextSpan(found.start(1), found.end(1)) if found else header if kind else None

    def _fail_key(self, key: str, known: Iterable[str], owner: str, kind: str, at: int) -> NoReturn:
        span = self._key(kind, at, key) or self._header(key, 0)
        self._fail(f"{owner} has no key {key!r}", f"{_nearest(key, known)}known are {', '.join(known)}", span)

    def _fail(self, message: str, fix: str, span: TextSpan | None = None) -> NoReturn:
        raise PathSyntaxError(point_at(self.text, message, span) if span else message, fix=fix) from None


class _Graph:
    """Hops between points, read as one line on which branches part and meet."""

    def __init__(self, edges: Sequence[_Edge], points: dict[str, Point]) -> None:
        self.points = points
        self.out: dict[str, list[_Edge]] = {name: [] for name in points}
        self.into: dict[str, list[_Edge]] = {name: [] for name in points}
        for edge in edges:
            self.out[edge.start].append(edge)
            self.into[edge.end].append(edge)
        self._check_cycle()
        self.source = self._only("begins", self.into, "from which every message comes")
        self.sink = self._only("ends", self.out, "at which every message arrives")

    def line(self) -> list[Point | Way]:
        at = self.source
        line: list[Point | Way] = [self.points[at]]
        while at != self.sink:
            way, at = self._way(at)
            line += [way, self.points[at]]
        return line

    def _way(self, start: str) -> tuple[Way, str]:
        """What lies between `start` and the next point that every message comes to."""
        branches = [self._branch(edge) for edge in self.out[start]]
        ends = list(dict.fromkeys(end for _, end in branches))
        if len(ends) > 1:
            raise ConfigError(
                f"the branches from {start} do not meet: they lead to {' and '.join(ends)}",
                fix="let branches part at one point and meet at one, each a plain chain of hops between them",
            )
        [end] = ends
        if len(branches) == 1:
            [(branch, _)] = branches
            only = branch.steps[0]
            assert isinstance(only, Hop)
            return only, end
        return Parallel(tuple(branch for branch, _ in branches)), end

    def _branch(self, edge: _Edge) -> tuple[Branch, str]:
        """The plain chain that begins with `edge`, and where it ends."""
        steps: list[Hop | Point] = [edge.hop]
        alone = len(self.out[edge.start]) == 1
        while not alone and len(self.into[edge.end]) == 1 and len(self.out[edge.end]) == 1:
            steps.append(self.points[edge.end])
            edge = self.out[edge.end][0]
            steps.append(edge.hop)
        return Branch(tuple(steps)), edge.end

    def _only(self, verb: str, edges: dict[str, list[_Edge]], role: str) -> str:
        found = [name for name, near in edges.items() if not near]
        if len(found) > 1:
            raise ConfigError(
                f"the path {verb} at {len(found)} points: {', '.join(found[:5])}", fix=f"let there be one point {role}"
            )
        return found[0]

    def _check_cycle(self) -> None:
        """Take away points that nothing leads to, until none is left; what stays goes round in circles."""
        left = {name: len(near) for name, near in self.into.items()}
        free = [name for name, count in left.items() if not count]
        while free:
            name = free.pop()
            del left[name]
            for edge in self.out[name]:
                left[edge.end] -= 1
                if not left[edge.end]:
                    free.append(edge.end)
        if left:
            raise _Circle(self._cycle(left))

    def _cycle(self, left: dict[str, int]) -> list[str]:
        """Backwards, every point that is left has a neighbour that is left: going back must come round."""
        seen: dict[str, int] = {}
        trail: list[str] = []
        at = next(iter(left))
        while at not in seen:
            seen[at] = len(trail)
            trail.append(at)
            at = next(edge.start for edge in self.into[at] if edge.start in left)
        return [at, *reversed(trail[seen[at] :])]


def _nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}? " if close else ""


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
