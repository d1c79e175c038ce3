"""What a handler asks for, read from its annotations when it is registered.

A handler is a plain function. It may ask for the message, for its `Envelope`, for an `Outbox`, and for the transaction
in which it runs, by the type that the user works with anyway. What nobody can provide is refused at once.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from semel.errors import ConfigError
from semel.kernel.envelope import Envelope
from semel.runtime.inbox.outbox import Outbox


class Wanted(Enum):
    """What a parameter is given."""

    MESSAGE = "the message"
    ENVELOPE = "the envelope"
    OUTBOX = "the outbox"
    TRANSACTION = "the transaction"

    __hash__ = object.__hash__  # six times a message; that of enums is written in Python


@dataclass(frozen=True, slots=True)
class Signature:
    """A handler as it will be called: `wanted` by the name of each parameter. `transaction` is the type that it asked
    for, None if it wants none; `message_hint` what it annotated its message with."""

    name: str
    function: Callable[..., Any]
    wanted: Mapping[str, Wanted]
    message: Any
    transaction: Any = None
    message_hint: Any = None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def arguments(self, given: Mapping[Wanted, Any]) -> dict[str, Any]:
        return {name: given[wanted] for name, wanted in self.wanted.items()}


def read_signature(function: Callable[..., Any], message: Any, transactions: Sequence[Any]) -> Signature:
    """`message` is the type that the handler was registered for, None to take it from the annotations. `transactions`
    are the types that can be provided."""
    name = f"{function.__module__}.{function.__qualname__}"
    hints = _hints(name, function)
    wanted: dict[str, Wanted] = {}
    transaction: Any = None
    message_hint: Any = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _refused(name, f"*{parameter.name}", "name each parameter", transactions)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise _refused(name, parameter.name, "make it a parameter that can be passed by name", transactions)
        hint = hints.get(parameter.name)
        found = _classify(hint, message, transactions, is_first=Wanted.MESSAGE not in wanted.values())
        if found is None:
            if parameter.default is not parameter.empty:
                continue
            raise _refused(name, parameter.name, _missing(hint), transactions)
        if found in wanted.values():
            raise _refused(name, parameter.name, f"it already gets {found.value}", transactions)
        wanted[parameter.name] = found
        if found is Wanted.TRANSACTION:
            transaction = typing.get_origin(hint) or hint
        elif found is Wanted.MESSAGE:
            message_hint = hint
            message = hint if message is None else message
    if message is None:
        raise ConfigError(
            f"handler {name} does not say which messages it handles",
            fix="name the type: @endpoint.on(OrderPlaced), or annotate the first parameter with it",
        )
    return Signature(name, function, wanted, message, transaction, message_hint)


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"the annotations of handler {name} cannot be read: {error}",
            fix="import the types where the handler is defined, not only under TYPE_CHECKING",
        ) from None


def _classify(hint: Any, message: Any, transactions: Sequence[Any], *, is_first: bool) -> Wanted | None:
    if hint is Envelope:
        return Wanted.ENVELOPE
    if hint is Outbox:
        return Wanted.OUTBOX
    if hint is not None and any(_is_kind(hint, each) for each in transactions):
        return Wanted.TRANSACTION
    if is_first and (hint is None or message is None or hint == message or isinstance(message, str)):
        return Wanted.MESSAGE
    return None


def _is_kind(hint: Any, provided: Any) -> bool:
    """Whether what is provided can be passed for the hint: psycopg.Connection[dict] asks for a psycopg.Connection."""
    plain = typing.get_origin(hint) or hint
    return (
        isinstance(plain, type) and isinstance(provided, type) and plain is not object and issubclass(provided, plain)
    )


def _missing(hint: Any) -> str:
    if hint is None:
        return "annotate it"
    return f"nobody provides {getattr(hint, '__qualname__', hint)!s}"


def _refused(handler: str, parameter: str, why: str, transactions: Sequence[Any]) -> ConfigError:
    known = ", ".join(sorted({f"{each.__module__}.{each.__qualname__}" for each in transactions})) or "none"
    return ConfigError(
        f"handler {handler} has a parameter {parameter} that cannot be filled: {why}",
        fix=f"a handler may ask for its message, Envelope, Outbox and a transaction ({known})"
        " — or give the parameter a default",
    )
