"""The figures of an application for Prometheus.

Counts are those of this process. How many rows there are is read from the store when somebody asks, which takes a few
small queries; while the store does not answer, those figures are missing and `semel_inbox_store_up` is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from semel.errors import StoreError
from semel.kernel.ops import WorkState
from semel.kernel.store import Store
from semel.runtime.inbox.counts import MessageCount
from semel.runtime.inbox.telemetry import InboxTelemetry

HELP = {
    MessageCount.STORED: "Messages that were new, and are stored.",
    MessageCount.BUFFERED: "Messages that were taken into memory.",
    MessageCount.DUPLICATES: "Messages that had come before.",
    MessageCount.UNREADABLE: "What came and is no message, kept as a dead letter.",
    MessageCount.HANDLED: "Handlers that have returned, and whose transaction is committed where they have one.",
    MessageCount.FAILED: "Runs of handlers that failed.",
    MessageCount.RETRIED: "Failures after which the message is tried again.",
    MessageCount.DEAD_LETTERED: "Messages that were given up after their last attempt.",
    MessageCount.PARKED: "Messages that were put aside for a person.",
    MessageCount.DISCARDED: "Messages that a rule has discarded.",
}
STATES = (
    WorkState.READY, WorkState.SCHEDULED, WorkState.CLAIMED, WorkState.DEFERRED, WorkState.PARKED, WorkState.DEAD,
)  # fmt: skip


class InboxMetrics(Collector):
    """Register it in a registry of yours, or ask for its `text()`. Both read the store: not on an event loop.

    `queues` are those of the application by name: its endpoints, and its outbox."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        app: str,
        telemetry: InboxTelemetry,
        store: Callable[[], Store],
        queues: Callable[[], Mapping[str, str]],
        now: Callable[[], int],
    ) -> None:
        self._app, self._telemetry, self._store, self._queues, self._now = app, telemetry, store, queues, now

    def text(self) -> bytes:
        return generate_latest(self.registry())

    def registry(self) -> CollectorRegistry:
        """One of its own, with the figures of the process and of Python."""
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        return registry

    def describe(self) -> Iterable[Metric]:
        """The registry asks for names only; figures are there when they are wanted."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._counts()
        yield from self._sent()
        yield from self._rows()

    def _counts(self) -> Iterator[Metric]:
        # each endpoint is there from the beginning, so that an alert on its growth sees the first one
        found = {name: self._telemetry.of(name).read() for name in self._queues()}
        for what in MessageCount:
            family = CounterMetricFamily(f"semel_inbox_{what}", HELP[what], labels=("app", "endpoint"))
            for name, (counts, _, _) in sorted(found.items()):
                family.add_metric((self._app, name), counts.get(what, 0))
            yield family
        times = HistogramMetricFamily(
            "semel_inbox_handler_seconds", "Runs of handlers with their commit; of the outbox, attempts to send.",
            labels=("app", "endpoint"),
        )  # fmt: skip
        for name, (_, up_to, sum_s) in sorted(found.items()):
            times.add_metric((self._app, name), [(floatToGoString(limit), count) for limit, count in up_to], sum_s)
        yield times

    def _sent(self) -> Iterator[Metric]:
        sent, failed = self._telemetry.relay.read()
        for name, text, counts in (
            ("semel_outbox_sent", "Messages that somebody has taken.", sent),
            ("semel_outbox_failed", "Attempts to send that failed.", failed),
        ):
            family = CounterMetricFamily(name, text, labels=("app", "kind"))
            for kind in sorted({"endpoint", "hub", "stream", "url", *sent, *failed}):
                family.add_metric((self._app, kind), counts.get(kind, 0))
            yield family

    def _rows(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("semel_inbox_store_up", "1 if the store answers.", labels=("app",))
        found: list[Metric] = []
        try:
            found = list(self._from_store(self._store()))
        except StoreError:
            up.add_metric((self._app,), 0)
        else:
            up.add_metric((self._app,), 1)
        yield up
        yield from found

    def _from_store(self, store: Store) -> Iterator[Metric]:
        rows = GaugeMetricFamily("semel_inbox_rows", "Messages that are not done.", labels=("app", "queue", "state"))
        oldest = GaugeMetricFamily(
            "semel_inbox_oldest_ready_seconds", "For how long the oldest message has been ready; 0 if none is.",
            labels=("app", "queue"),
        )  # fmt: skip
        for queue in sorted(self._queues().values()):
            counts = store.work_counts(queue).get(queue, {})
            for state in STATES:
                rows.add_metric((self._app, queue, state.name.lower()), counts.get(state, 0))
            ready = store.work_rows(queue, (WorkState.READY,), limit=1) if counts.get(WorkState.READY) else []
            age_s = max(0.0, (self._now() - ready[0].due) / 1_000_000) if ready else 0.0
            oldest.add_metric((self._app, queue), age_s)
        yield rows
        yield oldest
        yield from _horizon(store)


def _horizon(store: Any) -> Iterator[Metric]:
    """On PostgreSQL a transaction that stays open keeps export and audit from what was committed after it began. Not
    every store can say by how much."""
    horizon = getattr(store, "horizon", None)
    if horizon is None:
        return
    found = horizon()
    lag = "For how long the oldest entry of the ledger has been held back from its readers."
    yield GaugeMetricFamily("semel_ledger_horizon_lag_seconds", lag, found.held_s)
    yield GaugeMetricFamily("semel_ledger_horizon_entries", "Entries of the ledger that are held back.", found.events)
