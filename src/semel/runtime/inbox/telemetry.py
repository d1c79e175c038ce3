"""What is known of an application's messages in this process: its counts, and its spans if it was asked for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from semel.errors import ConfigError, InputError
from semel.inbox.outbox import destination_of
from semel.kernel.ops import WorkRow
from semel.runtime.inbox.counts import EndpointCounts, MessageCount, RelayCounts
from semel.runtime.inbox.spans import NO_SPANS, Spans
from semel.runtime.inbox.watched import RunWatch

_VERDICTS = {"stored": MessageCount.STORED, "duplicate": MessageCount.DUPLICATES, "buffered": MessageCount.BUFFERED}


class InboxTelemetry:
    """The telemetry of one application."""

    def __init__(self) -> None:
        self.spans: Spans = NO_SPANS
        self.relay = RelayCounts()
        self._endpoints: dict[str, EndpointCounts] = {}

    def of(self, endpoint: str) -> EndpointCounts:
        return self._endpoints.setdefault(endpoint, EndpointCounts())

    @property
    def endpoints(self) -> Mapping[str, EndpointCounts]:
        return dict(self._endpoints)

    def watch(self, endpoint: str) -> RunWatch:
        return RunWatch(endpoint, self.of(endpoint), self.spans)

    def received(self, endpoint: str, verdicts: Sequence[str]) -> None:
        for verdict in verdicts:
            self.of(endpoint).add(_VERDICTS[verdict])

    @contextmanager
    def relaying(self, outbox: str, row: WorkRow) -> Iterator[WorkRow]:
        """The block gets the row as it is to be sent."""
        kind, begun, is_sent = _kind(row), time.perf_counter(), False
        try:
            with self.spans.relaying(row) as traced:
                yield traced
            is_sent = True
        finally:
            self.relay.ended(kind, is_sent=is_sent)
            self.of(outbox).took(time.perf_counter() - begun)


def _kind(row: WorkRow) -> str:
    try:
        return destination_of(row.envelope).kind.value
    except InputError:
        return "unknown"


def opentelemetry_spans(provider: Any = None) -> Spans:
    try:
        from semel.runtime.inbox.opentelemetry_spans import OpenTelemetrySpans
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "opentelemetry":
            raise
        raise ConfigError(
            "tracing needs OpenTelemetry, which is not installed",
            fix="pip install 'semel[telemetry]', and an SDK with an exporter in the program",
        ) from None
    return OpenTelemetrySpans(provider)
