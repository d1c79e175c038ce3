"""The listeners of an application: one for each endpoint that listens to something."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from semel.errors import ConfigError
from semel.inbox.sources import AUTO, BrokerSource, Rule, check_broker_url, parse_source
from semel.runtime.brokers.amqp import AmqpTransport
from semel.runtime.brokers.nats import NatsTransport
from semel.runtime.inbox.definition import Application
from semel.runtime.inbox.entrance import Entrance, TakesMessages
from semel.runtime.inbox.listening import InboxListener, InboxTransport

TransportMaker = Callable[[], InboxTransport]
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class ListenTo:
    """What an endpoint listens to: a queue of a broker, or a transport of the user's own, made each time it runs."""

    source: BrokerSource | None = None
    url: str | None = None
    make: TransportMaker | None = None


def listen_to(what: str | TransportMaker, *, id: Rule = AUTO, type: Rule = AUTO, url: str | None = None) -> ListenTo:
    if not isinstance(what, str):
        if id != AUTO or type != AUTO or url is not None:
            raise ConfigError("a transport of your own finds id and type by itself", fix="leave id, type and url out")
        return ListenTo(make=what)
    source = parse_source(what)
    source = replace(source, id=id if id != AUTO else source.id, type=type if type != AUTO else source.type)
    return ListenTo(source, url if url is None else check_broker_url(source.kind, url))


def make_listeners(app: Application, takes: TakesMessages) -> list[InboxListener]:
    """In the order of the endpoints. Raises ConfigError for the first that cannot work."""
    return [_listener(app, takes, name, listen) for name, listen in _listens(app)]


def _listens(app: Application) -> Iterator[tuple[str, ListenTo]]:
    """What the file says wins over the code."""
    for name in app.endpoints:
        if name in app.settings.listens:
            yield name, listen_to(app.settings.listens[name])
        elif name in app.listens:
            yield name, app.listens[name]


def _listener(app: Application, takes: TakesMessages, name: str, listen: ListenTo) -> InboxListener:
    options = app.check_endpoint(name).options
    make = listen.make or partial(_transport, app, name, listen)
    room = 1 if listen.source is not None and listen.source.strict else None
    return InboxListener(options, Entrance(takes, name), app.gate(name), make(), app.clock, room=room)


def _transport(app: Application, endpoint: str, listen: ListenTo) -> InboxTransport:
    source = listen.source
    assert source is not None, "what is no transport of the user's own is a source"
    url = listen.url or app.brokers.get(source.kind)
    if url is None:
        raise ConfigError(
            f"endpoint {endpoint!r} listens to {source}, and nobody says where that is",
            fix=f"say it: App({source.kind}=...), SEMEL_INBOX__{source.kind.upper()}, or {source.kind} in [inbox]",
        )
    if source.kind == "nats":
        return NatsTransport(url, source, _UNFIT.sub("_", f"{app.name}-{endpoint}"))
    return AmqpTransport(url, source, f"semel {app.name}/{endpoint}")
