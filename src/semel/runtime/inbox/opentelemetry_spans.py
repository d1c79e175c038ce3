"""The spans of an application, by OpenTelemetry's API and its conventions for messaging.

Only loaded by an application that asks for it: `app.trace()`, which needs `semel[telemetry]`. Of what fails a span has
the class, not the text: texts of errors may have parts of a message in them, and stand in the log and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semel.errors import InputError
from semel.inbox.outbox import destination_of
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow
from semel.kernel.trace import trace_id, with_trace
from semel.runtime.inbox.spans import Processed
from semel.version import __version__

LINKS_MAX = 128
"""As many as the SDK keeps of one span, unless it is told otherwise."""
_W3C = TraceContextTextMapPropagator()

Attribute = str | int


class OpenTelemetrySpans:
    """See `spans.Spans`. Without a provider it is the one that the process has set."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("semel.inbox", __version__, provider)

    @contextmanager
    def sending(self, endpoint: str, id: str) -> Iterator[Mapping[str, str]]:
        with self._span("send", endpoint, SpanKind.PRODUCER, None, {"messaging.message.id": id}):
            yield self.carried()

    @contextmanager
    def receiving(self, endpoint: str, envelopes: Sequence[Envelope]) -> Iterator[Sequence[Envelope]]:
        if len(envelopes) == 1:
            with self._receiving_one(endpoint, envelopes[0]) as envelope:
                yield [envelope]
            return
        links = [link for envelope in envelopes[:LINKS_MAX] if (link := _link(envelope)) is not None]
        count: dict[str, Attribute] = {"messaging.batch.message_count": len(envelopes)}
        with self._span("receive", endpoint, SpanKind.CLIENT, None, count, links) as batch:
            yield [self._begun(endpoint, envelope, batch) for envelope in envelopes]

    @contextmanager
    def _receiving_one(self, endpoint: str, envelope: Envelope) -> Iterator[Envelope]:
        """In the trace of the message, if it has one. Whoever brought it is linked to then."""
        parent, caller = _context(envelope), trace.get_current_span()
        links = [Link(caller.get_span_context())] if parent and caller.get_span_context().is_valid else []
        with self._span("receive", endpoint, SpanKind.CLIENT, parent or None, _about(envelope), links):
            yield _carrying(envelope, self.carried())

    def _begun(self, endpoint: str, envelope: Envelope, batch: Span) -> Envelope:
        """Messages that come together have each a trace of their own: one that came without begins here."""
        if trace_id(envelope.headers) is not None:
            return envelope
        span = self._tracer.start_span(
            f"receive {endpoint}", Context(), SpanKind.CLIENT,
            _attributes("receive", endpoint, _about(envelope)), [Link(batch.get_span_context())],
        )  # fmt: skip
        span.end()
        return _carrying(envelope, _headers(trace.set_span_in_context(span, Context())))

    @contextmanager
    def processing(self, run: Processed) -> Iterator[_RunSpan]:
        about = {**_about(run.envelope), "semel.handler": run.handler, "semel.attempt": run.attempt}
        with self._span("process", run.endpoint, SpanKind.CONSUMER, _context(run.envelope), about) as span:
            yield _RunSpan(span)

    @contextmanager
    def settling(self, endpoint: str, runs: Sequence[Envelope]) -> Iterator[None]:
        links = [link for envelope in runs[:LINKS_MAX] if (link := _link(envelope)) is not None]
        count: dict[str, Attribute] = {"messaging.batch.message_count": len(runs)}
        with self._span("settle", endpoint, SpanKind.CLIENT, Context(), count, links):
            yield

    @contextmanager
    def relaying(self, row: WorkRow) -> Iterator[WorkRow]:
        about: dict[str, Attribute] = {**_about(row.envelope), "semel.attempt": row.attempts}
        with self._span("send", _destination(row.envelope), SpanKind.PRODUCER, _context(row.envelope), about):
            yield replace(row, envelope=_carrying(row.envelope, self.carried()))

    def carried(self) -> Mapping[str, str]:
        return _headers(None)

    @contextmanager
    def _span(
        self,
        operation: str,
        destination: str,
        kind: SpanKind,
        context: Context | None,
        about: Mapping[str, Attribute],
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """`context` None is that of the caller, an empty one begins a new trace."""
        span = self._tracer.start_span(
            f"{operation} {destination}", context, kind, _attributes(operation, destination, about), links
        )
        token = contexts.attach(trace.set_span_in_context(span, context))
        try:
            yield span
        except BaseException as error:
            name = type(error).__qualname__
            span.set_attribute("error.type", name)
            span.set_status(Status(StatusCode.ERROR, name))
            raise
        finally:
            contexts.detach(token)
            span.end()


class _RunSpan:
    def __init__(self, span: Span) -> None:
        self._span = span

    def lost(self) -> None:
        self._span.set_attribute("error.type", "lost")
        self._span.set_status(Status(StatusCode.ERROR, "another has the message, or its end is in doubt"))


def _attributes(operation: str, destination: str, about: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {
        "messaging.system": "semel",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": destination,
        **about,
    }


def _about(envelope: Envelope) -> dict[str, Attribute]:
    return {"messaging.message.id": envelope.id, "messaging.message.body.size": envelope.size}


def _destination(envelope: Envelope) -> str:
    """Without the query of a URL, which may be secret."""
    try:
        return str(destination_of(envelope)).partition("?")[0]
    except InputError:
        return "unknown"


def _context(envelope: Envelope) -> Context:
    """What the message says of its trace. An empty one where it says nothing, or nothing that can be read."""
    return _W3C.extract(envelope.headers, Context()) if trace_id(envelope.headers) is not None else Context()


def _link(envelope: Envelope) -> Link | None:
    found = trace.get_current_span(_context(envelope)).get_span_context()
    return Link(found, {"messaging.message.id": envelope.id}) if found.is_valid else None


def _headers(context: Context | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    _W3C.inject(headers, context)
    return headers


def _carrying(envelope: Envelope, headers: Mapping[str, str]) -> Envelope:
    return msgspec.structs.replace(envelope, headers=with_trace(envelope.headers, headers)) if headers else envelope
