"""Runs of handlers that are measured and told of as spans."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from semel.kernel.effects import OwnTransaction
from semel.kernel.trace import TRACE_HEADERS, trace_id
from semel.runtime.inbox.counts import EndpointCounts
from semel.runtime.inbox.handling import Answer, HandlerRun
from semel.runtime.inbox.outbox import Outbox
from semel.runtime.inbox.own_commits import EndedItself
from semel.runtime.inbox.spans import NO_SPANS, Processed, RunSpan, Spans


@dataclass(frozen=True, slots=True)
class RunWatch:
    """Who watches the runs of an endpoint."""

    endpoint: str
    counts: EndpointCounts
    spans: Spans = NO_SPANS


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun(HandlerRun):
    """As any run; `super()` does not know a class that was made again for its slots."""

    watch: RunWatch
    attempt: int = 1

    def ended_in_thread(self) -> tuple[Answer, bool]:
        with self._watched() as span:
            answer, is_used = HandlerRun.ended_in_thread(self)
            _note(span, answer)
            return answer, is_used

    def begun_in(self, transaction: Any, ended: EndedItself) -> Outbox:
        with self._watched():
            return HandlerRun.begun_in(self, transaction, ended)

    async def on_loop(self) -> Answer:
        with self._watched() as span:
            answer = await HandlerRun.on_loop(self)
            _note(span, answer)
            return answer

    @contextmanager
    def _watched(self) -> Iterator[RunSpan]:
        begun = time.perf_counter()
        run = Processed(self.watch.endpoint, self.handler.signature.name, self.envelope, self.attempt)
        try:
            with self.watch.spans.processing(run) as span:
                yield span
        finally:
            self.watch.counts.took(time.perf_counter() - begun)

    def _outbox(self) -> Outbox:
        return self.context.outbox(self.handler.signature.name, self.identity, self._carried)

    def _carried(self) -> Mapping[str, str]:
        """Without spans of its own an application passes on what it was given."""
        own, headers = self.watch.spans.carried(), self.envelope.headers
        if own or trace_id(headers) is None:
            return own
        return {name: headers[name] for name in TRACE_HEADERS if name in headers}


def _note(span: RunSpan, answer: Answer) -> None:
    if answer is OwnTransaction.LOST:
        span.lost()
