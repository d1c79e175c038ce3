"""Metrics of hubs. Hubs and links keep plain numbers while messages pass; who asks for metrics reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from semel.pubsub.hub.machine import Hub

TOPICS = (
    "backlog", "backlog-age", "slow-client", "hub-body", "hub-commit", "hub-read", "hub-flush", "hub-trim",
    "session-close", "session-unreadable", "take-over", "node", "order", "hub-key", "hub-expire", "event-failed",
    "event-claim", "event-end", "event-unreadable", "id-conflict",
)  # fmt: skip
"""What hubs report. Each is there from the beginning, so that an alert on its growth sees the first one."""

_COUNTS = {
    "accepted": "Messages that were made durable.",
    "duplicates": "Requests that were answered as done before.",
    "deliveries": "Messages that were given to a session.",
    "acknowledged": "Deliveries that a client has acknowledged.",
    "discarded": "Deliveries that ended unacknowledged, with their session.",
    "spilled": "Deliveries copied out of the stream, because they were not acknowledged for long.",
    "failed_commits": "Commits that the store did not make.",
}


class Traffic(NamedTuple):
    """One hub and what goes through it. `hub` None: it is being read from the store. `events` are requests to event
    handlers."""

    name: str
    hub: Hub | None
    sockets: int
    frames_in: int
    frames_out: int
    events: int = 0
    events_failed: int = 0


def hub_metrics(found: Sequence[Traffic]) -> Iterator[Metric]:
    yield GaugeMetricFamily("semel_hubs", "Hubs that this process has.", len(found))
    yield from _of_links(found)
    hubs = [(each.name, each.hub) for each in found if each.hub is not None]
    yield from _of_sessions(hubs)
    yield from _of_counts(hubs)


def _of_links(found: Sequence[Traffic]) -> Iterator[Metric]:
    sockets = GaugeMetricFamily("semel_hub_connections", "WebSockets that are open here.", labels=("hub",))
    frames_in = CounterMetricFamily("semel_hub_frames_received", "Frames from clients.", labels=("hub",))
    frames_out = CounterMetricFamily("semel_hub_frames_sent", "Frames to clients.", labels=("hub",))
    events = CounterMetricFamily("semel_hub_handler_requests", "Requests to event handlers.", labels=("hub",))
    failed = CounterMetricFamily("semel_hub_handler_failures", "Those not answered with 2xx.", labels=("hub",))
    for each in found:
        sockets.add_metric((each.name,), each.sockets)
        frames_in.add_metric((each.name,), each.frames_in)
        frames_out.add_metric((each.name,), each.frames_out)
        events.add_metric((each.name,), each.events)
        failed.add_metric((each.name,), each.events_failed)
    yield from (sockets, frames_in, frames_out, events, failed)


def _of_sessions(hubs: list[tuple[str, Hub]]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("semel_hub_sessions_waiting", "Sessions without a socket.", labels=("hub",))
    groups = GaugeMetricFamily("semel_hub_groups", "Groups with a member.", labels=("hub",))
    count = GaugeMetricFamily("semel_hub_backlog_messages", "Unacknowledged, over all sessions.", labels=("hub",))
    size = GaugeMetricFamily("semel_hub_backlog_bytes", "Unacknowledged, over all sessions.", labels=("hub",))
    longest = GaugeMetricFamily("semel_hub_backlog_longest", "Unacknowledged messages of one session.", labels=("hub",))
    for name, hub in hubs:
        labels = (name,)
        lengths = [session.backlog.count for session in hub.roster]
        waiting.add_metric(labels, sum(session.peer is None for session in hub.roster))
        groups.add_metric(labels, len(hub.roster.groups))
        count.add_metric(labels, sum(lengths))
        size.add_metric(labels, sum(session.backlog.bytes for session in hub.roster))
        longest.add_metric(labels, max(lengths, default=0))
    yield from (waiting, groups, count, size, longest)


def _of_counts(hubs: list[tuple[str, Hub]]) -> Iterator[Metric]:
    for field, text in _COUNTS.items():
        family = CounterMetricFamily(f"semel_hub_{field}", text, labels=("hub",))
        for name, hub in hubs:
            family.add_metric((name,), getattr(hub.counts, field))
        yield family
