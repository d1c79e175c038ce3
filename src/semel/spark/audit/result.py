"""What an audit found. Plain values: Spark computes them, everything else only reads them.

A figure is counted per pipeline, hop, session class and window of send time. Two sets of figures stand side by side:

* *pipe*: what came out of the link, before dedup. Arrivals are accepted, duplicate and rejected ones.
* *delivery*: what was accepted, after dedup. This is what the application sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from semel.calculus.mode import MessageCounts


class Finding(Enum):
    """What can be wrong with one message on one hop, or between two points."""

    LOST = "lost"
    DUPLICATE = "duplicate"
    ORDER = "order"
    PHANTOM = "phantom"
    UNBALANCED = "unbalanced"
    """It ended more often than it was accepted, or was confirmed without having been accepted."""
    GAP = "gap"
    """A range of the ledger does not fit the records that it names."""


class WindowState(Enum):
    SETTLED = "settled"
    """Every message sent in the window has had its time."""
    OPEN = "open"
    """Something sent in the window may still arrive."""
    EMPTY = "empty"
    """Nothing was sent in the window, which may mean that nothing was to be sent, or that nobody wrote it down."""


@dataclass(frozen=True, slots=True)
class Latency:
    """From the first send to the first acceptance, in milliseconds. `skewed` messages were accepted before they were
    sent, by the clocks of two nodes: their clocks differ by up to `skew_ms`."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    skewed: int = 0
    skew_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class CellFigures:
    """What was counted in one cell. `window` is the start of the window in microseconds, None for the whole time.

    Of the messages sent: `lost` have had their time and came to no visible end, `given_up` ended at the sender
    (expired, cancelled, dead-lettered ...), `in_flight` may still arrive. So sent = accepted_unique + lost + given_up +
    in_flight.
    `phantoms` arrived though nobody sent them. `open` were accepted and have not ended yet.
    """

    pipeline: str
    hop: str
    session_class: str
    window: int | None
    state: WindowState
    sent: int = 0
    attempts: int = 0
    arrivals: int = 0
    arrivals_unique: int = 0
    arrivals_squares: int = 0
    accepted: int = 0
    accepted_unique: int = 0
    accepted_squares: int = 0
    duplicates: int = 0
    rejected: int = 0
    lost: int = 0
    doubled: int = 0
    disorder: int = 0
    phantoms: int = 0
    given_up: int = 0
    in_flight: int = 0
    ended: int = 0
    replayed: int = 0
    open: int = 0
    unbalanced: int = 0
    latency: Latency = Latency()

    @property
    def pipe(self) -> MessageCounts:
        """R and UR before dedup, of the messages that have had their time."""
        return MessageCounts(self.sent - self.in_flight, self.arrivals_unique, self.arrivals, self.arrivals_squares)

    @property
    def delivery(self) -> MessageCounts:
        """R and UR after dedup, of the messages that have had their time."""
        return MessageCounts(self.sent - self.in_flight, self.accepted_unique, self.accepted, self.accepted_squares)

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.disorder or self.phantoms or self.unbalanced)


@dataclass(frozen=True, slots=True)
class Chain:
    """Hops one after the other, and what became of the messages from the first sender to the last receiver.

    `predicted` is the product of the hops' own figures. `worker` is measured / predicted: below 1, messages were lost
    inside the workers between the hops, or ended there. `inside` are those of them that are known to be lost.
    """

    pipeline: str
    hops: tuple[str, ...]
    sent: int
    arrived: int
    predicted: float | None
    measured: float | None
    inside: int = 0

    @property
    def worker(self) -> float | None:
        return self.measured / self.predicted if self.measured is not None and self.predicted else None


@dataclass(frozen=True, slots=True)
class LostInside:
    """Lost inside a worker: accepted over `hop`, said to be forwarded, and never seen on any hop that goes on."""

    pipeline: str
    hop: str
    onward: tuple[str, ...]
    lost: int

    @property
    def where(self) -> str:
        return f"between {self.hop} and {' or '.join(self.onward)}"


@dataclass(frozen=True, slots=True)
class Example:
    """One message of a finding. `count` is how many copies, `detail` says the rest for people."""

    finding: Finding
    pipeline: str
    hop: str
    window: int | None
    message: str
    session: str | None = None
    idx: int | None = None
    count: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """The whole result. `totals` has one entry per pipeline, hop and session class, `windows` one per window as well.

    `examples` are the first of each finding, at most `examples_max` each; all of them are in the table `findings`.
    `now` is when it was judged: None where there is no event to take the time from.
    `late` are messages that an audit which goes on had let go of, and that came again. They are not judged.
    """

    sources: tuple[str, ...]
    now: int | None
    deadline_s: float
    window_s: float
    events: int
    totals: tuple[CellFigures, ...]
    windows: tuple[CellFigures, ...]
    chains: tuple[Chain, ...] = ()
    examples: tuple[Example, ...] = ()
    gaps: int = 0
    notes: tuple[str, ...] = field(default=())
    seconds: float = 0.0
    inside: tuple[LostInside, ...] = ()
    late: int = 0

    @property
    def holds(self) -> bool:
        """Whether nothing at all is wrong."""
        return not any(self.count(finding) for finding in Finding)

    @property
    def settled(self) -> bool:
        """Whether there is any window in which every message has had its time."""
        cells = self.windows or self.totals
        return any(figures.state is WindowState.SETTLED or figures.phantoms for figures in cells)

    @property
    def is_open(self) -> bool:
        """Whether anything that was sent may still arrive, or is too young to be judged."""
        return any(figures.state is WindowState.OPEN for figures in self.totals)

    def count(self, finding: Finding) -> int:
        """On the hops and between them."""
        column = {
            Finding.LOST: "lost",
            Finding.DUPLICATE: "doubled",
            Finding.ORDER: "disorder",
            Finding.PHANTOM: "phantoms",
            Finding.UNBALANCED: "unbalanced",
        }.get(finding)
        if column is None:
            return self.gaps
        between = sum(inside.lost for inside in self.inside) if finding is Finding.LOST else 0
        return between + sum(getattr(figures, column) for figures in self.totals)
