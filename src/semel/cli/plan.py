"""`semel plan`: what a delivery path promises, before it is built."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import bundled, option
from semel.cli.terminal import CommandResult, Terminal, claim_false
from semel.errors import EXIT_CLAIM_FALSE, EXIT_HOLDS, ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from semel.pipes.language.path import Path
    from semel.pipes.plan.plan import Plan, StretchPlan
    from semel.pipes.plan.solve import Solution
    from semel.sim.pipes import Simulated

SIGMAS = 4
_WIDTH_MAX = 100
_LOOKS_LIKE_TOML = re.compile(r"(?m)^\s*(?:(?:path|name)\s*=|\[\[\s*(?:hop|pipe)\s*\]\]|\[\s*points\s*\.)")


class PlanCommand(typer.core.TyperCommand):
    """A path that begins with an arrow has a mistake in it that the path's own parser explains, with a caret. To the
    command line's parser it would be an option that nobody knows."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        arrows = [] if "--" in args else [arg for arg in args if arg.startswith(("->", "-["))]
        if arrows:
            args = [*(arg for arg in args if arg not in arrows), "--", *arrows]
        return super().parse_args(ctx, args)


@bundled
def plan(
    context: typer.Context,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The path as text, a file .path or .toml, or - for stdin.")
    ],
    want_reliability: Annotated[
        float | None, option("--want-reliability", "Say what reaches this reliability.", "R")
    ] = None,
    want_uniqueness: Annotated[
        float | None, option("--want-uniqueness", "Say what reaches this uniqueness.", "UR")
    ] = None,
    want_rate: Annotated[
        float | None, option("--want-rate", "Say which windows carry N messages a second.", "N")
    ] = None,
    simulate: Annotated[
        int | None, option("--simulate", "Send N messages through a simulation.", "N", min=1, max=10_000_000)
    ] = None,
    seed: Annotated[int | None, option("--seed", "The seed of the simulation, 0 if not given.", "S", min=0)] = None,
    plot: Annotated[File | None, option("--plot", "Write R and UR as curves: .png or .html.", "FILE")] = None,
) -> CommandResult:
    """Calculate the reliability and uniqueness of a delivery path.

    Exit code 1 when a simulation and the calculation are further apart than
    chance allows or what is wanted is out of reach, 2 when the path has a
    mistake in it. A file that begins with a dash goes behind a --.

    \b
    Examples:
      semel plan "A -[loss=0.1,confirm_loss=0.05,retries=5]-> B -[dedup=id]-> C"
      semel plan "A -> (P1 -[loss=10%]-> X -> P2){retries=inf,dedup=id} -> B"
      semel plan orders.toml --want-reliability 0.999 --want-uniqueness 0.99
      semel plan "A -[loss=.1 | loss=.3]-> B" --simulate 100000 --seed 7
      semel plan orders.path --plot orders.html
    """
    from semel.pipes.plan.plan import plan as calculate
    from semel.pipes.plan.solve import solve

    terminal: Terminal = context.obj
    if plot is not None:
        from semel.cli.plot import check_plot_file

        check_plot_file(plot)
    if seed is not None and simulate is None:
        raise ConfigError("--seed without --simulate", fix="add --simulate N, or leave --seed out")
    found = _read(path)
    _check_way(path, found)
    planned = calculate(found, rate=want_rate)
    answer = _Answer(planned, terminal)
    if want_reliability is not None or want_uniqueness is not None or want_rate is not None:
        answer.add_solution(
            solve(planned.path, reliability=want_reliability, uniqueness=want_uniqueness, rate=want_rate)
        )
    if simulate is not None:
        answer.add_simulation(simulate, seed or 0)
    if plot is not None:
        from semel.cli.plot import write_plot

        write_plot(planned, plot)
        answer.add_plot(plot)
    return answer.answer()


# -- where the path comes from


def _read(given: str) -> Path:
    from semel.pipes.language.notation import parse_path
    from semel.pipes.language.tables import parse_tables

    if given == "-":
        text = _limited(sys.stdin.buffer.read(_bytes_max()), "stdin")
        return parse_tables(text) if _LOOKS_LIKE_TOML.search(text) else parse_path(text)
    if given.lower().endswith((".toml", ".path")):
        file = File(given)
        text = _file_text(file)
        return parse_tables(text, file.stem) if file.suffix.lower() == ".toml" else parse_path(text, file.stem)
    return parse_path(given)


def _check_way(given: str, found: Path) -> None:
    if found.first is not found.last:
        return
    what = "is a folder" if File(given).is_dir() else "has one point and no way"
    fix = "write where messages go, such as A -> B, or name a file that is there and ends in .path or .toml"
    raise ConfigError(f"{given} {what}", fix=fix)


def _file_text(file: File) -> str:
    try:
        with file.open("rb") as opened:
            return _limited(opened.read(_bytes_max()), str(file))
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror or error}", fix="name a file that is there, or write the path itself"
        ) from None


def _bytes_max() -> int:
    """Four bytes for every character that a path may have, and one more to notice that there are too many."""
    from semel.pipes.language.notation import TEXT_CHARS_MAX

    return 4 * TEXT_CHARS_MAX + 1


def _limited(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 at byte {error.start}", fix="save it as UTF-8") from None


# -- what is said about it


class _Answer:
    """The answer, put together from what was asked for."""

    def __init__(self, planned: Plan, terminal: Terminal) -> None:
        self.planned = planned
        self.terminal = terminal
        self.result: dict[str, Any] = planned.as_dict()
        self.view: list[Any] = [] if terminal.json else _plan_view(planned, self._width)
        self.exit_code = EXIT_HOLDS
        self.error: dict[str, str] | None = None

    @property
    def _width(self) -> int:
        return min(self.terminal.out.width, _WIDTH_MAX)

    def answer(self) -> CommandResult:
        return CommandResult(self.result, self.view, self.exit_code, self.error)

    def add_solution(self, solution: Solution) -> None:
        self.result["solution"] = solution.as_dict()
        if not self.terminal.json:
            self.view += ["", *_solution_view(solution, self._width)]
        if not solution.reached:
            self._fail("what is wanted is out of reach", "want less, or change the path where the answer says")

    def add_plot(self, file: File) -> None:
        self.result["plot"] = str(file)
        self.view += ["", f"plotted in {file}"]

    def add_simulation(self, messages: int, seed: int) -> None:
        with self.terminal.progress(f"simulating {messages:,} messages"):
            compared = compare(self.planned, messages, seed, SIGMAS)
        self.result["simulation"] = compared.as_dict()
        self.view += ["", simulated_table(compared)]
        if not compared.agrees:
            self._fail(
                f"simulation and calculation differ in {compared.furthest} by more than {SIGMAS} sigma",
                "look at the notes for what is not calculated exactly; else report it with this path and seed",
            )

    def _fail(self, message: str, fix: str) -> None:
        self.exit_code, self.error = EXIT_CLAIM_FALSE, claim_false(message, fix)


def _plan_view(planned: Plan, width: int) -> list[Any]:
    from semel.pipes.language.draw import draw_text

    first, last = planned.path.first.name, planned.path.last.name
    view: list[Any] = [draw_text(planned.path, width), ""]
    if planned.hops:
        view += [_table(planned), ""]
    exact = "" if planned.exact else " (approximately; see the notes)"
    view += [
        f"{first} to {last}: reliability {show(planned.reliability)}, uniqueness {show(planned.uniqueness)}{exact}",
        f"  {planned.mode}",
        f"  per message: {_number(planned.end.copies)} copies, {_number(planned.transmissions)} transmissions, "
        f"{_seconds(planned.time_s)} of work",
    ]
    if len(planned.hops) > 1:
        bound = planned.product
        view.append(
            f"  the product rule gives {show(bound.reliability)} and {show(bound.uniqueness)}"
            f"{'' if _cascades(planned) else ', a lower bound'}"
        )
    view += [_wrapped(f"  - {note}", width, "    ") for note in planned.notes]
    return view


def _wrapped(text: str, width: int, indent: str) -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _cascades(planned: Plan) -> bool:
    """Under cascade what happens behind a hop makes it send again, and the product rule says nothing."""
    from semel.pipes.language.options import ConfirmOn
    from semel.pipes.plan.elements import all_options

    return any(options.confirm is ConfirmOn.CASCADE for options in all_options(planned.path))


def _table(planned: Plan) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("hop", overflow="fold", max_width=24)
    for name in ("R", "UR", "R so far", "UR so far", "sends", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mode", overflow="fold")
    for hop in planned.hops:
        _add_rows(table, hop, 0)
    return table


def _add_rows(table: Table, hop: StretchPlan, depth: int) -> None:
    from rich.text import Text

    so_far = ("", "") if hop.so_far is None or depth else (show(hop.so_far.reliability), show(hop.so_far.uniqueness))
    table.add_row(
        Text("  " * depth + hop.name),
        show(hop.alone.reliability),
        show(hop.alone.uniqueness),
        *so_far,
        "" if depth else _number(hop.transmissions),
        _seconds(hop.time_s),
        hop.mode.replace("tends to ", "→ "),
        style="dim" if depth else None,
    )
    for each in hop.inside:
        _add_rows(table, each, depth + 1)


def show(value: float) -> str:
    """A probability. One that is close to 1 is shown by what it lacks."""
    if 0 < 1 - value < 5e-7:
        return f"1-{1 - value:.1e}"
    return f"{value:.6g}"


def _number(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.4g}"


def _seconds(value: float) -> str:
    if value == float("inf"):
        return "∞"
    value = max(0.0, value)
    return f"{value * 1000:.3g} ms" if 0 < value < 1 else f"{value:.3g} s"


def _solution_view(solution: Solution, width: int) -> list[str]:
    lines = [_wrapped(f"cannot be had: {why}", width, "  ") for why in solution.why]
    if not solution.changes:
        return lines or ["the path reaches what is wanted as it is"]
    lines.append("with these changes:" if solution.reached else "these changes come nearer:")
    lines += [
        f"  {change.where}: {change.option}={change.new} (was {change.old}): {change.why}"
        for change in solution.changes
    ]
    lines += [
        f"  {solution.path}",
        f"  reliability {show(solution.plan.reliability)}, uniqueness {show(solution.plan.uniqueness)}",
    ]
    return lines


# -- what was calculated beside what a simulation measured, and whether chance explains the difference

ATTEMPTS_SHOWN = 100
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
        longest += once + (widest + once) * min(options.attempts or ATTEMPTS_SHOWN, ATTEMPTS_SHOWN)
    return late, longest


def _figures(planned: Plan, measured: Simulated, sigmas: float) -> Sequence[Compared]:
    from semel.calculus.figures import sigma
    from semel.calculus.mode import MessageCounts

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
