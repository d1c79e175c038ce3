"""Pub/sub as a part of a server: hubs, and the ways to them.

    sockets     clients and their frames (`runtime.server.client_sockets`)
    hubs        one machine for each, on the performer (`pubsub.hub.machine`)
    rest        requests become calls on a hub (`pubsub.rest.api`)
    admin       what operators ask of hubs (`runtime.server.pubsub_admin`)

A hub begins when the first one asks for it, from what the store holds of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from semel.errors import LimitExceeded, SemelError, StoreError
from semel.http import THIS_MACHINE, HttpRequest, HttpResponse, in_url, json_error
from semel.kernel.store import Store
from semel.pubsub.events.abuse import host_of
from semel.pubsub.events.handlers import Handlers
from semel.pubsub.hub.calls import Answer, Call, Outcome
from semel.pubsub.hub.commits import public_message
from semel.pubsub.hub.loading import announced_hubs, known_hubs, load_hub
from semel.pubsub.hub.machine import Hub, HubOptions
from semel.pubsub.hub.records import stream_of
from semel.pubsub.protocol.frames import FRAME_BYTES_MAX
from semel.pubsub.protocol.handshake import Handshake
from semel.pubsub.rest.admin import PREFIX
from semel.pubsub.rest.api import Rest, RestSettings
from semel.runtime.host.outages import Use, not_asked
from semel.runtime.server.client_sockets import CALL_S, ClientSockets, HubLink
from semel.runtime.server.part import Mount, Part, ServerContext, ServerSettings
from semel.runtime.server.pubsub_admin import PubSubAdmin

if TYPE_CHECKING:
    from semel.runtime.server.webhooks import Webhooks

log = logging.getLogger(__name__)

# -- metrics: hubs and links keep plain numbers while messages pass; who asks for them reads them

TOPICS = (
    "backlog", "backlog-age", "slow-client", "hub-body", "hub-commit", "hub-read", "hub-flush", "hub-trim",
    "session-close", "session-unreadable", "take-over", "node", "order", "hub-key", "hub-expire", "event-failed",
    "event-claim", "event-end", "event-unreadable", "id-conflict",
)  # fmt: skip
"""What hubs report. Each is there from the beginning, so that an alert on its growth sees the first one."""

_COUNTS = {
    "accepted": "Messages that were made durable.",
    "duplicates": "Requests that were answered as done before.",
    "deliveries": "Messages that were given to a session.",
    "acknowledged": "Deliveries that a client has acknowledged.",
    "discarded": "Deliveries that ended unacknowledged, with their session.",
    "spilled": "Deliveries copied out of the stream, because they were not acknowledged for long.",
    "failed_commits": "Commits that the store did not make.",
}


class Traffic(NamedTuple):
    """One hub and what goes through it. `hub` None: it is being read from the store. `events` are requests to event
    handlers."""

    name: str
    hub: Hub | None
    sockets: int
    frames_in: int
    frames_out: int
    events: int = 0
    events_failed: int = 0


def hub_metrics(found: Sequence[Traffic]) -> Iterator[Metric]:
    yield GaugeMetricFamily("semel_hubs", "Hubs that this process has.", len(found))
    yield from _of_links(found)
    hubs = [(each.name, each.hub) for each in found if each.hub is not None]
    yield from _of_sessions(hubs)
    yield from _of_counts(hubs)


def _of_links(found: Sequence[Traffic]) -> Iterator[Metric]:
    sockets = GaugeMetricFamily("semel_hub_connections", "WebSockets that are open here.", labels=("hub",))
    frames_in = CounterMetricFamily("semel_hub_frames_received", "Frames from clients.", labels=("hub",))
    frames_out = CounterMetricFamily("semel_hub_frames_sent", "Frames to clients.", labels=("hub",))
    events = CounterMetricFamily("semel_hub_handler_requests", "Requests to event handlers.", labels=("hub",))
    failed = CounterMetricFamily("semel_hub_handler_failures", "Those not answered with 2xx.", labels=("hub",))
    for each in found:
        sockets.add_metric((each.name,), each.sockets)
        frames_in.add_metric((each.name,), each.frames_in)
        frames_out.add_metric((each.name,), each.frames_out)
        events.add_metric((each.name,), each.events)
        failed.add_metric((each.name,), each.events_failed)
    yield from (sockets, frames_in, frames_out, events, failed)


def _of_sessions(hubs: list[tuple[str, Hub]]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("semel_hub_sessions_waiting", "Sessions without a socket.", labels=("hub",))
    groups = GaugeMetricFamily("semel_hub_groups", "Groups with a member.", labels=("hub",))
    count = GaugeMetricFamily("semel_hub_backlog_messages", "Unacknowledged, over all sessions.", labels=("hub",))
    size = GaugeMetricFamily("semel_hub_backlog_bytes", "Unacknowledged, over all sessions.", labels=("hub",))
    longest = GaugeMetricFamily("semel_hub_backlog_longest", "Unacknowledged messages of one session.", labels=("hub",))
    for name, hub in hubs:
        labels = (name,)
        lengths = [session.backlog.count for session in hub.roster]
        waiting.add_metric(labels, sum(session.peer is None for session in hub.roster))
        groups.add_metric(labels, len(hub.roster.groups))
        count.add_metric(labels, sum(lengths))
        size.add_metric(labels, sum(session.backlog.bytes for session in hub.roster))
        longest.add_metric(labels, max(lengths, default=0))
    yield from (waiting, groups, count, size, longest)


def _of_counts(hubs: list[tuple[str, Hub]]) -> Iterator[Metric]:
    for count, text in _COUNTS.items():
        family = CounterMetricFamily(f"semel_hub_{count}", text, labels=("hub",))
        for name, hub in hubs:
            family.add_metric((name,), getattr(hub.counts, count))
        yield family


# -- the part

HUBS_MAX = 1_000
DEFAULT_ORIGIN = "localhost"
BEGIN_S = 5.0
"""How often hubs are looked for that others have begun."""


@dataclass(frozen=True, slots=True)
class PubSubSettings:
    """`handlers` are the event handlers, by hub. `origin` is the host by which they know this server. Empty: that of
    its first endpoint, or the one on which it listens."""

    hub: HubOptions = field(default_factory=HubOptions)
    handlers: Mapping[str, Handlers] = field(default_factory=dict)
    origin: str = ""

    def origin_at(self, server: ServerSettings) -> str:
        first = server.endpoints[0] if server.endpoints else ""
        here = "" if server.host in THIS_MACHINE else in_url(server.host)
        return self.origin or host_of(urlsplit(first).netloc) or here or DEFAULT_ORIGIN


class PubSub(Part):
    """Hubs, the REST API and what operators ask of them."""

    name = "pubsub"
    topics = TOPICS

    def __init__(self, context: ServerContext, settings: PubSubSettings | None = None) -> None:
        self._performer, self._server = context.performer, context.settings
        settings = settings or PubSubSettings()
        if self._performer.store.url.startswith("postgresql:"):
            settings = replace(settings, hub=replace(settings.hub, is_shared=True))
        self._settings = settings
        self._clock, self._random = context.clock, context.random
        keys, endpoints = self._server.keys, self._server.endpoints
        self._rest = Rest(RestSettings(keys, endpoints))
        self._links: dict[str, asyncio.Task[HubLink]] = {}
        self._has_begun = False
        self._outages = self._performer.outages
        self._admin = PubSubAdmin(
            self._performer.store, self._outages, context.authority, self._call, lambda: self._links,
            clock=context.clock,
        )  # fmt: skip
        handshake = Handshake(keys, context.random, endpoints)
        sockets = ClientSockets(self._performer, handshake, settings.handlers, self._reachable, context.clock)
        self.mounts = (
            Mount("/api/", self._respond, body_bytes=FRAME_BYTES_MAX, errors=self._rest.error),
            Mount("/client/", self._respond, body_bytes=0, sockets=sockets),
            Mount("/clients/", self._respond, body_bytes=0, sockets=sockets),
            Mount(PREFIX, self._admin.handle, body_bytes=0, errors=json_error),
        )
        # what is left to tell to handlers goes on, whether or not somebody comes
        for name in settings.handlers:
            self._begin_soon(name)

    async def run(self) -> None:
        """Hubs that other nodes have begun, or a server before this one, begin here as well."""
        while True:
            try:
                await self.begin_known()
            except SemelError as error:
                self._outages.record(error, "the hubs of the store cannot begin", Use.READING)
            await asyncio.sleep(BEGIN_S)

    def stop(self) -> None:
        self._admin.stop()

    def metrics(self) -> Iterable[Metric]:
        return hub_metrics(list(self._traffic()))

    async def overview(self) -> Mapping[str, Any]:
        found = list(self._traffic())
        return {"hubs": len(found), "connections": sum(each.sockets for each in found)}

    async def begin_known(self) -> None:
        """The hubs that the store knows, whether or not somebody comes: their sessions wait, and time runs. The first
        time each is looked for; from then on there can be no more than other nodes announce."""
        find = announced_hubs if self._has_begun else known_hubs
        for name in (*self._settings.handlers, *await asyncio.to_thread(lambda: list(find(self._performer.store)))):
            await self.hub(name)
        self._has_begun = True

    async def hub(self, name: str) -> HubLink:
        """The hub of this name, which begins now if it has not yet."""
        if name not in self._links:
            if len(self._links) >= HUBS_MAX:
                raise LimitExceeded(f"there are {HUBS_MAX:,} hubs already", fix="use fewer hubs, and groups in them")
            self._begin_soon(name)
        return await asyncio.shield(self._links[name])

    def _begin_soon(self, name: str) -> None:
        """One that could not begin is forgotten, and begins when it is asked for again."""

        def begun(task: asyncio.Task[HubLink]) -> None:
            if task.cancelled() or task.exception() is not None:
                self._links.pop(name, None)

        self._links[name] = asyncio.create_task(self._begin(name))
        self._links[name].add_done_callback(begun)

    async def _reachable(self, name: str) -> HubLink:
        """The hub, in an outage only if it is there. Nobody is kept waiting for a store that does not answer."""
        outage = self._outages.current
        if outage is not None and (outage.needs_restart or not self._is_there(name)):
            raise not_asked()
        return await self.hub(name)

    def _is_there(self, name: str) -> bool:
        task = self._links.get(name)
        return task is not None and task.done() and self._performer.machine(stream_of(name)) is not None

    async def _begin(self, name: str) -> HubLink:
        if name in self._settings.handlers:
            # the HTTP client takes its time to load: others are served meanwhile, and not everybody has event handlers
            await asyncio.to_thread(import_module, "semel.runtime.server.webhooks")
        link = HubLink(name, self._webhooks(name))
        settings, node, random = self._settings, self._server.node, self._random

        def factory(store: Store) -> Any:
            return load_hub(store, name, node, random, settings.hub, settings.handlers.get(name))

        await self._performer.host(factory, transport=link)
        self._performer.attach(link)
        return link

    def _webhooks(self, hub: str) -> Webhooks | None:
        if hub not in self._settings.handlers:
            return None
        from semel.runtime.server.webhooks import Webhooks

        store = self._performer.store

        async def read_body(name: str) -> bytes:
            try:
                return await asyncio.to_thread(lambda: b"".join(store.body(name)))
            except StoreError as error:
                self._outages.record(error, f"{hub}: an event cannot be read", Use.READING)
                raise

        return Webhooks(hub, self._server.keys, self._settings.origin_at(self._server), read_body)

    # -- HTTP

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        asked = self._rest.begin(request, self._clock())
        if isinstance(asked, HttpResponse):
            return asked
        return asked.respond(await self._call(asked.hub, asked.call))

    async def _call(self, hub: str, call: Call) -> Answer:
        try:
            async with asyncio.timeout(CALL_S):
                link = await self._reachable(hub)
            return await link.call(call)
        except TimeoutError:
            return Answer(Outcome.FAILED, public_message(None))
        except LimitExceeded as error:
            return Answer(Outcome.FAILED, error.message)
        except SemelError as error:
            self._outages.record(error, f"{hub}: the hub cannot begin", Use.READING)
            return Answer(Outcome.FAILED, public_message(error))

    def _traffic(self) -> Iterator[Traffic]:
        for task in self._links.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                link = task.result()
                hub = self._performer.machine(stream_of(link.name))
                known = hub if isinstance(hub, Hub) else None
                sent, failed = (0, 0) if link.webhooks is None else (link.webhooks.requests, link.webhooks.failures)
                yield Traffic(link.name, known, len(link.sockets), link.frames_in, link.frames_out, sent, failed)
