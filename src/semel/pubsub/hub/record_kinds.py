"""What the records of a hub's stream are. `records` says what is in each."""

from __future__ import annotations

from enum import IntEnum

from semel.kernel import ops


class RecordKind(IntEnum):
    """Numbers are stored, and the lower-case names stand in the exported index: neither ever changes meaning.

    Records come back from a store with a plain number, also one that only a newer Semel knows: compare with `==`.
    """

    MESSAGE = ops.MESSAGE
    JOIN = 1
    LEAVE = 2
    OPEN = 3
    CLOSE = 4
    STATE = 5
    ORDER = 6
    REPLY = 7
