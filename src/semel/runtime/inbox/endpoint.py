"""An endpoint of an application: its options, its handlers, and how messages are received and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from semel.errors import ConfigError, InputError
from semel.inbox.endpoint import EndpointOptions, HandlerFacts, Style, StylePolicy, style_for
from semel.inbox.failure import FailureRule, check_rules
from semel.inbox.messages import MessageTypes, decode
from semel.kernel.envelope import Envelope
from semel.runtime.inbox.injection import Signature, read_signature
from semel.runtime.inbox.providers import Provider
from semel.runtime.transactions.base import family_of_type

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler as the user registered it; `ready` checks it when the application starts."""

    function: Callable[..., Any]
    message: Any
    key: Callable[[Any], str | int | None] | None
    outside: bool
    style: Style | None
    errors: tuple[FailureRule, ...]


@dataclass(frozen=True, slots=True)
class ReadyHandler:
    """A handler that can be called: everything about it was found good. `name` is the type of its messages, and `kind`
    their class."""

    name: str
    kind: Any
    signature: Signature
    style: Style
    provider: Provider | None
    key: Callable[[Any], str | int | None] | None = None
    errors: tuple[FailureRule, ...] = ()

    def message_of(self, envelope: Envelope) -> Any:
        return decode(self.kind, envelope)


class InboxEndpoint:
    """Where messages come in. Made by `app.endpoint(name)`; handlers are added with `on`."""

    def __init__(self, options: EndpointOptions, errors: Sequence[FailureRule] = ()) -> None:
        self.options = options
        self.errors = tuple(errors)
        self._registered: list[Registered] = []

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def registered(self) -> int:
        """How many handlers were added: who has looked at them looks again when there are more."""
        return len(self._registered)

    @property
    def functions(self) -> list[Callable[..., Any]]:
        return [each.function for each in self._registered]

    def on(
        self,
        message: Any = None,
        *,
        key: Callable[[Any], str | int | None] | None = None,
        outside: bool = False,
        idempotency: str | None = None,
        errors: Iterable[FailureRule] = (),
    ) -> Callable[[F], F]:
        """Register a handler for a type of messages: a class, or the name of a type whose messages are dicts.

        `key` gives the key of a message: those with the same key are handled one after the other, in order. `outside`
        says that the handler does something that its transaction cannot take back. `idempotency` is the style of this
        handler: "eager", "optimistic", "reserved" or "none".
        """
        style = None if idempotency is None else _style(idempotency)
        rules = check_rules(errors)

        def register(function: F) -> F:
            self._registered.append(Registered(function, message, key, outside, style, rules))
            return function

        return register

    def ready(
        self, providers: Mapping[type, Provider], policy: StylePolicy, *, has_store: bool = True
    ) -> dict[str, ReadyHandler]:
        """The handlers by the type of message. Raises ConfigError for the first that cannot work."""
        types = MessageTypes()
        found: dict[str, ReadyHandler] = {}
        for each in self._registered:
            handler = self._ready(each, types, providers, policy, has_store)
            if handler.name in found:
                raise ConfigError(
                    f"endpoint {self.name!r} has two handlers for {handler.name!r}: "
                    f"{found[handler.name].signature.name} and {handler.signature.name}",
                    fix="keep one, or give the other an endpoint of its own",
                )
            found[handler.name] = handler
        return found

    def _ready(
        self,
        each: Registered,
        types: MessageTypes,
        providers: Mapping[type, Provider],
        policy: StylePolicy,
        has_store: bool,
    ) -> ReadyHandler:
        named = each.message if isinstance(each.message, str) else None
        signature = read_signature(each.function, each.message, tuple(providers))
        kind = _message_kind(signature, named)
        provider = _provider_of(signature, providers)
        facts = HandlerFacts(signature.name, provider is not None, each.outside, each.style)
        style = style_for(self.options, facts, policy, has_store=has_store)
        handler = ReadyHandler(types.add(kind, named), kind, signature, style, provider, each.key, each.errors)
        check_shareable(self.options, handler)
        return handler


def _style(text: str) -> Style:
    try:
        return Style(text)
    except ValueError:
        choices = ", ".join(repr(each.value) for each in Style)
        raise ConfigError(f"idempotency is {text!r}", fix=f"use one of {choices}") from None


def _message_kind(signature: Signature, named: str | None) -> type:
    """A handler for a named type gets what it annotates, or a dict."""
    if named is None:
        kind: type = signature.message
        return kind
    return signature.message_hint or dict


def _provider_of(signature: Signature, providers: Mapping[type, Provider]) -> Provider | None:
    if signature.transaction is None:
        return None
    provider = next(each for kind, each in providers.items() if issubclass(kind, signature.transaction))
    if provider.is_async and not signature.is_async:
        raise ConfigError(
            f"handler {signature.name} is a plain function and asks for {provider.kind.__qualname__}, which is async",
            fix="make it `async def`, or ask for the connection that is not async",
        )
    return provider


def check_shareable(options: EndpointOptions, handler: ReadyHandler) -> None:
    """Refuse at start what cannot share a commit."""
    if options.share_commit == 1:
        return
    who = f"handler {handler.signature.name} at endpoint {options.name!r}"
    leave_out = "leave share_commit out, or move the handler to an endpoint without it"
    if handler.style is Style.RESERVED or handler.provider is None:
        raise ConfigError(f"{who} has effects that no transaction takes back, and cannot share a commit", fix=leave_out)
    if handler.signature.is_async:
        raise ConfigError(f"{who} is a coroutine function, and cannot share a commit", fix=f"use `def`, or {leave_out}")
    if family_of_type(handler.provider.kind) not in ("psycopg", "sqlite3"):
        kind = handler.provider.kind.__qualname__
        raise ConfigError(
            f"{who} asks for {kind}, and only connections of sqlite3 and psycopg can be shared", fix=leave_out
        )


def key_of(handler: ReadyHandler, envelope: Envelope) -> str | None:
    """The key of a message that came in; its session where the handler names no key."""
    if handler.key is None:
        return envelope.session
    message = handler.message_of(envelope)
    try:
        key = handler.key(message)
    except Exception as error:
        raise InputError(
            f"the key of message {envelope.id!r} cannot be made: {type(error).__name__}: {error}",
            fix="let key= return text for every message of its type, or None",
        ) from error
    return key_text(key, envelope)


def key_text(key: object, envelope: Envelope) -> str | None:
    """Numbers of customers and orders are the most usual keys, so an int is taken as its text. Anything else that is no
    text is refused: not every text of an object is the same each time."""
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if key is not None and not isinstance(key, str):
        raise InputError(f"the key of message {envelope.id!r} is {key!r}", fix="let it be text, an int, or None")
    return key
