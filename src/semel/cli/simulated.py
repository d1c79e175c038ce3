"""What was calculated beside what a simulation measured, and whether chance explains the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from semel.pipes.language.path import Path
    from semel.pipes.plan.plan import Plan
    from semel.sim.pipes import Simulated


ATTEMPTS_TOLD = 100
"""So many attempts of one message are over before the next one comes."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure. `measured` None: it has no value, since nothing arrived. `within` None: it is shown, not judged."""

    name: str
    predicted: float
    measured: float | None
    interval: tuple[float, float] | None = None
    allowed: float | None = None

    @property
    def within(self) -> bool | None:
        if self.allowed is None or self.measured is None:
            return None
        return abs(self.measured - self.predicted) <= self.allowed

    def as_dict(self) -> dict[str, object]:
        return {
            "figure": self.name,
            "predicted": self.predicted,
            "measured": self.measured,
            "interval": self.interval,
            "allowed": self.allowed,
            "within": self.within,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    messages: int
    seed: int
    figures: tuple[Compared, ...]
    hops: tuple[Compared, ...]
    exact: bool

    @property
    def agrees(self) -> bool:
        """A figure that is calculated as a bound only may lie elsewhere."""
        return not self.exact or all(figure.within is not False for figure in self.figures)

    @property
    def furthest(self) -> str:
        return " and ".join(figure.name for figure in self.figures if figure.within is False)

    def as_dict(self) -> dict[str, object]:
        return {
            "messages": self.messages,
            "seed": self.seed,
            "agrees": self.agrees,
            "exact": self.exact,
            "figures": [figure.as_dict() for figure in self.figures],
            "hops": [hop.as_dict() for hop in self.hops],
        }


def compare(planned: Plan, messages: int, seed: int, sigmas: float) -> Comparison:
    from semel.sim.pipes import simulate

    measured = simulate(planned.path, messages=messages, seed=seed, spacing_s=_spacing_s(planned))
    figures = _figures(planned, measured, sigmas)
    hops = [
        Compared(f"{hop.name} transmissions", hop.transmissions, measured.hops[hop.name].transmissions / messages)
        for hop in planned.hops
        if hop.kind == "hop" and hop.name in measured.hops
    ]
    return Comparison(messages, seed, tuple(figures), tuple(hops), planned.exact)


def _spacing_s(planned: Plan) -> float | None:
    """By itself a simulated sender waits until nothing is under way. Where its timeout is too short for that, time must
    decide, and messages are so far apart that they do not meet."""
    late, longest = _late(planned.path)
    return 2 * longest if late else None


def _late(path: Path) -> tuple[bool, float]:
    """Whether a timeout in it is shorter than the round trip, and how long a message is on it at the most."""
    from semel.pipes.plan.elements import inner_paths, stretches

    late, longest = False, 0.0
    for stretch in stretches(path)[1]:
        inside = [_late(each) for each in inner_paths(stretch)]
        late = late or any(is_late for is_late, _ in inside)
        once = max((time for _, time in inside), default=stretch.one_way_s) + stretch.rtt_s
        options = stretch.options
        if options is None or not stretch.resends:
            longest += once
            continue
        late = late or stretch.rtt_s > options.timeout
        widest = options.timeout if options.backoff == 1 else options.longest_wait
        longest += once + (widest + once) * min(options.attempts or ATTEMPTS_TOLD, ATTEMPTS_TOLD)
    return late, longest


def _figures(planned: Plan, measured: Simulated, sigmas: float) -> Sequence[Compared]:
    from semel.calculus import MessageCounts, sigma

    counts = MessageCounts(measured.sent, measured.unique, measured.received, measured.sum_of_squares)
    spread = sigma(planned.element, measured.sent)
    copies = measured.received / measured.sent
    # so rare a thing may happen once in any run, however small its sigma is
    once = 1 / measured.sent
    return [
        Compared(
            "reliability", planned.reliability, counts.reliability, counts.reliability_interval(),
            sigmas * spread.reliability + _slack(planned.reliability, once),
        ),
        Compared(
            "uniqueness", planned.uniqueness, counts.uniqueness, counts.uniqueness_interval(),
            sigmas * spread.uniqueness + _slack(planned.uniqueness, once),
        ),
        Compared("copies", planned.end.copies, copies, None, sigmas * spread.copies + once),
        Compared("transmissions", planned.transmissions, measured.transmissions / measured.sent),
    ]  # fmt: skip


def _slack(predicted: float, once: float) -> float:
    """What is certain has no slack, apart from rounding."""
    return 1e-9 if predicted in (0.0, 1.0) else once


def simulated_table(compared: Comparison) -> Table:
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left", title_style="",
        title=f"{compared.messages:,} messages simulated, seed {compared.seed}",
    )  # fmt: skip
    table.add_column("per message")
    for name in ("predicted", "measured", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    words = {True: "agrees", False: "differs", None: ""}
    for figure in (*compared.figures, *compared.hops):
        interval = "" if figure.interval is None else f"{figure.interval[0]:.5f} .. {figure.interval[1]:.5f}"
        measured = "undefined" if figure.measured is None else f"{figure.measured:.6g}"
        table.add_row(figure.name, f"{figure.predicted:.6g}", measured, interval, words[figure.within])
    return table
