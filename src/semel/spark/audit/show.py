"""An audit on the terminal, and as plain values with stable keys for `--json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from semel.spark.audit.report import (
    COLUMNS,
    COUNTED,
    EXPLAINED,
    WORDS,
    AuditOutcome,
    FindingGroup,
    HopHealth,
    Measure,
    ReportHop,
    all_notes,
    between,
    chain_name,
    duration,
    groups,
    hops,
    judge,
    measures,
    moment,
    place,
    points_sentence,
    ratio,
    spelled,
)
from semel.spark.audit.result import Audit, CellFigures, Chain, Example, Finding
from semel.words import plural

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from semel.spark.audit.chains import ChainComparison

IDS_MAX = 5
"""So many ids of each finding on each hop."""
HOPS_MAX = 60
GROUPS_MAX = 20
CHAINS_MAX = 20

_CHAIN = ("pipeline", "hops", "sent", "arrived", "predicted", "measured", "worker", "inside")
_COLOURS = {AuditOutcome.HOLDS: "green", AuditOutcome.FAILS: "red", AuditOutcome.NO_DATA: "yellow"}
_MARKS = {AuditOutcome.HOLDS: "✓", AuditOutcome.FAILS: "✗", AuditOutcome.NO_DATA: "…"}


# -- for people


def view(audit: Audit, fail_on: Iterable[Finding] = tuple(Finding)) -> list[RenderableType]:
    """The verdict, a table of hops, the chains, the first ids of each finding, and the notes."""
    from rich.text import Text

    judgement = judge(audit, fail_on)
    all_hops = hops(audit)
    style = _COLOURS[judgement.outcome]
    parts: list[RenderableType] = [Text(f"{_MARKS[judgement.outcome]} {spelled(judgement.sentence)}", f"bold {style}")]
    if all_hops:
        parts += ["", _hop_table(all_hops)]
    if audit.chains:
        parts += ["", _chain_table(audit.chains)]
    found = groups(audit)
    if found:
        parts += ["", *_found_view(found)]
    notes = all_notes(audit)
    if notes:
        parts += ["", *(f"- {spelled(note)}" for note in notes)]
    return [*parts, "", _foot(audit)]


def _hop_table(all_hops: list[ReportHop]) -> Table:
    """The hops, worst first when there are too many for a screen."""
    from rich.text import Text

    shown = all_hops
    if len(all_hops) > HOPS_MAX:
        worst = sorted(all_hops, key=lambda hop: hop.severity, reverse=True)[:HOPS_MAX]
        shown = [hop for hop in all_hops if hop in worst]
    named = any(hop.pipeline for hop in all_hops)
    table = _table(*(["pipeline"] if named else []), "hop")
    found = [finding for finding in COLUMNS if finding in _ALWAYS or any(hop.found(finding) for hop in all_hops)]
    for name in (
        "sent",
        *(WORDS[finding] for finding in found),
        "in flight",
        "R",
        "UR",
        "pipe R",
        "pipe UR",
        "p50",
        "p99",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("delivery mode", overflow="fold")
    for hop in shown:
        counts = [_count(hop.found(finding)) for finding in found]
        pipe, delivery = hop.measures
        table.add_row(
            *([Text(spelled(hop.pipeline))] if named else []),
            Text(spelled(hop.name), "red" if hop.health is HopHealth.BAD else ""),
            f"{hop.total.sent:,}",
            *counts,
            f"{hop.total.in_flight:,}",
            *(ratio(value) for side in (delivery, pipe) for value in (side.reliability, side.uniqueness)),
            duration(hop.total.latency.p50),
            f"{'≤' if hop.latency_is_bound else ''}{duration(hop.total.latency.p99)}",
            delivery.words.replace("tends to ", "→ "),
        )
    if len(shown) < len(all_hops):
        table.caption = f"and {len(all_hops) - len(shown):,} hops with fewer findings"
        table.caption_justify = "left"
    return table


_ALWAYS = (Finding.LOST, Finding.DUPLICATE, Finding.ORDER)


def _chain_table(chains: tuple[Chain, ...]) -> Table:
    from rich.text import Text

    named = any(chain.pipeline for chain in chains)
    table = _table(*(["pipeline"] if named else []), "chain")
    for name in ("sent", "arrived", "predicted R", "measured R", "measured / predicted", "lost inside"):
        table.add_column(name, justify="right", no_wrap=True)
    for chain in chains[:CHAINS_MAX]:
        worker = "–" if chain.worker is None else ratio(chain.worker) if chain.worker <= 1 else f"{chain.worker:.6g}"
        low = chain.worker is not None and chain.worker < 1
        table.add_row(
            *([Text(spelled(chain.pipeline))] if named else []),
            Text(spelled(chain_name(chain))),
            f"{chain.sent:,}",
            f"{chain.arrived:,}",
            ratio(chain.predicted),
            ratio(chain.measured),
            Text(worker, "yellow" if low else ""),
            _count(chain.inside),
        )
    if len(chains) > CHAINS_MAX:
        table.caption, table.caption_justify = f"and {len(chains) - CHAINS_MAX:,} more chains", "left"
    return table


def _table(*names: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _count(count: int) -> Text:
    from rich.text import Text

    return Text(f"{count:,}", "bold red" if count else "")


def _found_view(found: list[FindingGroup]) -> list[RenderableType]:
    from rich.text import Text

    lines: list[RenderableType] = []
    explained: set[Finding] = set()
    for group in found[:GROUPS_MAX]:
        where = spelled(place(group.pipeline, group.hop))
        line = Text.assemble((f"{group.count:,} {WORDS[group.finding]}", "bold red"), f" on {where}")
        if group.finding not in explained:
            line.append(f" ({EXPLAINED[group.finding]})", "dim")
            explained.add(group.finding)
        lines += [line, *_id_lines(group)]
    if len(found) > GROUPS_MAX:
        lines.append(Text(f"and {len(found) - GROUPS_MAX:,} more findings on other hops", "dim"))
    return lines


def _id_lines(group: FindingGroup) -> list[str]:
    examples = [example for spot in group.spots for example in spot.examples][:IDS_MAX]
    lines = [f"  {_id_words(example)}" for example in examples]
    more = group.count - len(examples)
    if more > 0:
        lines.append(f"  and {more:,} more" if examples else f"  {more:,} without an example")
    return lines


def _id_words(example: Example) -> str:
    words = [moment(example.window), spelled(example.message)]
    if example.session is not None and example.session != example.message:
        index = "" if example.idx is None else f" #{example.idx}"
        words.append(f"session {spelled(example.session)}{index}")
    if example.count > 1:
        words.append(f"{example.count:,} copies")
    if example.detail:
        words.append(spelled(example.detail))
    return "  ".join(words)


def points_view(comparison: ChainComparison) -> list[RenderableType]:
    """Two points, and the first ids that are at one of them only."""
    from rich.text import Text

    lines: list[RenderableType] = [
        Text(spelled(points_sentence(comparison)), "bold red" if any(between(comparison).values()) else "bold green")
    ]
    for words, ids in (("not arrived", comparison.missing), ("not sent", comparison.surplus)):
        lines += [f"  {words}: {spelled(message)}" for message in ids[:IDS_MAX]]
    return lines


def _foot(audit: Audit) -> Text:
    from rich.text import Text

    sources = plural(len(audit.sources), "source")
    judged = "there is no time to judge at" if audit.now is None else f"judged at {moment(audit.now)} UTC"
    words = (
        f"{plural(audit.events, 'event')} of {sources} in {audit.seconds:.1f} s; {judged}, "
        f"deadline {duration(audit.deadline_s * 1000)}, windows of {duration(audit.window_s * 1000)}"
    )
    return Text(words, "dim")


# -- for machines


def as_dict(audit: Audit, fail_on: Iterable[Finding] = tuple(Finding)) -> dict[str, Any]:
    """The whole audit. Times are microseconds since 1970; what is unknown is null."""
    wanted = tuple(fail_on)
    judgement = judge(audit, wanted)
    return {
        "verdict": {
            "outcome": judgement.outcome.value,
            "sentence": judgement.sentence,
            "found": {finding.value: count for finding, count in judgement.found.items()},
            "fail_on": [finding.value for finding in wanted],
            "failing": [finding.value for finding in judgement.failing],
        },
        "sources": list(audit.sources),
        "now": audit.now,
        "deadline_s": audit.deadline_s,
        "window_s": audit.window_s,
        "events": audit.events,
        "settled": audit.settled,
        "seconds": audit.seconds,
        "gaps": audit.gaps,
        "late": audit.late,
        "notes": all_notes(audit),
        "totals": [_figures_dict(figures) for figures in audit.totals],
        "windows": [_figures_dict(figures) for figures in audit.windows],
        "chains": [{name: getattr(chain, name) for name in _CHAIN} for chain in audit.chains],
        "inside": [asdict(inside) for inside in audit.inside],
        "examples": [{**asdict(example), "finding": example.finding.value} for example in audit.examples],
    }


def _figures_dict(figures: CellFigures) -> dict[str, Any]:
    pipe, delivery = measures(figures)
    latency = asdict(figures.latency)
    return {
        "pipeline": figures.pipeline,
        "hop": figures.hop,
        "session_class": figures.session_class,
        "window": figures.window,
        "state": figures.state.value,
        "holds": figures.holds,
        **{name: getattr(figures, name) for name in COUNTED},
        "pipe": _measure_dict(pipe),
        "delivery": _measure_dict(delivery),
        "latency_ms": {name: value for name, value in latency.items() if name != "skew_ms"}
        | {"skew": latency["skew_ms"]},
    }


def _measure_dict(side: Measure) -> dict[str, Any]:
    verdict = side.verdict
    mode = verdict.mode if verdict is not None else None
    return {
        "reliability": side.reliability,
        "reliability_interval": list(verdict.reliability) if verdict is not None else None,
        "uniqueness": side.uniqueness,
        "uniqueness_interval": list(verdict.uniqueness) if verdict is not None else None,
        "duplication_rate": side.duplication,
        "mode": mode.value if mode is not None else None,
        "words": side.words,
    }


def points_dict(comparison: ChainComparison) -> dict[str, Any]:
    counts = comparison.counts
    return {
        "from": str(comparison.sender),
        "to": str(comparison.receiver),
        "sent": counts.sent,
        "unique": counts.unique,
        "received": counts.received,
        "reliability": counts.reliability,
        "uniqueness": counts.uniqueness,
        "surplus": comparison.surplus_count,
        "missing_ids": list(comparison.missing),
        "surplus_ids": list(comparison.surplus),
    }
