"""CloudEvents 1.0 over HTTP, as far as those who send them and those who take them have to agree: how an attribute is
written as a header, and by which names a hub's events carry an id of the application's own.

    ce-semelid                       the application's id of an event, as a CloudEvents attribute
    x-webpubsub-metadata-semel-id    the same, as the client wrote it into the metadata of its frame
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from semel.errors import InputError

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
HEADER_PREFIX = "ce-"

MESSAGE_ID = "semel-id"
"""Metadata under which a client gives a message or an event its own id. A hub takes each message under it once,
whichever session brings it, and refuses another message under it; with an event it goes to the handler."""
MESSAGE_ID_ATTRIBUTE = "semelid"
"""The same where only small letters and digits may stand."""
METADATA_PREFIX = "x-webpubsub-metadata-"
HUB_TYPES = "azure.webpubsub."
"""What the types of a hub's events begin with."""

REQUEST_ORIGIN, ALLOWED_ORIGIN = "WebHook-Request-Origin", "WebHook-Allowed-Origin"
REQUEST_RATE, ALLOWED_RATE = "WebHook-Request-Rate", "WebHook-Allowed-Rate"

# what an attribute cannot say as it is: all but printable ASCII, blanks at its ends, % and quotes
_NOT_ATTRIBUTE = re.compile(r"[^ !#$&-~]|\A +| +\Z")
_NOT_FIELD = re.compile(r"[^ -~]|\A +| +\Z")
_BACKSLASHED = re.compile(r"\\(.)", re.DOTALL)


def attribute_header(value: str) -> str:
    """Two values are never written alike: nobody can pass for another user by calling himself by an escaped name."""
    return _NOT_ATTRIBUTE.sub(_escaped, value)


def field_header(value: str) -> str:
    """For values that are ASCII anyway, such as metadata: only what no header can hold is escaped."""
    return _NOT_FIELD.sub(_escaped, value)


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode(errors="replace"))


def attribute_of(name: str, header: str) -> str:
    """Undo `attribute_header`, and read what others write: in quotes, or with a % that begins no escape and stands for
    itself. The header is as servers hand it over, a character for each byte."""
    text = header.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = _BACKSLASHED.sub(r"\1", text[1:-1])
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise InputError(
            f"the header {name} is not UTF-8", fix="encode the value as UTF-8, and all but plain ASCII as %XX"
        ) from None
