"""Event handlers over real HTTP: asked before a client comes in, told what happens, and told once although we die."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
import sys
import time
import tomllib
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import websockets.asyncio.client as websocket
from aiohttp import web
from azure.messaging.webpubsubclient.aio import WebPubSubClient
from azure.messaging.webpubsubclient.models import SendMessageError
from tests.integration.certificates import AUTHORITY, PARTNER
from tests.integration.test_listener import CERTIFICATE, PRIVATE_KEY
from tests.integration.test_services import context_with
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from semel.auth.keys import AccessKeys
from semel.pubsub.events.handlers import Handlers, event_handler
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.protocol.client_tokens import client_token
from semel.runtime.server.part import ServerSettings
from semel.runtime.server.pubsub import PubSub, PubSubSettings
from semel.runtime.server.server import serving, tls_context
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled
from semel.testing.serve_process import KEY, ServeProcess

HUB = "chat"
RELIABLE = "json.reliable.webpubsub.azure.v1"
SYSTEM_EVENTS = ("connect", "connected", "disconnected", "joined", "left")
WAIT_S = 30.0

Answer = Callable[["Heard"], Awaitable[web.Response]]


class Heard:
    def __init__(self, request: web.Request, body: bytes) -> None:
        self.headers, self.body = request.headers, body
        self.name = request.headers["ce-eventName"]
        self.id = request.headers["ce-id"]


class App:
    """An event handler. `heard` are the events that it was told, in order."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        self.allowed = "*"
        self.answers: dict[str, Answer] = {}

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "OPTIONS":
            return web.Response(headers={"WebHook-Allowed-Origin": self.allowed})
        heard = Heard(request, await request.read())
        self.heard.put_nowait(heard)
        answer = self.answers.get(heard.name)
        return await answer(heard) if answer is not None else web.Response(status=204)

    async def next(self, name: str) -> Heard:
        async with asyncio.timeout(scaled(WAIT_S)):
            heard = await self.heard.get()
        assert heard.name == name
        return heard


@asynccontextmanager
async def running(app: App) -> AsyncIterator[str]:
    """Its URL."""
    application = web.Application()
    application.router.add_route("*", "/{event}", app.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


class Client:
    """One socket of a client. Who `is_back` need not hear again that he is connected."""

    def __init__(self, socket: websocket.ClientConnection, *, is_back: bool = False) -> None:
        self._socket, self._is_back = socket, is_back

    async def send(self, **request: Any) -> None:
        await self._socket.send(json.dumps(request))

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(scaled(WAIT_S)):
            told = dict(json.loads(await self._socket.recv()))
        return await self.hear() if self._is_back and told.get("event") == "connected" else told

    async def exchange(self, frame: str) -> str | bytes:
        async with asyncio.timeout(scaled(WAIT_S)):
            await self._socket.send(frame)
            return await self._socket.recv()

    async def close(self, code: int = 1000) -> None:
        await self._socket.close(code)


async def connect(endpoint: str, **options: Any) -> Client:
    """`query` comes instead of a token."""
    query, protocols, tls = options.pop("query", None), options.pop("protocols", [RELIABLE]), options.pop("tls", None)
    is_back = query is not None
    if query is None:
        token = client_token(AccessKeys(KEY), f"{endpoint}/client/hubs/{HUB}", now=time.time(), **options)
        query = {"access_token": token, "more": "1"}
    url = f"{endpoint.replace('http', 'ws', 1)}/client/hubs/{HUB}?{urlencode(query)}"
    return Client(await websocket.connect(url, subprotocols=protocols, proxy=None, ssl=tls), is_back=is_back)


@pytest.fixture
async def app() -> App:
    return App()


SERVER = ServerSettings(AccessKeys(KEY), port=0)


@pytest.fixture
async def endpoint(app: App) -> AsyncIterator[str]:
    async with running(app) as url:
        handlers = Handlers(HUB, (event_handler(url + "/{event}", SYSTEM_EVENTS, "*"),))
        settings = PubSubSettings(hub=HubOptions(recovery_s=scaled(0.5)), handlers={HUB: handlers})
        async with serving(MemoryStore(), SERVER, [partial(PubSub, settings=settings)]) as listening:
            yield listening.endpoint


async def test_a_handler_sees_the_certificate_that_the_client_has_shown(app: App, tmp_path: Path) -> None:
    (tmp_path / "server.pem").write_text(CERTIFICATE + PRIVATE_KEY)
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    tls = tls_context(tmp_path / "server.pem", None, tmp_path / "ca.pem")
    shown = PARTNER[: PARTNER.index("-----BEGIN PRIVATE")]
    thumbprint = hashlib.sha1(ssl.PEM_cert_to_DER_cert(shown)).hexdigest().upper()
    async with running(app) as url:
        handlers = Handlers(HUB, (event_handler(url + "/{event}", ("connect",)),))
        settings = replace(SERVER, tls=tls)
        parts = [partial(PubSub, settings=PubSubSettings(handlers={HUB: handlers}))]
        async with serving(MemoryStore(), settings, parts) as listening:
            for pem, expected in ((PARTNER, [{"thumbprint": thumbprint, "content": shown}]), ("", [])):
                client = await connect(listening.endpoint, tls=context_with(tmp_path, pem))
                assert (await client.hear())["event"] == "connected"
                assert json.loads((await app.next("connect")).body)["clientCertificates"] == expected
                await client.close()


def answering(status: int = 200, headers: dict[str, str] | None = None, **response: Any) -> Answer:
    async def answer(heard: Heard) -> web.Response:
        if "json" in response:
            return web.json_response(response["json"], status=status, headers=headers)
        return web.Response(status=status, headers=headers, **response)

    return answer


async def test_a_handler_says_who_comes_in_and_hears_what_happens_then(app: App, endpoint: str) -> None:
    state = b64encode(b'{"n":1}').decode()
    roles = ["webpubsub.joinLeaveGroup.room"]
    app.answers["connect"] = answering(
        json={"userId": "known", "roles": roles, "groups": ["hall"]}, headers={"ce-connectionState": state}
    )
    app.answers["ask"] = answering(text="you said hi", headers={"x-webpubsub-metadata-kind": "echo"})
    client = await connect(endpoint, user_id="claimed", claims={"tenant": "t"})
    hello = await client.hear()
    assert hello["userId"] == "known"

    asked = await app.next("connect")
    assert "ce-subprotocol" not in asked.headers
    told = json.loads(asked.body)
    assert (told["claims"]["tenant"], told["query"], told["subprotocols"]) == (["t"], {"more": ["1"]}, [RELIABLE])
    keys = AccessKeys(KEY)
    assert asked.headers["ce-signature"] == keys.signature(hello["connectionId"])
    assert (asked.id, asked.headers["ce-userId"]) == ("0", "claimed")
    assert asked.headers["WebHook-Request-Origin"] == "127.0.0.1"
    connected = await app.next("connected")
    assert connected.headers["ce-connectionState"] == state
    assert connected.headers["ce-userId"] == "known"

    await client.send(type="joinGroup", group="room", ackId=1)
    assert (await client.hear())["success"]
    assert (await app.next("joined")).body == b'{"group":"room"}'
    await client.send(type="joinGroup", group="other", ackId=2)
    assert (await client.hear())["error"]["name"] == "Forbidden"

    await client.send(type="event", event="ask", dataType="text", data="hi", ackId=3)
    message, ack = await client.hear(), await client.hear()
    assert (message["from"], message["data"], message["metadata"]) == ("server", "you said hi", {"kind": "echo"})
    assert (ack["ackId"], ack["success"]) == (3, True)
    heard = await app.next("ask")
    assert (heard.body, heard.headers["ce-type"]) == (b"hi", "azure.webpubsub.user.ask")
    assert heard.headers["content-type"].startswith("text/plain")

    await client.send(type="invoke", invocationId="i", target="event", event="ask", dataType="text", data="hi")
    assert (await client.hear())["data"] == "you said hi"
    await app.next("ask")
    await client.close()
    assert (await app.next("disconnected")).headers["ce-connectionId"] == hello["connectionId"]


async def test_a_simple_client_hears_the_answer_to_its_frames_and_is_closed_when_there_is_none(
    app: App, endpoint: str
) -> None:
    app.answers["connect"] = answering(json={"subprotocol": "my.own"})
    app.answers["message"] = answering(text="hello")
    client = await connect(endpoint, protocols=["my.own", "other"])
    assert await client.exchange("anybody?") == "hello"
    for name in ("connect", "connected", "message"):
        heard = await app.next(name)
    assert (heard.body, heard.headers["ce-subprotocol"]) == (b"anybody?", "my.own")
    app.answers["message"] = answering(status=400)
    with pytest.raises(ConnectionClosedError) as closed:
        await client.exchange("and now?")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011


@pytest.mark.parametrize(("status", "seen"), [(401, 401), (499, 499), (302, 500)])
async def test_a_handler_that_says_no_keeps_a_client_out(app: App, endpoint: str, status: int, seen: int) -> None:
    app.answers["connect"] = answering(status=status, text="not you")
    with pytest.raises(InvalidStatus) as refused:
        await connect(endpoint)
    assert refused.value.response.status_code == seen
    if seen == status:
        assert b"not you" in (refused.value.response.body or b"")


async def test_a_handler_that_does_not_want_our_events_gets_none(app: App, endpoint: str) -> None:
    app.allowed = "somebody.else"
    with pytest.raises(InvalidStatus) as refused:
        await connect(endpoint)
    assert refused.value.response.status_code == 500
    assert app.heard.empty()


async def test_disconnected_is_told_once_when_the_client_did_not_come_back(app: App, endpoint: str) -> None:
    client = await connect(endpoint)
    hello = await client.hear()
    await client.close(4000)
    query = {"awps_connection_id": hello["connectionId"], "awps_reconnection_token": hello["reconnectionToken"]}
    again = await connect(endpoint, query=query)
    await again.close(4000)
    for name in ("connect", "connected"):
        await app.next(name)
    gone = await app.next("disconnected")
    assert "come back" in json.loads(gone.body)["reason"]
    assert app.heard.empty()


async def test_an_event_is_told_again_with_its_id_after_kill_9_and_acked_once(app: App, tmp_path: Path) -> None:
    """The server dies while the handler has the event. It answers late, so the first answer is lost."""
    is_heard, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(heard: Heard) -> web.Response:
        is_heard.set()
        await go_on.wait()
        return web.Response(text="done")

    app.answers["ask"] = slowly
    async with running(app) as url:
        (tmp_path / "semel.toml").write_text(
            f"""[[pubsub.hub]]\nname = "{HUB}"\n[[pubsub.hub.handler]]\nurl = "{url}/{{event}}"\nuser_events = "*"\n"""
        )
        server = ServeProcess(f"sqlite:///{tmp_path}/s.db", tmp_path / "log")
        await server.start()
        try:
            endpoint = f"http://127.0.0.1:{server.port}"
            client = await connect(endpoint)
            hello = await client.hear()
            await client.send(type="event", event="ask", dataType="text", data="hi", ackId=7)
            async with asyncio.timeout(scaled(WAIT_S)):
                await is_heard.wait()
            await server.kill()
            await server.start()
            go_on.set()
            query = {"awps_connection_id": hello["connectionId"], "awps_reconnection_token": hello["reconnectionToken"]}
            again = await connect(endpoint, query=query)
            await again.send(type="event", event="ask", dataType="text", data="hi", ackId=7)
            message, ack = await again.hear(), await again.hear()
            assert (message["data"], ack["ackId"], ack["success"]) == ("done", 7, True)
            first, second = await app.next("ask"), await app.next("ask")
            assert first.id == second.id == "ack-7"
            await again.send(type="event", event="ask", dataType="text", data="hi", ackId=7)
            assert (await again.hear())["error"]["name"] == "Duplicate"
            assert app.heard.empty()
            await again.close()
        finally:
            await server.kill()


@asynccontextmanager
async def two_nodes(store: str, folder: Path, handler: str) -> AsyncIterator[tuple[ServeProcess, ServeProcess]]:
    events = ", ".join(f'"{name}"' for name in SYSTEM_EVENTS)
    (folder / "semel.toml").write_text(
        f"""[[pubsub.hub]]\nname = "{HUB}"\n[[pubsub.hub.handler]]\nurl = "{handler}/{{event}}"\nuser_events = "*"\n"""
        f"""system_events = [{events}]\n"""
    )
    nodes = [ServeProcess(store, folder / f"{name}.log", node=name) for name in ("a", "b")]
    try:
        for node in nodes:
            await node.start()
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            await node.kill()


@pytest.mark.timeout(120)
async def test_what_a_node_was_telling_when_it_died_the_other_tells_again_under_the_same_id(
    app: App, tmp_path: Path, postgres_url: str
) -> None:
    """Its client comes back to the other node. It hears no second `connected`, and goes with one `disconnected`."""
    is_heard, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(heard: Heard) -> web.Response:
        is_heard.set()
        await go_on.wait()
        return web.Response(text="done", headers={"ce-connectionState": "asked"})

    app.answers["ask"] = slowly
    async with running(app) as url, two_nodes(postgres_url, tmp_path, url) as (a, b):
        there, elsewhere = (f"http://127.0.0.1:{node.port}" for node in (a, b))
        client = await connect(there, roles=["webpubsub.joinLeaveGroup"])
        hello = await client.hear()
        query = {"awps_connection_id": hello["connectionId"], "awps_reconnection_token": hello["reconnectionToken"]}
        await client.send(type="joinGroup", group="room", ackId=6)
        assert (await client.hear())["success"]
        await client.send(type="event", event="ask", dataType="text", data="hi", ackId=7)
        async with asyncio.timeout(scaled(WAIT_S)):
            await is_heard.wait()
        await a.kill()
        again = await connect(elsewhere, query=query)
        await again.send(type="event", event="ask", dataType="text", data="hi", ackId=7)
        go_on.set()
        message, ack = await again.hear(), await again.hear()
        assert (message["data"], ack["ackId"], ack["success"]) == ("done", 7, True)
        await again.send(type="event", event="ask", dataType="text", data="hi", ackId=7)
        assert (await again.hear())["error"]["name"] == "Duplicate"
        await again.close()

        told = [await app.next(name) for name in ("connect", "connected", "joined", "ask", "ask", "disconnected")]
        assert {heard.headers["ce-source"] for heard in told} == {f"/hubs/{HUB}/client/{hello['connectionId']}"}
        first, second = told[3:5]
        assert (first.id, first.body) == (second.id, second.body) == ("ack-7", b"hi")
        assert told[-1].headers["ce-connectionState"] == "asked"

        await a.start()
        other = await connect(there)
        await other.hear()
        await other.close()
        for name in ("connect", "connected", "disconnected"):
            assert hello["connectionId"] not in (await app.next(name)).headers["ce-source"]
        assert app.heard.empty()


async def test_the_handler_of_the_documentation_does_what_its_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "event-handlers.md").read_text()
    code, signature = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [config] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "handler.py").write_text(code)
    handler = await asyncio.create_subprocess_exec(
        sys.executable, "handler.py", "0", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    assert handler.stdout is not None
    try:
        port = (await handler.stdout.readline()).split()[-1].decode()
        found = load_text(config.replace("3000", port))
        settings = PubSubSettings(handlers=found)
        async with serving(MemoryStore(), SERVER, [partial(PubSub, settings=settings)]) as listening:
            with pytest.raises(InvalidStatus) as refused:
                await connect(listening.endpoint)
            assert refused.value.response.status_code == 401
            client = await connect(listening.endpoint, user_id="ann")
            hello = await client.hear()
            await client.send(type="event", event="ask", dataType="text", data="why", ackId=1)
            assert [(await client.hear()).get("data"), (await client.hear())["success"]] == ["you asked: why", True]
            await client.close()
        heard = [(await handler.stdout.readline()).decode().strip() for _ in range(4)]
        assert heard == ["connect None", "connect ann", "connected ann", "ask ann"]
    finally:
        handler.kill()
        await handler.wait()
    names: dict[str, Any] = {}
    exec(compile(signature, "event-handlers.md", "exec"), names)
    connection = hello["connectionId"]
    assert names["is_ours"](connection, AccessKeys("o" * 44, KEY).signature(connection), KEY)
    assert not names["is_ours"](connection, AccessKeys("o" * 44).signature(connection), KEY)


def load_text(config: str) -> dict[str, Handlers]:
    """As `semel serve` does."""
    hubs = tomllib.loads(config)["pubsub"]["hub"]
    return {hub["name"]: Handlers(hub["name"], tuple(event_handler(**each) for each in hub["handler"])) for hub in hubs}


async def test_microsofts_client_hears_answers_errors_and_duplicates(app: App, endpoint: str) -> None:
    app.answers["ask"] = answering(json={"answer": 42})
    app.answers["fail"] = answering(status=400)
    token = client_token(AccessKeys(KEY), f"{endpoint}/client/hubs/{HUB}", now=time.time())
    url = f"{endpoint.replace('http', 'ws', 1)}/client/hubs/{HUB}?access_token={token}"
    heard: asyncio.Queue[Any] = asyncio.Queue()
    client = WebPubSubClient(url, message_retry_total=0, ack_timeout=scaled(WAIT_S))
    await client.subscribe("server-message", heard.put)
    async with client:
        await client.send_event("ask", {"question": 1}, "json", ack_id=7)
        await client.send_event("ask", {"question": 1}, "json", ack_id=7)
        with pytest.raises(SendMessageError) as failed:
            await client.send_event("fail", "x", "text")
        assert failed.value.error_detail is not None
        assert failed.value.error_detail.name == "InternalServerError"
        async with asyncio.timeout(scaled(WAIT_S)):
            assert (await heard.get()).data == {"answer": 42}
    assert heard.empty()
    for name in ("connect", "connected", "ask", "fail", "disconnected"):
        await app.next(name)
    assert app.heard.empty()
