"""The fields that a line of the log about a message has, beside its text: for `logging`'s `extra`.

    message_id    the id of the message; message_ids where a line is about several
    endpoint      where it is: an endpoint, or the queue or stream it stands in
    trace_id      its trace, if it has one

Never a body and never a header: those are the application's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow
from semel.kernel.store import Record
from semel.kernel.trace import trace_id

FIELDS = ("message_id", "message_ids", "endpoint", "trace_id")
IDS_MAX = 20
_INBOX = "inbox/"


def about(endpoint: str, envelope: Envelope) -> dict[str, Any]:
    trace = trace_id(envelope.headers) if envelope.headers else None
    return {"message_id": envelope.id, "endpoint": endpoint, **({"trace_id": trace} if trace is not None else {})}


def about_item(item: WorkRow | Record) -> dict[str, Any]:
    """What a machine has delivered."""
    where = item.queue.removeprefix(_INBOX) if isinstance(item, WorkRow) else item.position.stream
    return about(where, item.envelope)


def about_many(endpoint: str, ids: Iterable[str]) -> dict[str, Any]:
    """None, one, or the first of several."""
    first = list(ids)[:IDS_MAX]
    return {"endpoint": endpoint, **({"message_id": first[0]} if len(first) == 1 else {"message_ids": first})}
