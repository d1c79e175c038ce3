"""HTTP on one connection: requests whole and in order, and what a client may not do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.runtime.server.lines import Guest, Line, mounted, now, pieces

from semel.http import HttpRequest, HttpResponse
from semel.runtime.server.connection import HttpConnection
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.listener import Listener
from semel.runtime.transports.websocket import (
    Accept,
)


def http(**limits: Any) -> tuple[HttpConnection, Line, Guest, Listener]:
    guest, line = Guest(), Line()
    listener = Listener(mounted(guest), limits=ListenerLimits(**limits))
    listener._loop = asyncio.get_running_loop()
    connection = HttpConnection(listener)
    connection.connection_made(line)
    return connection, line, guest, listener


async def settle(connection: HttpConnection) -> None:
    if connection._work is not None:
        await asyncio.wait([connection._work])


def statuses(line: Line) -> list[int]:
    return [int(part[:3]) for part in b"".join(line.written).split(b"HTTP/1.1 ")[1:]]


@st.composite
def calls(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, bytes]]]:
    data, expected = b"", []
    for _ in range(draw(st.integers(0, 4))):
        path = "/" + draw(st.text("abc%2F-", max_size=8))
        body = draw(st.binary(max_size=60))
        head = f"POST {path}?q=1 HTTP/1.1\r\nHost: a\r\n".encode()
        if draw(st.booleans()):
            data += head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        else:
            data += head + b"Transfer-Encoding: chunked\r\n\r\n"
            for part in pieces(body, draw(st.lists(st.integers(0, 60), max_size=3))):
                if part:
                    data += b"%x\r\n" % len(part) + part + b"\r\n"
            data += b"0\r\n\r\n"
        expected.append((path, body))
    return data, expected


class TestHttp:
    @given(calls(), st.lists(st.integers(0, 400), max_size=6))
    def test_requests_come_out_whole_and_in_order_however_the_bytes_are_cut(
        self, sent: tuple[bytes, list[tuple[str, bytes]]], cuts: list[int]
    ) -> None:
        async def talk() -> None:
            connection, line, guest, _ = http()
            for part in pieces(sent[0], cuts):
                connection.data_received(part)
                await asyncio.sleep(0)
            await settle(connection)
            assert [(request.path, request.body) for request in guest.requests] == sent[1]
            assert statuses(line) == [200] * len(sent[1])

        asyncio.run(talk())

    @given(st.lists(st.binary(max_size=100), max_size=4))
    def test_garbage_is_answered_with_a_400_or_waited_on(self, parts: list[bytes]) -> None:
        async def talk() -> None:
            connection, line, _, _ = http()
            for part in parts:
                connection.data_received(part)
            await settle(connection)
            assert set(statuses(line)) <= {200, 400, 431}

        asyncio.run(talk())

    async def test_a_request_is_given_as_it_came(self) -> None:
        connection, _, guest, _ = http()
        connection.data_received(
            b"PUT /api/hubs/a%2Fb/:send?x=%20&y HTTP/1.1\r\nHost: h:80\r\nX-A: 1\r\nx-a: 2\r\n"
            b"Cookie: a=1\r\nCookie: b=2\r\nContent-Length: 2\r\n\r\nhi"
        )
        await settle(connection)
        headers = {"host": "h:80", "x-a": "1, 2", "cookie": "a=1; b=2", "content-length": "2"}
        assert guest.requests == [
            HttpRequest("PUT", "/api/hubs/a%2Fb/:send", "x=%20&y", headers, b"hi", "http", "h:80", "192.0.2.1")
        ]

    @pytest.mark.parametrize(
        ("target", "path", "query"),
        [
            ("http://h:1/p?q", "/p", "q"),
            ("http://h?q", "/", "q"),
            ("/?", "/", ""),
            ("//a?b?c", "//a", "b?c"),
        ],
    )
    async def test_every_form_of_target(self, target: str, path: str, query: str) -> None:
        connection, _, guest, _ = http()
        connection.data_received(f"OPTIONS {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        await settle(connection)
        assert [(request.path, request.query) for request in guest.requests] == [(path, query)]

    async def test_requests_that_come_too_fast_are_refused_until_it_is_time(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = [1000.0]
        connection, line, guest, listener = http(request_rate=0.2)
        listener._clock = lambda: clock[0]
        one = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        upgrade = one.replace(b"GET /", b"GET /client/hubs/a").replace(
            b"\r\n\r\n", b"\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
        )
        connection.data_received(one * 4)
        await settle(connection)
        assert statuses(line) == [200, 200, 429, 429]
        assert line.written[-1].count(b"retry-after: 5\r\n") == 1
        assert len(guest.requests) == 2
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        clock[0] += 5.0
        connection.data_received(one + upgrade)
        await settle(connection)
        assert statuses(line)[4:] == [200, 429]
        assert "connection: close" in line.written[-1].decode()

    async def test_connections_that_come_too_fast_are_refused_and_those_of_this_machine_are_not(self) -> None:
        guest = Guest()
        listener = Listener(mounted(guest), limits=ListenerLimits(connection_rate=0.1))

        def come(address: str) -> list[int]:
            line = Line()
            line._extra["peername"] = (address, 1)  # type: ignore[attr-defined]
            HttpConnection(listener).connection_made(line)
            return statuses(line)

        assert [come("192.0.2.1") for _ in range(3)] == [[], [429], [429]]
        assert [come(f"2001:db8::{number}") for number in range(2)] == [[], [429]]
        assert come("2001:db8:1::1") == []
        assert [come(address) for address in ("127.0.0.1", "127.0.0.1", "::1", "::1")] == [[]] * 4

    async def test_many_requests_of_one_read_do_not_all_become_objects_at_once(self) -> None:
        connection, line, guest, _ = http()
        one = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        connection.data_received(one * 5000)
        assert len(connection._waiting) < 700
        assert not line.is_reading_
        await settle(connection)
        assert len(guest.requests) == 5000
        assert line.is_reading_

    async def test_time_runs_out_in_the_head_in_the_body_and_between_requests(self) -> None:
        for data, wait_s, status in [
            (b"", 11, []),
            (b"GET / HT", 11, [408]),
            (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12", 61, [408]),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 76, [200]),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT", 61, [200, 408]),
        ]:
            connection, line, _, _ = http(head_s=10, body_s=60, idle_s=75, close_s=5)
            connection.data_received(data)
            await settle(connection)
            connection.check(now() + wait_s - 2)
            assert not line.is_ended
            assert not line.is_closed
            connection.check(now() + wait_s)
            assert (line.is_ended or line.is_closed, statuses(line)) == (True, status)
            connection.check(now() + 6)
            assert line.is_aborted

    async def test_a_client_that_does_not_read_is_cut_off(self) -> None:
        connection, line, guest, _ = http(body_s=60)
        connection.pause_writing()
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(guest.requests) == 1
        connection.check(now() + 61)
        assert line.is_aborted
        connection.connection_lost(None)
        await settle(connection)

    async def test_the_bodies_of_all_who_are_not_answered_yet_have_a_limit(self) -> None:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n"
        first, _, guest, listener = http(body_bytes=100, bodies_bytes=100)
        first.data_received(head + bytes(59))

        def another() -> tuple[HttpConnection, Line]:
            connection, line = HttpConnection(listener), Line()
            connection.connection_made(line)
            connection.data_received(head + bytes(60))
            return connection, line

        second, line = another()
        assert statuses(line) == [503]
        second.connection_lost(None)
        first.data_received(b"x")
        await settle(first)
        third, line = another()
        await settle(third)
        assert statuses(line) == [200]
        assert len(guest.requests) == 2
        fourth, _ = another()
        fourth.connection_lost(None)
        await settle(fourth)
        assert listener._bodies_bytes == 0

    async def test_trailers_are_not_headers(self) -> None:
        connection, _, guest, _ = http()
        connection.data_received(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nHost: b\r\nAuth: c\r\n\r\n"
        )
        await settle(connection)
        assert [dict(request.headers) for request in guest.requests] == [{"host": "a", "transfer-encoding": "chunked"}]

    async def test_a_call_whose_client_has_gone_counts_until_it_is_done(self) -> None:
        connection, line, guest, listener = http()
        gate = asyncio.Event()

        async def handle(request: HttpRequest) -> HttpResponse:
            await gate.wait()
            return HttpResponse()

        guest.handle = handle  # type: ignore[method-assign]
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        assert listener.connections == 1
        gate.set()
        await settle(connection)
        assert (listener.connections, line.written) == (0, [])

    async def test_who_has_gone_before_it_was_let_in_is_never_opened(self) -> None:
        connection, _, guest, listener = http()
        gate = asyncio.Event()

        async def upgrade(request: HttpRequest) -> Accept | HttpResponse:
            await gate.wait()
            return Accept()

        guest.upgrade = upgrade  # type: ignore[method-assign]
        connection.data_received(
            b"GET /client/ HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await asyncio.sleep(0)
        connection.connection_lost(None)
        gate.set()
        await settle(connection)
        assert (guest.heard, listener.connections) == ([], 0)

    async def test_a_bad_answer_is_a_500_and_the_connection_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        connection, line, guest, _ = http()
        answers = iter(
            [
                HttpResponse(200, (("a", "x\r\ny: z"),)),
                HttpResponse(99),
                HttpResponse(200, (("b ", "x"),)),
                HttpResponse(204, (), b"x"),
            ]
        )

        async def handle(request: HttpRequest) -> HttpResponse:
            return next(answers)

        guest.handle = handle  # type: ignore[method-assign]
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4)
        await settle(connection)
        assert statuses(line) == [500, 500, 500, 204]
        assert line.written[-1].endswith(b"\r\n\r\n")
        assert b"content-length" not in line.written[-1]
        assert "cannot be sent" in caplog.text
