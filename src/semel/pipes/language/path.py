"""A delivery path as data: places joined by ways.

    A -[loss=0.1,retries=5]-> B                          a hop
    A -> (P1 -[loss=0.1]-> X -[loss=0.2]-> P2){retries=inf,dedup=id} -> B      a pipe around an unreliable middle
    A ( -[loss=0.1]-> X -> | -[loss=0.3]-> ) B           two ways side by side

A place is a point or a whole pipe; a way is a hop or several branches side by side. Text, TOML and Python's `>>` all
make this one tree; the calculus, the simulator and the runtime all read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from semel.errors import ConfigError
from semel.kernel.text import check_id
from semel.pipes.language.options import LINK_OPTIONS, Options, check_probability


class Composable:
    """What may stand in `A >> hop(loss=0.1) >> B`. The rules are in `semel.pipes.language.compose`."""

    __slots__ = ()

    def __rshift__(self, other: object) -> Path:
        from semel.pipes.language.compose import join

        return join(self, other)

    def __or__(self, other: object) -> Parallel:
        from semel.pipes.language.compose import beside

        return beside(self, other)


@dataclass(frozen=True, slots=True)
class Point(Composable):
    """A worker. `crash`: it dies with this probability while it holds a copy, and starts again with empty memory."""

    name: str
    crash: float = 0.0
    durable: bool = False
    local: bool = False

    def __post_init__(self) -> None:
        check_id("point", self.name)
        check_probability("crash", self.crash)


@dataclass(frozen=True, slots=True)
class Hop(Composable):
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class Branch(Composable):
    """One of several ways side by side: hops, with points between them."""

    steps: tuple[Hop | Point, ...]

    def __post_init__(self) -> None:
        expected = [Hop if at % 2 == 0 else Point for at in range(len(self.steps))]
        if len(self.steps) % 2 == 0 or any(
            type(step) is not kind for step, kind in zip(self.steps, expected, strict=True)
        ):
            raise ConfigError("a branch is hop, point, hop …", fix="begin and end each branch with a hop")


@dataclass(frozen=True, slots=True)
class Parallel(Composable):
    """Every message is sent over every branch."""

    branches: tuple[Branch, ...]

    def __post_init__(self) -> None:
        if len(self.branches) < 2:
            raise ConfigError("one branch is not side by side with anything", fix="give two branches or more")


@dataclass(frozen=True, slots=True)
class Pipe(Composable):
    """An inner path whose first point resends until its last point has confirmed, whatever lies between."""

    inner: Path
    options: Options

    def __post_init__(self) -> None:
        if len(self.inner.steps) < 2:
            raise ConfigError(f"the pipe at {self.inner.first.name} has one end", fix="give it two: (P1 -> P2)")
        for name in LINK_OPTIONS:
            if name in self.options.stated():
                raise ConfigError(f"a pipe has no {name} of its own", fix=f"put {name} on a hop inside the pipe")

    @property
    def sender(self) -> Point:
        return self.inner.first

    @property
    def receiver(self) -> Point:
        return self.inner.last


Place = Point | Pipe
Way = Hop | Parallel


@dataclass(frozen=True, slots=True)
class Path(Composable):
    """place, way, place, way, place."""

    steps: tuple[Place | Way, ...]
    name: str = field(default="path", compare=False)

    def __post_init__(self) -> None:
        if not self.steps:
            raise ConfigError("the path is empty", fix="write at least one point, such as A -> B")
        for at, step in enumerate(self.steps):
            if isinstance(step, Point | Pipe) is not (at % 2 == 0):
                raise ConfigError("places and ways must take turns", fix="write place, way, place, such as A -> B -> C")
        if len(self.steps) % 2 == 0:
            raise ConfigError("the path ends in a way", fix="name the point where it leads")
        _check_unique([point.name for point in self.points()])

    def __str__(self) -> str:
        from semel.pipes.language.notation import format_path

        return format_path(self)

    @property
    def first(self) -> Point:
        place = self.steps[0]
        assert isinstance(place, Point | Pipe)
        return place if isinstance(place, Point) else place.sender

    @property
    def last(self) -> Point:
        place = self.steps[-1]
        assert isinstance(place, Point | Pipe)
        return place if isinstance(place, Point) else place.receiver

    def points(self) -> Iterator[Point]:
        """Every point in the order in which a message meets it."""
        for step in self.steps:
            if isinstance(step, Point):
                yield step
            elif isinstance(step, Pipe):
                yield from step.inner.points()
            elif isinstance(step, Parallel):
                yield from (each for branch in step.branches for each in branch.steps if isinstance(each, Point))


def _check_unique(names: list[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ConfigError(f"the path comes to {name} twice: a cycle", fix="give every point a name of its own")
