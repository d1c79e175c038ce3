"""The names of the kinds of records, as the exported index and Spark show them in the column `type`.

A protocol that stores records of other kinds than messages lists its module in `PROTOCOLS`. They are found by name, not
by who was imported before: an exported file never changes, so its types must not depend on the process that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from importlib import import_module

from semel.kernel.ops import MESSAGE

PROTOCOLS = ("semel.pubsub.hub.records",)
"""Each has an enumeration `RecordKind` with the numbers that are stored. No number may have two names."""
OTHER_TYPE = "other"
"""The type of a record whose kind this version does not know. It is no message."""


def type_names(protocols: Iterable[str] = PROTOCOLS) -> dict[int, str]:
    """By the number of the kind, in lower case."""
    names = {MESSAGE: "message"}
    for protocol in protocols:
        kinds: type[IntEnum] = import_module(protocol).RecordKind
        for kind in kinds:
            name = kind.name.lower()
            assert names.setdefault(kind.value, name) == name, (
                f"{protocol}: {kind.value} is {names[kind.value]} already"
            )
    return names
