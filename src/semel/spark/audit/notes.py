"""What an audit has to say beside its figures: how hops were read, and what could not be determined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from semel.kernel.ledger import Kind
from semel.spark.audit.figures import HopReading, Survey
from semel.spark.audit.findings import Start
from semel.spark.audit.report import exact_moment, moment, place
from semel.spark.audit.result import CellFigures
from semel.spark.audit.sources import Held
from semel.words import plural


def of(ways: Sequence[HopReading], survey: Survey, pipelines: Sequence[str] = ()) -> tuple[str, ...]:
    """Notes about what there is to read, before anything is counted; about meters only for the chosen pipelines."""
    return (*_unwritten(ways), *_metered(survey, pipelines))


def _unwritten(ways: Sequence[HopReading]) -> list[str]:
    notes = []
    for way in ways:
        hop = way.hop
        name = place(hop.pipeline, hop.hop)
        if way.unseen:
            notes.append(f"{name}: nobody wrote down what was sent, so nothing can be said about losses")
        arrives = way.taken or hop.has(Kind.ACCEPTED, Kind.DUPLICATE, Kind.REJECTED)
        if hop.has(Kind.SENT, Kind.RESENT) and not arrives:
            notes.append(f"{name}: nobody wrote down what arrived; is the receiver's ledger among the sources?")
    return notes


def _metered(survey: Survey, pipelines: Sequence[str]) -> list[str]:
    return [
        f"{place(pipeline, hop)}: {n:,} times {kind.name.lower()} was counted without ids and is not audited"
        for pipeline, hop, kind, n in survey.metered
        if not pipelines or pipeline in pipelines
    ]


def waiting(ways: Iterable[HopReading], settled_at: int) -> list[str]:
    """Notes about pipelines that are further behind than a message may take."""
    return [
        f"{place(way.hop.pipeline, way.hop.hop)}: the pipeline has yet to take what was written from"
        f" {moment(way.waits_from)} on; that is in flight, whatever the deadline"
        for way in ways
        if way.waits_from is not None and way.waits_from <= settled_at
    ]


def held(sessions: Iterable[Held], ways: Iterable[HopReading]) -> list[str]:
    """Notes about pipelines in which messages wait for one that has not come."""
    names = {way.hop.hop: way.hop.pipeline for way in ways if way.implied}
    of: dict[str, list[Held]] = {}
    for each in sessions:
        if each.hop in names:
            of.setdefault(each.hop, []).append(each)
    return [
        f"{place(names[hop], hop)}: {plural(sum(each.rows for each in found), 'message')} of"
        f" {plural(len(found), 'session')} waiting behind a gap, such as index {found[0].index} of session"
        f" {found[0].session}; they are in flight, whatever the deadline"
        for hop, found in sorted(of.items())
    ]


def late_starts(starts: Iterable[Start]) -> list[str]:
    """No ledger says where a reader was meant to begin, so nothing is left out without being asked for."""
    return [
        f"{place(start.pipeline, start.hop)}: {start.before:,} of the lost were written before the first that it took."
        f' If it was to begin there (a pipeline with start = "latest"), leave them out with --since'
        f" {exact_moment(start.first)}"
        for start in starts
    ]


def skewed(totals: Sequence[CellFigures]) -> list[str]:
    return [
        f"{place(cell.pipeline, cell.hop)}: {cell.latency.skewed:,} messages were accepted up to"
        f" {cell.latency.skew_ms:g} ms before they were sent: the clocks differ, and these are left out of the"
        " latencies"
        for cell in totals
        if cell.latency.skewed
    ]


def trimmed(ranges: Mapping[tuple[str, str], int]) -> list[str]:
    """`ranges`: how many there are, by pipeline and hop."""
    return [
        f"{place(pipeline, hop)}: {plural(n, 'range')} of the ledger about records that were trimmed, so their messages"
        " cannot be determined: name the folder that the index was exported to"
        for (pipeline, hop), n in sorted(ranges.items())
    ]


def fanned(ways: Iterable[HopReading]) -> list[str]:
    """Notes about hops with many receivers, which an audit with --follow leaves out."""
    return [
        f"{place(way.hop.pipeline, way.hop.hop)}: not followed; audit it without --follow"
        for way in ways
        if way.hop.is_fanned
    ]


def kept(horizon: int) -> list[str]:
    closed = f"Windows before {moment(horizon)} are closed: what comes in late for them is not counted."
    return [closed] if horizon else []
