"""A pipe as its settings describe it, and the path that they stand for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from semel.calculus import checks
from semel.calculus.dedup import monotonic_reliability, strict_reliability
from semel.calculus.elements import Crash, DurableElement, LinkElement, PipeElement, Series
from semel.calculus.figures import Figures, figures
from semel.calculus.timing import overlap


class PassOrder(Enum):
    """What the receiver lets pass: anything, a higher index, or only the next index."""

    NONE = "none"
    MONOTONIC = "monotonic"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class PipeSpec:
    """One sender, one link, one receiver.

    `attempts` None never gives up. `keep_s` and `size` bound the memory of `dedup`, with `others_per_timeout` other
    new ids between two attempts. `crash` is the probability that the sender dies while it holds a message, which a
    `durable` sender survives. Both orders drop what comes twice: MONOTONIC costs what `burst` messages shuffled
    among each other cost, STRICT what waits behind the first of `messages` messages that was given up.
    """

    loss: float = 0.0
    confirm_loss: float = 0.0
    duplicate: float = 0.0
    attempts: int | None = None
    timeout_s: float = 1.0
    rtt_s: float = 0.0
    dedup: bool = False
    keep_s: float | None = None
    size: int | None = None
    others_per_timeout: float = 0.0
    order: PassOrder = PassOrder.NONE
    burst: int = 1
    messages: int = 1
    crash: float = 0.0
    durable: bool = False

    def __post_init__(self) -> None:
        checks.whole("burst", self.burst, 1)
        checks.whole("messages", self.messages, 1)
        self.element()

    def element(self) -> Series:
        """The path, without the cost of order."""
        link = LinkElement(self.loss, self.duplicate, self.confirm_loss)
        dedup = self.dedup or self.order is not PassOrder.NONE
        pipe = PipeElement(link, self.attempts, dedup, overlap=overlap(self.rtt_s, self.timeout_s))
        return Series((DurableElement() if self.durable else Crash(self.crash), pipe))

    def figures(self) -> Figures:
        got = figures(
            self.element(),
            rtt_s=self.rtt_s,
            timeout_s=self.timeout_s,
            keep_s=self.keep_s,
            size=self.size,
            others_per_timeout=self.others_per_timeout,
        )
        if self.order is PassOrder.NONE:
            return got
        return self._monotonic(got) if self.order is PassOrder.MONOTONIC else self._strict(got)

    def _monotonic(self, got: Figures) -> Figures:
        if self.burst == 1:
            return replace(got, leak=0.0)
        reliability = got.reliability * monotonic_reliability(self.burst)
        note = f"only a higher index passes, and {self.burst} messages are shuffled: late ones are lost"
        # a burst with losses is a smaller burst, which passes a greater share of itself: then this is a lower bound
        return _ordered(got, reliability, note, exact=got.exact and got.reliability == 1)

    def _strict(self, got: Figures) -> Figures:
        if got.reliability == 1 or self.messages == 1:
            return replace(got, leak=0.0)
        reliability = strict_reliability(1 - got.reliability, self.messages)
        note = f"only the next index passes: of {self.messages} messages all wait that follow a lost one"
        return _ordered(got, reliability, note, exact=got.exact)


def _ordered(got: Figures, reliability: float, note: str, exact: bool) -> Figures:
    notes = (*got.notes, note)
    return replace(got, reliability=reliability, copies=reliability, leak=0.0, exact=exact, notes=notes)
