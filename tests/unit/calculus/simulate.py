"""The same paths, played out: copies walk forward one by one, confirms walk back. No algebra in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from semel.calculus.elements import (
    Crash,
    Dedup,
    DurableElement,
    Element,
    LinkElement,
    MeterElement,
    ParallelElement,
    PipeElement,
    Series,
)
from semel.calculus.mode import MessageCounts

Onward = Callable[[], bool]
ATTEMPTS_MAX = 100_000


@dataclass
class Play:
    """One run with its chance; `metered` counts what passes a `MeterElement`."""

    chance: random.Random
    metered: int = 0

    def happens(self, probability: float) -> bool:
        return self.chance.random() < probability

    def send(self, element: Element, onward: Onward, asked: bool = False) -> bool:
        """Send one copy into the element. True when a confirm comes back."""
        match element:
            case LinkElement():
                return self._link(element, onward)
            case Crash(probability=probability):
                return not self.happens(probability) and onward()
            case DurableElement():
                return onward() or asked
            case Dedup():
                return onward()
            case MeterElement():
                self.metered += 1
                return onward()
            case ParallelElement(branches=branches):
                answers = [
                    self.send(branch, onward, asked) for branch in branches
                ]  # every branch, whatever the first says
                return any(answers)
            case Series(elements=elements):
                return self._series(elements, onward, asked)
            case PipeElement():
                return self._cascade(element, onward) if element.cascade else self._pipe(element, onward, asked)
        raise AssertionError(element)

    def _link(self, link: LinkElement, onward: Onward) -> bool:
        confirmed = False
        for _ in range(link.repeats + 1):
            if self.happens(link.loss):
                continue
            for _ in range(2 if self.happens(link.duplicate) else 1):
                if onward() and not self.happens(link.confirm_loss):
                    confirmed = True
        return confirmed

    def _series(self, elements: tuple[Element, ...], onward: Onward, asked: bool) -> bool:
        seen: set[int] = set()

        def step(place: int, waits: bool) -> bool:
            if place == len(elements):
                return onward()
            element = elements[place]
            if isinstance(element, Dedup):
                if place in seen:
                    return False
                seen.add(place)
            after = (
                element.cascade
                if isinstance(element, PipeElement)
                else waits and not isinstance(element, DurableElement)
            )
            return self.send(element, lambda: step(place + 1, after), waits)

        return step(0, asked)

    def _attempts(self, pipe: PipeElement, leave: Onward) -> bool:
        most = pipe.attempts or ATTEMPTS_MAX
        for attempt in range(1, most + 1):
            if self.send(pipe.inner, leave):
                for _ in range(min(pipe.overlap, most - attempt)):
                    self.send(pipe.inner, leave)
                return True
        assert pipe.attempts is not None, "this would never end"
        return False

    def _pipe(self, pipe: PipeElement, onward: Onward, asked: bool) -> bool:
        passed: list[bool] = []

        def leave() -> bool:
            if not (pipe.dedup and passed):
                passed.append(onward() and self._comes_back(pipe.inner))
            return True

        own = self._attempts(pipe, leave)
        return own if asked else any(passed)

    def _comes_back(self, element: Element) -> bool:
        """The confirm of a pipe around this one crosses its links like any other message."""
        match element:
            case LinkElement(confirm_loss=confirm_loss):
                return not self.happens(confirm_loss)
            case Series(elements=elements):
                return all(self._comes_back(part) for part in elements)
            case PipeElement(inner=inner):
                return self._comes_back(inner)
        return True

    def _cascade(self, pipe: PipeElement, onward: Onward) -> bool:
        done = False

        def leave() -> bool:
            nonlocal done
            if pipe.dedup and done:
                return True
            confirmed = onward()
            done = done or confirmed
            return confirmed

        return self._attempts(pipe, leave)


def measure(element: Element, messages: int, seed: int) -> tuple[MessageCounts, float]:
    """Counts of so many messages, and how often each passed a meter."""
    play = Play(random.Random(seed))
    unique = received = squares = 0
    for _ in range(messages):
        copies: list[None] = []

        def deliver(copies: list[None] = copies) -> bool:
            copies.append(None)
            return True

        play.send(element, deliver)
        unique += bool(copies)
        received += len(copies)
        squares += len(copies) ** 2
    return MessageCounts(messages, unique, received, squares), play.metered / messages
