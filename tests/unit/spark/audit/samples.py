"""Audits made up for tests of what people see: any number of hops and windows, with what was found put in by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from semel.spark.audit.report import merge
from semel.spark.audit.result import Audit, CellFigures, Chain, Example, Finding, Latency, WindowState

START = 1_768_471_200_000_000
"""2026-01-15 10:00:00 UTC."""
MINUTE = 60_000_000

HOSTILE = '"><script>alert(1)</script>&\x1b[31m\u202ered'

Change = Callable[[CellFigures], CellFigures]


def cell(
    hop: str = "shop>office",
    *,
    pipeline: str = "orders",
    session_class: str = "",
    window: int | None = START,
    sent: int = 1000,
    lost: int = 0,
    given_up: int = 0,
    in_flight: int = 0,
    doubled: int = 0,
    resent: int = 0,
    stopped: int = 0,
    disorder: int = 0,
    phantoms: int = 0,
    unbalanced: int = 0,
    state: WindowState = WindowState.SETTLED,
    p50: float = 12.0,
) -> CellFigures:
    """One cell whose counts fit each other: `stopped` are duplicates that dedup stopped, `doubled` those it let
    through, each of another message."""
    unique = sent - lost - given_up - in_flight
    accepted, arrivals = unique + doubled, unique + doubled + stopped
    return CellFigures(
        pipeline, hop, session_class, window, state,
        sent=sent, attempts=sent + resent, arrivals=arrivals, arrivals_unique=unique,
        arrivals_squares=unique + 3 * (doubled + stopped), accepted=accepted, accepted_unique=unique,
        accepted_squares=unique + 3 * doubled, duplicates=stopped, lost=lost, doubled=doubled, disorder=disorder,
        phantoms=phantoms, given_up=given_up, in_flight=in_flight, ended=unique, unbalanced=unbalanced,
        latency=Latency(unique, p50, p50 * 2, p50 * 6, p50 * 9, p50 * 11) if unique else Latency(),
    )  # fmt: skip


def audit(
    cells: Sequence[CellFigures], *, chains: Sequence[Chain] = (), examples: Sequence[Example] = (), gaps: int = 0,
    notes: Sequence[str] = (), deadline_s: float = 300.0, window_s: float = 60.0,
) -> Audit:  # fmt: skip
    """The totals are added up from the windows, as the real ones are."""
    together: dict[tuple[str, str, str], list[CellFigures]] = {}
    for figures in cells:
        together.setdefault((figures.pipeline, figures.hop, figures.session_class), []).append(figures)
    totals = tuple(replace(merge(of), window=None) for of in together.values())
    events = sum(figures.sent + figures.arrivals for figures in totals)
    last = max((figures.window or 0 for figures in cells), default=START)
    return Audit(
        ("lake",), last + MINUTE, deadline_s, window_s, events, totals, tuple(cells), tuple(chains), tuple(examples),
        gaps, tuple(notes), 4.2,
    )  # fmt: skip


def course(hop: str, windows: int, *, seed: int = 1, change: dict[int, Change] | None = None) -> list[CellFigures]:
    """A window a minute with some weather in the pipe; the last five are open, and every 37th is empty."""
    draw = random.Random(f"{hop}{seed}")
    cells = []
    for number in range(windows):
        sent = 900 + draw.randrange(200)
        is_open = number >= windows - 5 > 0
        figures = cell(
            hop,
            window=START + number * MINUTE,
            sent=sent,
            resent=draw.randrange(60),
            stopped=draw.randrange(20, 45),
            in_flight=draw.randrange(20) if is_open else 0,
            state=WindowState.OPEN if is_open else WindowState.SETTLED,
            p50=10 + draw.random() * 5 + (8 if windows // 2 < number < windows // 2 + 9 else 0),
        )
        if number % 37 == 36:
            figures = CellFigures("orders", hop, "", figures.window, WindowState.EMPTY)
        cells.append((change or {}).get(number, lambda same: same)(figures))
    return cells


def with_found(**found: int) -> Change:
    def change(figures: CellFigures) -> CellFigures:
        return cell(
            figures.hop, window=figures.window, sent=max(1000, figures.sent), state=figures.state, stopped=30,
            p50=figures.latency.p50 or 12.0, **found,
        )  # fmt: skip

    return change


def examples_of(finding: Finding, hop: str, window: int, count: int, *, detail: str = "") -> list[Example]:
    copies = 2 if finding is Finding.DUPLICATE else 1
    stem = f"order-{window // MINUTE % 1000}"
    return [
        Example(finding, "orders", hop, window, f"{stem}-{number:04}", f"customer-{number % 7}", number, copies, detail)
        for number in range(count)
    ]


def good() -> Audit:
    cells = [*course("shop>office", 60), *course("office>spark/merge", 60), *course("spark/merge>depot", 60)]
    chain = Chain("orders", ("shop>office", "office>spark/merge", "spark/merge>depot"), 58_000, 58_000, 1.0, 1.0)
    return audit(cells, chains=[chain])


def bad() -> Audit:
    """A loss, a duplicate, disorder and phantoms, on two of four hops."""
    first = {20: with_found(lost=3, doubled=1), 21: with_found(lost=9), 40: with_found(disorder=4)}
    second = {33: with_found(doubled=2, phantoms=2)}
    cells = [
        *course("shop>office", 90, change=first),
        *course("office>spark/merge", 90, change=second),
        *course("spark/merge>depot", 90),
        *course("office>archive", 90),
    ]
    at = [START + number * MINUTE for number in range(90)]
    examples = [
        *examples_of(Finding.LOST, "shop>office", at[20], 3, detail="sent 4 times, last at 10:24:58"),
        *examples_of(Finding.LOST, "shop>office", at[21], 5),
        *examples_of(Finding.DUPLICATE, "shop>office", at[20], 1, detail="accepted 2 times"),
        *examples_of(Finding.ORDER, "shop>office", at[40], 4, detail="after index 9"),
        *examples_of(Finding.DUPLICATE, "office>spark/merge", at[33], 2, detail="accepted 2 times"),
        *examples_of(Finding.PHANTOM, "office>spark/merge", at[33], 2),
    ]
    chains = [
        Chain("orders", ("shop>office", "office>spark/merge", "spark/merge>depot"), 89_000, 88_981, 0.99987, 0.99979),
        Chain("orders", ("shop>office", "office>archive"), 89_000, 88_988, 0.99987, 0.99987),
    ]
    notes = ("The ledger of node east-2 ends at 11:20: what it accepted later is not known.",)
    return audit(cells, chains=chains, examples=examples, notes=notes)


def hostile() -> Audit:
    """Every text that comes from outside is an attack."""
    cells = [cell(f"{HOSTILE}>b", pipeline=HOSTILE, session_class=kind, lost=1) for kind in (HOSTILE, "other")]
    example = Example(Finding.LOST, HOSTILE, f"{HOSTILE}>b", START, HOSTILE, HOSTILE, 1, 1, HOSTILE)
    chain = Chain(HOSTILE, (f"{HOSTILE}>b", f"b>{HOSTILE}"), 1, 1, 1.0, 1.0)
    made = audit(cells, chains=[chain], examples=[example], notes=[HOSTILE])
    return replace(made, sources=(HOSTILE,))


def empty() -> Audit:
    return replace(audit([]), now=None)


def in_flight() -> Audit:
    return audit([cell(sent=40, in_flight=40, state=WindowState.OPEN)])


def arrived_and_young() -> Audit:
    """Everything has arrived, and nothing has had its time."""
    return audit([cell(sent=40, state=WindowState.OPEN)])


def many_windows(windows: int = 10_000) -> Audit:
    return audit(course("shop>office", windows, change={7777: with_found(lost=1)}))


def many_hops(count: int = 200, shape: str = "chain") -> Audit:
    names = [f"p{number}>p{number + 1}" if shape == "chain" else f"hub>leaf{number}" for number in range(count)]
    cells = []
    for number, name in enumerate(names):
        change = {5: with_found(lost=number)} if number % 50 == 49 else {}
        cells += course(name, 12, change=change)
    return audit(cells)
