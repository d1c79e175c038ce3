"""The endpoints of an application in a program of the user's own: an ASGI app under uvicorn, and a Django view."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from tests.integration.test_inbox_http import BATCH, BINARY, STRUCTURED, Till, event

from semel import App
from semel.auth.keys import AccessKeys, connection_string
from semel.auth.tokens import service_token
from semel.errors import ConfigError, StoreUnavailable
from semel.inbox.cloudevents_http import BODY_BYTES_MAX
from semel.runtime.inbox import http_entrance
from semel.testing.limits import scaled, wait_until
from semel.testing.serve_process import KEY

Serve = Callable[[Any], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Runs any ASGI application under uvicorn. Returns its address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def begin(application: Any) -> str:
        config = uvicorn.Config(application, port=0, log_level="warning", lifespan="auto", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        wait_until(lambda: server.started or not thread.is_alive(), "uvicorn")
        assert server.started
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

    yield begin
    for server, thread in running:
        server.should_exit = True
        thread.join(scaled(30))
        assert not thread.is_alive()


@pytest.fixture
def till(tmp_path: Path) -> Iterator[Till]:
    till = Till(tmp_path)
    yield till
    till.app.close()


def post(url: str, *events: dict[str, Any], roles: tuple[str, ...] = (), key: str = KEY) -> httpx.Response:
    token = service_token(AccessKeys(key), url, now=time.time(), roles=roles)
    content, body = (STRUCTURED, events[0]) if len(events) == 1 else (BATCH, list(events))
    headers = {"authorization": f"Bearer {token}", "content-type": content}
    answer = httpx.post(url, content=json.dumps(body), headers=headers, trust_env=False, timeout=scaled(30))
    assert answer.content == b""
    return answer


# -- ASGI


def test_an_application_mounted_beside_others_stores_what_comes(till: Till, serve: Serve) -> None:
    async def hello(request: object) -> PlainTextResponse:
        return PlainTextResponse("hello")

    site = Starlette(routes=[Route("/", hello), Mount("/inbox", till.app.asgi(keys=KEY))])
    address = serve(site)
    assert httpx.get(address, trust_env=False).text == "hello"
    for _ in range(2):
        assert post(f"{address}/inbox/orders", event("o-1")).status_code == 202
        assert post(f"{address}/inbox/orders", event("o-2"), event("o-3")).status_code == 202
    till.app.drain(scaled(30))
    assert till.charged == ["o-1", "o-2", "o-3"]


def test_alone_it_decides_as_the_server_does(till: Till, serve: Serve) -> None:
    address = serve(till.app.asgi(keys=connection_string("http://x.example", KEY).text(), origins=["semel.example"]))
    orders = f"{address}/orders"
    assert post(orders, event("o-1"), roles=("semel.send:inbox/*",)).status_code == 202
    assert post(orders, event("o-2"), roles=("semel.send:inbox/bills",)).status_code == 403
    assert post(orders, event("o-2"), key="x" * 44).status_code == 401
    assert post(f"{address}/none", event("o-2")).status_code == 404
    assert post(f"{address}/orders/more", event("o-2")).status_code == 404
    assert post(orders, {"id": "o-2"}).status_code == 400
    with httpx.Client(trust_env=False, timeout=scaled(30)) as http:
        assert http.post(orders, content=b"", headers=BINARY).status_code == 401
        assert http.get(orders).status_code == 405
        asked = http.options(orders, headers={"WebHook-Request-Origin": "semel.example"})
        assert (asked.status_code, asked.headers["webhook-allowed-origin"]) == (200, "semel.example")
        assert http.options(orders, headers={"WebHook-Request-Origin": "evil.example"}).status_code == 403
    assert till.stored == 1


async def test_a_body_that_is_too_large_is_not_read_to_its_end(till: Till) -> None:
    """It comes in chunks, without a length, and would never end."""
    chunk, read = b"x" * 65_536, 0
    sent: list[Any] = []

    async def receive() -> Any:
        nonlocal read
        read += len(chunk)
        assert read <= BODY_BYTES_MAX + len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/orders", "headers": [(b"host", b"x")]}
    await till.app.asgi(open_to_all=True)(scope, receive, send)
    assert (sent[0]["status"], sent[1]["body"]) == (413, b"")
    read = BODY_BYTES_MAX
    sent.clear()
    await till.app.asgi(keys=KEY)(scope, receive, send)
    assert (sent[0]["status"], read) == (401, BODY_BYTES_MAX), "who may not send is not read at all"


def test_an_inline_endpoint_has_handled_it_when_it_answers(till: Till, serve: Serve) -> None:
    address = serve(till.app.asgi(keys=KEY))
    for _ in range(2):
        assert post(f"{address}/quick", event("o-1")).status_code == 204
    assert till.charged == ["o-1"]
    refused = post(f"{address}/quick", event("o-2"), event("o-3"))
    assert (refused.status_code, "one by one" in refused.headers["semel-error"]) == (400, True)


def test_a_buffered_endpoint_that_is_full_says_when_to_come_again(tmp_path: Path, serve: Serve) -> None:
    app = App(f"sqlite:///{tmp_path}/b.db", name="b")
    app.endpoint("quick", mode="buffered", buffer_high=2, buffer_low=1).on("order.placed")(lambda order: None)
    address = serve(app.asgi(keys=KEY))
    assert post(f"{address}/quick", event("o-1"), event("o-2")).status_code == 202
    full = post(f"{address}/quick", event("o-3"))
    assert (full.status_code, full.headers["retry-after"]) == (503, "5")
    app.close()


def test_what_goes_wrong_in_the_user_s_code_is_an_empty_500(tmp_path: Path, serve: Serve) -> None:
    app = App(f"sqlite:///{tmp_path}/b.db", name="b")
    app.endpoint("orders").on("order.placed")(lambda order, what: None)  # nobody can provide `what`
    answer = post(f"{serve(app.asgi(keys=KEY))}/orders", event("o-1"))
    assert answer.status_code == 500
    app.close()


def test_a_store_that_is_away_is_503(till: Till, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    address = serve(till.app.asgi(keys=KEY))
    with monkeypatch.context() as trouble:
        trouble.setattr(till.app.store, "commit", away)
        answer = post(f"{address}/orders", event("o-1"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert post(f"{address}/orders", event("o-1")).status_code == 202


def test_a_process_that_forks_later_has_a_thread_of_its_own(
    till: Till, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under gunicorn --preload, where the parent may have used the application before."""
    mounted = till.app.asgi(keys=KEY)
    address = serve(mounted)
    assert post(f"{address}/orders", event("o-1")).status_code == 202
    before = set(mounted.entrance._gathering.values())
    monkeypatch.setattr(http_entrance.os, "getpid", lambda: 0)
    assert post(f"{address}/orders", event("o-2")).status_code == 202
    assert len(set(mounted.entrance._gathering.values()) - before) == 1
    monkeypatch.undo()
    assert till.stored == 2


@pytest.mark.parametrize("options", [{}, {"keys": KEY, "open_to_all": True}])
def test_who_may_send_has_to_be_said(till: Till, options: dict[str, Any]) -> None:
    for mount in (till.app.asgi, till.app.django_view):
        with pytest.raises(ConfigError, match=r"open_to_all|not said"):
            mount(**options)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(till: Till) -> None:
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/orders", "headers": [(b"host", b"x"), (b"ce-id", b"1")]}
    await till.app.asgi(open_to_all=True)(scope, receive, send)


async def test_there_is_nothing_for_websockets(till: Till) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await till.app.asgi(open_to_all=True)({"type": "websocket", "path": "/orders"}, receive, send)
    assert sent == ["websocket.close"]


# -- Django


@pytest.fixture(scope="module")
def django() -> Any:
    """Django has one configuration for a process."""
    from django.conf import settings

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF="none")
    import django

    django.setup()
    return django


@pytest.fixture
def site(till: Till, django: Any) -> Iterator[Any]:
    from django.test import override_settings
    from django.urls import path

    class Urls:
        urlpatterns = [path("inbox/<str:endpoint>", till.app.django_view(keys=KEY))]  # noqa: RUF012

    middleware = ["django.middleware.csrf.CsrfViewMiddleware", "django.middleware.common.CommonMiddleware"]
    with override_settings(ROOT_URLCONF=Urls, MIDDLEWARE=middleware, ALLOWED_HOSTS=["*"]):
        yield till


def test_a_django_view_under_a_real_server(site: Till, serve: Serve) -> None:
    from django.core.asgi import get_asgi_application

    address = serve(get_asgi_application())
    for _ in range(2):
        assert post(f"{address}/inbox/orders", event("o-1")).status_code == 202
    assert post(f"{address}/inbox/quick", event("o-2")).status_code == 204
    assert post(f"{address}/inbox/none", event("o-3")).status_code == 404
    assert post(f"{address}/inbox/orders", event("o-3"), key="x" * 44).status_code == 401
    site.app.drain(scaled(30))
    assert sorted(site.charged) == ["o-1", "o-2"]


def test_a_django_view_under_wsgi(site: Till) -> None:
    """With the middleware that asks for a CSRF token: there is none in a request between servers."""
    from django.test import Client

    client = Client(enforce_csrf_checks=True)
    url = "http://testserver/inbox/orders"

    def ask(body: bytes, headers: dict[str, str]) -> Any:
        token = service_token(AccessKeys(KEY), url, now=time.time())
        content = headers.pop("content-type", "text/plain")
        sent = {"Authorization": f"Bearer {token}", "Host": "testserver", **headers}
        return client.post("/inbox/orders", data=body, content_type=content, headers=sent)

    answer = ask(b'{"id":"o-1"}', {**BINARY, "ce-subject": "%E2%82%AC", "content-type": "application/json"})
    assert (answer.status_code, answer.content) == (202, b"")
    assert not answer.has_header("Content-Type")
    assert ask(b"x" * (BODY_BYTES_MAX + 1), dict(BINARY)).status_code == 413
    assert ask(b"{}", {}).status_code == 400
    asked = client.options("/inbox/orders", headers={"WebHook-Request-Origin": "semel.example", "Host": "testserver"})
    assert (asked.status_code, asked["WebHook-Allowed-Origin"]) == (200, "semel.example")
    site.app.drain(scaled(30))
    assert site.charged == ["o-1"]


def test_many_at_once_through_django_share_one_thread_of_the_entrance(site: Till, serve: Serve) -> None:
    from django.core.asgi import get_asgi_application

    address = serve(get_asgi_application())

    async def burst() -> list[int]:
        async with httpx.AsyncClient(trust_env=False, timeout=scaled(30)) as http:
            url = f"{address}/inbox/orders"
            token = service_token(AccessKeys(KEY), url, now=time.time())
            headers = {"authorization": f"Bearer {token}", "content-type": STRUCTURED}
            bodies = [json.dumps(event(f"o-{number}")) for number in range(40)]
            found = await asyncio.gather(*(http.post(url, content=body, headers=headers) for body in bodies))
            return [answer.status_code for answer in found]

    assert asyncio.run(burst()) == [202] * 40
    assert site.stored == 40
