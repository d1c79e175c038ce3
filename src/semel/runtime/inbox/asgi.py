"""The endpoints of an application as an ASGI app, to be mounted in a program of the user's own: `app.asgi(keys=...)`.

An endpoint is the last part of the path: mounted at `/inbox`, the endpoint `orders` is at `/inbox/orders`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any
from urllib.parse import quote

from semel.http import HttpError, HttpRequest, HttpResponse, nothing_here
from semel.inbox.cloudevents_http import too_large
from semel.runtime.inbox.http_entrance import ClientLeft, HttpEntrance

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CLOSE_REFUSED = 1000


class InboxAsgi:
    """One ASGI application. It keeps no task and no connection of its own."""

    def __init__(self, entrance: HttpEntrance) -> None:
        self.entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": CLOSE_REFUSED})
        elif scope["type"] == "http":
            try:
                answer = await self._respond(scope, receive)
            except ClientLeft:
                return
            await _write(answer, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.entrance.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await send({"type": "lifespan.startup.complete"})

    async def _respond(self, scope: Scope, receive: Receive) -> HttpResponse:
        try:
            endpoint = endpoint_of(scope)
        except HttpError as error:
            return self.entrance.refuse(error, "")
        read = partial(_body, receive, self.entrance.limits.body_bytes)
        return await self.entrance.respond(request_of(scope), endpoint, read)


def endpoint_of(scope: Scope) -> str:
    """Servers disagree whether `path` begins with the path under which we are mounted."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    rest = path.removeprefix(root) if root and path.startswith(f"{root}/") else path
    parts = [part for part in rest.split("/") if part]
    if len(parts) != 1 or parts[0] in (".", ".."):
        raise nothing_here()
    return str(parts[0])


def request_of(scope: Scope) -> HttpRequest:
    """Without its body. The path is the whole one, as the sender knows it: tokens are for that."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    whole = path if not root or path.startswith(f"{root}/") else root + path
    client = scope.get("client") or ("", 0)
    return HttpRequest(
        scope["method"],
        quote(whole, safe="/:@!$&'()*+,;=~"),
        scope.get("query_string", b"").decode("latin-1"),
        headers,
        scheme=scope.get("scheme", "http"),
        host=headers.get("host", ""),
        address=client[0],
    )


async def _body(receive: Receive, most: int) -> bytes:
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > most:
            raise too_large("the body is too large", f"send up to {most:,} bytes")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _write(answer: HttpResponse, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in answer.headers]
    if answer.status != 204:
        headers.append((b"content-length", b"0"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
