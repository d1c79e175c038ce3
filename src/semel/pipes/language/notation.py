"""A path as text, both ways: `parse_path` reads it and `format_path` writes it.

    A -[loss=10%,retries=5]-> B -[dedup=id]-> C
    A -> (P1 -[loss=.1]-> X{crash=.05} -> P2){retries=inf,dedup=id} -> B    // a pipe around an unreliable middle
    A ( -[loss=.1]-> X -> | -[loss=.3]-> ) B                                // two ways side by side
    A -[loss=.1 | loss=.3]-> B                                              // the same for two bare links
    A->0#P1 ; P1->P2 ; P2->0#B                                              // legs, and local addresses

The grammar:

    path    = leg { ";" leg }                      each leg begins where the last one ended
    leg     = place { way place }
    place   = point | route | "(" path ")" [ options ]
    way     = arrow | "(" branch "|" branch { "|" branch } ")"
    branch  = arrow { point arrow }
    arrow   = "->" | "-[" [ list ] { "|" [ list ] } "]->"
    point   = [ number "#" ] name [ options ]
    route   = "[" point { ";" point } "]"
    options = "{" [ list ] "}"
    list    = name "=" value { "," name "=" value }

Text may come from a stranger: its length, depth and number of points are limited, and every mistake becomes a
`PathSyntaxError` that points at the word.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from semel.errors import ConfigError, InputError, PathSyntaxError
from semel.kernel.text import check_id
from semel.pipes.language.options import (
    HOP_OPTIONS,
    PIPE_OPTIONS,
    POINT_OPTIONS,
    ConfirmOn,
    DedupBy,
    Options,
    read_option,
    show_option,
    unknown_option,
)
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Place, Point, Way

TEXT_CHARS_MAX = 100_000
NESTING_MAX = 50
POINTS_MAX = 1_000
HOPS_MAX = 2_000

_SHOWN_CHARS = 72
_BEFORE_CARET = 48

_TOKEN = re.compile(
    r"""
      (?P<space>(?:\s|//[^\n]*)+)
    | (?P<arrow>->)
    | (?P<open_hop>-\s*\[)
    | (?P<quoted>"(?:[^"\\\n]|\\.)*")
    | (?P<type>\d+\#)
    | (?P<name>(?:[^\W]|[.~@:%+]|/(?!/))(?:[^\W]|[.~@:%+]|-(?![>\[\s-])|/(?!/))*)
    | (?P<mark>[()\[\]{}|;,=])
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"(?:(?!->|//)[^\s,|\[\]{}()=;\"])+")
_PLAIN_NAME = re.compile(r"(?:[^\W]|[.~@:%+]|/(?!/))(?:[^\W]|[.~@:%+]|-(?![>\[\s-]|\Z)|/(?!/))*\Z")


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A part of the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    span: TextSpan


def parse_path(text: str, name: str = "path") -> Path:
    """The path that `text` describes, or a `PathSyntaxError` that shows where it stops making sense."""
    if len(text) > TEXT_CHARS_MAX:
        raise PathSyntaxError(
            f"the path has {len(text):,} characters, the limit is {TEXT_CHARS_MAX:,}", fix="split it into several paths"
        )
    return replace(_Parser(text).parse(), name=name)


def format_path(path: Path) -> str:
    """The text from which `parse_path` makes an equal path."""
    return " ".join(_format_step(step) for step in path.steps)


# -- reading


class _Parser:
    """One token of look-ahead and no way back: the time it takes grows with the length of the text alone."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.hops = 0
        self.seen: dict[str, TextSpan] = {}
        self.next = self._scan()

    def parse(self) -> Path:
        if self.next.kind == "end":
            self._fail("the path is empty", "write at least one point, such as A -> B", self.next.span)
        path = self._path(None)
        if self.next.text == ")":
            self._fail("this ) closes nothing", "remove it, or open a pipe with ( before its first point")
        return path

    # tokens

    def _scan(self) -> _Token:
        while True:
            if self.at == len(self.text):
                return _Token("end", "", TextSpan(self.at, self.at))
            found = _TOKEN.match(self.text, self.at)
            if found is None:
                return _Token("odd", self.text[self.at], TextSpan(self.at, self.at + 1))
            start, self.at = self.at, found.end()
            if found.lastgroup != "space":
                kind = found[0] if found.lastgroup == "mark" else str(found.lastgroup)
                return _Token(kind, found[0], TextSpan(start, self.at))

    def _take(self) -> _Token:
        token = self.next
        self.next = self._scan()
        return token

    def _accept(self, kind: str) -> _Token | None:
        return self._take() if self.next.kind == kind else None

    def _close(self, kind: str, opened: _Token, what: str) -> _Token:
        closing = self._accept(kind)
        if closing is None:
            if self.next.kind == "end":
                self._fail(f"{what} is not closed", f"add {kind}", opened.span)
            self._fail(
                f"{self._found()} where {what} should go on or end",
                f"close it with {kind}",
                self.next.span,
                opened.span,
            )
        return closing

    # paths

    def _path(self, opened: _Token | None) -> Path:
        """Legs up to the end, or up to the `)` of a pipe."""
        steps = self._leg()
        while self._accept(";"):
            if self.next.kind in ("end", ")"):
                break
            self._leg(steps)
        if self.next.kind not in ("end", ")"):
            self._fail_between()
        try:
            return Path(tuple(steps))
        except ConfigError as error:
            self._fail(error.message, error.fix, opened.span if opened else TextSpan(0, len(self.text)))

    def _leg(self, before: list[Place | Way] | None = None) -> list[Place | Way]:
        """place way place …; a further leg goes on where the steps `before` end."""
        steps: list[Place | Way] = [] if before is None else before
        if before is None:
            steps += self._places()
        else:
            self._meet(steps)
        while self.next.kind in ("arrow", "open_hop", "("):
            steps.append(self._way())
            self._check_place_follows()
            steps += self._places()
        return steps

    def _meet(self, steps: list[Place | Way]) -> None:
        """Read the first place of a leg, which is the last place of the leg before."""
        last = steps[-1]
        assert isinstance(last, Point | Pipe)
        end = last if isinstance(last, Point) else last.receiver
        was = self.seen.pop(end.name)
        first = self.next
        places = self._places()
        begin = places[0]
        assert isinstance(begin, Point | Pipe)
        start = begin if isinstance(begin, Point) else begin.sender
        if start.name != end.name:
            self._fail(
                f"the legs do not meet: one ends at {end.name}, the next begins at {start.name}",
                f"begin the next leg with {end.name}", first.span, was,
            )  # fmt: skip
        both = self._one_point(end, start, was, first.span)
        if isinstance(last, Pipe) and isinstance(begin, Pipe):
            self._fail(
                f"two pipes share the end {end.name}",
                "put a hop between them: (P1 -> P2) -> (P3 -> P4)",
                first.span,
                was,
            )
        whole = _with_first(begin, both) if isinstance(begin, Pipe) else _with_last(last, both)
        steps[-1:] = [whole, *places[1:]]

    def _one_point(self, end: Point, start: Point, was: TextSpan, here: TextSpan) -> Point:
        """A point that is written twice may be described at either place."""
        bare = Point(end.name)
        points = [replace(each, local=False) for each in (end, start)]
        if points[0] != bare and points[1] not in (bare, points[0]):
            self._fail(f"{end.name} is described twice", "state its options at one of the two places", here, was)
        chosen = points[0] if points[0] != bare else points[1]
        return replace(chosen, local=end.local or start.local)

    def _places(self) -> list[Place | Way]:
        """One place; a route gives several, with plain hops between them."""
        if self.next.kind == "[":
            return self._route()
        return [self._pipe() if self.next.kind == "(" else self._point()]

    def _pipe(self) -> Pipe:
        opened = self._take()
        self.depth += 1
        if self.depth > NESTING_MAX:
            self._fail(f"pipes are nested deeper than {NESTING_MAX}", "take some of them apart", opened.span)
        if self.next.kind in ("arrow", "open_hop"):
            self._fail(
                "branches stand between two points, and the first one is missing",
                "write A ( -> X -> | -> ) B",
                opened.span,
            )
        inner = self._path(opened)
        closing = self._close(")", opened, "the pipe")
        self.depth -= 1
        if len(inner.steps) < 2:
            self._fail(
                "a pipe needs two ends", "write (P1 -> P2), or take the parentheses away",
                TextSpan(opened.span.start, closing.span.end),
            )  # fmt: skip
        stated, braces = self._braces("a pipe", PIPE_OPTIONS)
        return Pipe(inner, self._options(stated, braces))

    def _route(self) -> list[Place | Way]:
        opened = self._take()
        steps: list[Place | Way] = [self._point()]
        while self._accept(";"):
            self._count_hop(self.next.span)
            steps += [Hop(), self._point()]
        self._close("]", opened, "the route")
        return steps

    def _point(self) -> Point:
        address = self._accept("type")
        token = self.next
        if token.kind not in ("name", "quoted"):
            self._fail_point(address)
        self._take()
        if address is not None and address.text not in ("0#", "1#"):
            self._fail(
                f"{address.text}{token.text} has an address type that is not known",
                "use 0# for a local address or 1# for a peer by name", address.span,
            )  # fmt: skip
        name = self._name(token)
        self._remember(name, token.span)
        stated, _ = self._braces("a point", POINT_OPTIONS)
        values = {key: value for key, (value, _) in stated.items()}
        return Point(name, local=address is not None and address.text == "0#", **values)  # type: ignore[arg-type]

    def _name(self, token: _Token) -> str:
        try:
            name = json.loads(token.text) if token.kind == "quoted" else token.text
        except ValueError:
            self._fail(
                "the quoted name has an escape that is not known", 'inside quotes use \\" \\\\ \\n \\u00e9', token.span
            )
        try:
            return check_id("the name of a point", name)
        except InputError as error:
            self._fail(error.message, error.fix, token.span)

    def _remember(self, name: str, span: TextSpan) -> None:
        if name in self.seen:
            self._fail(
                f"the path comes to {name} twice: a cycle",
                "give every point a name of its own; legs that go on where the last one ended are joined by ;",
                span, self.seen[name],
            )  # fmt: skip
        self.seen[name] = span
        if len(self.seen) > POINTS_MAX:
            self._fail(f"the path has more than {POINTS_MAX:,} points", "split it into several paths", span)

    # ways

    def _way(self) -> Way:
        if self.next.kind == "(":
            return self._parallel()
        hops = self._arrow()
        return hops[0] if len(hops) == 1 else Parallel(tuple(Branch((hop,)) for hop in hops))

    def _parallel(self) -> Parallel:
        opened = self._take()
        if self.next.kind not in ("arrow", "open_hop"):
            self._fail_group(opened)
        branches = [self._branch()]
        while self._accept("|"):
            branches.append(self._branch())
        closing = self._close(")", opened, "the group of branches")
        if len(branches) < 2:
            self._fail(
                "one branch is not side by side with anything", "give two branches, or take the parentheses away",
                TextSpan(opened.span.start, closing.span.end),
            )  # fmt: skip
        return Parallel(tuple(branches))

    def _branch(self) -> Branch:
        steps: list[Hop | Point] = [self._branch_hop()]
        while self.next.kind not in ("|", ")"):
            if self.next.kind in ("(", "["):
                what = "a pipe" if self.next.kind == "(" else "a route"
                self._fail(f"{what} cannot stand inside a branch", "use hops and points there: -> X ->")
            if self.next.kind == "end":
                break
            steps.append(self._point())
            steps.append(self._branch_hop())
        return Branch(tuple(steps))

    def _branch_hop(self) -> Hop:
        if self.next.kind not in ("arrow", "open_hop"):
            self._fail(f"{self._found()} where a branch needs an arrow", "begin and end each branch with one: -> X ->")
        token = self.next
        hops = self._arrow()
        if len(hops) > 1:
            self._fail("a branch cannot branch again", "write each of the ways as a branch of its own", token.span)
        return hops[0]

    def _arrow(self) -> list[Hop]:
        opened = self._take()
        if opened.kind == "arrow":
            self._count_hop(opened.span)
            return [Hop()]
        hops = []
        while True:
            self._count_hop(opened.span)
            hops.append(Hop(self._options(self._list("a hop", HOP_OPTIONS, ("]", "|"), opened), opened.span)))
            if not self._accept("|"):
                break
        closing = self._close("]", opened, "the bracket of the hop")
        if not self._accept("arrow"):
            self._fail("the hop has no arrow", "write -> behind the bracket: -[loss=0.1]->", closing.span)
        return hops

    def _count_hop(self, span: TextSpan) -> None:
        self.hops += 1
        if self.hops > HOPS_MAX:
            self._fail(f"the path has more than {HOPS_MAX:,} hops", "split it into several paths", span)

    # options

    def _braces(self, owner: str, known: tuple[str, ...]) -> tuple[_Stated, TextSpan]:
        opened = self._accept("{")
        if opened is None:
            return {}, TextSpan(self.at, self.at)
        stated = self._list(owner, known, ("}",), opened)
        closing = self._close("}", opened, "the brace")
        return stated, TextSpan(opened.span.start, closing.span.end)

    def _list(self, owner: str, known: tuple[str, ...], ends: tuple[str, ...], opened: _Token) -> _Stated:
        stated: _Stated = {}
        while self.next.kind not in ends:
            key = self._key(owner, opened, ends)
            if key.text not in known:
                error = unknown_option(key.text, owner, known)
                self._fail(error.message, error.fix, key.span)
            if key.text in stated:
                self._fail(f"{key.text} is given twice", "keep one of them", key.span, stated[key.text][1])
            stated[key.text] = (self._value(key), key.span)
            if self.next.kind != "," and self.next.kind not in ends:
                if self.next.kind in ("name", "type"):
                    self._fail("a comma is missing", "write options as a=1, b=2")
                self._close(ends[0], opened, "the list of options")
            if not self._accept(","):
                break
        return stated

    def _key(self, owner: str, opened: _Token, ends: tuple[str, ...]) -> _Token:
        if self.next.kind == "end":
            self._close(ends[0], opened, "the list of options")
        if self.next.kind != "name":
            self._fail(
                f"{self._found()} where an option of {owner} should be",
                "write options as a=1, b=2",
                self.next.span,
                opened.span,
            )
        return self._take()

    def _value(self, key: _Token) -> object:
        if self.next.kind != "=":
            self._fail(f"{key.text} has no value", f"write {key.text}=…", key.span)
        # values are read as words, not as tokens: -1 and 1e-3 are one word each
        while (space := _TOKEN.match(self.text, self.at)) and space.lastgroup == "space":
            self.at = space.end()
        found = _WORD.match(self.text, self.at)
        if found is None:
            self._fail(f"{key.text} has no value", f"write {key.text}=…", key.span)
        span = TextSpan(self.at, found.end())
        self.at = found.end()
        self.next = self._scan()
        try:
            return read_option(key.text, found[0])
        except ConfigError as error:
            self._fail(error.message, error.fix, span)

    def _options(self, stated: _Stated, braces: TextSpan) -> Options:
        spans = {name: span for name, (_, span) in stated.items()}
        values = {name: value for name, (value, _) in stated.items()}
        if values.get("repeats") and "retries" in values:
            self._fail(
                "retries and repeats exclude each other",
                "use retries (resend until confirmed) or repeats (blind copies)", spans["repeats"], spans["retries"],
            )  # fmt: skip
        if values.get("dedup") is not DedupBy.ID:
            for name in ("keep", "size"):
                if name in values:
                    self._fail(f"{name} bounds the memory of ids", "add dedup=id, or leave it out", spans[name])
        if values.get("confirm", ConfirmOn.RECEIPT) is not ConfirmOn.RECEIPT and values.get("retries") is None:
            self._fail("nothing is confirmed where nothing is resent", "add retries=n or retries=inf", spans["confirm"])
        try:
            return Options(**values)  # type: ignore[arg-type]
        except ConfigError as error:
            self._fail(error.message, error.fix, braces)

    # what went wrong

    def _check_place_follows(self) -> None:
        kind = self.next.kind
        if kind in ("arrow", "open_hop"):
            self._fail("two arrows without a point between them", "name the point: A -> X -> B")
        if kind in ("end", ";", ")"):
            self._fail("the path ends in an arrow", "name the point where it leads", self.next.span)

    def _fail_point(self, address: _Token | None) -> NoReturn:
        token = self.next
        if address is not None:
            self._fail(f"{address.text} has no name", "write 0#B", address.span)
        if token.kind in ("arrow", "open_hop"):
            self._fail("the arrow comes from nowhere", "name the point where it begins: A -> B")
        self._fail(
            f"{self._found()} where a point should be",
            self._fix_odd("name a point: letters, digits and . _ ~ @ : % + / -"),
        )

    def _fail_between(self) -> NoReturn:
        token = self.next
        if token.kind in ("name", "quoted", "type", "["):
            self._fail(f"an arrow is missing before {token.text}", "write -> between two points")
        if token.kind == "{":
            self._fail(
                "options must stand directly behind a point or a pipe, once", "merge them: X{crash=0.1,durable=yes}"
            )
        self._fail(
            f"{self._found()} where an arrow should be", self._fix_odd("write -> or -[loss=0.1]-> between two points")
        )

    def _fail_group(self, opened: _Token) -> NoReturn:
        """`A (P1 -> P2) B`: a pipe where a way should be."""
        if self.next.kind == "end":
            self._fail("the group of branches is not closed", "add )", opened.span)
        self._fail(
            "an arrow is missing before this parenthesis",
            "write A -> (P1 -> P2) for a pipe; branches begin with an arrow: A ( -> X -> | -> ) B", opened.span,
        )  # fmt: skip

    def _found(self) -> str:
        return "the text ends" if self.next.kind == "end" else f"{self.next.text} stands"

    def _fix_odd(self, otherwise: str) -> str:
        odd = self.text[self.next.span.start : self.next.span.start + 3]
        if odd[:1] in "→⇒" and odd:
            return "write -> for the arrow"
        if odd[:1] in "-=–—" and odd:
            return "an arrow is written -> or -[loss=0.1]->"
        if odd[:1] == '"':
            return 'close the quoted name with "'
        if odd[:1] == "#":
            return "addresses are written 0#B; comments begin with //"
        return otherwise

    def _fail(self, message: str, fix: str, *spans: TextSpan) -> NoReturn:
        where = spans or (self.next.span,)
        raise PathSyntaxError(point_at(self.text, message, *where), fix=fix) from None


_Stated = dict[str, tuple[object, TextSpan]]


def _with_first(place: Place, point: Point) -> Place:
    """`place` with its first point described as `point`."""
    if isinstance(place, Point):
        return point
    first = place.inner.steps[0]
    assert isinstance(first, Point | Pipe)
    return replace(place, inner=replace(place.inner, steps=(_with_first(first, point), *place.inner.steps[1:])))


def _with_last(place: Place, point: Point) -> Place:
    if isinstance(place, Point):
        return point
    last = place.inner.steps[-1]
    assert isinstance(last, Point | Pipe)
    return replace(place, inner=replace(place.inner, steps=(*place.inner.steps[:-1], _with_last(last, point))))


# -- pointing


def point_at(text: str, message: str, *spans: TextSpan) -> str:
    """`message` with line and column, and the lines concerned with carets under the words."""
    line, column = _line_and_column(text, spans[0].start)
    others = "".join(
        f", and line {at[0]}, column {at[1]}" for at in (_line_and_column(text, s.start) for s in spans[1:])
    )
    shown: list[str] = []
    for number in sorted({_line_and_column(text, span.start)[0] for span in spans}):
        on_line = [span for span in spans if _line_and_column(text, span.start)[0] == number]
        shown += _carets(text, on_line)
    return "\n".join([f"line {line}, column {column}{others}: {message}", *shown])


def _line_and_column(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1


def _carets(text: str, spans: list[TextSpan]) -> Iterator[str]:
    """The line, cut to what fits on a terminal, and the carets under it."""
    begin = text.rfind("\n", 0, spans[0].start) + 1
    end = text.find("\n", begin)
    line = text[begin : end if end >= 0 else len(text)]
    marked = sorted((span.start - begin, max(span.end - begin, span.start - begin + 1)) for span in spans)
    left = 0 if marked[-1][0] < _SHOWN_CHARS - 8 else max(0, spans[0].start - begin - _BEFORE_CARET)
    right = left + _SHOWN_CHARS
    head, tail = "…" if left else "", "…" if len(line) > right else ""
    marks = {at for start, stop in marked for at in range(start, min(stop, len(line) + 1, right))}
    # one place behind the end of the line, where something is missing
    window = line[left:right]
    under = "".join(("^" if left + at in marks else " ") * char_columns(char) for at, char in enumerate(f"{window} "))
    yield f"    {head}{''.join(printable(char) for char in window)}{tail}"
    yield f"    {' ' * len(head)}{under}".rstrip()


def char_columns(char: str) -> int:
    """How wide a terminal draws it."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def printable(char: str) -> str:
    """The character, or one that can be seen and does no harm."""
    return char if char.isprintable() else " " if char.isspace() else "\ufffd"


# -- writing


def _format_step(step: Place | Way) -> str:
    if isinstance(step, Point):
        return format_point(step)
    if isinstance(step, Hop):
        return format_hop(step)
    if isinstance(step, Pipe):
        return f"({format_path(step.inner)}){_in_braces(step.options.stated())}"
    if all(len(branch.steps) == 1 for branch in step.branches):
        return f"-[{' | '.join(format_options(_only_hop(branch).options) for branch in step.branches)}]->"
    return f"( {' | '.join(' '.join(_format_step(each) for each in branch.steps) for branch in step.branches)} )"


def _only_hop(branch: Branch) -> Hop:
    hop = branch.steps[0]
    assert isinstance(hop, Hop)
    return hop


def format_hop(hop: Hop) -> str:
    stated = format_options(hop.options)
    return f"-[{stated}]->" if stated else "->"


def format_point(point: Point) -> str:
    stated = {name: value for name, value in (("crash", point.crash), ("durable", point.durable)) if value}
    name = point.name if _PLAIN_NAME.match(point.name) else json.dumps(point.name, ensure_ascii=False)
    return f"{'0#' if point.local else ''}{name}{_in_braces(stated)}"


def format_options(options: Options) -> str:
    return _listed(options.stated().items())


def _in_braces(stated: Mapping[str, object]) -> str:
    return f"{{{_listed(stated.items())}}}" if stated else ""


def _listed(stated: Iterable[tuple[str, object]]) -> str:
    return ",".join(f"{name}={show_option(name, value)}" for name, value in stated)
