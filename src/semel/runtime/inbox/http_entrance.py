"""Where CloudEvents come in by HTTP, for whoever serves: `semel serve`, an ASGI server, Django.

    admit      may this be sent, by this one, to this endpoint? Asked before the body is read
    take       read the events, store or handle them, and answer

Answers have no body. 202 is stored and 204 is handled, or stored for a hub; a duplicate is either. 503 with Retry-After
is for what may work later: the store is away, or the endpoint is full. Nothing was acknowledged then, and the same
event may be sent again under the same id.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from http import HTTPStatus
from typing import Protocol

import msgspec

from semel.auth.authority import SEND, Authority
from semel.auth.keys import AccessKeys, parse_connection_string
from semel.errors import ConfigError, InputError, LimitExceeded, StoreError, StoreRefused
from semel.http import (
    HttpError,
    HttpRequest,
    HttpResponse,
    Query,
    bad_request,
    nothing_here,
    origin_of,
    status_error,
    unavailable,
)
from semel.inbox.cloudevents_http import (
    EventLimits,
    EventRequest,
    accepted,
    consent,
    error_response,
    no_such_method,
    read_events,
)
from semel.inbox.endpoint import EndpointMode, EndpointOptions
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.kernel.store import Store
from semel.runtime.host.outages import public_message
from semel.runtime.inbox.definition import Verdict
from semel.runtime.inbox.endpoint import InboxEndpoint
from semel.runtime.inbox.gathering import Gathering

log = logging.getLogger(__name__)

STORE_S = 10.0
"""How long a request waits for the store. What is stored after that is found to be a duplicate when it comes again."""
RETRY_AFTER_S = 1
FULL_AFTER_S = 5
BACKLOG_MAX = 1_000_000
LOOK_S = 1.0
"""How often it is looked how much waits at an endpoint. Where counting takes long, it is looked more rarely."""
LOOK_SHARE = 0.05
NOT_TAKEN = frozenset({DeliveryEnd.GIVE_BACK, DeliveryEnd.NONE_YET})


class ReceivingApp(Protocol):
    """An application, as far as messages come in."""

    endpoints: dict[str, InboxEndpoint]

    @property
    def store(self) -> Store: ...

    def receive(self, endpoint: str, envelopes: Sequence[Envelope]) -> list[Verdict]: ...

    async def deliver(self, endpoint: str, envelope: Envelope, threads: Executor | None = None) -> DeliveryEnd: ...


ReadBody = Callable[[], Awaitable[bytes]]


class ClientLeft(Exception):
    """It closed the connection before its request was whole: there is nobody to answer."""


class EndpointRoom:
    """Whether an endpoint has room in its store."""

    def __init__(self, app: ReceivingApp, queue: str, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._queue, self._most, self._clock = app, queue, most, clock
        self._look_at = 0.0
        self._count = 0

    def check(self, more: int) -> None:
        """Blocks for a moment now and then. Between two looks it counts what it lets in."""
        began = self._clock()
        if began >= self._look_at:
            self._count = sum(self._app.store.work_counts(self._queue).get(self._queue, {}).values())
            took_s = self._clock() - began
            self._look_at = began + max(LOOK_S, took_s / LOOK_SHARE)
        if self._count + more > self._most:
            raise LimitExceeded(
                f"{self._count:,} messages wait at the endpoint", fix="run its handlers, or more of them"
            )
        self._count += more


class HttpEntrance:
    """All endpoints of an application, or those in `modes`. `authority` None lets everybody send: see `entrance_for`.
    `origins` are the hosts that may send at all, by the words of the CloudEvents webhook specification."""

    def __init__(
        self,
        app: ReceivingApp,
        authority: Authority | None,
        *,
        origins: Sequence[str] = ("*",),
        backlog: int = BACKLOG_MAX,
        modes: frozenset[EndpointMode] = frozenset(EndpointMode),
        limits: EventLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits or EventLimits()
        self.counts: Counter[tuple[str, str]] = Counter()
        """By endpoint and what became of it: stored, duplicate, handled, or the status of a refusal."""
        self.trouble: StoreError | None = None
        """What the store said last, until it takes something again."""
        self._app, self._authority, self._clock = app, authority, clock
        self._origins, self._backlog_max, self._modes = tuple(origins), backlog, modes
        self._gathering: dict[tuple[int, str], Gathering] = {}
        """By process as well: a thread does not come along through a fork."""

    def close(self) -> None:
        for (process, _), each in self._gathering.items():
            if process == os.getpid():
                each.close()

    # -- one request

    async def respond(self, request: HttpRequest, endpoint: str, read: ReadBody | None = None) -> HttpResponse:
        """The answer, whatever it is. `endpoint` is the name in the path, without any %. `read` reads the body, once it
        is clear that it is wanted; without it the request has it."""
        try:
            if request.method == "OPTIONS":
                return consent(request.headers, self._origins)
            options = self.admit(request, endpoint)
            body = request.body if read is None else await read()
            return await self.take(options, request.headers, body)
        except HttpError as error:
            return self.refuse(error, endpoint)
        except ClientLeft:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return self.refuse(status_error(HTTPStatus.INTERNAL_SERVER_ERROR), endpoint)

    def refuse(self, error: HttpError, endpoint: str) -> HttpResponse:
        # names that strangers send are not counted one by one
        self.counts[endpoint if endpoint in self._app.endpoints else "", str(error.status)] += 1
        return error_response(error)

    def admit(self, request: HttpRequest, endpoint: str) -> EndpointOptions:
        """Raises `HttpError`. Who may not send here does not hear whether the endpoint exists."""
        if request.method != "POST":
            raise no_such_method()
        if self._authority is not None:
            # a hub that shows its key makes its token for the host of its handler, whatever the path
            here = (origin_of(request), *self._authority.endpoints)
            self._authority.check(_with_token(request), f"{SEND}inbox/{endpoint}", self._clock(), also_for=here)
        found = self._app.endpoints.get(endpoint)
        if found is None:
            raise nothing_here()
        if found.options.mode not in self._modes:
            raise HttpError(
                404,
                "Error.NotFound",
                f"this server does not take messages for {found.options.mode} endpoints",
                fix="mount app.asgi() in the program that runs its handlers, or make the endpoint durable",
            )
        return found.options

    async def take(self, options: EndpointOptions, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        events = read_events(headers, body, id_field=options.id_field, limits=self.limits)
        if options.mode is EndpointMode.INLINE:
            return await self._handle(options, events)
        try:
            async with asyncio.timeout(STORE_S):
                verdicts = await asyncio.shield(asyncio.wrap_future(self._at(options).put(events.envelopes)))
        except TimeoutError:
            raise unavailable("the store does not answer", RETRY_AFTER_S) from None
        except LimitExceeded as error:
            raise unavailable(error.message, FULL_AFTER_S) from None
        except StoreRefused as error:
            raise bad_request(f"the store does not take this: {error.message}", fix=error.fix) from None
        except StoreError as error:
            raise self._trouble(options, error) from None
        except InputError as error:
            raise bad_request(error.message, fix=error.fix) from None
        self.trouble = None
        for verdict in verdicts:
            self.counts[options.name, verdict] += 1
        return accepted(events, is_handled=False)

    async def _handle(self, options: EndpointOptions, events: EventRequest) -> HttpResponse:
        """What is handled before it is answered cannot be all or nothing, so there is one at a time."""
        if len(events.envelopes) > 1:
            raise bad_request("an inline endpoint takes one event in a request", fix="send them one by one")
        try:
            for envelope in events.envelopes:
                if await self._app.deliver(options.name, envelope) in NOT_TAKEN:
                    raise unavailable("it cannot be handled just now", FULL_AFTER_S)
        except StoreError as error:
            raise self._trouble(options, error) from None
        except InputError as error:
            raise bad_request(error.message, fix=error.fix) from None
        self.trouble = None
        self.counts[options.name, "handled"] += len(events.envelopes)
        return accepted(events, is_handled=True)

    def _trouble(self, options: EndpointOptions, error: StoreError) -> HttpError:
        log.warning("the store did not take what came to %s by HTTP: %s", options.name, error)
        self.trouble = error
        return unavailable(public_message(error), RETRY_AFTER_S)

    def _at(self, options: EndpointOptions) -> Gathering:
        place = os.getpid(), options.name
        if (found := self._gathering.get(place)) is not None:
            return found
        room = EndpointRoom(self._app, options.queue, self._backlog_max)
        is_durable = options.mode is EndpointMode.DURABLE

        def receive(envelopes: Sequence[Envelope]) -> list[Verdict]:
            if is_durable:
                room.check(len(envelopes))
            return self._app.receive(options.name, envelopes)

        # the threads of a server may come here at once: the first is the one that all use
        return self._gathering.setdefault(place, Gathering(options.name, receive))


def _with_token(request: HttpRequest) -> HttpRequest:
    """CloudEvents allow the token in the query as well, for senders that can be given no more than a URL."""
    if "authorization" in request.headers or "access_token" not in request.query:
        return request
    token = Query(request.query).one("access_token") or ""
    return msgspec.structs.replace(request, headers={**request.headers, "authorization": f"Bearer {token}"})


def entrance_for(
    app: ReceivingApp,
    *,
    keys: AccessKeys | str | None,
    is_open: bool,
    addresses: Sequence[str],
    origins: Sequence[str],
    backlog: int,
) -> HttpEntrance:
    """For a program of the user's own. `keys` may be a key or a connection string."""
    if (keys is None) is not is_open:
        raise ConfigError(
            "who may send events to the application is not said" if keys is None else "keys are given, and open_to_all",
            fix="give keys=, such as the access key of the server; or open_to_all=True if something else decides it",
        )
    authority = Authority(_keys(keys), tuple(addresses)) if keys is not None else None
    return HttpEntrance(app, authority, origins=origins, backlog=backlog)


def _keys(keys: AccessKeys | str) -> AccessKeys:
    if isinstance(keys, AccessKeys):
        return keys
    return AccessKeys(parse_connection_string(keys).key if ";" in keys else keys)
