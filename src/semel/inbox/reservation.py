"""Rows that only keep a place: the transport has the body and delivers it again.

A reserved handler at an inline or buffered endpoint commits such a row before its effect. Nobody can handle it without
the body, so no worker may hand it to a handler: one that finds it after its lease puts it aside (DEFERRED), where only
the next delivery takes it up, by its identity. `DIED` as its cause says that its effect may have happened.
"""

from __future__ import annotations

import msgspec

from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow

RESERVED_HEADER = "semel-reserved"
DIED = "its process died while it had this message: its effect may have happened"


def reservation_of(envelope: Envelope) -> Envelope:
    return Envelope(envelope.id, source=envelope.source, type=envelope.type, headers={RESERVED_HEADER: "1"})


def is_reservation(envelope: Envelope) -> bool:
    return RESERVED_HEADER in envelope.headers and not envelope.data and envelope.blob is None


def as_message(envelope: Envelope) -> Envelope:
    """A message that comes in is no reservation, whatever its sender wrote into its headers."""
    if RESERVED_HEADER not in envelope.headers:
        return envelope
    headers = {name: value for name, value in envelope.headers.items() if name != RESERVED_HEADER}
    return msgspec.structs.replace(envelope, headers=headers)


def is_ambiguous(row: WorkRow) -> bool:
    """Whether somebody had it before and never said what became of it. A reservation that was put aside remembers it;
    one with its body that a human has let go again is handled."""
    return row.taken_over or (row.cause == DIED and is_reservation(row.envelope))
