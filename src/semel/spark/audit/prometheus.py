"""An audit in Prometheus' text format, for the textfile collector of node_exporter.

Each metric is there once with its help and type, and after it a sample for each hop. A figure that is unknown
(nothing was sent) has no sample, since a 0 or a 1 would be a lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from semel.spark.audit.files import write_whole
from semel.spark.audit.report import AuditOutcome, chain_name, judge, measures
from semel.spark.audit.result import Audit, CellFigures, Finding

Labels = Mapping[str, str]
Sample = tuple[Labels, float | None]

_COUNTERS = {
    "sent": "Messages sent, each counted once.",
    "attempts": "Sendings, with those of messages that were sent again.",
    "arrivals": "Copies that came out of the link, before dedup.",
    "accepted": "Copies that were accepted, after dedup.",
    "duplicates": "Copies that dedup stopped.",
    "rejected": "Copies that the receiver rejected.",
    "lost": "Messages that have had their time and came to no visible end.",
    "doubled": "Copies accepted beyond the first.",
    "disorder": "Messages accepted after a later one of their session.",
    "phantoms": "Messages that arrived though nobody sent them.",
    "given_up": "Messages that ended at their sender.",
    "ended": "Messages that came to an end at their receiver.",
    "replayed": "Messages that were replayed.",
    "unbalanced": "Messages that ended more often than they were accepted.",
}
_GAUGES = {
    "in_flight": "Messages that may still arrive.",
    "open": "Messages that were accepted and have not ended yet.",
}
_QUANTILES = {"0.5": "p50", "0.9": "p90", "0.99": "p99", "0.999": "p999", "1": "max"}


def write_metrics(audit: Audit, file: Path, fail_on: Iterable[Finding] = tuple(Finding)) -> None:
    write_whole(file, metrics(audit, fail_on))


def metrics(audit: Audit, fail_on: Iterable[Finding] = tuple(Finding)) -> str:
    return "".join(_families(audit, tuple(fail_on)))


def _families(audit: Audit, fail_on: tuple[Finding, ...]) -> Iterator[str]:
    outcome = judge(audit, fail_on).outcome
    holds = None if outcome is AuditOutcome.NO_DATA else float(outcome is AuditOutcome.HOLDS)
    yield _family("holds", "gauge", "1 when the claim holds, 0 when not; absent without settled data.", [({}, holds)])
    now = None if audit.now is None else audit.now / 1_000_000
    yield _family("timestamp_seconds", "gauge", "The time at which it was judged.", [({}, now)])
    yield _family("duration_seconds", "gauge", "How long the audit took.", [({}, audit.seconds)])
    yield _family("events_total", "counter", "Events of the ledger that were read.", [({}, audit.events)])
    gaps = "Ranges of the ledger that do not fit the records they name."
    yield _family("gaps_total", "counter", gaps, [({}, audit.gaps)])
    late = "Messages that came back after they had been let go of, which are not judged."
    yield _family("late_total", "counter", late, [({}, audit.late)])
    cells = [(_labels(figures), figures) for figures in audit.totals]
    for name, words in _COUNTERS.items():
        samples = [(labels, getattr(figures, name)) for labels, figures in cells]
        yield _family(f"{name}_total", "counter", words, samples)
    for name, words in _GAUGES.items():
        yield _family(name, "gauge", words, [(labels, getattr(figures, name)) for labels, figures in cells])
    yield from _figures(cells)
    yield from _chains(audit)


def _labels(figures: CellFigures) -> dict[str, str]:
    return {"pipeline": figures.pipeline, "hop": figures.hop, "session_class": figures.session_class}


def _figures(cells: list[tuple[dict[str, str], CellFigures]]) -> Iterator[str]:
    reliability: list[Sample] = []
    uniqueness: list[Sample] = []
    latency: list[Sample] = []
    skew: list[Sample] = []
    for labels, figures in cells:
        for side, measure in zip(("pipe", "delivery"), measures(figures), strict=True):
            reliability.append(({**labels, "side": side}, measure.reliability))
            uniqueness.append(({**labels, "side": side}, measure.uniqueness))
        for quantile, name in _QUANTILES.items():
            value = getattr(figures.latency, name)
            latency.append(({**labels, "quantile": quantile}, None if value is None else value / 1000))
        skew.append((labels, figures.latency.skew_ms / 1000))
    yield _family("reliability", "gauge", "R: unique messages that arrived, of those sent.", reliability)
    yield _family("uniqueness", "gauge", "UR: unique messages that arrived, of all copies that arrived.", uniqueness)
    yield _family("latency_seconds", "gauge", "From the first send to the first acceptance.", latency)
    yield _family("clock_skew_seconds", "gauge", "By how much a message was accepted before it was sent.", skew)


def _chains(audit: Audit) -> Iterator[str]:
    chains = [({"pipeline": chain.pipeline, "chain": chain_name(chain)}, chain) for chain in audit.chains]
    words = {
        "predicted": "The product of the reliability of the hops of a chain.",
        "measured": "The reliability of a chain from end to end.",
        "worker": "Measured / predicted: below 1, messages were lost inside the workers.",
    }
    for name, text in words.items():
        yield _family(f"chain_{name}", "gauge", text, [(labels, getattr(chain, name)) for labels, chain in chains])
    inside: list[Sample] = [({"pipeline": each.pipeline, "hop": each.hop}, each.lost) for each in audit.inside]
    yield _family("inside_lost_total", "counter", "Messages that a worker forwarded and nobody saw again.", inside)


def _family(name: str, kind: str, words: str, samples: Iterable[Sample]) -> str:
    lines = [_sample(name, labels, value) for labels, value in samples if value is not None]
    if not lines:
        return ""
    return "".join([f"# HELP semel_audit_{name} {words}\n# TYPE semel_audit_{name} {kind}\n", *lines])


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"semel_audit_{name}{f'{{{inside}}}' if inside else ''} {value!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
