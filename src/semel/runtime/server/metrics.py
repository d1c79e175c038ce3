"""Metrics of a server, for Prometheus: what each part says, and what the server itself has seen.

Nothing is measured while messages pass: parts keep plain numbers, and who asks for metrics reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from semel import __version__
from semel.kernel.effects import Close, Notify
from semel.runtime.server.part import Part

MACHINE_FAILED = "machine-failed"
"""What the performer reports of every machine."""


class Metrics(Collector):
    """A registry of its own: what else lives in the process does not show up here. Ask it on the loop."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, node: str, parts: Sequence[Part]) -> None:
        self._node, self._parts = node, parts
        # each topic is there from the beginning, so that an alert on its growth sees the first report
        topics = [MACHINE_FAILED, *(topic for part in parts for topic in part.topics)]
        self._notices: Counter[str] = Counter(dict.fromkeys(topics, 0))
        self._responses: Counter[int] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def observe(self, name: str, effect: Notify | Close) -> None:
        """An observer of the performer."""
        if isinstance(effect, Notify):
            self._notices[effect.topic] += 1

    def responded(self, status: int) -> None:
        self._responses[status] += 1

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """The registry asks for names only; figures are there when they are wanted."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("semel", "This process.", {"version": __version__, "node": self._node})
        for part in self._parts:
            yield from part.metrics()
        notices = CounterMetricFamily("semel_notices", "What machines have reported, by topic.", labels=("topic",))
        for topic, count in sorted(self._notices.items()):
            notices.add_metric((topic,), count)
        yield notices
        responses = CounterMetricFamily("semel_http_responses", "Answers to HTTP requests.", labels=("status",))
        for status, count in sorted(self._responses.items()):
            responses.add_metric((str(status),), count)
        yield responses
