"""Responses as bytes: nothing that a service says can break the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from semel.errors import LocalProtocolError
from semel.http import HttpResponse
from semel.runtime.server.responses import check_response, encode_response, has_body, length_of


async def stream() -> AsyncIterator[bytes]:
    yield b""


def head(response: HttpResponse, method: str = "GET", version: str = "1.1", *, keep_alive: bool = True) -> list[str]:
    text = encode_response(response, method, version, keep_alive=keep_alive).partition(b"\r\n\r\n")[0].decode()
    return [line for line in text.split("\r\n") if not line.startswith("date:")]


def test_a_response_has_a_status_a_length_and_a_body() -> None:
    made = encode_response(HttpResponse(200, (("x-a", "1"),), b"hi"), "GET", "1.1", keep_alive=True)
    assert made.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert made.endswith(b"x-a: 1\r\ncontent-length: 2\r\n\r\nhi")


def test_a_head_has_the_length_of_the_body_that_it_does_not_send() -> None:
    made = encode_response(HttpResponse(200, (), b"hi"), "HEAD", "1.1", keep_alive=True)
    assert made.endswith(b"content-length: 2\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body_and_no_length(status: int) -> None:
    response = HttpResponse(status, (), b"x")
    assert not has_body(response, "GET")
    assert "content-length" not in "".join(head(response))
    assert encode_response(response, "GET", "1.1", keep_alive=True).endswith(b"\r\n\r\n")


def test_what_concerns_the_connection_is_not_for_a_service_to_say() -> None:
    said = (("Connection", "x"), ("Content-Length", "999"), ("Transfer-Encoding", "gzip"), ("Date", "never"))
    assert head(HttpResponse(200, said, b"hi")) == ["HTTP/1.1 200 OK", "content-length: 2"]


@pytest.mark.parametrize(
    ("version", "keep_alive", "line"),
    [("1.1", False, "connection: close"), ("1.0", True, "connection: keep-alive"), ("1.1", True, "content-length: 0")],
)
def test_the_connection_goes_on_as_its_version_says_it(version: str, keep_alive: bool, line: str) -> None:
    assert head(HttpResponse(), version=version, keep_alive=keep_alive)[-1] == line


def test_a_stream_is_chunked_unless_its_length_is_known_or_the_client_is_old() -> None:
    streamed, known = HttpResponse(stream=stream()), HttpResponse(200, (("Content-Length", "9"),), stream=stream())
    assert head(streamed)[-1] == "transfer-encoding: chunked"
    assert head(streamed, version="1.0", keep_alive=False)[1:] == ["connection: close"]
    assert head(known)[-1] == "content-length: 9"
    assert (length_of(streamed), length_of(known)) == (None, 9)


@pytest.mark.parametrize(
    "response",
    [
        HttpResponse(199),
        HttpResponse(600),
        HttpResponse(200, (("a b", "x"),)),
        HttpResponse(200, (("", "x"),)),
        HttpResponse(200, (("a", "x\r\nset-cookie: y"),)),
    ],
)
def test_what_would_be_read_as_something_else_is_not_sent(response: HttpResponse) -> None:
    with pytest.raises(LocalProtocolError):
        check_response(response)
    check_response(HttpResponse(200, (("a", "x\ty ü"),)))
