"""What operators ask of a server, whatever parts it has.

/healthz        a restart would not help                 open to all
/readyz         it lets people in, and can serve them    open to all
/metrics        figures for Prometheus                   a token with the role `semel.read`, unless open to all
/v1/overview    the parts, and what each says            a token with the role `semel.read`
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from semel import __version__
from semel.auth.authority import READ
from semel.http import JSON, PLAIN_TEXT, HttpRequest, HttpResponse, json_error
from semel.kernel.effects import Close, Notify
from semel.runtime.server.part import Mount, Part, Route, Routed, RouteHandler, ServerContext

MACHINE_FAILED = "machine-failed"
"""What the performer reports of every machine."""


class Metrics(Collector):
    """Nothing is measured while messages pass: parts keep plain numbers, and who asks for metrics reads them.

    A registry of its own: what else lives in the process does not show up here. Ask it on the loop."""

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


_NO_STORE = ("cache-control", "no-store")


class Operating:
    def __init__(self, parts: Sequence[Part], metrics: Metrics, context: ServerContext) -> None:
        self._parts, self._metrics, self._node = parts, metrics, context.settings.node
        self._is_stopping = False
        role = None if context.settings.open_metrics else READ
        authority, clock = context.authority, context.clock
        health = Routed([*_read("/healthz", self._health, None), *_read("/readyz", self._ready, None)], authority)
        figures = Routed(_read("/metrics", self._figures, role), authority, clock=clock)
        overview = Routed([Route("GET", "/v1/overview", self._overview, READ)], authority, clock=clock)
        self.mounts = (
            Mount("/healthz/", health, body_bytes=0),
            Mount("/readyz/", health, body_bytes=0),
            Mount("/metrics/", figures, body_bytes=0, errors=json_error),
            Mount("/v1/", overview, body_bytes=0, errors=json_error),
        )

    def stop(self) -> None:
        """From now on it is not ready."""
        self._is_stopping = True

    async def _health(self, request: HttpRequest, names: dict[str, str]) -> HttpResponse:
        found = [health for part in self._parts if (health := part.health()).problem]
        problems = ", and ".join(health.problem for health in found)
        if any(health.is_ended_by_restart for health in found):
            return _text(503, problems)
        return _text(200, f"alive, but {problems}" if problems else "ok")

    async def _ready(self, request: HttpRequest, names: dict[str, str]) -> HttpResponse:
        if self._is_stopping:
            return _text(503, "the server is stopping")
        found = await asyncio.gather(*(part.ready() for part in self._parts))
        problems = ", and ".join(health.problem for health in found if health.problem)
        return _text(503, problems) if problems else _text(200, "ready")

    async def _figures(self, request: HttpRequest, names: dict[str, str]) -> HttpResponse:
        return HttpResponse(200, (("content-type", self._metrics.content_type), _NO_STORE), self._metrics.text())

    async def _overview(self, request: HttpRequest, names: dict[str, str]) -> HttpResponse:
        found = await asyncio.gather(*(part.overview() for part in self._parts))
        parts = {
            part.name: {"problem": part.health().problem or None, **status}
            for part, status in zip(self._parts, found, strict=True)
        }
        body = msgspec.json.encode({"node": self._node, "version": __version__, "parts": parts})
        return HttpResponse(200, (("content-type", JSON), _NO_STORE), body)


def _read(path: str, handle: RouteHandler, role: str | None) -> list[Route]:
    return [Route(method, path, handle, role) for method in ("GET", "HEAD")]


def _text(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, (("content-type", PLAIN_TEXT), _NO_STORE), f"{text}\n".encode())
