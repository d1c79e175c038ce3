"""Responses as bytes on a connection."""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from http import HTTPStatus

from semel.errors import LocalProtocolError
from semel.http import HttpResponse

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OURS = {"content-length", "transfer-encoding", "connection", "date"}
"""Headers that are written here, whatever a service says of them."""


def check_response(response: HttpResponse) -> None:
    if not 200 <= response.status <= 599:
        raise LocalProtocolError(f"status {response.status} is no answer", fix="answer with 200 to 599")
    for name, value in response.headers:
        if not _NAME.fullmatch(name) or _UNSAFE.search(value):
            raise LocalProtocolError(f"header {name!r} cannot be sent", fix="take line ends out of names and values")


def length_of(response: HttpResponse) -> int | None:
    """What a streamed response says of its length."""
    return next((int(value) for name, value in response.headers if name.lower() == "content-length"), None)


def has_body(response: HttpResponse, method: str) -> bool:
    return response.status not in (204, 304) and method != "HEAD"


def encode_response(response: HttpResponse, method: str, version: str, *, keep_alive: bool) -> bytes:
    """The head, and the body if it is not streamed. `method` and `version` are those of the request."""
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {response.status} {phrase}", f"date: {_date()}"]
    lines += [f"{name}: {value}" for name, value in response.headers if name.lower() not in _OURS]
    if response.status not in (204, 304):
        length = len(response.body) if response.stream is None else length_of(response)
        if length is not None:
            lines.append(f"content-length: {length}")
        elif version == "1.1":
            lines.append("transfer-encoding: chunked")
    if not keep_alive:
        lines.append("connection: close")
    elif version == "1.0":
        lines.append("connection: keep-alive")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    return head + response.body if response.body and has_body(response, method) else head


def _date() -> str:
    global _date_text
    second = int(time.time())
    if _date_text[0] != second:
        _date_text = (second, formatdate(second, usegmt=True))
    return _date_text[1]


_date_text = (0, "")
