"""The parts a path is made of, as maps of generating values.

K is the number of copies of one message that are delivered, and G(z) = E[z^K]. Every element takes the pair (u, g) of
one copy *after* it and gives the pair of one copy *before* it:

* g: the generating value of all that follows,
* u: the part of it in which no confirm comes back to this place.

The end of a path is (0, z): the copy is delivered, and the end answers. So `path.apply(0, z)[1]` is G(z).

The rules behind it:

* Losses, doublings, lost confirms and crashes are independent of each other.
* Every copy that reaches a point is passed on for itself, and a point passes back one confirm for each copy that it
  had, when the first one comes.
* A sender with confirms sends again until one comes back or its attempts are used up; a confirm that is not lost
  comes before the next attempt, unless `PipeElement.overlap` says how many attempts it is late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from semel.calculus import checks
from semel.calculus.values import TwoState, Value, power_for_ever, powers, sum_for_ever
from semel.errors import ConfigError

Pair = tuple[Value, Value]


class Element(Protocol):
    """A part of a path, or all of it."""

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        """The pair before this element from the pair after it.

        `asked` is true where a pipe with cascade confirmation stands before this element: it waits for the confirm
        of the next hop, not for the one of a pipe that goes around both.
        """
        ...

    def way_back_loss(self) -> float:
        """How probable it is that a confirm passing back through this element is lost."""
        ...


@dataclass(frozen=True, slots=True)
class LinkElement:
    """One transmission: lost with `loss`, doubled with `duplicate` if it arrives. `repeats` more are sent blindly.

    `confirm_loss` is for the way back. It says nothing for a link outside of any pipe: nobody confirms there.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    confirm_loss: float = 0.0
    repeats: int = 0

    def __post_init__(self) -> None:
        checks.probability("loss", self.loss)
        checks.probability("duplicate", self.duplicate)
        checks.probability("confirm_loss", self.confirm_loss)
        checks.whole("repeats", self.repeats, 0)

    def _sent(self, copy: Value) -> Value:
        arrived = (1 - self.duplicate) * copy + self.duplicate * (copy * copy)
        return powers(self.loss + (1 - self.loss) * arrived, self.repeats + 1)[0]

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        return self._sent((1 - self.confirm_loss) * u + self.confirm_loss * g), self._sent(g)

    def way_back_loss(self) -> float:
        return self.confirm_loss


@dataclass(frozen=True, slots=True)
class Crash:
    """A point that dies with this probability while it holds a copy: that copy is gone, and nobody confirms it."""

    probability: float

    def __post_init__(self) -> None:
        checks.probability("probability of a crash", self.probability)

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        lives = 1 - self.probability
        return self.probability + lives * u, self.probability + lives * g

    def way_back_loss(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class DurableElement:
    """A durable point: it commits what it has before it confirms, so its own crash loses nothing.

    A cascade ends here: the store answers for what it holds. It keeps its word only as long as it keeps the data,
    so its retention must be longer than the longest delay.
    """

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        return (0.0 * g if asked else u), g

    def way_back_loss(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Dedup:
    """Lets the first copy of a message pass and drops the others without a word: K becomes min(K, 1).

    It looks back over everything before it in its series, where the ids are given. What enters that series again, by
    a pipe around it or as a copy made earlier, is a new message to it. Alone it changes nothing.
    """

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        return u, g

    def way_back_loss(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class MeterElement:
    """Weighs every copy that passes. With a `Jet` as weight, the derivative counts them: attempts, transmissions."""

    weight: Value

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        return self.weight * u, self.weight * g

    def way_back_loss(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, init=False)
class Series:
    """One element after the other. A series inside a series is the same series."""

    elements: tuple[Element, ...]

    def __init__(self, elements: Iterable[Element]) -> None:
        flat: list[Element] = []
        for element in elements:
            flat.extend(element.elements if isinstance(element, Series) else [element])
        object.__setattr__(self, "elements", tuple(flat))

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        for place in range(len(self.elements) - 1, -1, -1):
            element = self.elements[place]
            if isinstance(element, Dedup):
                return Series(self.elements[:place])._first_only(u, g)
            u, g = element.apply(u, g, self._is_asked(place, asked))
        return u, g

    def _is_asked(self, place: int, asked: bool) -> bool:
        for element in reversed(self.elements[:place]):
            if isinstance(element, PipeElement):
                return element.cascade
            if isinstance(element, DurableElement):
                return False
        return asked

    def _first_only(self, u: Value, g: Value) -> Pair:
        none = self.apply(0.0, 0.0)[1]
        some = self.apply(1.0, 1.0)[1] - none
        lost = self.way_back_loss()
        return none + some * ((1 - lost) * u + lost * g), none + some * g

    def way_back_loss(self) -> float:
        return 1 - math.prod(1 - element.way_back_loss() for element in self.elements)


@dataclass(frozen=True, slots=True, init=False)
class ParallelElement:
    """Redundant send: one copy goes into every branch."""

    branches: tuple[Element, ...]

    def __init__(self, branches: Iterable[Element]) -> None:
        object.__setattr__(self, "branches", tuple(branches))
        if not self.branches:
            raise ConfigError("a parallel send has no branch", fix="give it at least one branch")

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        pairs = [branch.apply(u, g, asked) for branch in self.branches]
        unconfirmed, total = pairs[0]
        for other_unconfirmed, other_total in pairs[1:]:
            unconfirmed, total = unconfirmed * other_unconfirmed, total * other_total
        return unconfirmed, total

    def way_back_loss(self) -> float:
        """The loss of the worst branch: which one a confirm takes is not known here. Exact if all are alike."""
        return max(branch.way_back_loss() for branch in self.branches)


@dataclass(frozen=True, slots=True)
class Passage:
    """The inside of a pipe, whose points let the pipe's confirms pass, whatever they promise each other.

    Every copy that comes through has a confirm of its own, and that is lost with `confirm_loss` on its whole way back.
    In a plain series a point waits instead, and passes back one confirm for each copy that it had: the two differ where
    a copy is doubled behind the first link, and where the inside has a cascade of its own.
    """

    inner: Element
    confirm_loss: float = 0.0

    def __post_init__(self) -> None:
        checks.probability("confirm_loss", self.confirm_loss)

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        unconfirmed = (1 - self.confirm_loss) * u + self.confirm_loss * g
        return self.inner.apply(0.0, unconfirmed)[1], self.inner.apply(0.0, g)[1]

    def way_back_loss(self) -> float:
        return self.confirm_loss


@dataclass(frozen=True, slots=True)
class PipeElement:
    """A sender that sends again until it is confirmed, around an inner path.

    `attempts` counts the first one too; None never gives up. Without `cascade` the exit confirms what it receives;
    with it, only what the next hop has confirmed. `dedup` is the exit's memory, large enough, of what entered here:
    a copy that enters twice was given two ids. Under `cascade` it drops and confirms again what the next hop has
    already confirmed, and passes on again what is still undecided; its copies are handled one after the other.
    `overlap` is how many more attempts are on their way when the confirm of one comes back (`timing.overlap`).
    `forgets` is how often the exit dies with a copy that it has confirmed in hand, and its memory with it: the next
    copy of the same is new to it.
    """

    inner: Element
    attempts: int | None
    dedup: bool = False
    cascade: bool = False
    overlap: int = 0
    forgets: float = 0.0

    def __post_init__(self) -> None:
        if self.attempts is not None:
            checks.whole("attempts", self.attempts, 1)
        checks.whole("overlap", self.overlap, 0)
        checks.probability("forgets", self.forgets)
        if self.forgets and (self.cascade or not self.dedup):
            raise ConfigError(
                "an exit forgets where it has a memory and confirms on receipt",
                fix="put a Crash behind the pipe instead",
            )

    def apply(self, u: Value, g: Value, asked: bool = False) -> Pair:
        if self.cascade:
            return self._cascade_remembering(u, g) if self.dedup else self._run(*self.inner.apply(u, g))
        if asked:
            return self._on_receipt(g)
        lost = self.inner.way_back_loss()
        return self._on_receipt((1 - lost) * u + lost * g)[1], self._on_receipt(g)[1]

    def way_back_loss(self) -> float:
        return self.inner.way_back_loss()

    def _on_receipt(self, copy: Value) -> Pair:
        """For one message: the part that stays unconfirmed to the end, and the whole."""
        if not self.dedup:
            return self._run(*self.inner.apply(0.0, copy))
        none = self._run(*self.inner.apply(0.0, self.forgets))
        every = self._run(*self.inner.apply(0.0, 1.0))
        return none[0] + (every[0] - none[0]) * copy, none[1] + (every[1] - none[1]) * copy

    def _cascade_remembering(self, u: Value, g: Value) -> Pair:
        silent = TwoState(u, 0.0, 0.0)
        every = TwoState(u, g - u, 1.0)
        left, total = self._run(*self.inner.apply(silent, every))
        return _from_open(left), _from_open(total)

    def _run(self, unconfirmed: Value, attempt: Value) -> Pair:
        """All attempts, from the unconfirmed part of one and the whole of one."""
        confirmed = attempt - unconfirmed
        if self.attempts is None:
            left = power_for_ever(unconfirmed)
            return left, left + sum_for_ever(unconfirmed, confirmed * powers(attempt, self.overlap)[0])
        late = min(self.overlap, self.attempts - 1)
        left = powers(unconfirmed, self.attempts)[0]
        total = left + powers(unconfirmed, self.attempts - late)[1] * confirmed * powers(attempt, late)[0]
        for after in range(late):
            before = powers(unconfirmed, self.attempts - 1 - after)[0]
            total = total + before * confirmed * powers(attempt, after)[0]
        return left, total


def _from_open(value: Value) -> Value:
    return value.from_open() if isinstance(value, TwoState) else value
