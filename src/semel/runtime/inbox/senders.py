"""Senders that come with Semel: a CloudEvent by POST to a URL, and a message to a hub of a Semel server or of Azure.

    2xx               the other side has it
    408, 425, 429     it is sent again, after what Retry-After asks for, if it asks
    409               from a URL likewise: a request with the same key is still under way there. A hub says by it that
                      the key was used for another message: a dead letter
    5xx, no answer    likewise
    any other         a dead letter at once, with the answer as its cause: sending it again would not help

Addresses come from the application's own code and configuration, never from a message. No redirect is followed and no
proxy of the environment is used. Under one id a message may be sent more than once; the key of the request is the same
each time, and a receiver that knows keys takes it once.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Protocol
from urllib.parse import quote

import httpx

from semel.auth.keys import AccessKeys, ConnectionString
from semel.auth.tokens import service_token
from semel.cloudevents import MESSAGE_ID, METADATA_PREFIX, STRUCTURED
from semel.errors import PeerUnavailable, RemoteProtocolError
from semel.inbox.messages import JSON, TEXT
from semel.inbox.outbox import Destination
from semel.kernel.envelope import Envelope, to_json
from semel.kernel.trace import TRACEPARENT, TRACESTATE, trace_id
from semel.runtime.inbox.relay import Sender

OCTETS = "application/octet-stream"
API_VERSION = "2024-12-01"
CONNECT_S = 10.0
POST_S = 30.0
ANSWER_BYTES_MAX = 65_536
RETRY_AFTER_S_MAX = 3600.0
RETRYABLE = frozenset({408, 425, 429})
KEY_IN_USE = frozenset({409})
"""By the draft of the Idempotency-Key header: the first request with this key has not been answered yet."""
_IN_TRACESTATE = re.compile(r"[!-~][ -~]{0,511}\Z")
_IN_HEADER = re.compile(r"[!-~]{1,255}\Z")


@dataclass(frozen=True, slots=True)
class PostAnswer:
    """The status of an answer, and for how long it asks to wait."""

    status: int
    retry_after_s: float | None = None


class HttpPost(Protocol):
    """Makes one POST: the URL, the body and the headers. Raises PeerUnavailable when nobody answers."""

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> Awaitable[PostAnswer]: ...


class AskedToWait(Exception):
    """It may be sent again, but not before so many seconds."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.message = message
        self.wait_s = wait_s


# -- what an answer means


def check_answer(where: str, answer: PostAnswer, retryable: Collection[int] = RETRYABLE) -> None:
    status = answer.status
    if 200 <= status < 300:
        return
    if status < 500 and status not in retryable:
        raise RemoteProtocolError(f"{where} answered {status}", fix="correct the address or what the receiver accepts")
    if answer.retry_after_s is not None:
        raise AskedToWait(f"{where} answered {status}", min(answer.retry_after_s, RETRY_AFTER_S_MAX))
    raise PeerUnavailable(f"{where} answered {status}", fix="it will be sent again")


def retry_after(text: str | None, now: float) -> float | None:
    """The header as seconds from now: it has a number, or a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except ValueError:
        return None


def header_key(text: str) -> str:
    """An id as it may stand in a header; one that may not is hashed, the same each time."""
    return text if _IN_HEADER.match(text) else f"sha256-{sha256(text.encode()).hexdigest()}"


# -- the two senders


def url_sender(post: HttpPost) -> Sender:
    """A CloudEvent by POST. The id is an idempotency key as well, for receivers that know one."""

    async def send(destination: Destination, envelope: Envelope) -> None:
        headers = {"Content-Type": STRUCTURED, "Idempotency-Key": header_key(envelope.id), **_trace(envelope)}
        answer = await post(destination.name, to_json(envelope), headers)
        check_answer(destination.name, answer, RETRYABLE | KEY_IN_USE)

    return send


def hub_sender(post: HttpPost, hub: ConnectionString) -> Sender:
    """By the REST API. The key is of the message at its destination: the same id may go to two groups of a hub."""
    keys = AccessKeys(hub.key)

    async def send(destination: Destination, envelope: Envelope) -> None:
        url = f"{hub.endpoint}/api/hubs/{quote(destination.name, safe='')}{_receiver(destination)}/:send"
        headers = {
            "Content-Type": _content_type(envelope),
            "Idempotency-Key": header_key(f"sha256-{sha256(f'{destination} {envelope.id}'.encode()).hexdigest()}"),
            "Authorization": f"Bearer {service_token(keys, url, now=time.time())}",
            **_trace(envelope),
        }
        if _IN_HEADER.match(envelope.id):
            headers["X-Semel-Message-Id"] = envelope.id
            # so that the subscriber has it as well: in the hub's own records it is not seen
            headers[f"{METADATA_PREFIX}{MESSAGE_ID}"] = envelope.id
        check_answer(str(destination), await post(f"{url}?api-version={API_VERSION}", envelope.data, headers))

    return send


def _trace(envelope: Envelope) -> dict[str, str]:
    """As every HTTP client sends it. A state that cannot stand in a header is left out."""
    headers = envelope.headers
    if trace_id(headers) is None:
        return {}
    state = headers.get(TRACESTATE, "")
    found = {TRACEPARENT: headers[TRACEPARENT]}
    return {**found, TRACESTATE: state} if _IN_TRACESTATE.match(state) else found


def _receiver(destination: Destination) -> str:
    return f"/{destination.receiver}s/{quote(destination.to, safe='')}" if destination.receiver else ""


def _content_type(envelope: Envelope) -> str:
    """The three that the API knows."""
    kind = (envelope.datacontenttype or "").partition(";")[0].strip().lower()
    return {JSON: JSON, "text/plain": TEXT}.get(kind, OCTETS)


class HttpSenders:
    """The senders of a process, which share their connections. Used as `async with`."""

    def __init__(self, hub: ConnectionString | None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            headers={"user-agent": "semel", "accept-encoding": "identity"},
            timeout=httpx.Timeout(POST_S, connect=CONNECT_S),
            transport=transport,
        )
        self.by_kind: dict[str, Sender] = {"url": url_sender(self._post)}
        if hub is not None:
            self.by_kind["hub"] = hub_sender(self._post, hub)

    async def close(self) -> None:
        await self._http.aclose()

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        try:
            async with (
                asyncio.timeout(POST_S),
                self._http.stream("POST", url, content=body, headers=dict(headers)) as response,
            ):
                self._http.cookies.clear()
                await _read_some(response)
                return PostAnswer(response.status_code, retry_after(response.headers.get("retry-after"), time.time()))
        except TimeoutError:
            raise PeerUnavailable(f"{_host(url)} did not answer within {POST_S:g} s", fix="it is sent again") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            cause = str(error) or type(error).__name__
            raise PeerUnavailable(f"{_host(url)} does not answer: {cause}", fix="it is sent again") from None


async def _read_some(response: httpx.Response) -> None:
    """An answer that is read to its end leaves its connection to the next request. A long one is cut off instead."""
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > ANSWER_BYTES_MAX:
            return


def _host(url: str) -> str:
    """Without what may be secret in a query."""
    return url.partition("?")[0]
