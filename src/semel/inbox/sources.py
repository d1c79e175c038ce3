"""Where an endpoint listens, as text.

    nats:ORDERS                               the JetStream stream ORDERS
    nats:ORDERS?consumer=shop&subject=eu.>    by the durable consumer `shop`, only these subjects
    amqp:orders?id=header:Order-Id            the queue `orders` of RabbitMQ; the id stands in a header

    id      auto         ce-id with ce-source, else Nats-Msg-Id or the property message-id
            header:NAME  a header
            json:a.b     a field of the body
    type    auto         ce-type, else the property type, else the subject or routing key
            header:NAME, json:a.b, subject, text:OrderPlaced

A broker's own number, a stream sequence or a delivery tag, is never an id: it counts places or deliveries, and a
message that was sent twice has two of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from semel.errors import ConfigError
from semel.inbox.outbox import BROKERS

AUTO = "auto"
SUBJECT = "subject"
SOURCE_CHARS_MAX = 2048
_NATS_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}\Z")
_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_OPTIONS = {
    "nats": ("consumer", "subject", "id", "type", "strict"),
    "amqp": ("id", "type", "strict", "management"),
}

Rule = str | Callable[[Any], str | None]
"""Where something of a message stands, or a function that is given the `ForeignMessage` and says it."""


@dataclass(frozen=True, slots=True)
class BrokerSource:
    """`name` is a JetStream stream or a queue of RabbitMQ. `consumer` and `subject` are for JetStream. `strict` keeps
    the order whatever fails: one message is under way at a time. `management` is the URL of RabbitMQ's HTTP API."""

    kind: str
    name: str
    consumer: str = ""
    subject: str = ""
    id: Rule = AUTO
    type: Rule = AUTO
    strict: bool = False
    management: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.kind == "nats":
            _check_name("stream", self.name)
            _check_name("consumer", self.consumer or "unnamed")
        _check_rule("id", self.id, ("header", "json"), ())
        _check_rule("type", self.type, ("header", "json", "text"), (SUBJECT,))
        if self.kind == "amqp" and (self.consumer or self.subject):
            raise ConfigError(f"{self} has a consumer or a subject", fix="leave them out: they are JetStream's")
        if self.kind == "nats" and self.management:
            raise ConfigError(f"{self} has a management URL", fix="leave it out: it is RabbitMQ's")

    def __str__(self) -> str:
        """Without its options, for the log."""
        return f"{self.kind}:{self.name}"


def parse_source(text: str) -> BrokerSource:
    """Read `nats:ORDERS?consumer=shop`."""
    kind, colon, rest = text.partition(":")
    if kind not in BROKERS or not colon or len(text) > SOURCE_CHARS_MAX:
        raise ConfigError(f"{text[:100]!r} is nothing to listen to", fix="use nats:<stream> or amqp:<queue>")
    name, _, query = rest.partition("?")
    if not name or name.startswith("//"):
        raise ConfigError(
            f"{kind}: names no {'stream' if kind == 'nats' else 'queue'}",
            fix=f"use {kind}:<name>; where the broker is stands in [inbox] {kind}, or in App({kind}=...)",
        )
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    for option in options:
        if option not in _OPTIONS[kind]:
            raise ConfigError(f"{kind}:{name} has no option {option!r}", fix=f"use {', '.join(_OPTIONS[kind])}")
    if "strict" in options:
        if options["strict"].lower() not in _WORDS:
            raise ConfigError(f"strict is {options['strict']!r}", fix="use strict=yes, or leave it out")
        options["strict"] = _WORDS[options["strict"].lower()]
    return BrokerSource(kind, unquote(name), **options)


def _check_name(what: str, name: str) -> None:
    if not _NATS_NAME.match(name):
        raise ConfigError(f"the {what} {name!r} cannot be one of NATS", fix="use letters, digits, - and _")


def _check_rule(what: str, rule: Rule, kinds: tuple[str, ...], words: tuple[str, ...]) -> None:
    if callable(rule) or rule == AUTO or rule in words:
        return
    kind, _, name = rule.partition(":")
    if kind not in kinds or not name:
        choices = ", ".join([AUTO, *words, *(f"{each}:<name>" for each in kinds)])
        raise ConfigError(f"{what} is {rule!r}", fix=f"use one of {choices}")


# -- where a broker is

_SCHEMES = {"nats": ("nats", "tls", "ws", "wss"), "amqp": ("amqp", "amqps")}


def check_broker_url(kind: str, url: str) -> str:
    """Refuse what cannot be the address of such a broker, without showing it: it may hold a password."""
    for each in url.split(",") if kind == "nats" else [url]:
        try:
            parts = urlsplit(each)
            usable = parts.scheme in _SCHEMES[kind] and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(
                f"the URL of {kind} cannot be used",
                fix=f"write it like {_SCHEMES[kind][0]}://user:password@host, percent-encoded where it has to be",
            )
    return url
