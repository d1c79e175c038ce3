"""HTTP as plain values, for every part that is served: a request, a response, an error, the reading of a request's
parts without trusting any of them, and what answers its method and path."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Generic, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec

from semel.kernel.text import clean_cause

Headers = tuple[tuple[str, str], ...]

JSON = "application/json"
PLAIN_TEXT = "text/plain; charset=utf-8"
BAD_REQUEST = "Error.BadRequest"
FIELDS_MAX = 4096
INT_MAX = 2**31 - 1
THIS_MACHINE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to find here what listens on every address."""

_PATH = re.compile(r"/[!-~]*\Z")
_QUERY = re.compile(r"[!-~]*\Z")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NUMBER = re.compile(r"[0-9]{1,10}\Z")
_BEARER = re.compile(r"bearer +(\S+) *\Z", re.IGNORECASE)
_HOST = re.compile(r"(?:[A-Za-z0-9._~-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")

# by the names that are used for them; not all that Python knows, some of which are no encodings of text
_CHARSETS = {
    "utf-8": "utf-8", "utf8": "utf-8", "us-ascii": "ascii", "ascii": "ascii", "iso-8859-1": "latin-1",
    "latin1": "latin-1", "windows-1252": "cp1252", "utf-16": "utf-16", "utf-16le": "utf-16-le", "utf-16be": "utf-16-be",
}  # fmt: skip


class ClientCertificate(msgspec.Struct, frozen=True):
    """Names as pairs, such as ("commonName", "partner"). `alternatives` are its subject alternative names."""

    der: bytes
    subject: tuple[tuple[str, str], ...] = ()
    issuer: tuple[tuple[str, str], ...] = ()
    alternatives: tuple[tuple[str, str], ...] = ()

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the whole of it, in hexadecimal digits."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def thumbprint(self) -> str:
        """SHA-1 over the whole of it, in the capital digits of .NET. It names a certificate and proves nothing."""
        return hashlib.sha1(self.der, usedforsecurity=False).hexdigest().upper()

    @property
    def pem(self) -> str:
        text = b64encode(self.der).decode()
        wrapped = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
        return f"-----BEGIN CERTIFICATE-----\n{wrapped}\n-----END CERTIFICATE-----\n"


class HttpRequest(msgspec.Struct, frozen=True):
    """`path` and `query` as they came, with every %. `headers` have their names in small letters, and one that came
    more than once has its values joined by ", ". `host` is the header of that name, or what a trusted proxy says.
    `address` is that of the socket's other end.

    A service that reads bodies while they come finds the body in `stream`, and none in `body`. `certificate` is the one
    that the client has shown over TLS, checked against the authorities that this server was given."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    scheme: str = "http"
    host: str = ""
    address: str = ""
    stream: AsyncIterable[bytes] | None = None
    certificate: ClientCertificate | None = None


class OutgoingRequest(msgspec.Struct, frozen=True):
    """A request to another server. `headers` are all but Host, Content-Length and what concerns the connection."""

    method: str
    url: str
    headers: Headers
    body: bytes = b""


class HttpResponse(msgspec.Struct, frozen=True):
    """Whoever writes it adds the length, the date and what concerns the connection. In one that came from another
    server the headers are as they came: names in any case, and one that came twice is there twice.

    With a `stream` the body is what comes out of it, in chunks, or as long as a header `content-length` says: a stream
    that fails, or is shorter or longer, cuts the connection, so that nobody takes half a body for a whole one."""

    status: int = 200
    headers: Headers = ()
    body: bytes = b""
    stream: AsyncIterable[bytes] | None = None


def text_response(status: int, text: str, *headers: tuple[str, str]) -> HttpResponse:
    """One line for people to read."""
    return HttpResponse(status, (("content-type", PLAIN_TEXT), *headers), f"{text}\n".encode())


class HttpError(Exception):
    """A request that is answered with an error. It never leaves the part that answers requests. `name` is for machines,
    `target` says what is wrong."""

    def __init__(
        self, status: int, name: str, message: str, *, fix: str = "", target: str = "Request", headers: Headers = ()
    ) -> None:
        super().__init__(message)
        self.message, self.fix = message, fix
        self.status = status
        self.name = name
        self.target = target
        self.headers = headers

    def text(self) -> str:
        return clean_cause(f"{self.message}; {self.fix}" if self.fix else self.message)

    def body(self) -> bytes:
        return msgspec.json.encode({"code": self.name, "message": self.text(), "target": self.target})


ErrorStyle = Callable[[HttpError], HttpResponse]
"""How a service answers errors."""


def text_error(error: HttpError) -> HttpResponse:
    return text_response(error.status, error.text(), *error.headers)


def json_error(error: HttpError) -> HttpResponse:
    headers = (("content-type", JSON), ("cache-control", "no-store"), *error.headers)
    return HttpResponse(error.status, headers, error.body())


def empty_error(error: HttpError) -> HttpResponse:
    """For protocols in which a body would be taken for a message."""
    return HttpResponse(error.status, error.headers)


def status_error(status: HTTPStatus, *headers: tuple[str, str], fix: str = "") -> HttpError:
    """With the usual name of the status and nothing more to say."""
    name = "".join(filter(str.isalnum, status.phrase.title()))
    return HttpError(status, f"Error.{name}", status.phrase, fix=fix, headers=headers)


def unavailable(message: str, after_s: int = 1) -> HttpError:
    """Something that works again by itself, or when somebody looks after it."""
    again = (("retry-after", str(after_s)),)
    return HttpError(503, "Error.ServiceUnavailable", message, fix="try again", target="Service", headers=again)


def bad_request(message: str, *, fix: str = "", target: str = "Request") -> HttpError:
    return HttpError(400, BAD_REQUEST, message, fix=fix, target=target)


# -- the address


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def origin_of(request: HttpRequest) -> str:
    """The scheme and the host, which decide for whom a token may be: nothing else can be written into them.

    With a path in the host the token of a mere client would open the REST API.
    """
    origin = f"{request.scheme}://{request.host}"
    try:
        if request.scheme in ("http", "https") and _HOST.match(request.host) and urlsplit(origin).hostname:
            return origin
    except ValueError:
        pass
    raise bad_request("the host is malformed", fix="send the address of this server as Host", target="Host")


def bearer_of(request: HttpRequest) -> str | None:
    """The token in the header `Authorization`."""
    found = _BEARER.match(request.headers.get("authorization", ""))
    return found[1] if found is not None else None


def split_path(path: str) -> list[str]:
    """What stands between the slashes, without %: a slash that was written as %2F is part of a name.

    Names `.` and `..` are refused however they are written. A proxy may take them for steps in a folder, and a message
    for one group would go to everybody.
    """
    if not _PATH.match(path) or "?" in path or "#" in path:
        raise bad_request("the path is malformed", fix="begin with / and write all but plain ASCII as %XX")
    if _BROKEN_ESCAPE.search(path):
        raise bad_request("the path has a % that begins no %XX", fix="write % itself as %25")
    try:
        segments = [unquote_to_bytes(segment).decode() for segment in path[1:].split("/")]
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8", fix="encode names as UTF-8 before writing them as %XX") from None
    if any(segment in (".", "..") for segment in segments):
        raise bad_request("the path has a name that is . or ..", fix="use another name")
    return segments


class Query:
    """What stands after the question mark. Where one value is meant, a second one is a mistake. Names may be written in
    any case, as with the service."""

    def __init__(self, text: str) -> None:
        if not _QUERY.match(text) or "#" in text:
            raise bad_request("the query is malformed", fix="write all but plain ASCII as %XX")
        try:
            fields = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
        except UnicodeDecodeError:
            raise bad_request(
                "the query is not UTF-8", fix="encode values as UTF-8 before writing them as %XX"
            ) from None
        except ValueError:
            raise bad_request("the query has too many parts", fix=f"use up to {FIELDS_MAX}") from None
        self._fields: dict[str, list[str]] = {}
        for name, value in fields:
            self._fields.setdefault(name.lower(), []).append(value)

    def all(self, name: str) -> list[str]:
        """Every value that is not empty."""
        return [value for value in self._fields.get(name.lower(), ()) if value]

    def one(self, name: str) -> str | None:
        values = self._fields.get(name.lower(), [None])
        if len(values) > 1:
            raise bad_request(f"the query has {name} more than once", fix="keep one of them", target=name)
        return values[0]

    def number(self, name: str, least: int, most: int) -> int | None:
        text = self.one(name)
        if text is None:
            return None
        if not _NUMBER.match(text) or not least <= int(text) <= most:
            raise bad_request(f"{name} is out of range", fix=f"use a whole number from {least} to {most}", target=name)
        return int(text)


# -- the body


def read_json(request: HttpRequest) -> str:
    media, codec = content_type_of(request.headers)
    if media != JSON:
        raise unsupported("the content type is not that of JSON", f"send it as Content-Type: {JSON}")
    return text_of(request.body, codec)


def content_type_of(headers: Mapping[str, str]) -> tuple[str, str]:
    """The media type in small letters, and the codec of its text."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
        raise unsupported("the body is compressed", "send it without Content-Encoding")
    media, *parameters = headers.get("content-type", "").split(";")
    charset = "utf-8"
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = re.sub(r'\A"(.*)"\Z', r"\1", value.strip()).lower()
    if charset not in _CHARSETS:
        raise unsupported("the charset is not known here", "send text in UTF-8")
    return media.strip().lower(), _CHARSETS[charset]


def unsupported(message: str, fix: str) -> HttpError:
    return HttpError(415, "Error.UnsupportedMediaType", message, fix=fix, target="Content-Type")


def text_of(body: bytes, codec: str) -> str:
    try:
        return body.decode(codec)
    except UnicodeDecodeError:
        raise bad_request(
            "the body is not text in the charset of its content type", fix="send UTF-8, or application/octet-stream"
        ) from None


# -- routes

T = TypeVar("T")


class _Place(Generic[T]):
    """What may follow at a place of a path, and what is found if the path ends there, by method."""

    __slots__ = ("found", "name", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Place[T]] = {}
        self.name: _Place[T] | None = None
        self.found: dict[str, tuple[tuple[str, ...], T]] = {}


class Routes(Generic[T]):
    """From the method and the path of a request to what answers it.

    A pattern such as `/v1/pubsub/hubs/{hub}/groups` has words and names in braces. At one place of a path there are
    either words or a name, so no name can be taken for a word.
    """

    def __init__(self, table: Iterable[tuple[str, str, T]]) -> None:
        """`table`: for each route a method, a pattern, and what is found there."""
        self._root: _Place[T] = _Place()
        for method, pattern, what in table:
            self._add(method, pattern, what)

    def _add(self, method: str, pattern: str, what: T) -> None:
        place, names = self._root, []
        for segment in pattern[1:].split("/"):
            if segment.startswith("{"):
                names.append(segment[1:-1])
                place.name = place.name or _Place()
                following = place.name
            else:
                following = place.words.setdefault(segment, _Place())
            assert not (place.words and place.name), f"{pattern}: a word and a name at the same place"
            place = following
        assert method not in place.found, f"{method} {pattern} stands twice"
        place.found[method] = tuple(names), what

    def find(self, method: str, path: str) -> tuple[T, dict[str, str]]:
        """What is there, and the names in the path. Raises `HttpError`: 400, 404 or 405."""
        place, values = self._root, []
        for segment in split_path(path):
            following = place.words.get(segment)
            if following is None:
                if place.name is None or not segment:
                    raise nothing_here()
                following = place.name
                values.append(segment)
            place = following
        if not place.found:
            raise nothing_here()
        if method not in place.found:
            raise _no_such_method(place.found)
        names, what = place.found[method]
        return what, dict(zip(names, values, strict=True))


def nothing_here() -> HttpError:
    return HttpError(404, "Error.NotFound", "there is nothing at this address", fix="check the path and its spelling")


def _no_such_method(allowed: Iterable[str]) -> HttpError:
    methods = ", ".join(sorted(allowed))
    message, headers = "this address knows no such method", (("allow", methods),)
    return HttpError(405, "Error.MethodNotAllowed", message, fix=f"use {methods}", headers=headers)
