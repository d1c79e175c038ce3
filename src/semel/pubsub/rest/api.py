"""The REST API, as Azure Web PubSub has it: from a request to a call on a hub, and from the answer to a response.

    Rest.begin(request, now)    a response at once, or `Asked`
    Asked.hub, Asked.call       what the runtime carries out
    Asked.respond(answer)       the response

A request is looked at from the outside in: its address, who makes it, and only then what it says. Whatever is in it,
the outcome is one of the two, never an exception.

On top of the service's own there are two headers for the four operations that send. With `Idempotency-Key` a request
may be repeated, by a library or by hand, and sends once: a repetition is answered with `Idempotent-Replayed`.
`X-Semel-Message-Id` gives the message its id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from semel.auth.authority import Authority
from semel.auth.keys import AccessKeys, connection_string
from semel.errors import FrameError, InputError
from semel.http import JSON, Headers, HttpError, HttpRequest, HttpResponse, Query, bad_request, origin_of, unavailable
from semel.pubsub.hub.calls import Answer, Call, Outcome
from semel.pubsub.protocol.names import check_hub
from semel.pubsub.rest.routes import HEALTH, OPERATIONS, Operation, Parts

VERSIONS = ("2021-10-01", "2022-11-01", "2023-07-01", "2024-01-01", "2024-12-01")

CLIENTS = "/client/"

_REPEATED = ("idempotent-replayed", "true")
"""On the answer to a request whose key was used before: nothing was sent for it."""
_HEADERS: Headers = (
    ("server", "Semel"), ("cache-control", "no-store"), ("api-supported-versions", ", ".join(VERSIONS)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RestSettings:
    """`endpoints` are other addresses under which callers know this server, such as `https://events.example.com` of a
    reverse proxy: tokens may be for them. Links and tokens that are made here carry the one with the request's host,
    else the first; without any they carry the address of the request."""

    keys: AccessKeys
    endpoints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for endpoint in self.endpoints:
            connection_string(endpoint, self.keys.primary)


@dataclass(frozen=True, slots=True)
class Asked:
    """`hub` is in the one spelling of its name. `respond` makes the response out of the hub's answer."""

    hub: str
    call: Call
    respond: Callable[[Answer], HttpResponse]


class Rest:
    def __init__(self, settings: RestSettings) -> None:
        self._settings = settings
        self._endpoints = tuple(endpoint.rstrip("/") for endpoint in settings.endpoints)
        self._authority = Authority(settings.keys, self._endpoints)
        self._by_host = {urlsplit(endpoint).netloc.lower(): endpoint for endpoint in reversed(self._endpoints)}

    def begin(self, request: HttpRequest, now: float) -> HttpResponse | Asked:
        try:
            return self._begin(request, now)
        except HttpError as error:
            return self._error(request, error)
        except (InputError, FrameError) as error:
            return self._error(request, bad_request(error.message, fix=error.fix))

    def _begin(self, request: HttpRequest, now: float) -> HttpResponse | Asked:
        if f"{request.path}/".startswith(CLIENTS):
            raise bad_request("clients connect here, by WebSocket", fix="ask to upgrade the connection to websocket")
        operation, names = OPERATIONS.find(request.method, request.path)
        if operation is HEALTH:
            return HttpResponse(200, _HEADERS)
        self._authority.check(request, operation.role, now)
        return self._ask(operation, self._parts(request, list(names.values()), now))

    def _parts(self, request: HttpRequest, names: list[str], now: float) -> Parts:
        query = Query(request.query)
        version = _version(query)
        hub = check_hub(names[0])
        return Parts(hub, names[1:], query, request, version, self._endpoint(request), self._settings.keys, now)

    def _ask(self, operation: Operation, parts: Parts) -> HttpResponse | Asked:
        if operation.call is None:
            return self._done(operation, parts, Answer())
        call = operation.call(parts)
        return Asked(parts.hub, call, partial(self._respond, operation, parts))

    # -- who asks, and from where

    def _endpoint(self, request: HttpRequest) -> str:
        """Where the maker of the request knows this server."""
        if not self._endpoints:
            return origin_of(request)
        return self._by_host.get(request.host.lower(), self._endpoints[0])

    # -- what comes of it

    def _respond(self, operation: Operation, parts: Parts, answer: Answer) -> HttpResponse:
        error = self._error_in(operation, parts, answer)
        return self._done(operation, parts, answer) if error is None else self._error(parts.request, error)

    def _error_in(self, operation: Operation, parts: Parts, answer: Answer) -> HttpError | None:
        match answer.outcome:
            case Outcome.DONE:
                return None
            case Outcome.NOT_FOUND:
                return None if operation.missing is None else _missing(operation.missing, parts.names)
            case Outcome.CONFLICT:
                return HttpError(409, operation.conflict, answer.message or "this does not fit what was said before")
            case Outcome.REFUSED:
                return bad_request(answer.message or "the hub refuses this")
            case Outcome.FAILED:
                return unavailable(answer.message or "the store could not do it")

    def _done(self, operation: Operation, parts: Parts, answer: Answer) -> HttpResponse:
        if operation.body is None:
            return HttpResponse(operation.done, (_REPEATED, *_HEADERS) if answer.repeated else _HEADERS)
        body = operation.body(parts, answer)
        return HttpResponse(operation.done, (("content-type", JSON), *_HEADERS), body)

    def error(self, error: HttpError) -> HttpResponse:
        """As the service answers errors."""
        headers = (*error.headers, ("x-ms-error-code", error.name), *_HEADERS)
        return HttpResponse(error.status, (("content-type", JSON), *headers), error.body())

    def _error(self, request: HttpRequest, error: HttpError) -> HttpResponse:
        response = self.error(error)
        if request.method == "HEAD":
            return HttpResponse(response.status, response.headers[1:])
        return response


def _version(query: Query) -> str:
    """As the service does it: whoever names none gets the latest."""
    version = query.one("api-version")
    if version is None:
        return VERSIONS[-1]
    if version not in VERSIONS:
        raise bad_request("this api-version is not known here", fix=f"use {VERSIONS[-1]}", target="api-version")
    return version


def _missing(name: str, names: list[str]) -> HttpError:
    """`name` is like Error.Connection.NotExisted. Of the `names` in an address a connection is the last, and a user or
    group that can be missing the first."""
    target = name.split(".")[1]
    missing = names[-1] if target == "Connection" else names[0]
    return HttpError(404, name, f"{target} `{missing}` is not found.", target=target)
