"""A delivery path as data: places joined by ways.

    A -[loss=0.1,retries=5]-> B                          a hop
    A -> (P1 -[loss=0.1]-> X -[loss=0.2]-> P2){retries=inf,dedup=id} -> B      a pipe around an unreliable middle
    A ( -[loss=0.1]-> X -> | -[loss=0.3]-> ) B           two ways side by side

A place is a point or a whole pipe; a way is a hop or several branches side by side. Text, TOML and Python's `>>` all
make this one tree; the calculus, the simulator and the runtime all read it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import Enum

from semel.errors import ConfigError
from semel.kernel.text import check_id

LINK_OPTIONS = ("loss", "duplicate", "confirm_loss", "delay", "repeats")
"""What only a hop has: it is said of the link that the hop goes over, and a pipe has no link of its own."""

TIME_MIN_S = 0.001
TIME_MAX_S = 366 * 86400.0
"""Of a timeout, a delay and a memory: shorter is no time to wait in, and longer is nobody's plan."""

BACKOFF_MAX = 1000
BACKOFF_WAIT_MAX_S = 60.0
"""A wait grows up to this, unless it begins longer."""


class Composable:
    """What may stand in `A >> hop(loss=0.1) >> B`. The rules are in `semel.pipes.language.compose`."""

    __slots__ = ()

    def __rshift__(self, other: object) -> Path:
        from semel.pipes.language.compose import join

        return join(self, other)

    def __or__(self, other: object) -> Parallel:
        from semel.pipes.language.compose import beside

        return beside(self, other)


class DedupBy(Enum):
    """How a receiving end tells new from old. INDEX never goes back, STRICT lets every index pass once and in order.

    Both go by the hop's own index. SESSION goes by the producer's: every index of its session passes once and in
    order, also when what lies between begins anew and numbers again. It takes a durable receiver.
    """

    NONE = "none"
    ID = "id"
    INDEX = "index"
    STRICT = "strict"
    SESSION = "session"


class ConfirmOn(Enum):
    """When a receiving end confirms: on arrival, after its handler, or when its own onward way has confirmed."""

    RECEIPT = "receipt"
    PROCESSING = "processing"
    CASCADE = "cascade"


@dataclass(frozen=True, slots=True)
class Options:
    """Of a hop, or of a pipe. `retries` None: one send and no confirms; `math.inf`: until confirmed.

    The wait for a confirm begins at `timeout` and grows by the factor `backoff` with each attempt, up to
    `longest_wait`; `jitter` takes up to this share off each wait.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    confirm_loss: float = 0.0
    retries: float | None = None
    repeats: int = 0
    timeout: float = 1.0
    backoff: float = 1.0
    jitter: float = 0.0
    delay: float = 0.0
    window: int = 1
    dedup: DedupBy = DedupBy.NONE
    keep: float | None = None
    size: int | None = None
    confirm: ConfirmOn = ConfirmOn.RECEIPT
    durable: bool = False

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "confirm_loss", "jitter"):
            _check_probability(name, getattr(self, name))
        _check_retries(self.retries)
        if not _is_whole(self.repeats) or self.repeats < 0 or (self.repeats and self.retries is not None):
            raise ConfigError(
                f"repeats is {self.repeats}" + (" beside retries" if self.retries is not None else ""),
                fix="use retries (resend until confirmed) or repeats (blind copies, 0 or more), not both",
            )
        for name in ("timeout", "keep"):
            _check_time(name, getattr(self, name), TIME_MIN_S)
        _check_time("delay", self.delay, 0.0)
        for name in ("window", "size"):
            _check_count(name, getattr(self, name))
        if not 1 <= self.backoff <= BACKOFF_MAX:
            raise ConfigError(f"backoff is {self.backoff}", fix=f"use a factor from 1 (a fixed wait) to {BACKOFF_MAX}")
        if (self.keep is not None or self.size is not None) and self.dedup is not DedupBy.ID:
            raise ConfigError("keep and size bound the memory of ids", fix="add dedup=id, or leave them out")
        if self.confirm is not ConfirmOn.RECEIPT and self.retries is None:
            raise ConfigError(f"confirm={self.confirm.value} without retries", fix="add retries=n or retries=inf")

    @property
    def resends(self) -> bool:
        return self.retries is not None

    @property
    def attempts(self) -> int | None:
        """How often one message is sent at most; None when there is no end."""
        if self.retries is None:
            return 1
        return None if math.isinf(self.retries) else int(self.retries) + 1

    @property
    def longest_wait(self) -> float:
        """Where `backoff` stops to grow, in seconds."""
        return max(self.timeout, BACKOFF_WAIT_MAX_S)

    def stated(self) -> dict[str, object]:
        """What differs from the defaults."""
        default = type(self)()
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in named if value != getattr(default, name)}


@dataclass(frozen=True, slots=True)
class Point(Composable):
    """A worker. `crash`: it dies with this probability while it holds a copy, and starts again with empty memory."""

    name: str
    crash: float = 0.0
    durable: bool = False
    local: bool = False

    def __post_init__(self) -> None:
        check_id("point", self.name)
        _check_probability("crash", self.crash)


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


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}", fix="use a probability from 0 to 1")


def _check_retries(retries: float | None) -> None:
    if retries is not None and retries != math.inf and not (_is_whole(retries) and retries >= 0):
        raise ConfigError(f"retries is {retries}", fix="use a whole number from 0 on, or inf")


def _check_time(name: str, value: float | None, least: float) -> None:
    if value is not None and not least <= value <= TIME_MAX_S:
        raise ConfigError(f"{name} is {value} s", fix=f"use {least:g} s up to {TIME_MAX_S / 86400:g} days")


def _check_count(name: str, value: int | None) -> None:
    if value is not None and not (_is_whole(value) and value >= 1):
        raise ConfigError(f"{name} is {value}", fix="use a whole number from 1 on")


def _is_whole(value: float) -> bool:
    return math.isfinite(value) and value == int(value)
