"""Which names of hubs, groups and events are allowed, and which metadata and times to live.

Whatever comes from outside goes through here, by socket or by HTTP. An error is an `InputError`; who gets it, and
how, is the caller's business.
"""

from __future__ import annotations

import re

from semel.errors import InputError, LimitExceeded
from semel.kernel.text import check_text
from semel.pubsub.protocol.messages import Metadata

GROUP_CHARS_MAX = 1024
SUBPROTOCOL_CHARS_MAX = 128
TTL_S_MAX = 300
METADATA_KEY_BYTES_MAX = 256
METADATA_VALUE_BYTES_MAX = 1024
METADATA_BYTES_MAX = 8 * 1024

_HUB = re.compile(r"[A-Za-z][A-Za-z0-9_`,.\[\]]{0,127}\Z")
_EVENT = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}\Z")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")


def check_hub(name: str) -> str:
    """The one spelling of a hub's name: two that differ only in case are the same hub."""
    if not _HUB.match(name):
        raise InputError(
            f"{name[:128]!r} is not a name of a hub",
            fix="begin with a letter; then up to 127 of A-Z a-z 0-9 _ ` , . [ ]",
        )
    return name.lower()


def check_group(name: str) -> str:
    """Return `name` when it can be a group's. Groups that differ in case are different groups."""
    if name.isascii() and 0 < len(name) <= GROUP_CHARS_MAX and "\x00" not in name and not name.isspace():
        return name
    check_text("the group", name, chars_max=GROUP_CHARS_MAX)
    if name.isspace():
        raise InputError("the group is blank", fix="give the group a name that can be seen")
    return name


def check_event(name: str) -> str:
    if not _EVENT.match(name):
        raise InputError(
            f"{name[:128]!r} is not a name of an event", fix="begin with a letter; then up to 127 of A-Z a-z 0-9 _ . -"
        )
    return name


def is_subprotocol(name: str) -> bool:
    """Whether it can be the name of a subprotocol, ours or an application's own."""
    return len(name) <= SUBPROTOCOL_CHARS_MAX and _TOKEN.match(name) is not None


def check_ttl(seconds: int) -> int:
    """Return `seconds` when a message may live that long. 0 is for ever."""
    if not 0 <= seconds <= TTL_S_MAX:
        raise InputError("the time to live is out of range", fix=f"use 0 to {TTL_S_MAX} seconds")
    return seconds


def check_metadata(metadata: Metadata) -> Metadata:
    """Return `metadata` when each key is fit for an HTTP header's name, each value is ASCII, and all is short."""
    size = 0
    for key, value in metadata.items():
        if not _TOKEN.match(key):
            raise InputError(f"{key[:64]!r} is not a key of metadata", fix="use letters, digits and !#$%&'*+-.^_`|~")
        if not value.isascii() or "\x00" in value:
            raise InputError(f"the metadata {key[:64]!r} is not ASCII", fix="encode it, for example with %XX")
        if len(key) > METADATA_KEY_BYTES_MAX or len(value) > METADATA_VALUE_BYTES_MAX:
            raise LimitExceeded(
                f"the metadata {key[:64]!r} is too long",
                fix=f"use up to {METADATA_KEY_BYTES_MAX} bytes for a key, {METADATA_VALUE_BYTES_MAX} for a value",
            )
        size += len(key) + len(value)
    if size > METADATA_BYTES_MAX:
        raise LimitExceeded(f"the metadata has {size} bytes", fix=f"use up to {METADATA_BYTES_MAX} bytes in all")
    return metadata
