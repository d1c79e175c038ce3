"""The rules for names and ids that every store and every wire can carry.

PostgreSQL refuses NUL in text and no encoder accepts a lone surrogate, so both are refused here, once, before any
store sees them: otherwise one hostile message would behave differently on each engine.
"""

from __future__ import annotations

import re
from functools import lru_cache

from semel.errors import InputError, LimitExceeded

ID_CHARS_MAX = 255
NAME_CHARS_MAX = 512
PART_CHARS_MAX = 128
CAUSE_CHARS_MAX = 1000

_PLAIN_PART = re.compile(r"[a-z0-9._~-]{1,128}\Z")
_ENCODED_PART = re.compile(r"(?:[a-z0-9._~-]|%[0-9A-F]{2})+\Z")
_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._~-")
# printable ASCII needs no closer look; this is the shape of nearly every id and the check is on the hot path
_SAFE = re.compile(r"[ -~]*\Z")


def check_text(what: str, value: str, *, chars_max: int, empty: bool = False) -> str:
    """Return `value` when every store can hold it, else raise an error that names `what`."""
    if not isinstance(value, str):
        raise InputError(f"{what} must be text, not {type(value).__name__}", fix=f"pass {what} as str")
    if not value and not empty:
        raise InputError(f"{what} is empty", fix=f"give {what} at least one character")
    if len(value) > chars_max:
        raise LimitExceeded(
            f"{what} has {len(value)} characters, the limit is {chars_max}", fix=f"shorten {what} or hash it"
        )
    if not _SAFE.match(value):
        _check_unusual(what, value)
    return value


def _check_unusual(what: str, value: str) -> None:
    if "\x00" in value:
        raise InputError(f"{what} contains a NUL character", fix="remove it: no database stores NUL in text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{what} contains a lone surrogate at character {error.start}", fix="send well-formed Unicode"
        ) from None


def check_id(what: str, value: str) -> str:
    return check_text(what, value, chars_max=ID_CHARS_MAX)


def clean_cause(text: str) -> str:
    """Somebody else's error text, made fit for every store: a message must not be stuck because its error is odd."""
    text = text.replace("\x00", "\ufffd").encode(errors="replace").decode()
    return text if len(text) <= CAUSE_CHARS_MAX else text[: CAUSE_CHARS_MAX - 1] + "…"


def quote_part(part: str) -> str:
    """One part of a stream name. Bytes outside [a-z0-9._~-] become %XX, so any id may be a part."""
    check_text("stream name part", part, chars_max=PART_CHARS_MAX)
    if _PLAIN_PART.match(part):
        return part
    return "".join(chr(b) if b in _PLAIN_BYTES else f"%{b:02X}" for b in part.encode())


def stream_name(*parts: str) -> str:
    """`stream_name("hub", "Chat room")` is `"hub/%43hat%20room"`."""
    return "/".join(quote_part(part) for part in parts)


@lru_cache(maxsize=4096)
def check_stream(name: str) -> str:
    """Return `name` when it follows the grammar of stream and queue names."""
    check_text("stream name", name, chars_max=NAME_CHARS_MAX)
    for part in name.split("/"):
        if not _ENCODED_PART.match(part):
            raise InputError(
                f"{part!r} is not a valid part of the stream name {name!r}",
                fix="use a-z 0-9 . _ ~ - and %XX; semel.kernel.text.stream_name() quotes for you",
            )
    return name
