"""Metrics of a pub/sub server, for Prometheus.

Nothing is measured while messages pass: hubs and links keep plain numbers, and who asks for metrics reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from semel import __version__
from semel.kernel.effects import Close, Notify
from semel.pubsub.hub.machine import Hub
from semel.runtime.host.commit_times import CommitTimes
from semel.runtime.host.outages import Outages

TOPICS = (
    "backlog", "backlog-age", "slow-client", "hub-body", "hub-commit", "hub-read", "hub-flush", "hub-trim",
    "session-close", "session-unreadable", "take-over", "node", "order", "hub-key", "hub-expire", "event-failed",
    "event-claim", "event-end", "event-unreadable", "id-conflict", "machine-failed",
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


class Metrics(Collector):
    """A registry of its own: what else lives in the process does not show up here. Ask it on the loop."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self, node: str, traffic: Callable[[], Iterable[Traffic]], commit_times: CommitTimes, outages: Outages
    ) -> None:
        self._node, self._traffic, self._commit_times, self._outages = node, traffic, commit_times, outages
        self._notices: Counter[str] = Counter(dict.fromkeys(TOPICS, 0))
        self._responses: Counter[int] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def observe(self, name: str, told: Notify | Close) -> None:
        """An observer of the performer."""
        if isinstance(told, Notify):
            self._notices[told.topic] += 1

    def responded(self, status: int) -> None:
        self._responses[status] += 1

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """The registry asks for names only; figures are there when they are wanted."""
        return ()

    def collect(self) -> Iterator[Metric]:
        found = list(self._traffic())
        yield InfoMetricFamily("semel", "This process.", {"version": __version__, "node": self._node})
        yield GaugeMetricFamily("semel_hubs", "Hubs that this process has.", len(found))
        yield from _of_links(found)
        hubs = [(each.name, each.hub) for each in found if each.hub is not None]
        yield from _of_sessions(hubs)
        yield from _of_counts(hubs)
        yield from _of_commits(self._commit_times)
        yield from _of_outages(self._outages)
        notices = CounterMetricFamily("semel_notices", "What hubs have reported, by topic.", labels=("topic",))
        for topic, count in sorted(self._notices.items()):
            notices.add_metric((topic,), count)
        yield notices
        responses = CounterMetricFamily("semel_http_responses", "Answers to HTTP requests.", labels=("status",))
        for status, count in sorted(self._responses.items()):
            responses.add_metric((str(status),), count)
        yield responses


def _of_commits(times: CommitTimes) -> Iterator[Metric]:
    yield CounterMetricFamily("semel_commits", "What was asked of the store.", times.commits)
    buckets = [(floatToGoString(limit), count) for limit, count in times.up_to()]
    yield HistogramMetricFamily("semel_transaction_seconds", "From the order to the answer.", buckets, times.sum_s)


def _of_outages(outages: Outages) -> Iterator[Metric]:
    is_in_one = int(outages.current is not None)
    yield GaugeMetricFamily("semel_store_in_trouble", "1 while the store does not do what it is asked to.", is_in_one)
    yield CounterMetricFamily("semel_store_outages", "How often that began.", outages.count)


def _of_links(found: list[Traffic]) -> Iterator[Metric]:
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
