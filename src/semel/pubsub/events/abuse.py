"""Asking a handler whether it wants events of this server, before it gets any and again from time to time.

Without that, whoever may configure a handler could aim a flood of requests at somebody who has nothing to do with us.
The question is `OPTIONS` to the handler's URL, with `validate` in the place of the event; one who answers that there is
no such thing (404) is asked once more with `GET`. Yes is a status of 2xx and a `WebHook-Allowed-Origin` that is `*` or
the origin of this server.

The origin is a host without a port, as Azure's is: handlers made with Microsoft's .NET library look up keys by it,
and those made with the JavaScript one name the host with its port where there is one, so an answer may have any port.

A yes holds for `VALID_S`, then the question is asked again while events go on. A no holds at once, and is asked about
again after `WAIT_S`, then after twice that, up to `WAIT_MAX_S`. Who cannot be reached has said neither: what he said
before holds on, for `LAPSE_S` at most.
"""

from __future__ import annotations

import math
import re
from enum import Enum

import msgspec

from semel.cloudevents import ALLOWED_ORIGIN, REQUEST_ORIGIN
from semel.http import HttpResponse, OutgoingRequest
from semel.pubsub.events.cloudevents import HandlerUnreachable
from semel.pubsub.events.handlers import VALIDATE, EventHandler

TIMEOUT_S = 10.0
VALID_S = 60.0
WAIT_S = 1.0
WAIT_MAX_S = 60.0
LAPSE_S = 3600.0

OPTIONS, GET = "OPTIONS", "GET"

_PORT = re.compile(r"(?<!:):[0-9]+\Z")
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "[::1]"})


class UrlVerdict(Enum):
    YES = "yes"
    NO = "no"
    ASK_WITH_GET = "ask with GET"
    NO_ANSWER = "no answer"


class HandlerConsent(msgspec.Struct, frozen=True):
    """What is known of a URL: when it last said yes, if no other word came after it, and when to ask next.

    An event goes out if that `is_allowed`. If not, and if the question `is_due` or under way, it waits for the answer;
    else it fails. Nothing of this needs to be stored: after a restart handlers are asked again.
    """

    yes_at: float | None = None
    ask_at: float = -math.inf
    wait_s: float = WAIT_S

    def is_allowed(self, now: float) -> bool:
        return self.yes_at is not None and now < self.yes_at + LAPSE_S

    def is_due(self, now: float) -> bool:
        return now >= self.ask_at

    def after(self, verdict: UrlVerdict, now: float) -> HandlerConsent:
        """What is known when this was the last word: not `ASK_WITH_GET`, which is none."""
        if verdict is UrlVerdict.YES:
            return HandlerConsent(now, now + VALID_S)
        yes_at = self.yes_at if verdict is UrlVerdict.NO_ANSWER else None
        return HandlerConsent(yes_at, now + self.wait_s, min(self.wait_s * 2, WAIT_MAX_S))


UNKNOWN = HandlerConsent()


def validation_request(handler: EventHandler, hub: str, origin: str, method: str = OPTIONS) -> OutgoingRequest:
    """It carries nothing that proves who we are, for it may reach somebody who should not be asked."""
    headers = ((REQUEST_ORIGIN, origin), ("ce-awpsversion", "1.0"), ("Accept-Encoding", "identity"))
    return OutgoingRequest(method, handler.url_for(hub, VALIDATE), headers)


def judge(reply: HttpResponse | HandlerUnreachable, origin: str, method: str = OPTIONS) -> UrlVerdict:
    """What the reply to a question means. A server that is in trouble has not answered it."""
    if isinstance(reply, HandlerUnreachable) or reply.status == 408 or reply.status >= 500:
        return UrlVerdict.NO_ANSWER
    if reply.status == 404 and method == OPTIONS:
        return UrlVerdict.ASK_WITH_GET
    return UrlVerdict.YES if 200 <= reply.status < 300 and _names_us(reply, origin) else UrlVerdict.NO


def _names_us(response: HttpResponse, origin: str) -> bool:
    """One origin in each header: a list with commas is none. On one machine people say now this, now that."""
    allowed = {host_of(value.strip()) for name, value in response.headers if name.lower() == ALLOWED_ORIGIN.lower()}
    ours = host_of(origin)
    return bool(allowed & {"*", *(_THIS_MACHINE if ours in _THIS_MACHINE else (ours,))})


def host_of(origin: str) -> str:
    """What stands before the port, if there is one."""
    return _PORT.sub("", origin.lower())
