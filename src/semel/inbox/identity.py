"""Who a message is, for every statement that asks whether it was here before.

    mode           the same id at two endpoints of one application
    id             is one message: handled where it came first, a duplicate at the other
    id+endpoint    are two messages, each handled once

The text that is compared is, in this order: the deduplication id, if the message has one; source and id, if it comes
from a source of its own; else the id alone. No two of them are written alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from hashlib import sha256

import msgspec

from semel.errors import InputError
from semel.kernel.envelope import Envelope
from semel.kernel.text import ID_CHARS_MAX, check_id, stream_name

DEDUPLICATION_HEADER = "semel-deduplication-id"
"""One intent, many deliveries: messages with different ids and the same deduplication id are handled once."""

OWN_SOURCE = "semel"
"""The source of an envelope for which nobody named one. Such ids are not told apart by source."""

DERIVED_PREFIX_CHARS = 64
_HASHED = "%sha256"
_ESCAPES = str.maketrans({" ": "%20", "%": "%25"})


class IdentityMode(StrEnum):
    """What makes two messages of an application the same one."""

    ID = "id"
    ID_AND_ENDPOINT = "id+endpoint"


@dataclass(frozen=True, slots=True)
class Identity:
    """A message at an endpoint: `identity` is unique within `scope`, and its row stands in `queue`."""

    scope: str
    queue: str
    identity: str


@cache
def inbox_queue(endpoint: str) -> str:
    return stream_name("inbox", endpoint)


@cache
def inbox_hop(endpoint: str) -> str:
    """The hop under which the ledger reports what an endpoint does."""
    return f"{inbox_queue(endpoint)}>handler"


def identify(app: str, endpoint: str, envelope: Envelope, mode: IdentityMode) -> Identity:
    """The one way from a message to its identity."""
    return _identity(app, endpoint, identity_text(envelope), mode)


def identify_id(app: str, endpoint: str, id: str, mode: IdentityMode) -> Identity:
    """The same for an id alone, as `app.first(connection, endpoint, id)` has it."""
    return _identity(app, endpoint, id_text(check_id("id", id)), mode)


def first_envelope(id: str | Envelope, source: str | None = None, deduplication_id: str | None = None) -> Envelope:
    """What `app.first` was told of a message, as the envelope that has the same identity."""
    if isinstance(id, Envelope):
        if source is not None or deduplication_id is not None:
            raise InputError(
                "an envelope says its source and deduplication id itself", fix="leave source and deduplication_id out"
            )
        return id
    headers = {} if deduplication_id is None else {DEDUPLICATION_HEADER: deduplication_id}
    return Envelope(check_id("id", id), source=source if source is not None else OWN_SOURCE, headers=headers)


def _identity(app: str, endpoint: str, text: str, mode: IdentityMode) -> Identity:
    queue = inbox_queue(endpoint)
    # an application may be called like an endpoint of another: the third part keeps their scopes apart
    scope = _app_scope(app) if mode is IdentityMode.ID else queue
    return Identity(scope, queue, text)


@cache
def _app_scope(app: str) -> str:
    return stream_name("inbox", app, "id")


def identity_text(envelope: Envelope) -> str:
    """What is compared, at most 255 characters."""
    intent = envelope.headers.get(DEDUPLICATION_HEADER)
    if intent is not None:
        return id_text(_check_intent(intent))
    if envelope.source != OWN_SOURCE:
        return sourced_text(envelope.source, envelope.id)
    return id_text(envelope.id)


def _check_intent(intent: str) -> str:
    if not intent:
        raise InputError(
            f"the header {DEDUPLICATION_HEADER} is empty", fix="give the deduplication id, or leave the header out"
        )
    return intent


def sourced_text(source: str, id: str) -> str:
    """Source and id with one space between. The source has no other space, so it ends at the first."""
    return _shortened(f"{source.translate(_ESCAPES)} {id}")


def id_text(id: str) -> str:
    """An id without a source is written as it is; one with a space gets a space before it, as after an empty source."""
    return _shortened(f" {id}" if " " in id else id)


def _shortened(text: str) -> str:
    """No source is written with a % before anything but 20 and 25, so a hash is not mistaken for another text."""
    if len(text) <= ID_CHARS_MAX:
        return text
    return f"{_HASHED} {sha256(text.encode()).hexdigest()}"


def derived_id(handler: str, identity: Identity, ordinal: int) -> str:
    """The id of a message that a handler sends while it handles another: the same when it runs again.

    It begins with the id of the message that was handled: who gives ids in the order of time gets such ids back.
    """
    assert ordinal >= 1, "a handler's messages are counted from 1"
    parts = (handler, identity.scope, identity.queue, identity.identity, ordinal)
    digest = sha256(msgspec.json.encode(parts)).hexdigest()[:32]
    before, space, after = identity.identity.partition(" ")
    return f"{(after if space else before)[:DERIVED_PREFIX_CHARS]}.{digest}"
