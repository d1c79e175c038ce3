"""The endpoints of an application as a Django view: `path("inbox/<str:endpoint>", app.django_view(keys=...))`.

It is a coroutine function, which Django runs under ASGI and under WSGI. It needs no CSRF token: who may send is decided
by the token of the request, and no browser sends one by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from semel.http import HttpError
from semel.inbox.cloudevents_http import too_large
from semel.runtime.inbox.http_entrance import HttpEntrance

if TYPE_CHECKING:
    from django.http import HttpRequest as DjangoRequest
    from django.http import HttpResponse as DjangoResponse

    from semel.http import HttpRequest, HttpResponse

View = Callable[..., Awaitable["DjangoResponse"]]


def inbox_view(entrance: HttpEntrance) -> View:
    async def view(request: DjangoRequest, endpoint: str) -> DjangoResponse:
        async def read() -> bytes:
            return _body(request, entrance.limits.body_bytes)

        return _answer(await entrance.respond(_request_of(request), endpoint, read))

    view.csrf_exempt = True  # type: ignore[attr-defined]
    return view


def _request_of(request: DjangoRequest) -> HttpRequest:
    from semel.http import HttpRequest

    headers = {name.lower(): value for name, value in request.headers.items()}
    return HttpRequest(
        request.method or "",
        request.get_full_path().partition("?")[0],
        request.META.get("QUERY_STRING", ""),
        headers,
        scheme=request.scheme or "http",
        host=request.META.get("HTTP_HOST", ""),
        address=request.META.get("REMOTE_ADDR", ""),
    )


def _body(request: DjangoRequest, most: int) -> bytes:
    """Django has a limit of its own, DATA_UPLOAD_MAX_MEMORY_SIZE."""
    from django.core.exceptions import RequestDataTooBig
    from django.http import UnreadablePostError

    fix = f"send up to {most:,} bytes"
    length = request.META.get("CONTENT_LENGTH") or "0"
    if length.isdecimal() and int(length) > most:
        raise too_large("the body is too large", fix)
    try:
        return request.body
    except RequestDataTooBig:
        raise too_large("the body is larger than Django takes", fix) from None
    except UnreadablePostError:
        raise HttpError(400, "Error.BadRequest", "the body did not come as a whole", fix="send it again") from None


def _answer(response: HttpResponse) -> DjangoResponse:
    from django.http import HttpResponse as DjangoResponse

    answer = DjangoResponse(status=response.status)
    del answer["Content-Type"]  # there is no body to have one
    for name, value in response.headers:
        answer[name] = value
    return answer
