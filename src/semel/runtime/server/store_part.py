"""The store of a server as operators see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from semel.runtime.host.outages import in_public
from semel.runtime.host.performer import Performer
from semel.runtime.host.store_watch import StoreWatch
from semel.runtime.server.part import Health, Part


class StorePart(Part):
    name = "store"

    def __init__(self, performer: Performer) -> None:
        self.watch = StoreWatch(performer)
        self._performer, self._outages = performer, performer.outages

    async def run(self) -> None:
        await self.watch.run()

    def health(self) -> Health:
        """What goes away by itself, or when somebody looks after the store, is no reason to restart the process."""
        current = self._outages.current
        return Health() if current is None else Health(in_public(current.cause), current.is_ended_by_restart)

    async def ready(self) -> Health:
        await self.watch.is_well()
        return self.health()

    def metrics(self) -> Iterator[Metric]:
        times, outages = self._performer.commit_times, self._outages
        yield CounterMetricFamily("semel_commits", "What was asked of the store.", times.commits)
        buckets = [(floatToGoString(limit), count) for limit, count in times.up_to()]
        yield HistogramMetricFamily("semel_transaction_seconds", "From the order to the answer.", buckets, times.sum_s)
        is_in_one = int(outages.current is not None)
        yield GaugeMetricFamily(
            "semel_store_in_trouble", "1 while the store does not do what it is asked to.", is_in_one
        )
        yield CounterMetricFamily("semel_store_outages", "How often that began.", outages.count)

    async def overview(self) -> Mapping[str, Any]:
        return {"commits": self._performer.commit_times.commits, "outages": self._outages.count}
