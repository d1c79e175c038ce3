"""What there is to say about an audit: the verdict, the hops one by one, their course over time, and what was found.

The page, the terminal and the metrics say the same because they all read it here. Nothing in here draws anything.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from semel.calculus.mode import MessageCounts, ModeVerdict
from semel.errors import InputError
from semel.spark.audit.result import Audit, CellFigures, Chain, Example, Finding, Latency, WindowState
from semel.words import plural

if TYPE_CHECKING:
    from semel.spark.audit.chains import ChainComparison

TOLERANCE = 0.001
"""How far from 1 a figure may be and still count as 1 where a mode is named."""
BINS_MAX = 120
"""So many points fit on a chart; more windows than that are taken together."""

COLUMNS = {
    Finding.LOST: "lost",
    Finding.DUPLICATE: "doubled",
    Finding.ORDER: "disorder",
    Finding.PHANTOM: "phantoms",
    Finding.UNBALANCED: "unbalanced",
}
"""Where the figures of a cell have the count of a finding. Gaps are counted for the audit as a whole."""

WORDS = {
    Finding.LOST: "lost",
    Finding.DUPLICATE: "doubled",
    Finding.ORDER: "out of order",
    Finding.PHANTOM: "phantoms",
    Finding.UNBALANCED: "unbalanced",
    Finding.GAP: "ledger gaps",
}
EXPLAINED = {
    Finding.LOST: "sent, given all the time it had, and never seen to arrive or to be given up; or forwarded by a "
    "worker and never seen again",
    Finding.DUPLICATE: "accepted more than once: dedup let a copy through",
    Finding.ORDER: "accepted after a later message of its session",
    Finding.PHANTOM: "arrived, though nobody is on record as having sent it",
    Finding.UNBALANCED: "ended more often than it was accepted, or was confirmed without having been accepted",
    Finding.GAP: "a range of the ledger does not fit the records that it names: the evidence has a hole",
}

COUNTED = tuple(
    field.name
    for field in fields(CellFigures)
    if field.name not in ("pipeline", "hop", "session_class", "window", "state", "latency")
)
_MICROSECONDS = 1_000_000


class AuditOutcome(Enum):
    HOLDS = "holds"
    FAILS = "fails"
    NO_DATA = "no settled data"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`found` counts every finding, `failing` are those of them that make the claim false."""

    outcome: AuditOutcome
    sentence: str
    found: dict[Finding, int]
    failing: tuple[Finding, ...]


def judge(audit: Audit, fail_on: Iterable[Finding] = tuple(Finding)) -> Judgement:
    """The verdict in one sentence. A finding not in `fail_on` is reported, but does not make the claim false."""
    found = {finding: audit.count(finding) for finding in Finding}
    wanted = set(fail_on)
    failing = tuple(finding for finding in Finding if found[finding] and finding in wanted)
    if failing:
        return Judgement(AuditOutcome.FAILS, _failing_sentence(audit, failing), found, failing)
    if not audit.settled:
        return Judgement(AuditOutcome.NO_DATA, _no_data_sentence(audit), found, ())
    return Judgement(AuditOutcome.HOLDS, _holding_sentence(audit, found, wanted), found, ())


def _failing_sentence(audit: Audit, failing: tuple[Finding, ...]) -> str:
    counts = _listed([count_in_words(finding, audit.count(finding)) for finding in failing])
    all_hops = hops(audit)
    bad = sum(any(hop.found(finding) for finding in failing) for hop in all_hops)
    of = f" of {len(all_hops):,} hops" if len(all_hops) > 1 else " hop"
    inside = sum(each.lost for each in audit.inside) if Finding.LOST in failing else 0
    where = f" on {bad:,}{of}" if bad else ""
    within = f", {inside:,} of the lost inside workers" if inside else ""
    return f"It does not hold: {counts}{where}{within}."


def _no_data_sentence(audit: Audit) -> str:
    in_flight = sum(figures.in_flight for figures in audit.totals)
    deadline = duration(audit.deadline_s * 1000)
    if in_flight:
        return f"Too early to tell: {plural(in_flight, 'message')} may still arrive, {deadline} from being sent."
    if audit.is_open:
        return f"Too early to tell: in every window something was sent less than {deadline} ago."
    if audit.events:
        return f"Nothing to judge by: {plural(audit.events, 'event')}, but no message that was sent in this time."
    return "Nothing to judge by: there are no events in these sources and this time."


def _holding_sentence(audit: Audit, found: dict[Finding, int], wanted: set[Finding]) -> str:
    all_hops = hops(audit)
    settled = sum(hop.total.sent - hop.total.in_flight for hop in all_hops)
    counted_in = f"{plural(settled, 'send')} over {plural(len(all_hops), 'hop')}"
    start = f"It holds: {_none_of(wanted)} in {counted_in}" if wanted else "Nothing is claimed"
    counted = [count_in_words(finding, count) for finding, count in found.items() if count]
    return f"{start}; not part of the claim: {_listed(counted)}." if counted else f"{start}."


def _none_of(findings: set[Finding]) -> str:
    """What is claimed. Where everything is, the three that people ask about say enough."""
    named = (Finding.LOST, Finding.DUPLICATE, Finding.ORDER) if findings == set(Finding) else tuple(Finding)
    nouns = (Finding.PHANTOM, Finding.GAP)
    what = _listed([WORDS[finding] for finding in named if finding in findings and finding not in nouns], "or")
    more = [f"no {WORDS[finding]}" for finding in named if finding in findings and finding in nouns]
    return _listed([*([f"nothing {what}"] if what else []), *more])


def _listed(words: Sequence[str], joiner: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joiner} {words[-1]}" if words else ""


def count_in_words(finding: Finding, count: int) -> str:
    """ "3 lost", "1 ledger gap"."""
    return f"{count:,} {WORDS[finding].removesuffix('s') if count == 1 else WORDS[finding]}"


# -- two points


def between(comparison: ChainComparison) -> dict[Finding, int]:
    """What two points differ in. Everything counts that was seen there, settled or not."""
    counts = comparison.counts
    return {
        Finding.LOST: counts.sent - counts.unique,
        Finding.DUPLICATE: counts.received - counts.unique,
        Finding.PHANTOM: comparison.surplus_count,
    }


def points_sentence(comparison: ChainComparison) -> str:
    counts, found = comparison.counts, between(comparison)
    counted = _listed([count_in_words(finding, count) for finding, count in found.items() if count]) or "no difference"
    return (
        f"From {comparison.sender} to {comparison.receiver}: {counts.unique:,} of {plural(counts.sent, 'message')} "
        f"arrived; {counted}."
    )


def judge_points(comparison: ChainComparison, fail_on: Iterable[Finding]) -> str:
    """Why the claim is false between two points; empty where it holds."""
    found, wanted = between(comparison), set(fail_on)
    return points_sentence(comparison) if any(found[finding] for finding in found if finding in wanted) else ""


# -- figures of several cells taken together


def merge(cells: Sequence[CellFigures], window: int | None = None) -> CellFigures:
    """The figures of several cells of one hop as if they were one.

    Counts are added. Percentiles cannot be: the median is the mean weighted by messages, every higher one is the
    highest of its kind, which the true one never exceeds."""
    first = cells[0]
    if len(cells) == 1:
        return first
    classes = {cell.session_class for cell in cells}
    sums = {name: sum(getattr(cell, name) for cell in cells) for name in COUNTED}
    return CellFigures(
        pipeline=first.pipeline,
        hop=first.hop,
        session_class=first.session_class if len(classes) == 1 else "",
        window=window,
        state=_state(cells),
        latency=_merge_latencies([cell.latency for cell in cells]),
        **sums,
    )


def _state(cells: Sequence[CellFigures]) -> WindowState:
    states = {cell.state for cell in cells}
    if WindowState.OPEN in states:
        return WindowState.OPEN
    return WindowState.SETTLED if WindowState.SETTLED in states else WindowState.EMPTY


def _merge_latencies(all_latencies: Sequence[Latency]) -> Latency:
    known = [latency for latency in all_latencies if latency.count]
    skewed = sum(latency.skewed for latency in all_latencies)
    skew_ms = max((latency.skew_ms for latency in all_latencies), default=0.0)
    if not known:
        return Latency(skewed=skewed, skew_ms=skew_ms)
    count = sum(latency.count for latency in known)
    return Latency(
        count=count,
        p50=_mean([(latency.p50, latency.count) for latency in known]),
        p90=_highest(latency.p90 for latency in known),
        p99=_highest(latency.p99 for latency in known),
        p999=_highest(latency.p999 for latency in known),
        max=_highest(latency.max for latency in known),
        skewed=skewed,
        skew_ms=skew_ms,
    )


def _mean(weighted: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def counted(counts: Callable[[], MessageCounts]) -> MessageCounts | None:
    """The counts, or None where they cannot be: a report about a damaged ledger must still be written."""
    try:
        return counts()
    except InputError:
        return None


@dataclass(frozen=True, slots=True)
class Measure:
    """R and UR of one side, pipe or delivery, with what they show. None where there is nothing to show."""

    reliability: float | None
    uniqueness: float | None
    duplication: float | None
    verdict: ModeVerdict | None
    words: str


def measures(figures: CellFigures) -> tuple[Measure, Measure]:
    """What was measured of the pipe, and of the delivery."""
    pipe, delivery = counted(lambda: figures.pipe), counted(lambda: figures.delivery)
    return _measure(pipe, figures), _measure(delivery, figures)


def _measure(counts: MessageCounts | None, figures: CellFigures) -> Measure:
    if counts is None:
        return Measure(None, None, None, None, "the counts do not fit each other")
    verdict = counts.verdict(TOLERANCE)
    words = "nothing has settled yet" if figures.sent and not counts.sent else verdict.words
    return Measure(counts.reliability, counts.uniqueness, counts.duplication_rate, verdict, words)


# -- hops


class HopHealth(Enum):
    """How a hop, or a stretch of its time, is to be shown."""

    GOOD = "good"
    BAD = "bad"
    OPEN = "open"
    NONE = "none"


def health(figures: CellFigures) -> HopHealth:
    if not figures.holds:
        return HopHealth.BAD
    if figures.state is WindowState.OPEN and figures.sent == figures.in_flight:
        return HopHealth.OPEN
    return HopHealth.GOOD if figures.sent or figures.arrivals else HopHealth.NONE


@dataclass(frozen=True, slots=True)
class Bin:
    """One or more windows next to each other. `start` and `end` in microseconds."""

    start: int
    end: int
    figures: CellFigures


@dataclass(frozen=True)
class ReportHop:
    """One hop of one pipeline: `classes` one by one, and `windows` with all classes taken together."""

    pipeline: str
    name: str
    classes: tuple[CellFigures, ...]
    windows: tuple[CellFigures, ...]

    @cached_property
    def total(self) -> CellFigures:
        return merge(self.classes)

    @cached_property
    def measures(self) -> tuple[Measure, Measure]:
        return measures(self.total)

    @property
    def points(self) -> tuple[str, str]:
        first, _, last = self.name.partition(">")
        return first, last

    @property
    def health(self) -> HopHealth:
        return health(self.total)

    @property
    def latency_is_bound(self) -> bool:
        """Whether its percentiles are bounds: they were put together from those of several classes."""
        return sum(1 for figures in self.classes if figures.latency.count) > 1

    @property
    def lacks_sender(self) -> bool:
        """Messages arrive here and none was sent: the sender's ledger is probably not among the sources."""
        return bool(self.total.phantoms and not self.total.sent)

    def found(self, finding: Finding) -> int:
        return getattr(self.total, COLUMNS[finding]) if finding in COLUMNS else 0

    @property
    def findings(self) -> list[tuple[Finding, int]]:
        return [(finding, self.found(finding)) for finding in COLUMNS if self.found(finding)]

    @property
    def severity(self) -> tuple[int, int]:
        return sum(count for _, count in self.findings), self.total.in_flight


def hops(audit: Audit) -> list[ReportHop]:
    """Pipeline by pipeline, and in each along the path."""
    classes: dict[tuple[str, str], list[CellFigures]] = {}
    windows: dict[tuple[str, str], dict[int, list[CellFigures]]] = {}
    for figures in audit.totals:
        classes.setdefault((figures.pipeline, figures.hop), []).append(figures)
    for figures in audit.windows:
        if figures.window is not None:
            cells = windows.setdefault((figures.pipeline, figures.hop), {})
            cells.setdefault(figures.window, []).append(figures)
    found = [
        ReportHop(pipeline, name, tuple(of), _by_time(windows.get((pipeline, name), {})))
        for (pipeline, name), of in classes.items()
    ]
    pipelines = dict.fromkeys(hop.pipeline for hop in found)
    return [hop for name in pipelines for hop in _along([hop for hop in found if hop.pipeline == name])]


def _along(found: Sequence[ReportHop]) -> list[ReportHop]:
    """From where messages enter, hop after hop; those of a circle that nothing leads into come last."""
    onward: dict[str, list[ReportHop]] = {}
    for hop in found:
        onward.setdefault(hop.points[0], []).append(hop)
    reached = {hop.points[1] for hop in found}
    order: dict[str, ReportHop] = {}
    for begin in sorted(found, key=lambda hop: hop.points[0] in reached):
        following = deque([begin])
        while following:
            hop = following.popleft()
            if hop.name not in order:
                order[hop.name] = hop
                following += onward.get(hop.points[1], ())
    return list(order.values())


def _by_time(windows: dict[int, list[CellFigures]]) -> tuple[CellFigures, ...]:
    return tuple(merge(windows[start], start) for start in sorted(windows))


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that all charts of one audit share. A bin is `step` microseconds: one window, or several."""

    start: int
    end: int
    step: int
    windows_each: int

    @classmethod
    def of(cls, audit: Audit, bins_max: int = BINS_MAX) -> Axis | None:
        starts = [figures.window for figures in audit.windows if figures.window is not None]
        if not starts:
            return None
        window = max(1, round(audit.window_s * _MICROSECONDS))
        start, end = min(starts), max(starts) + window
        each = max(1, math.ceil((end - start) / window / bins_max))
        return cls(start, end, window * each, each)

    def bins(self, hop: ReportHop) -> list[Bin]:
        """Only those in which there is a window: what is missing is missing."""
        return [
            Bin(start, start + self.step, merge(list(cells), start))
            for number, cells in groupby(hop.windows, lambda cell: ((cell.window or 0) - self.start) // self.step)
            for start in [self.start + number * self.step]
        ]


# -- what was found


@dataclass(frozen=True, slots=True)
class Spot:
    """A finding on one hop in one window: the examples that are known, and how many there are in all."""

    window: int | None
    count: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """A finding on one hop. `spots` are the first windows of it, `rest` counts what lies in `rest_windows` others."""

    finding: Finding
    pipeline: str
    hop: str
    count: int
    spots: tuple[Spot, ...]
    rest: int
    rest_windows: int


def groups(audit: Audit, spots_max: int = 50) -> list[FindingGroup]:
    """Findings by hop and window, in the order in which `Finding` has them."""
    known: dict[tuple[Finding, str, str], dict[int | None, list[Example]]] = {}
    for example in audit.examples:
        at = known.setdefault((example.finding, example.pipeline, example.hop), {})
        at.setdefault(example.window, []).append(example)
    found = []
    all_hops = {(hop.pipeline, hop.name): hop for hop in hops(audit)}
    inside = {(each.pipeline, each.hop): each.lost for each in audit.inside}
    for finding in Finding:
        beyond = inside if finding is Finding.LOST else {}
        places = [place for place, hop in all_hops.items() if hop.found(finding) or place in beyond]
        places += [key[1:] for key in known if key[0] is finding and key[1:] not in places]
        found += [
            _group(
                finding, place, all_hops.get(place), known.get((finding, *place), {}), spots_max, beyond.get(place, 0)
            )
            for place in places
        ]
    return found


def _group(
    finding: Finding,
    place: tuple[str, str],
    hop: ReportHop | None,
    known: dict[int | None, list[Example]],
    spots_max: int,
    beyond: int,
) -> FindingGroup:
    """`beyond` are those that the hop brought to its end, to be lost after it."""
    counts: dict[int | None, int] = {window: len(examples) for window, examples in known.items()}
    for figures in hop.windows if hop is not None and finding in COLUMNS else ():
        count = getattr(figures, COLUMNS[finding])
        if count:
            counts[figures.window] = max(count, counts.get(figures.window, 0))
    # windows with examples first: they are what people came for
    order = sorted(counts, key=lambda window: (window not in known, window is None, window or 0))
    shown = sorted(order[:spots_max], key=lambda window: (window is None, window or 0))
    spots = tuple(Spot(window, counts[window], tuple(known.get(window, ()))) for window in shown)
    total = max((hop.found(finding) if hop is not None else 0) + beyond, sum(counts.values()))
    return FindingGroup(
        finding, *place, total, spots, total - sum(spot.count for spot in spots), len(order) - len(spots)
    )


def advice(audit: Audit) -> list[str]:
    """What the figures suggest to whoever reads them, beside the notes of the audit itself."""
    return [
        f"Nobody is on record as sending on {place(hop.pipeline, hop.name)}: "
        f"add the store of {hop.points[0]} as a source."
        for hop in hops(audit)
        if hop.lacks_sender
    ]


def all_notes(audit: Audit) -> list[str]:
    return [*audit.notes, *_late_notes(audit), *advice(audit)]


def _late_notes(audit: Audit) -> list[str]:
    came = (
        f"{plural(audit.late, 'message')} came back later than --keep, when their windows were closed: they are late,"
    )
    return [f"{came} and neither phantoms nor anything else that is judged."] if audit.late else []


# -- words for values


def ratio(value: float | None) -> str:
    """A figure between 0 and 1. One that is nearly 1 is shown by what it lacks, so that it never looks like 1."""
    if value is None:
        return "–"
    if 0 < 1 - value < 5e-7:
        return f"1−{1 - value:.1e}"
    return f"{value:.6g}"


def interval(of: tuple[float, float]) -> str:
    """Its lower end is rounded down, its upper end up: it never promises more than was counted."""
    low, high = math.floor(of[0] * 100_000) / 100_000, math.ceil(of[1] * 100_000) / 100_000
    return f"{low:.5g}…{high:.5g}"


def duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= size:
            return f"{milliseconds / size:.3g} {unit}"
    return f"{milliseconds:.3g} ms"


def moment(microseconds: int | None) -> str:
    """In UTC. None stands for the whole time."""
    if microseconds is None:
        return "any time"
    try:
        at = datetime.fromtimestamp(microseconds / _MICROSECONDS, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{microseconds} µs"
    return at.strftime("%Y-%m-%d %H:%M:%S")


def place(pipeline: str, hop: str) -> str:
    """A hop with its pipeline, since several pipelines may have hops of one name."""
    return f"{pipeline}: {hop}" if pipeline else hop


def exact_moment(microseconds: int) -> str:
    """As the options of `semel audit` read it."""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return at.isoformat().replace("+00:00", "Z")


def spelled(text: str) -> str:
    """Somebody else's text on one line: what would move a cursor, hide or turn the text around is spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in text)


def chain_name(chain: Chain) -> str:
    """ "a > b > c": the points, where the hops fit together, else the hops."""
    points = [hop.partition(">") for hop in chain.hops]
    fits = all(left[2] == right[0] for left, right in pairwise(points))
    if points and fits and all(separator for _, separator, _ in points):
        return " > ".join([points[0][0], *(last for _, _, last in points)])
    return ", ".join(chain.hops)
