"""An audit as one HTML page that needs nothing from outside: no script, no font, no picture from anywhere.

Whatever comes from the ledger is somebody else's text. It goes through `_text`, and a policy in the page forbids all
but its own style, so that not even a mistake here could make an id do anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from semel import __version__
from semel.spark.audit.files import write_whole
from semel.spark.audit.report import (
    COLUMNS,
    EXPLAINED,
    TOLERANCE,
    WORDS,
    AuditOutcome,
    Axis,
    FindingGroup,
    Judgement,
    Measure,
    ReportHop,
    Spot,
    all_notes,
    chain_name,
    duration,
    groups,
    hops,
    interval,
    judge,
    measures,
    moment,
    points_sentence,
    ratio,
    spelled,
)
from semel.spark.audit.report_charts import draw_course, draw_strip
from semel.spark.audit.report_graph import draw_graph
from semel.spark.audit.result import Audit, CellFigures, Example, Finding
from semel.svg import box, element, line, picture
from semel.words import plural

if TYPE_CHECKING:
    from semel.spark.audit.chains import ChainComparison

COURSES_MAX = 12
"""So many hops have charts of their own, those with most findings first; all are in the strip and in the table."""

Numbered = list[tuple[int, ReportHop]]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_HATCH = element(
    "svg",
    element(
        "defs",
        element(
            "pattern", line("M0 0V6", class_="hatch-line"), id="hatch", width=6, height=6,
            patternUnits="userSpaceOnUse", patternTransform="rotate(45)",
        ),
    ),
    class_="defs",
    aria_hidden="true",
)  # fmt: skip
_ICONS = {
    AuditOutcome.HOLDS: line("M5 12.5l4.5 4.5L19 7.5"),
    AuditOutcome.FAILS: line("M7 7l10 10M17 7L7 17"),
    AuditOutcome.NO_DATA: line("M12 7v5.5l3.5 2"),
}
_STYLES = {AuditOutcome.HOLDS: "holds", AuditOutcome.FAILS: "fails", AuditOutcome.NO_DATA: "unknown"}

_DEFINITIONS = (
    ("Hop", "The way between two points, from the one that sends to the one that receives."),
    ("R, reliability", "Messages that arrived at least once, of those that were sent and have had their time."),
    ("UR, uniqueness", "Messages that arrived, of all copies that arrived. 1 means that nothing came twice."),
    (
        "Pipe and delivery",
        "Pipe figures are what came out of the link, before dedup. Delivery figures are what was accepted, after "
        "dedup: what the application sees. A pipe that doubles under a delivery that does not is dedup at work.",
    ),
    (
        "Interval and mode",
        "A count cannot show that a figure is 1, only that it is above some bound with 95 % confidence. A mode is "
        f"named when the whole interval is within {TOLERANCE} of 1, or below that; else there are too few messages.",
    ),
    (
        "Settled, open, empty",
        "A window of send time is settled when everything sent in it has had its deadline. It is open while something "
        "may still arrive, and empty when nothing was sent, or nobody wrote it down.",
    ),
    ("Given up", "Ended visibly at the sender: expired, cancelled, dead-lettered. Not lost, and not arrived."),
    (
        "Predicted, worker",
        "Predicted is the product of the R of a chain's hops; measured is counted by id from its first sender to its "
        "last receiver. Measured / predicted below 1 means that messages vanished inside the workers between the hops.",
    ),
    (
        "Latency",
        "From the first send to the first acceptance. Where several windows or classes are taken together the "
        "median is the mean of theirs, weighted by messages, and p99 the highest of theirs, which no true one exceeds.",
    ),
)


def write_report(
    audit: Audit, file: Path, fail_on: Iterable[Finding] = tuple(Finding), comparison: ChainComparison | None = None
) -> None:
    write_whole(file, page(audit, fail_on, comparison))


def page(audit: Audit, fail_on: Iterable[Finding] = tuple(Finding), comparison: ChainComparison | None = None) -> str:
    judgement = judge(audit, fail_on)
    numbered = list(enumerate(hops(audit), 1))
    axis = Axis.of(audit)
    found = groups(audit)
    sections = [
        _section("path", "The path", _graphs(numbered)),
        _section("time", "Over time", _over_time(numbered, axis)),
        _section("hops", "Hop by hop", _hop_table(numbered)),
        _section("chains", "From end to end", _points(comparison) + _chain_table(audit)),
        _section("findings", "What was found", _findings(found, audit)),
        _section("method", "How this was counted", _method(audit)),
    ]
    style = files("semel.spark.audit").joinpath("report.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in _LINKS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="semel {__version__}">
<title>Audit: {escape(judgement.outcome.value)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#path">Skip to the path</a>
{_HATCH}
<header>
<h1>Semel audit{_heading(numbered)}</h1>
<p class="soft">{_range(audit, axis)}</p>
{_verdict(judgement)}
{_notes(audit)}
{_cards(audit, judgement, numbered)}
<nav aria-label="On this page"><ul>{links}</ul></nav>
</header>
<main>
{"".join(sections)}
</main>
<footer>{plural(audit.events, "event")} in {audit.seconds:.1f} s, by semel {__version__}. All times are UTC.</footer>
</body>
</html>
"""


_LINKS = (
    ("path", "Path"),
    ("time", "Over time"),
    ("hops", "Hops"),
    ("chains", "End to end"),
    ("findings", "Findings"),
    ("method", "Method"),
)


def _text(text: str) -> str:
    """Somebody else's text for the page: harmless, visible, and not able to turn its surroundings around."""
    return escape(spelled(text))


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{body}</section>\n'


def _scroll(body: str, label: str, style: str = "") -> str:
    """What may be wider than the page. It takes the focus, so that it can be scrolled with keys."""
    return f'<div class="scroll {style}" tabindex="0" role="region" aria-label="{escape(label)}">{body}</div>'


# -- the top


def _heading(numbered: Numbered) -> str:
    names = sorted({hop.pipeline for _, hop in numbered if hop.pipeline})
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f": {_text(', '.join(names[:3]))}{more}"


def _range(audit: Audit, axis: Axis | None) -> str:
    source = plural(len(audit.sources), "source")
    if axis is None:
        return f"{source}, no {'windows' if audit.events else 'events'}"
    return f"{moment(axis.start)} to {moment(axis.end)} UTC, from {source}"


def _verdict(judgement: Judgement) -> str:
    icon = picture(
        24, 24, element("circle", cx=12, cy=12, r=10.5), _ICONS[judgement.outcome], fill="none",
        stroke="currentColor", stroke_width=2, stroke_linecap="round", aria_hidden="true",
    )  # fmt: skip
    style, sentence = _STYLES[judgement.outcome], _text(judgement.sentence)
    return f'<div class="verdict {style}" role="status">{icon}<p>{sentence}</p></div>'


def _notes(audit: Audit) -> str:
    lines = all_notes(audit)
    if not lines:
        return ""
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<aside class="notes" aria-label="Notes"><ul>{items}</ul></aside>'


def _cards(audit: Audit, judgement: Judgement, numbered: Numbered) -> str:
    sent = sum(hop.total.sent for _, hop in numbered)
    in_flight = sum(hop.total.in_flight for _, hop in numbered)
    cards = [("", "hops", f"{len(numbered):,}"), ("", "sends", f"{sent:,}"), ("", "in flight", f"{in_flight:,}")]
    for finding, count in judgement.found.items():
        if finding in COLUMNS or count:
            style = "bad" if count else "zero" if audit.settled else ""
            cards.append((style, WORDS[finding], f"{count:,}"))
    items = "".join(f'<div class="{style}"><dt>{name}</dt><dd>{value}</dd></div>' for style, name, value in cards)
    return f'<dl class="cards">{items}</dl>'


# -- the path, and time


def _graphs(numbered: Numbered) -> str:
    if not numbered:
        return '<p class="soft">There are no hops.</p>'
    drawn = []
    for pipeline, each in groupby(numbered, lambda pair: pair[1].pipeline):
        name = f"<h3>{_text(pipeline)}</h3>" if pipeline else ""
        drawn.append(name + _scroll(draw_graph(list(each)), f"The path {spelled(pipeline)}".strip()))
    note = '<p class="soft">R and UR are those of the delivery: what was accepted, after dedup.</p>'
    return note + "".join(drawn)


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<li>{picture(30, 14, drawing, aria_hidden='true')}{name}</li>" for drawing, name in entries)
    return f'<ul class="legend">{items}</ul>'


def _swatch(style: str, hatch: bool = False) -> str:
    over = [_patch(fill="url(#hatch)")] if hatch else []
    return element("g", _patch(), *over, class_=f"cell {style}")


def _patch(**attributes: str) -> str:
    return box(3, 1, 24, 12, rx=2, **attributes)


def _stroke(style: str) -> str:
    return line("M1 7H29", class_=f"line {style}")


_STRIP_LEGEND = (
    (_swatch("good"), "holds"),
    (_swatch("bad"), "something was found"),
    (_swatch("open", True), "open: something may still arrive"),
    (_swatch("none"), "nothing was sent"),
)
_COURSE_LEGEND = (
    (_stroke("reliability delivery"), "R, delivery"),
    (_stroke("reliability pipe"), "R, pipe"),
    (_stroke("uniqueness delivery"), "UR, delivery"),
    (_stroke("uniqueness pipe"), "UR, pipe"),
    (_stroke("p50"), "latency p50"),
    (_stroke("p99"), "latency p99"),
    (_swatch("open", True), "open window"),
)


def _over_time(numbered: Numbered, axis: Axis | None) -> str:
    if axis is None:
        return '<p class="soft">There are no windows to show.</p>'
    each = duration(axis.step / 1000)
    grain = f"One point is one window of {each}."
    if axis.windows_each > 1:
        grain = f"One point is {each}: {axis.windows_each:,} windows taken together."
    worst = sorted(numbered, key=lambda pair: pair[1].severity, reverse=True)[:COURSES_MAX]
    chosen = sorted(worst, key=lambda pair: pair[0])
    left_out = len(numbered) - len(chosen)
    note = ""
    if left_out:
        note = (
            f"<p>Charts of {plural(len(chosen), 'hop')}, those with most findings. The figures of the other "
            f"{left_out:,} over time are in the table <code>windows</code> that <code>--tables</code> writes.</p>"
        )
    strip = _scroll(draw_strip(numbered, axis), "All hops over time")
    courses = "".join(_course(number, hop, axis) for number, hop in chosen)
    bars = [
        (_patch(class_=f"bar {finding.value}"), WORDS[finding])
        for finding in COLUMNS
        if any(hop.found(finding) for _, hop in chosen)
    ]
    return (
        f'<p class="soft">By time of sending. {grain}</p>{_legend(_STRIP_LEGEND)}{strip}'
        f'{note}{_legend([*_COURSE_LEGEND, *bars])}<div class="courses">{courses}</div>'
    )


def _course(number: int, hop: ReportHop, axis: Axis) -> str:
    rows = "".join(_bin_row(each.start, each.figures) for each in axis.bins(hop))
    columns = ("from", "state", "sent", "lost", "doubled", "disorder", "R", "UR", "R pipe", "UR pipe", "p50", "p99")
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    pipeline = f'<span class="soft">{_text(hop.pipeline)} · </span>' if hop.pipeline else ""
    return (
        f"<figure><h3>{pipeline}{_text(hop.name)}</h3>{draw_course(hop, axis, number)}"
        f"<details><summary>As a table</summary>{_scroll(table, f'{spelled(hop.name)} over time')}</details></figure>"
    )


def _bin_row(start: int, figures: CellFigures) -> str:
    pipe, delivery = measures(figures)
    cells = [
        moment(start),
        figures.state.value,
        *(f"{count:,}" for count in (figures.sent, figures.lost, figures.doubled, figures.disorder)),
        *(ratio(value) for side in (delivery, pipe) for value in (side.reliability, side.uniqueness)),
        duration(figures.latency.p50),
        duration(figures.latency.p99),
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


# -- tables


_HOP_COLUMNS = (
    "sent", "lost", "doubled", "out of order", "phantoms", "unbal&shy;anced", "R", "UR", "mode", "p50", "p99",
    "highest", "accepted", "given up", "in flight", "pipe R", "pipe UR", "copies stopped", "sends each",
)  # fmt: skip


def _hop_table(numbered: Numbered) -> str:
    if not numbered:
        return '<p class="soft">There are no hops.</p>'
    head = "".join(f'<th scope="col"{" class=text" if name == "mode" else ""}>{name}</th>' for name in _HOP_COLUMNS)
    rows = "".join(_hop_rows(number, hop) for number, hop in numbered)
    caption = "Below R and UR: the interval that the count shows with 95 % confidence."
    table = (
        f'<table><caption>{caption}</caption><thead><tr><th scope="col" class="name">hop</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    return _scroll(table, "Figures of every hop")


def _hop_rows(number: int, hop: ReportHop) -> str:
    pipeline = f'<br><span class="soft">{_text(hop.pipeline)}</span>' if hop.pipeline else ""
    name = f'<th scope="row" class="name">{_text(hop.name)}{pipeline}</th>'
    rows = f'<tr id="hop-{number}">{name}{_hop_cells(hop.total, hop.latency_is_bound)}</tr>'
    if len(hop.classes) > 1:
        rows += "".join(
            f'<tr class="class"><th scope="row" class="name">{_text(figures.session_class) or "(no class)"}</th>'
            f"{_hop_cells(figures)}</tr>"
            for figures in hop.classes
        )
    return rows


def _hop_cells(figures: CellFigures, bound: bool = False) -> str:
    pipe, delivery = measures(figures)
    found = "".join(_count_cell(getattr(figures, column), bad=True) for column in COLUMNS.values())
    latency = figures.latency
    attempts = f"{figures.attempts / figures.sent:.4g}" if figures.sent else "–"
    return "".join(
        [
            _count_cell(figures.sent),
            found,
            _ratio_cells(delivery),
            f'<td class="mode">{escape(delivery.words)}</td>',
            f"<td>{'≈ ' if bound else ''}{duration(latency.p50)}</td>",
            f"<td>{'≤ ' if bound else ''}{duration(latency.p99)}</td><td>{duration(latency.max)}</td>",
            *map(_count_cell, (figures.accepted_unique, figures.given_up, figures.in_flight)),
            _ratio_cells(pipe),
            _count_cell(figures.duplicates),
            f"<td>{attempts}</td>",
        ]
    )


def _count_cell(count: int, *, bad: bool = False) -> str:
    return f"<td{' class=bad' if bad and count else ''}>{count:,}</td>"


def _ratio_cells(side: Measure) -> str:
    if side.verdict is None:
        return "<td>–</td><td>–</td>"
    cells = ((side.reliability, side.verdict.reliability), (side.uniqueness, side.verdict.uniqueness))
    return "".join(
        f"<td>{ratio(value)}" + (f'<span class="soft">{interval(of)}</span>' if value is not None else "") + "</td>"
        for value, of in cells
    )


def _points(comparison: ChainComparison | None) -> str:
    if comparison is None:
        return ""
    ids = (("Not arrived", comparison.missing), ("Not sent", comparison.surplus))
    listed = "".join(
        f"<li>{words}: " + ", ".join(f'<span class="id">{_text(message)}</span>' for message in messages) + "</li>"
        for words, messages in ids
        if messages
    )
    return f"<p><strong>{_text(points_sentence(comparison))}</strong></p>" + (f"<ul>{listed}</ul>" if listed else "")


def _chain_table(audit: Audit) -> str:
    if not audit.chains:
        return '<p class="soft">No two hops follow each other in one pipeline.</p>'
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("hops", "sent", "arrived", "predicted R", "measured R", "measured / predicted", "lost inside")
    )
    rows = []
    for chain in audit.chains:
        pipeline = f'<br><span class="soft">{_text(chain.pipeline)}</span>' if chain.pipeline else ""
        counts = (f"{count:,}" for count in (len(chain.hops), chain.sent, chain.arrived))
        cells = (*counts, ratio(chain.predicted), ratio(chain.measured))
        low = chain.worker is not None and chain.worker < 1
        worker = f"<td{' class=bad' if low else ''}>{_ratio_or_more(chain.worker)}</td>"
        worker += f"<td{' class=bad' if chain.inside else ''}>{chain.inside:,}</td>"
        rows.append(
            f'<tr><th scope="row" class="name">{_text(chain_name(chain))}{pipeline}</th>'
            f"{''.join(f'<td>{cell}</td>' for cell in cells)}{worker}</tr>"
        )
    caption = (
        "Predicted: the product of the hops. Measured / predicted below 1: lost inside the workers between them, or "
        "ended there. Lost inside: forwarded by a worker, and never seen again."
    )
    table = (
        f'<table><caption>{caption}</caption><thead><tr><th scope="col" class="name">chain</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
    return _scroll(table, "Chains of hops", "wide")


def _ratio_or_more(value: float | None) -> str:
    """Measured / predicted may be above 1, since the product is a lower bound."""
    return f"{value:.6g}" if value is not None and value > 1 else ratio(value)


# -- findings


def _findings(found: list[FindingGroup], audit: Audit) -> str:
    if not found:
        words = "Nothing." if audit.settled else "Nothing, but nothing has settled either."
        return f"<p>{words}</p>"
    parts: list[str] = []
    for finding, of in groupby(found, lambda group: group.finding):
        each = list(of)
        total = audit.count(finding)
        first = not parts
        parts.append(
            f'<div class="finding"><h3><span class="chip {finding.value}"></span>{total:,} {WORDS[finding]}</h3>'
            f'<p class="soft">{EXPLAINED[finding][0].upper()}{EXPLAINED[finding][1:]}.</p>'
            + "".join(_group(group, opened=first and number == 0) for number, group in enumerate(each))
            + "</div>"
        )
    note = "<p class=soft>Examples by the time of sending. All ids are in the table <code>findings</code>.</p>"
    return note + "".join(parts)


def _group(group: FindingGroup, *, opened: bool) -> str:
    columns = ("window", "message", "session", "index", "copies", "detail")
    head = "".join(f'<th scope="col" class="text">{name}</th>' for name in columns)
    rows = "".join(_spot(spot) for spot in group.spots)
    if group.rest > 0:
        where = f" in {plural(group.rest_windows, 'other window')}" if group.rest_windows else ""
        rows += f'<tr class="more"><td colspan="6">and {group.rest:,} more{where}</td></tr>'
    pipeline = f'<span class="soft">{_text(group.pipeline)} · </span>' if group.pipeline else ""
    table = f'<table class="ids"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    label = f"{WORDS[group.finding]} on {spelled(group.hop)}"
    return (
        f"<details{' open' if opened else ''}><summary>{pipeline}{_text(group.hop)}: "
        f'<span class="count">{group.count:,}</span></summary>{_scroll(table, label)}</details>'
    )


def _spot(spot: Spot) -> str:
    rows = "".join(_example_row(example) for example in spot.examples)
    more = spot.count - len(spot.examples)
    if more > 0:
        start = f"and {more:,} more" if spot.examples else f"{more:,}"
        rows += f'<tr class="more"><td>{moment(spot.window)}</td><td colspan="5">{start} in this window</td></tr>'
    return rows


def _example_row(example: Example) -> str:
    session = f'<span class="id">{_text(example.session)}</span>' if example.session is not None else "–"
    return (
        f'<tr><td>{moment(example.window)}</td><td class="wrap"><span class="id">{_text(example.message)}</span></td>'
        f'<td class="wrap">{session}</td><td>{"–" if example.idx is None else f"{example.idx:,}"}</td>'
        f'<td>{example.count:,}</td><td class="wrap">{_text(example.detail)}</td></tr>'
    )


# -- the method


def _method(audit: Audit) -> str:
    listed = "<br>".join(f"<code>{_text(source)}</code>" for source in audit.sources) or "none"
    facts = (
        ("Sources", listed),
        ("Judged at", "no time, because there are no events" if audit.now is None else f"{moment(audit.now)} UTC"),
        ("Deadline", f"{duration(audit.deadline_s * 1000)} from the first send; later, a message counts as lost"),
        ("Window", duration(audit.window_s * 1000)),
        ("Events", f"{audit.events:,}, counted in {audit.seconds:.1f} s"),
    )
    definitions = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in _DEFINITIONS)
    listed_facts = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return f'<dl class="facts">{listed_facts}</dl><h3>Words</h3><dl class="facts">{definitions}</dl>'
