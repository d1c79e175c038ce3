"""Messages as Python values: the type that stands on the envelope, and the bytes.

Dataclasses, msgspec structs, pydantic models and dicts go as JSON; text and bytes go as they are. The type is the
name of the class, or what the class says in `semel_type`: a name that stays when the class moves to another module.
Which key a message is ordered by is not part of it, and `session` is the application's own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypedDict, TypeGuard, Unpack

import msgspec

from semel.errors import ConfigError, InputError, MessageRefused
from semel.kernel.envelope import ATTRIBUTE_CHARS_MAX, Envelope
from semel.kernel.text import check_text

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"
TYPE_ATTRIBUTE = "semel_type"
_PLAIN_TYPES = (dict, str, bytes)


def type_name(kind: type) -> str:
    """The type on the envelope of such messages."""
    # only what the class itself says: a derived class is another message
    name = vars(kind).get(TYPE_ATTRIBUTE, kind.__name__)
    if not isinstance(name, str):
        raise ConfigError(f"{TYPE_ATTRIBUTE} of {kind.__qualname__} is {name!r}", fix="give the type as text")
    return check_text(f"the type of {kind.__qualname__}", name, chars_max=ATTRIBUTE_CHARS_MAX)


def is_message_class(kind: object) -> TypeGuard[type]:
    """Whether values of it can be sent and read."""
    if not isinstance(kind, type):
        return False
    return issubclass(kind, (*_PLAIN_TYPES, msgspec.Struct)) or dataclasses.is_dataclass(kind) or _is_model(kind)


def _is_model(kind: type) -> bool:
    """A pydantic model, known by its methods: who has none need not load pydantic."""
    return callable(getattr(kind, "model_validate_json", None)) and callable(getattr(kind, "model_dump_json", None))


def check_message_class(kind: object, where: str) -> type:
    if is_message_class(kind):
        return kind
    raise ConfigError(
        f"{where}: {kind!r} is not a message",
        fix="use a dataclass, a pydantic model, a msgspec.Struct, dict, str or bytes",
    )


class MessageTypes:
    """The types that an application knows. Two classes under one type cannot be told apart, so it is refused."""

    def __init__(self) -> None:
        self._kinds: dict[str, type] = {}

    def add(self, kind: type, name: str | None = None) -> str:
        """Make a class known under its own type, or under this one: dicts and texts have none of their own."""
        check_message_class(kind, "a type of messages")
        if name is None and issubclass(kind, _PLAIN_TYPES):
            raise ConfigError(f"messages of type {kind.__name__} need a name", fix='name it: on("order.placed")')
        name = name or type_name(kind)
        known = self._kinds.setdefault(name, kind)
        if known is not kind:
            raise ConfigError(
                f"{known.__qualname__} in {known.__module__} and {kind.__qualname__} in {kind.__module__} are both"
                f" called {name!r}",
                fix=f"give one of them another type: {TYPE_ATTRIBUTE} = ...",
            )
        return name

    def kind_of(self, envelope: Envelope) -> type:
        """The class of a message that came in. An unknown type is a dead letter, not a loss."""
        kind = self._kinds.get(envelope.type)
        if kind is None:
            known = ", ".join(repr(name) for name in sorted(self._kinds)) or "none"
            raise MessageRefused(
                f"no handler knows the type {envelope.type!r}", fix=f"add a handler for it; known are: {known}"
            )
        return kind


def in_us(after_s: object) -> int:
    """A wait that somebody asks for, in microseconds."""
    if not isinstance(after_s, int | float) or not math.isfinite(after_s):
        raise InputError(f"after_s is {after_s!r}", fix="use seconds from now")
    return round(after_s * 1_000_000)


class Attributes(TypedDict, total=False):
    """What a sender may say of a message beside its body. `type` is needed for dicts, texts and bytes."""

    type: str
    source: str
    subject: str
    session: str
    time: int
    headers: dict[str, str]


def envelope_of(message: object, id: str, **attributes: Unpack[Attributes]) -> Envelope:
    """The envelope that a message goes out in. One that is an envelope already keeps what is not given again."""
    if isinstance(message, Envelope):
        return msgspec.structs.replace(message, **{**attributes, "id": id})
    data, content = encode(message)
    if "type" not in attributes:
        attributes["type"] = _type_of(message)
    return Envelope(id, data=data, datacontenttype=content, **attributes)


def check_envelope(brought: object) -> Envelope:
    """What a transport has brought has an id of its own: only its envelope says it."""
    if not isinstance(brought, Envelope):
        raise InputError(
            f"a {type(brought).__name__} is not an envelope",
            fix="wrap what the transport brought: Envelope(id, type=..., data=...), or hand a message to app.send()",
        )
    return brought


def _type_of(message: object) -> str:
    kind = type(message)
    if issubclass(kind, _PLAIN_TYPES):
        raise InputError(f"a {kind.__name__} has no type of its own", fix='say it: publish(..., type="order.placed")')
    return type_name(kind)


def encode(message: object) -> tuple[bytes, str]:
    """The bytes of a message, and what they are."""
    if isinstance(message, bytes):
        return message, BYTES
    if isinstance(message, str):
        return message.encode(), TEXT
    if not is_message_class(type(message)):
        raise InputError(
            f"{type(message).__qualname__} is not a message",
            fix="use a dataclass, a pydantic model, a msgspec.Struct, a dict, text or bytes",
        )
    try:
        return _json_of(message), JSON
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{type(message).__qualname__} does not go into JSON: {error}", fix="use plain values"
        ) from None


def _json_of(message: Any) -> bytes:
    if _is_model(type(message)):
        return str(message.model_dump_json()).encode()
    return msgspec.json.encode(message)


def decode(kind: type, envelope: Envelope) -> Any:
    """The message as a value of its class. What does not fit raises InputError: it is a dead letter."""
    if kind is bytes:
        return envelope.data
    try:
        return _decoded(kind, envelope.data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise MessageRefused(
            f"message {envelope.id!r} is not a {kind.__qualname__}: {_said(error)}",
            fix="let sender and handler agree on the fields; then replay the dead letter",
        ) from None


def _said(error: Exception) -> str:
    """What is wrong, without the values: causes stand in logs and in the ledger, and pydantic puts bodies into them."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in found)


def _decoded(kind: Any, data: bytes) -> Any:
    if kind is str:
        return data.decode()
    if _is_model(kind):
        return kind.model_validate_json(data)
    return msgspec.json.decode(data, type=kind)
