"""A path in Python, written as it runs: `A >> P1 >> X >> P2 >> B`.

>>> A, X, B = points("A", "X", "B")
>>> P1, P2 = pipe_ends("P1", "P2", retries=math.inf, dedup="id")
>>> print(A >> P1 >> hop(loss=0.1) >> X >> hop(loss=0.2) >> P2 >> B)
A -> (P1 -[loss=0.1]-> X -[loss=0.2]-> P2){retries=inf,dedup=id} -> B
>>> print(A >> (hop(loss=0.1) >> X >> hop() | hop(loss=0.3)) >> B)
A ( -[loss=0.1]-> X -> | -[loss=0.3]-> ) B

Two points without a hop between them are joined by a perfect one. The result is a `Path`. One that still lacks
something is an `Unfinished`: it may be gone on with, and it says what is missing when it is used as a path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from semel.errors import ConfigError
from semel.pipes.language.options import HOP_OPTIONS, PIPE_OPTIONS, POINT_OPTIONS, Options, read_option, unknown_option
from semel.pipes.language.path import Branch, Composable, Hop, Parallel, Path, Pipe, Place, Point, Way

__all__ = ["PipeEnd", "Unfinished", "beside", "hop", "inf", "join", "pipe_ends", "point", "points"]

inf = math.inf


def point(name: str, **options: object) -> Point:
    """A point: `point("X", crash=0.1)`."""
    return Point(name, **_read("a point", POINT_OPTIONS, options))  # type: ignore[arg-type]


def points(*names: str) -> tuple[Point, ...]:
    return tuple(Point(name) for name in names)


def hop(**options: object) -> Hop:
    """A hop with the options of the text form: `hop(loss=0.1, retries=5, dedup="id", timeout="200ms")`."""
    return Hop(_options("a hop", HOP_OPTIONS, options))


def pipe_ends(sender: str | Point, receiver: str | Point, **options: object) -> tuple[PipeEnd, PipeEnd]:
    """The two ends of a pipe: whatever is written between them lies inside it."""
    ends = [Point(end) if isinstance(end, str) else end for end in (sender, receiver)]
    pair = _Pair(ends[0].name, ends[1].name, _options("a pipe", PIPE_OPTIONS, options))
    return PipeEnd(ends[0], pair, opens=True), PipeEnd(ends[1], pair, opens=False)


def _options(owner: str, known: tuple[str, ...], given: dict[str, object]) -> Options:
    return Options(**_read(owner, known, given))  # type: ignore[arg-type]


def _read(owner: str, known: tuple[str, ...], given: dict[str, object]) -> dict[str, object]:
    for name in given:
        if name not in known:
            raise unknown_option(name, owner, known)
    return {name: read_option(name, value) for name, value in given.items()}


@dataclass(frozen=True, slots=True)
class _Pair:
    sender: str
    receiver: str
    options: Options


@dataclass(frozen=True, slots=True)
class PipeEnd(Composable):
    """One end of a pipe that is still being written."""

    point: Point
    pair: _Pair
    opens: bool


@dataclass(frozen=True, slots=True)
class _Open:
    """A pipe whose sender stands at `at`, and whose receiver has not come yet."""

    pair: _Pair
    at: int


class Unfinished(Path):
    """A path that still lacks something. Any look into it says what."""

    __slots__ = ("_opened", "_parts")
    _parts: tuple[Place | Way, ...]
    _opened: tuple[_Open, ...]

    def __init__(self, parts: Sequence[Place | Way], opened: Sequence[_Open] = ()) -> None:
        object.__setattr__(self, "_parts", tuple(parts))
        object.__setattr__(self, "_opened", tuple(opened))

    @property
    def steps(self) -> NoReturn:
        self._refuse()

    def __repr__(self) -> str:
        return f"<unfinished path of {len(self._parts)} parts>"

    __str__ = __repr__

    def _refuse(self) -> NoReturn:
        if self._opened:
            pair = self._opened[-1].pair
            raise ConfigError(
                f"the pipe {pair.sender}..{pair.receiver} stays open: {pair.receiver} never comes",
                fix=f"go on with >> {pair.receiver}",
            )
        side = "ends" if isinstance(self._parts[-1], Hop | Parallel) else "begins"
        raise ConfigError(f"the path {side} with a hop", fix="name the point there: A >> hop() >> B")


def join(left: object, right: object) -> Path:
    """`left >> right`."""
    parts: list[Place | Way] = []
    opened: list[_Open] = []
    for value in (left, right):
        _add(parts, opened, value)
    if opened or not _is_place(parts[0]) or not _is_place(parts[-1]):
        return Unfinished(parts, opened)
    return Path(tuple(parts))


def beside(left: object, right: object) -> Parallel:
    """`left | right`: two ways side by side."""
    return Parallel((*_branches(left), *_branches(right)))


def _add(parts: list[Place | Way], opened: list[_Open], value: object) -> None:
    before = len(parts)
    _extend(parts, _parts(value))
    # where the first of them stands, now that a hop may have come between
    first = len(parts) - len(_parts(value))
    if isinstance(value, Unfinished):
        opened += [_Open(each.pair, each.at + first) for each in value._opened]
    if isinstance(value, PipeEnd) and value.opens:
        opened.append(_Open(value.pair, first))
    if isinstance(value, PipeEnd) and not value.opens:
        _close(parts, opened, value.pair, began=before > 0)


def _extend(parts: list[Place | Way], more: Sequence[Place | Way]) -> None:
    if parts and _is_place(parts[-1]) and _is_place(more[0]):
        parts.append(Hop())
    elif parts and not _is_place(parts[-1]) and not _is_place(more[0]):
        raise ConfigError("two hops without a point between them", fix="name it: A >> hop() >> X >> hop() >> B")
    parts += more


def _close(parts: list[Place | Way], opened: list[_Open], pair: _Pair, *, began: bool) -> None:
    if not began or not opened:
        raise ConfigError(
            f"{pair.receiver} ends the pipe {pair.sender}..{pair.receiver}, which has not begun",
            fix=f"write {pair.sender} >> … >> {pair.receiver}, without parentheses between them",
        )
    inner = opened.pop()
    if inner.pair != pair:
        raise ConfigError(
            f"the pipes {pair.sender}..{pair.receiver} and {inner.pair.sender}..{inner.pair.receiver} cross",
            fix=f"end the inner pipe first: {inner.pair.receiver} before {pair.receiver}",
        )
    parts[inner.at :] = [Pipe(Path(tuple(parts[inner.at :])), pair.options)]


def _parts(value: object) -> Sequence[Place | Way]:
    if isinstance(value, Unfinished):
        return value._parts
    if isinstance(value, Path | Branch):
        return value.steps
    if isinstance(value, PipeEnd):
        return (value.point,)
    if isinstance(value, Point | Pipe | Hop | Parallel):
        return (value,)
    raise ConfigError(
        f"{value!r} cannot be a part of a path", fix='use point("A"), hop(…), pipe_ends("P1", "P2") or a path'
    )


def _branches(value: object) -> Sequence[Branch]:
    if isinstance(value, Parallel):
        return value.branches
    if isinstance(value, Unfinished) and not value._opened:
        steps = [step for step in value._parts if isinstance(step, Hop | Point)]
        if len(steps) == len(value._parts):
            return (Branch(tuple(steps)),)
    if isinstance(value, Hop | Branch):
        return (Branch((value,)) if isinstance(value, Hop) else value,)
    raise ConfigError(
        f"{value!r} is not a branch", fix="begin and end each branch with a hop: hop() >> X >> hop() | hop()"
    )


def _is_place(part: Place | Way) -> bool:
    return isinstance(part, Point | Pipe)
