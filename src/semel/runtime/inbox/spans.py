"""What an application tells of its messages as spans. Nothing here needs OpenTelemetry: `opentelemetry_spans` does.

    span                     is                                            its parent
    send <endpoint>          app.send                                      who calls
    receive <endpoint>       what a transport has brought, until stored    the message's own context
    process <endpoint>       a run of a handler, with its commit           the context that the message was stored with
    settle <endpoint>        a commit that handlers share                  none: links to their runs
    send <destination>       a message of the outbox, by the relay         the run that published it

Trace context travels in two headers of the envelope (`kernel/trace.py`). An application without spans passes on the
context of the message that it handles, so that the trace of those around it is not broken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow


@dataclass(frozen=True, slots=True)
class Processed:
    """A run of a handler, as its span names it."""

    endpoint: str
    handler: str
    envelope: Envelope
    attempt: int = 1


class RunSpan(Protocol):
    """The span of a run that is under way."""

    def lost(self) -> None:
        """Another has the message, or its end is in doubt."""
        ...


class Spans(Protocol):
    """Every method gives a block; what is done in it is the span."""

    def sending(self, endpoint: str, id: str) -> AbstractContextManager[Mapping[str, str]]:
        """The block gets the trace context that the message is to be sent with."""
        ...

    def receiving(self, endpoint: str, envelopes: Sequence[Envelope]) -> AbstractContextManager[Sequence[Envelope]]:
        """The block gets the envelopes as they are to be stored."""
        ...

    def processing(self, run: Processed) -> AbstractContextManager[RunSpan]: ...

    def settling(self, endpoint: str, runs: Sequence[Envelope]) -> AbstractContextManager[None]: ...

    def relaying(self, row: WorkRow) -> AbstractContextManager[WorkRow]:
        """The block gets the row as it is to be sent."""
        ...

    def carried(self) -> Mapping[str, str]:
        """The trace context of whoever calls; empty where there is none."""
        ...


class _NoRunSpan:
    def lost(self) -> None:
        return


_NO_RUN_SPAN = nullcontext(_NoRunSpan())


class NoSpans:
    """For applications that did not ask for any."""

    def sending(self, endpoint: str, id: str) -> AbstractContextManager[Mapping[str, str]]:
        return nullcontext({})

    def receiving(self, endpoint: str, envelopes: Sequence[Envelope]) -> AbstractContextManager[Sequence[Envelope]]:
        return nullcontext(envelopes)

    def processing(self, run: Processed) -> AbstractContextManager[RunSpan]:
        return _NO_RUN_SPAN

    def settling(self, endpoint: str, runs: Sequence[Envelope]) -> AbstractContextManager[None]:
        return nullcontext()

    def relaying(self, row: WorkRow) -> AbstractContextManager[WorkRow]:
        return nullcontext(row)

    def carried(self) -> Mapping[str, str]:
        return {}


NO_SPANS: Spans = NoSpans()
