"""Services on a listener with real sockets, on both event loops: bodies in and out as streams, limits and error styles
of each service, client certificates, and a part that is added to a server."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from tests.integration.certificates import AUTHORITY, PARTNER, STRANGER
from tests.integration.test_listener import CERTIFICATE, PRIVATE_KEY, answer, dial, on_each_loop, reset

from semel.auth.authority import READ
from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import service_token
from semel.errors import StoreUnavailable
from semel.http import (
    ErrorStyle,
    HttpError,
    HttpRequest,
    HttpResponse,
    empty_error,
    json_error,
    text_error,
    text_response,
)
from semel.runtime.server.connection import HELD_BYTES_MAX, SLICE_BYTES, HttpConnection
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.listener import Listener
from semel.runtime.server.part import (
    Handler,
    Health,
    Mount,
    OwnListener,
    Part,
    Route,
    Routed,
    ServerContext,
    ServerSettings,
)
from semel.runtime.server.pubsub import PubSub
from semel.runtime.server.server import serving, tls_context
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled

BIG = 4 * 1024 * 1024
CHUNKED = b"POST /in HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /out HTTP/1.1\r\nHost: a\r\n\r\n"


@asynccontextmanager
async def listening(
    *mounts: Mount, errors: ErrorStyle = text_error, tls: ssl.SSLContext | None = None, **limits: Any
) -> AsyncIterator[Listener]:
    listener = Listener(
        mounts, limits=ListenerLimits(**({"stop_s": 1.0, "sweep_s": 0.01} | limits)), tls=tls, errors=errors
    )
    await listener.listen()
    try:
        yield listener
    finally:
        await listener.stop()
    assert (listener.connections, listener._bodies_bytes) == (0, 0)


def streaming(handle: Handler, **more: Any) -> Mount:
    return Mount("/in/", handle, streams=True, **({"body_bytes": 64 * BIG} | more))


def stream_of(request: HttpRequest) -> AsyncIterator[bytes]:
    assert request.stream is not None
    return aiter(request.stream)


async def digest(request: HttpRequest) -> HttpResponse:
    found, size = hashlib.sha256(), 0
    async for chunk in stream_of(request):
        found.update(chunk)
        size += len(chunk)
    return text_response(200, f"{size} {found.hexdigest()}")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(size: int, *more: str) -> bytes:
    lines = ["POST /in HTTP/1.1", "Host: a", f"Content-Length: {size}", *more, "", ""]
    return "\r\n".join(lines).encode()


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await asyncio.sleep(0)


async def whole(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    """A chunked body up to its end."""
    _, headers, _ = await answer(reader, has_body=False)
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return headers, body


# -- bodies that come as streams


@on_each_loop
async def test_a_body_is_read_while_it_comes() -> None:
    first = asyncio.Event()

    async def handle(request: HttpRequest) -> HttpResponse:
        found = []
        async for part in stream_of(request):
            found.append(part)
            first.set()
        assert request.body == b""
        return HttpResponse(200, (), b"|".join(found))

    async with listening(streaming(handle)) as listener, dial(listener.port) as (reader, writer):
        for _ in range(2):
            first.clear()
            writer.write(CHUNKED + chunk(b"one"))
            await first.wait()
            writer.write(chunk(b"two") + b"0\r\n\r\n")
            assert (await answer(reader))[2] == b"one|two"
        writer.write(head(0))
        assert (await answer(reader))[2] == b""


@pytest.mark.parametrize("is_chunked", [False, True])
@on_each_loop
async def test_a_large_body_arrives_whole_and_little_of_it_is_held(is_chunked: bool) -> None:
    """The service takes its time: the client has to wait meanwhile."""
    gate, most = asyncio.Event(), [0]
    body = bytes(range(256)) * (BIG // 256)

    async def handle(request: HttpRequest) -> HttpResponse:
        chunks = stream_of(request)
        found = hashlib.sha256(await anext(chunks))
        await gate.wait()
        async for part in chunks:
            most[0] = max(most[0], listener._bodies_bytes)
            found.update(part)
        return text_response(200, found.hexdigest())

    async with listening(streaming(handle)) as listener, dial(listener.port) as (reader, writer):
        if is_chunked:
            writer.write(CHUNKED + b"".join(chunk(body[at : at + 50_000]) for at in range(0, BIG, 50_000)))
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(head(BIG) + body)
        await until(lambda: listener._bodies_bytes > HELD_BYTES_MAX)
        gate.set()
        assert (await answer(reader))[2].decode() == f"{hashlib.sha256(body).hexdigest()}\n"
        assert most[0] <= HELD_BYTES_MAX + SLICE_BYTES


@on_each_loop
async def test_streams_stand_in_line_with_other_requests() -> None:
    async def plain(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), request.path.encode())

    async with listening(streaming(digest), Mount("/", plain)) as listener, dial(listener.port) as (reader, writer):
        get = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
        writer.write(get % 1 + head(3) + b"abc" + get % 2 + CHUNKED + chunk(b"abcd") + b"0\r\n\r\n" + get % 3)
        found = [(await answer(reader))[2].split()[0] for _ in range(5)]
        assert found == [b"/1", b"3", b"/2", b"4", b"/3"]


@on_each_loop
async def test_a_client_is_asked_for_its_body_when_somebody_reads_it() -> None:
    called, gate, may_read = asyncio.Event(), asyncio.Event(), [True]

    async def handle(request: HttpRequest) -> HttpResponse:
        called.set()
        await gate.wait()
        return await digest(request) if may_read[0] else HttpResponse(403)

    async with listening(streaming(handle)) as listener:
        async with dial(listener.port) as (reader, writer):
            writer.write(head(3, "Expect: 100-continue"))
            await called.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(1), 0.05)
            gate.set()
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await answer(reader))[2].startswith(b"3 ")
        may_read[0] = False
        async with dial(listener.port) as (reader, writer):
            writer.write(head(3, "Expect: 100-continue"))
            status, headers, _ = await answer(reader)
            assert (status, headers["connection"]) == (403, "close")
            assert await reader.read() == b""


@on_each_loop
async def test_an_answer_before_the_end_of_the_body_arrives_and_ends_the_connection() -> None:
    """What has not come would be taken for the next request."""

    async def handle(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), await anext(stream_of(request)))

    async with listening(streaming(handle)) as listener, dial(listener.port) as (reader, writer):
        writer.write(head(2 * BIG) + b"GET /secret HTTP/1.1\r\n")
        status, headers, body = await answer(reader)
        assert (status, headers["connection"], body) == (200, "close", b"GET /secret HTTP/1.1\r\n")
        with suppress(OSError):
            writer.write(bytes(BIG))
            await writer.drain()
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (CHUNKED + chunk(b"x" * 900) + chunk(b"x" * 200), 413),
        (head(1001), 413),
        (CHUNKED + b"nonsense\r\n", 400),
        (CHUNKED + chunk(b"x") + b"\x00", 400),
        (head(10) + b"x", 408),
    ],
)
@on_each_loop
async def test_a_body_that_goes_wrong_is_raised_to_its_reader_and_answered_in_its_style(
    data: bytes, status: int
) -> None:
    async with (
        listening(
            streaming(digest, body_bytes=1000, errors=json_error), body_s=0.05 if status == 408 else scaled(60)
        ) as listener,
        dial(listener.port) as (reader, writer),
    ):
        writer.write(data)
        found, headers, body = await answer(reader)
        assert (found, headers["connection"], headers["content-type"]) == (status, "close", "application/json")
        assert msgspec.json.decode(body)["code"].startswith("Error.")
        assert await reader.read() == b""


def is_later(connection: HttpConnection, before: float) -> bool:
    return connection._deadline > before


@on_each_loop
async def test_a_client_that_is_slow_but_steady_is_not_late() -> None:
    """It has the time again for each 64 KiB."""
    body_s, loop = scaled(60), asyncio.get_running_loop()
    async with listening(streaming(digest), body_s=body_s) as listener, dial(listener.port) as (reader, writer):
        writer.write(head(8 * 65_536))
        await until(lambda: listener.connections == 1)
        [connection] = listener._connections
        assert isinstance(connection, HttpConnection)
        await until(lambda: connection._reader is not None)
        for _ in range(7):
            await until(lambda: connection._deadline < loop.time() + body_s)
            before = connection._deadline
            writer.write(bytes(65_536))
            await until(partial(is_later, connection, before))
        writer.write(bytes(65_536))
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize("how", ["half", "reset"])
@on_each_loop
async def test_a_client_that_goes_in_the_middle_is_noticed(how: str, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[BaseException] = []
    reads, ended = asyncio.Event(), asyncio.Event()

    async def handle(request: HttpRequest) -> HttpResponse:
        reads.set()
        try:
            return await digest(request)
        except (HttpError, ConnectionResetError) as error:
            heard.append(error)
            raise
        finally:
            ended.set()

    async with listening(streaming(handle)) as listener, dial(listener.port) as (reader, writer):
        writer.write(head(10) + b"x")
        await reads.wait()
        if how == "half":
            writer.write_eof()
            assert (await answer(reader))[0] == 400
        else:
            reset(writer)
        await ended.wait()
        [error] = heard
        assert isinstance(error, HttpError if how == "half" else ConnectionResetError)
    assert caplog.records == []


# -- answers that are streams


def saying(*parts: bytes, headers: Mapping[str, str] | None = None) -> Mount:
    async def chunks() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async def handle(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, tuple((headers or {}).items()), stream=chunks())

    return Mount("/out/", handle)


@on_each_loop
async def test_an_answer_goes_out_in_chunks_and_the_connection_goes_on() -> None:
    async with listening(saying(b"one", b"", b"two")) as listener, dial(listener.port) as (reader, writer):
        for _ in range(2):
            writer.write(GET)
            headers, body = await whole(reader)
            assert (headers["transfer-encoding"], body) == ("chunked", b"onetwo")
            assert "content-length" not in headers
        writer.write(GET.replace(b"GET", b"HEAD") + GET)
        assert (await answer(reader, has_body=False))[1]["transfer-encoding"] == "chunked"
        assert (await whole(reader))[1] == b"onetwo"


@on_each_loop
async def test_an_answer_of_known_length_says_so() -> None:
    mount = saying(b"one", b"two", headers={"content-length": "6"})
    async with listening(mount) as listener, dial(listener.port) as (reader, writer):
        for _ in range(2):
            writer.write(GET)
            _, headers, body = await answer(reader)
            assert (headers["content-length"], body) == ("6", b"onetwo")
            assert "transfer-encoding" not in headers


@on_each_loop
async def test_http_1_0_gets_a_stream_up_to_the_end_of_the_connection() -> None:
    async with listening(saying(b"one", b"two")) as listener, dial(listener.port) as (reader, writer):
        writer.write(b"GET /out HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        _, headers, _ = await answer(reader)
        assert headers["connection"] == "close"
        assert "transfer-encoding" not in headers
        assert await reader.read() == b"onetwo"


@pytest.mark.parametrize("length", [None, 5, 7])
@on_each_loop
async def test_half_an_answer_never_looks_whole(length: int | None, caplog: pytest.LogCaptureFixture) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"onetwo"
        if length is None:
            raise RuntimeError("a bug")

    async def handle(request: HttpRequest) -> HttpResponse:
        headers = () if length is None else (("content-length", str(length)),)
        return HttpResponse(200, headers, stream=chunks())

    async with listening(Mount("/out/", handle)) as listener, dial(listener.port) as (reader, writer):
        writer.write(GET)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await (whole(reader) if length is None else answer(reader))
    assert "failed while it was answered" in caplog.text


@on_each_loop
async def test_a_stream_waits_for_a_client_that_does_not_read_and_ends_when_it_goes() -> None:
    made, ended = [0], asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            while True:
                made[0] += 1
                yield bytes(65_536)
        finally:
            ended.set()

    async def handle(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stream=chunks())

    async with listening(Mount("/out/", handle)) as listener:
        async with dial(listener.port) as (reader, writer):
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            before = -1
            while before != made[0]:
                before = made[0]
                await asyncio.sleep(0.1)
            assert made[0] < 1000
            assert not ended.is_set()
            writer.transport.abort()
        await ended.wait()


@on_each_loop
async def test_a_body_may_go_out_again_while_it_comes() -> None:
    async def handle(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stream=request.stream)

    async with listening(streaming(handle)) as listener, dial(listener.port) as (reader, writer):
        writer.write(CHUNKED + chunk(b"one"))
        await reader.readuntil(b"one\r\n")
        writer.write(chunk(b"two") + b"0\r\n\r\n")
        assert await reader.read() == b"3\r\ntwo\r\n0\r\n\r\n"


# -- services beside each other


async def echo(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, (), request.body)


async def fail(request: HttpRequest) -> HttpResponse:
    if request.path.endswith("/refused"):
        raise HttpError(403, "Error.Forbidden", "not for you", headers=(("x-why", "y"),))
    raise RuntimeError("a bug")


@on_each_loop
async def test_each_service_has_its_own_limit_for_bodies() -> None:
    small, large = Mount("/small/", echo, body_bytes=10), Mount("/small/large/", echo, body_bytes=100_000)
    async with listening(small, large, Mount("/usual/", echo), body_bytes=1000) as listener:
        for path, size, status in [
            ("/small", 10, 200),
            ("/small/x", 11, 413),
            ("/small/large", 100_000, 200),
            ("/small/large/x", 100_001, 413),
            ("/usual", 1000, 200),
            ("/usual", 1001, 413),
            ("/nobodys", 65_536, 404),
            ("/nobodys", 65_537, 413),
        ]:
            for is_chunked in (False, True):
                async with dial(listener.port) as (reader, writer):
                    way = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}"
                    body = chunk(bytes(size)) + b"0\r\n\r\n" if is_chunked else bytes(size)
                    writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\n{way}\r\n\r\n".encode() + body)
                    assert (await answer(reader))[0] == status, (path, size, is_chunked)


@pytest.mark.parametrize(
    ("style", "kind", "body"),
    [
        (text_error, "text/plain; charset=utf-8", b"not for you\n"),
        (json_error, "application/json", b'{"code":"Error.Forbidden","message":"not for you","target":"Request"}'),
        (empty_error, None, b""),
    ],
)
@on_each_loop
async def test_errors_are_answered_in_the_style_of_the_service(
    style: ErrorStyle, kind: str | None, body: bytes
) -> None:
    async with listening(Mount("/a/", fail, body_bytes=5, errors=style)) as listener:
        for request, status in [
            (b"GET /a/refused HTTP/1.1\r\nHost: a\r\n\r\n", 403),
            (b"GET /a/x HTTP/1.1\r\nHost: a\r\n\r\n", 500),
            (b"POST /a/x HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n", 413),
            (b"POST /a/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        ]:
            async with dial(listener.port) as (reader, writer):
                writer.write(request)
                found, headers, said = await answer(reader)
                assert (found, headers.get("content-type")) == (status, kind)
                if status == 403:
                    assert (headers["x-why"], said) == ("y", body)
                assert bool(said) == bool(body)


@pytest.mark.parametrize("style", [text_error, empty_error])
@on_each_loop
async def test_what_is_for_no_service_is_answered_in_the_style_of_the_listener(style: ErrorStyle) -> None:
    """Also what cannot be read at all."""
    mount = Mount("/a/", echo, errors=json_error)

    async def ask(listener: Listener, request: bytes, status: int) -> None:
        async with dial(listener.port) as (reader, writer):
            writer.write(request)
            found, headers, body = await answer(reader)
            assert (found, bool(body)) == (status, style is text_error)
            assert ("content-type" in headers) == (style is text_error)

    async with listening(mount, errors=style, headers=3, head_s=scaled(10)) as listener:
        for request, status in [
            (b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n", 404),
            (b"GET /ab HTTP/1.1\r\nHost: a\r\n\r\n", 404),
            (b"GET /%61/ HTTP/1.1\r\nHost: a\r\n\r\n", 404),
            (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 404),
            (b"nonsense\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\n\r\n", 400),
            (b"GET /a HTTP/1.1\r\nA: b\r\nC: d\r\nE: f\r\nG: h\r\n\r\n", 431),
        ]:
            await ask(listener, request, status)
    async with listening(mount, errors=style, head_s=0.1) as listener:
        await ask(listener, b"GET /a HT", 408)


# -- client certificates


def context_with(folder: Path, pem: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=CERTIFICATE)
    context.check_hostname = False
    if pem:
        (folder / "client.pem").write_text(pem)
        context.load_cert_chain(folder / "client.pem")
    return context


@on_each_loop
async def test_a_certificate_that_the_client_has_shown_reaches_the_service(tmp_path: Path) -> None:
    async def handle(request: HttpRequest) -> HttpResponse:
        shown = request.certificate
        if shown is None:
            raise HttpError(403, "Error.Forbidden", "show a certificate")
        names = (dict(shown.subject)["commonName"], dict(shown.issuer)["commonName"], shown.alternatives[0][1])
        return text_response(200, " ".join((*names, shown.fingerprint)))

    (tmp_path / "server.pem").write_text(CERTIFICATE + PRIVATE_KEY)
    (tmp_path / "ca.pem").write_text(AUTHORITY)
    tls = tls_context(tmp_path / "server.pem", None, tmp_path / "ca.pem")
    expected = hashlib.sha256(ssl.PEM_cert_to_DER_cert(PARTNER[: PARTNER.index("-----BEGIN PRIVATE")])).hexdigest()

    async def ask(port: int, pem: str) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context_with(tmp_path, pem))
        try:
            writer.write(b"GET /in HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            status, _, body = await answer(reader)
            return status, body
        finally:
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async with listening(Mount("/in/", handle), tls=tls) as listener:
        assert await ask(listener.port, PARTNER) == (
            200,
            f"globex.example Partner CA globex.example {expected}\n".encode(),
        )
        assert (await ask(listener.port, ""))[0] == 403
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await ask(listener.port, STRANGER)
    plain = tls_context(tmp_path / "server.pem", None)
    async with listening(Mount("/in/", handle), tls=plain) as listener:
        assert (await ask(listener.port, PARTNER))[0] == 403


# -- a part that is added to a server


class Greeting(Part):
    """A part of which the server knows nothing."""

    name = "greeting"
    topics = ("greeted",)

    def __init__(self, context: ServerContext) -> None:
        self.problem, self.greeted = "", 0
        self.has_run = self.is_stopped = False
        routes = [Route("GET", "/v1/greeting/{name}", self._greet, "semel.send:greeting/{name}")]
        self.mounts = (
            Mount("/v1/greeting/", Routed(routes, context.authority), errors=json_error),
            Mount("/store/", self._store, errors=json_error),
        )
        silent = Mount("/silent/", digest, streams=True, errors=empty_error)
        self.listeners = (OwnListener("silent", "127.0.0.1", 0, [silent], errors=empty_error),)

    async def _greet(self, request: HttpRequest, names: dict[str, str]) -> HttpResponse:
        self.greeted += 1
        return text_response(200, f"hello {names['name']}")

    async def _store(self, request: HttpRequest) -> HttpResponse:
        raise StoreUnavailable("no store at /secret")

    def health(self) -> Health:
        return Health(self.problem)

    def metrics(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("semel_greeted", "So many.", self.greeted)

    async def overview(self) -> Mapping[str, Any]:
        return {"greeted": self.greeted}

    async def run(self) -> None:
        self.has_run = True

    def stop(self) -> None:
        self.is_stopped = True


KEYS = AccessKeys(DEV_KEY)
Ask = Callable[..., Awaitable[httpx.Response]]


@asynccontextmanager
async def greeting_server() -> AsyncIterator[tuple[Greeting, Ask, int]]:
    made: list[Greeting] = []

    def greeting(context: ServerContext) -> Part:
        made.append(Greeting(context))
        return made[0]

    async with (
        serving(MemoryStore(), ServerSettings(KEYS, port=0), [PubSub, greeting]) as place,
        httpx.AsyncClient(trust_env=False) as client,
    ):

        async def ask(method: str, path: str, roles: Sequence[str] = (READ,), **more: Any) -> httpx.Response:
            url = f"{place.endpoint}{path}"
            token = service_token(KEYS, url, now=time.time(), roles=roles)
            return await client.request(method, url, headers={"authorization": f"Bearer {token}"}, **more)

        yield made[0], ask, place.own_ports["silent"]
    assert made[0].is_stopped


async def test_a_part_is_served_asked_and_shown_beside_the_others() -> None:
    async with greeting_server() as (part, ask, own_port):
        assert part.has_run
        sends = ("semel.send:greeting/*",)
        assert (await ask("GET", "/v1/greeting/ann", sends)).text == "hello ann\n"
        refused = await ask("GET", "/v1/greeting/ann", ("semel.send:other/*",))
        assert (refused.status_code, refused.json()["code"]) == (403, "Error.Forbidden")
        assert "semel.send:greeting/ann" in refused.json()["message"]
        assert (await ask("POST", "/v1/greeting/ann", sends)).headers["allow"] == "GET"
        assert (await ask("HEAD", "/api/hubs/chat/groups/g")).status_code == 404
        assert (await ask("GET", "/v1/pubsub/hubs")).json()["hubs"][0]["name"] == "chat"
        overview = (await ask("GET", "/v1/overview")).json()
        assert overview["node"] == "local"
        assert overview["parts"]["greeting"] == {"problem": None, "greeted": 1}
        assert overview["parts"]["pubsub"] == {"problem": None, "hubs": 1, "connections": 0}
        assert overview["parts"]["store"]["outages"] == 0
        assert (await ask("GET", "/v1/overview", ("semel.send:*",))).status_code == 403
        metrics = (await ask("GET", "/metrics")).text
        assert "\nsemel_greeted 1.0\n" in metrics
        assert "\nsemel_hubs 1.0\n" in metrics
        assert '\nsemel_notices_total{topic="greeted"} 0.0\n' in metrics
        assert '\nsemel_http_responses_total{status="403"} 2.0\n' in metrics
        assert (await ask("GET", "/elsewhere")).status_code == 404
        async with dial(own_port) as (reader, writer):
            writer.write(b"POST /silent HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
            assert (await answer(reader))[2].startswith(b"3 ")
            writer.write(b"GET /v1/greeting/ann HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await answer(reader))[::2] == (404, b"")


async def test_a_part_that_is_not_well_makes_the_server_not_ready() -> None:
    async with greeting_server() as (part, ask, _):
        assert (await ask("GET", "/readyz")).text == "ready\n"
        part.problem = "nobody to greet"
        ready, health = await ask("GET", "/readyz"), await ask("GET", "/healthz")
        assert (ready.status_code, ready.text) == (503, "nobody to greet\n")
        assert (health.status_code, health.text) == (200, "alive, but nobody to greet\n")
        assert (await ask("GET", "/v1/overview")).json()["parts"]["greeting"]["problem"] == "nobody to greet"


async def test_trouble_with_the_store_is_answered_in_the_style_of_the_service() -> None:
    async with greeting_server() as (_, ask, _):
        answered = await ask("GET", "/store")
        assert (answered.status_code, answered.headers["retry-after"]) == (503, "1")
        assert answered.json()["code"] == "Error.ServiceUnavailable"
        assert "secret" not in answered.text


@pytest.mark.parametrize("size", [2**20, 2**20 + 1])
async def test_a_message_over_rest_may_be_as_large_as_a_frame(size: int) -> None:
    async with greeting_server() as (_, ask, _):
        sent = await ask("POST", "/api/hubs/chat/:send", (), content=bytes(size))
        assert sent.status_code == (202 if size == 2**20 else 413)
        assert sent.headers.get("x-ms-error-code") == (None if size == 2**20 else "Error.PayloadTooLarge")
