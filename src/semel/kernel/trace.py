"""W3C trace context, as a message carries it: two headers of its envelope.

    traceparent   00-<trace id>-<span id>-<flags>
    tracestate    what vendors add to it; passed on as it is

Who made the spans is no business of the kernel. It reads the trace id for the ledger, and keeps headers within limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from semel.kernel.envelope import HEADERS_CHARS_MAX, HEADERS_COUNT_MAX

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
TRACE_HEADERS = (TRACEPARENT, TRACESTATE)

LENGTH_00 = 55
# a later version may have more after the flags, and version ff is none
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?\Z")


def trace_id(headers: Mapping[str, str]) -> str | None:
    """The trace that a message belongs to. A header that is not as it should be counts as none."""
    text = headers.get(TRACEPARENT)
    found = _TRACEPARENT.match(text) if text is not None else None
    if text is None or found is None or (text.startswith("00") and len(text) != LENGTH_00):
        return None
    return found.group(1)


def with_trace(headers: Mapping[str, str], carried: Mapping[str, str]) -> dict[str, str]:
    """The headers with this trace context instead of their own. Where it does not fit they stay as they are: a message
    is not refused for its telemetry."""
    own = dict(headers)
    if not carried:
        return own
    rest = {name: value for name, value in own.items() if name not in TRACE_HEADERS}
    if not has_room(rest, TRACEPARENT, carried[TRACEPARENT]):
        return own
    found = {**rest, TRACEPARENT: carried[TRACEPARENT]}
    state = carried.get(TRACESTATE)
    return {**found, TRACESTATE: state} if state is not None and has_room(found, TRACESTATE, state) else found


def has_room(headers: Mapping[str, str], name: str, value: str) -> bool:
    """Whether an envelope with these headers may have one more."""
    chars = sum(map(len, (*headers, *headers.values()))) + len(name) + len(value)
    return len(headers) < HEADERS_COUNT_MAX and chars <= HEADERS_CHARS_MAX
