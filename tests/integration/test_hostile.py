"""A real server and people who mean no good. Whatever they send, it goes on, tells nobody what is not theirs, and stays
small.

Two bystanders listen meanwhile: one in another hub, one in a group that no attacker may send to. At the end each must
have heard nothing but what was said to it.
"""

from __future__ import annotations

import base64
import http.client
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import jwt
import pytest
from tests.interop.served import KEY, Served, shared_server
from tests.tools.memory import resident_bytes
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from semel.testing.limits import scaled

pytestmark = [pytest.mark.connected, pytest.mark.timeout(120)]

JSON, PROTOBUF = "json.reliable.webpubsub.azure.v1", "protobuf.reliable.webpubsub.azure.v1"
PLAIN = "json.webpubsub.azure.v1"
HUB, OTHER_HUB = "attacked", "quiet"
ALLOWED, SECRET = "allowed", "secret"
ROLES = [f"webpubsub.joinLeaveGroup.{ALLOWED}", f"webpubsub.sendToGroup.{ALLOWED}"]
VERSION = "api-version=2024-12-01"
SEED = 5
WAIT_S = 30.0
MB = 1024 * 1024
GROWTH_BYTES_MAX = 100 * MB
FIREHOSE = 40
FAULTS = {
    CloseCode.PROTOCOL_ERROR, CloseCode.UNSUPPORTED_DATA, CloseCode.INVALID_DATA, CloseCode.POLICY_VIOLATION,
    CloseCode.MESSAGE_TOO_BIG,
}  # fmt: skip


# -- the server and the bystanders


@dataclass
class Place:
    served: Served

    @property
    def origin(self) -> str:
        return f"127.0.0.1:{self.served.port}"

    @property
    def memory(self) -> int:
        assert self.served.process is not None
        return resident_bytes(self.served.process.pid)

    def token(self, path: str, key: str = KEY, **claims: Any) -> str:
        said = {"aud": f"http://{self.origin}{path}", "exp": int(time.time()) + 600, **claims}
        return jwt.encode(said, key, algorithm="HS256")

    def url(self, hub: str = HUB, *, roles: list[str] = ROLES, groups: list[str] | None = None) -> str:
        token = self.token(f"/client/hubs/{hub}", role=roles, **{"webpubsub.group": groups or []})
        return f"ws://{self.origin}/client/hubs/{hub}?access_token={token}"

    def connect(self, url: str | None = None, subprotocol: str = JSON, room: int | None = None) -> ClientConnection:
        """`room` is how many bytes the system keeps for who does not read them."""
        sock = socket.socket()
        if room is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        sock.connect(("127.0.0.1", self.served.port))
        try:
            return connect(
                url or self.url(), sock=sock, subprotocols=[Subprotocol(subprotocol)], compression=None, max_size=None,
                max_queue=1, proxy=None, legacy=True,
            )  # fmt: skip
        except InvalidStatus:
            sock.close()
            raise

    def upgrade(self) -> bytes:
        """How a WebSocket begins, for those who do not keep to what comes then."""
        path = self.url().partition(self.origin)[2]
        return (
            f"GET {path} HTTP/1.1\r\nHost: {self.origin}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {JSON}\r\n\r\n"
        ).encode()

    def call(self, method: str, target: str, body: bytes = b"", **headers: str) -> int:
        """With a token for this very address, unless there is another."""
        path = target.partition("?")[0]
        headers = {"Authorization": f"Bearer {self.token(path)}", "Content-Type": "text/plain", **headers}
        with closing(http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=scaled(WAIT_S))) as connection:
            connection.request(method, target, body, headers)
            return connection.getresponse().status

    def raw(self, data: bytes) -> bytes:
        """Whatever comes back until the server has had enough."""
        with socket.create_connection(("127.0.0.1", self.served.port), timeout=scaled(WAIT_S)) as sock:
            with suppress(OSError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            got = b""
            with suppress(ConnectionResetError):
                while part := sock.recv(65536):
                    got += part
            return got

    def is_well(self) -> bool:
        return self.call("HEAD", f"/api/health?{VERSION}") == 200


def say(ws: ClientConnection, **frame: Any) -> None:
    ws.send(json.dumps(frame))


def hear(ws: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ws.recv(scaled(WAIT_S)))
    return found


def closed_with(ws: ClientConnection) -> int | None:
    """Whatever it says before, the server closes it, with this code."""
    with closing(ws), suppress(ConnectionClosed):
        while True:
            ws.recv(scaled(WAIT_S))
    return ws.protocol.close_code


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with shared_server(tmp_path_factory.mktemp("served")) as served:
        place = Place(served)
        yield place
        assert place.is_well()
    said = (place.served.folder / "served.log").read_text()
    assert "Traceback" not in said, said[-4000:]


@pytest.fixture(autouse=True)
def _bystanders(place: Place) -> Iterator[None]:
    """They hear nothing, whatever the test does, until they are told that it is over."""
    everything = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"]
    urls = [place.url(hub, roles=everything, groups=[SECRET]) for hub in (HUB, OTHER_HUB)]
    bystanders = [place.connect(url) for url in urls]
    for bystander in bystanders:
        hear(bystander)
    yield
    for hub in (HUB, OTHER_HUB):
        assert place.call("POST", f"/api/hubs/{hub}/groups/{SECRET}/:send?{VERSION}", b"over") == 202
    for bystander in bystanders:
        with bystander:
            heard = hear(bystander)
            assert heard["type"] == "message"
            assert heard["data"] == "over", heard


# -- frames

NASTY: list[Any] = [
    None, True, 0, -1, 2**53, 2**64 - 1, 2**64, 10**400, 1.5, "", " ", "a", "\x00", "\ud800", "é" * 1025, ALLOWED,
    SECRET, [], {}, [[]], {"a": None}, "AAAA", "=", "connected", 1e308,
]  # fmt: skip
TYPES = [
    "joinGroup", "leaveGroup", "sendToGroup", "event", "sequenceAck", "ack", "ping", "invoke", "cancelInvocation",
    "streamData", "streamEnd", "setGroupState", "subscribeGroupState", "unsubscribeGroupState", "system", "",
    "JOINGROUP",
]  # fmt: skip
FIELDS = [
    "group", "ackId", "noEcho", "dataType", "data", "ttlSeconds", "metadata", "stream", "event", "sequenceId",
    "invocationId", "target", "streamId", "streamSequenceId", "error", "state",
]  # fmt: skip


def nasty_frame(chance: random.Random) -> str:
    frame = {"type": chance.choice(TYPES)}
    frame.update({name: chance.choice(NASTY) for name in chance.sample(FIELDS, chance.randrange(6))})
    if chance.random() < 0.7:
        frame["group"] = chance.choice([ALLOWED, "other"])
    text = json.dumps(frame)
    kind = chance.random()
    if kind < 0.1:
        return text[: chance.randrange(len(text))]
    if kind < 0.2:
        at = chance.randrange(len(text))
        return text[:at] + chance.choice('{}[]",:\\0\x01') + text[at + 1 :]
    return text


PINGS: dict[str, tuple[str | bytes, str | bytes]] = {
    JSON: ('{"type":"ping"}', '{"type":"pong"}'),
    PROTOBUF: (b"\x4a\x00", b"\x22\x00"),
}


def send_each(place: Place, subprotocol: str, frames: Iterator[str | bytes]) -> Counter[int]:
    """One after the other, each with a ping after it: either that is answered, or the server closes. Returns how often
    it closed with which code; 0 is how often it did not."""
    ping, pong = PINGS[subprotocol]
    codes = Counter[int]()
    ws = place.connect(subprotocol=subprotocol)
    for frame in frames:
        try:
            ws.send(frame)
            ws.send(ping)
            while ws.recv(scaled(WAIT_S)) != pong:
                pass
            codes[0] += 1
        except ConnectionClosed:
            codes[ws.protocol.close_code or -1] += 1
            ws.close()
            ws = place.connect(subprotocol=subprotocol)
    ws.close()
    return codes


def test_json_that_makes_no_sense(place: Place) -> None:
    chance = random.Random(SEED)
    codes = send_each(place, JSON, (nasty_frame(chance) for _ in range(600)))
    assert set(codes) <= FAULTS | {0}
    assert min(codes[0], codes[CloseCode.INVALID_DATA]) > 50


def test_json_nested_without_end(place: Place) -> None:
    for data in ("[" * 100_000, '{"a":' * 100_000, '{"type":"sendToGroup","data":' + "[" * 400_000):
        with place.connect() as ws:
            ws.send(data)
            assert closed_with(ws) == CloseCode.INVALID_DATA


def test_protobuf_that_makes_no_sense(place: Place) -> None:
    chance = random.Random(SEED)
    good = b"\x0a\x10\x0a\x07allowed\x10\x01\x1a\x03\x0a\x01x"

    def frames() -> Iterator[bytes]:
        for _ in range(600):
            data = bytearray(good if chance.random() < 0.7 else chance.randbytes(chance.randrange(40)))
            for _ in range(chance.randrange(4)):
                data[chance.randrange(len(data) or 1) : chance.randrange(len(data) or 1) + 1] = chance.randbytes(1)
            yield bytes(data)

    codes = send_each(place, PROTOBUF, frames())
    assert set(codes) <= FAULTS | {0}
    assert min(codes[0], codes[CloseCode.INVALID_DATA]) > 50


def test_bytes_that_are_no_websocket(place: Place) -> None:
    chance = random.Random(SEED)
    head = place.upgrade()
    for _ in range(100):
        assert place.raw(head + chance.randbytes(chance.randrange(1, 200))).startswith(b"HTTP/1.1 101")


def test_frames_and_heads_and_bodies_that_are_too_large(place: Place) -> None:
    with place.connect() as ws:
        hear(ws)
        with suppress(ConnectionClosed):
            say(ws, type="sendToGroup", group=ALLOWED, dataType="text", data="x" * (2 * MB))
        assert closed_with(ws) == CloseCode.MESSAGE_TOO_BIG
    request = f"GET /api/health HTTP/1.1\r\nHost: {place.origin}\r\n".encode()
    assert place.raw(request + b"X: " + b"x" * 100_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    assert place.raw(request + b"X: x\r\n" * 500 + b"\r\n").startswith(b"HTTP/1.1 431")
    assert place.raw(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 431")
    post = f"POST /api/hubs/{HUB}/:send?{VERSION} HTTP/1.1\r\nHost: {place.origin}\r\n".encode()
    assert place.raw(post + b"Content-Length: 99999999999\r\n\r\n").startswith(b"HTTP/1.1 413")
    assert place.raw(post + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n").startswith(b"HTTP/1.1 4")


# -- who may come in


def forged(place: Place, path: str) -> dict[str, str]:
    def token(**claims: Any) -> str:
        return place.token(path, **claims)

    def unsigned(algorithm: str) -> str:
        parts = [{"alg": algorithm, "typ": "JWT"}, {"aud": f"http://{place.origin}{path}", "exp": time.time() + 600}]
        return (
            ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."
        )

    good = token()
    head, body, proof = good.split(".")
    now = int(time.time())
    return {
        "none": unsigned("none"), "None": unsigned("None"), "no proof": unsigned("HS256"), "RS256": unsigned("RS256"),
        "HS512": unsigned("HS512"),
        "other key": token(key="another key of the same length as the one"), "empty key proof": f"{head}.{body}.",
        "proof cut": f"{head}.{body}.{proof[:-4]}", "proof of other": f"{head}.{body}.{token(sub='x').split('.')[2]}",
        "expired": token(exp=now - 3600), "no end": token(exp=None), "endless": token(exp="never"),
        "infinite": token(exp=float("inf")), "nan": token(exp=float("nan")), "not yet": token(nbf=now + 3600),
        "other host": token(aud=f"http://example.com{path}"), "other path": token(aud=f"http://{place.origin}/x"),
        "no audience": token(aud=[]), "audience of another kind": token(aud=""), "junk": "a.b.c", "dots": "....",
        "no text": "\x7f", "long": "x" * 30_000, "role of another kind": token(role=5),
        "user of another kind": token(sub=[1]),
    }  # fmt: skip


def test_tokens_that_are_not_good(place: Place) -> None:
    path = f"/client/hubs/{HUB}"
    for token in forged(place, path).values():
        with pytest.raises(InvalidStatus, match="401"):
            place.connect(f"ws://{place.origin}{path}?access_token={quote(token)}")
    for path in (f"/api/hubs/{HUB}/groups/{SECRET}/:send", f"/api/hubs/{HUB}/:send"):
        for what, token in forged(place, path).items():
            if not what.startswith(("user of", "no text")):  # a service has no user; the other cannot be in a header
                assert place.call("POST", f"{path}?{VERSION}", b"x", Authorization=f"Bearer {token}") == 401, what


def test_a_token_for_one_door_does_not_open_another(place: Place) -> None:
    client, send = f"/client/hubs/{HUB}", f"/api/hubs/{HUB}/:send"
    for path in (send, f"/api/hubs/{OTHER_HUB}/:send", f"/api/hubs/{HUB}/groups/{SECRET}/:send"):
        assert place.call("POST", f"{path}?{VERSION}", b"x", Authorization=f"Bearer {place.token(client)}") == 401
    assert place.call(
        "POST", f"/api/hubs/{OTHER_HUB}/:send?{VERSION}", b"x", Authorization=f"Bearer {place.token(send)}"
    ) == 401  # fmt: skip
    for audience in (send, f"/client/hubs/{OTHER_HUB}", "/client/hubs/", "/"):
        with pytest.raises(InvalidStatus, match="401"):
            place.connect(f"ws://{place.origin}{client}?access_token={place.token(audience)}")


def test_a_host_that_is_a_path(place: Place) -> None:
    """With it the token of a mere client might open the REST API."""
    path = f"/api/hubs/{HUB}/:send"
    for host in (
        f"{place.origin}/client/hubs/{HUB}?",
        f"{place.origin}#",
        "x@y",
        "[::1",
        "a b",
        "",
        f"{place.origin},x",
    ):
        token = place.token(f"/client/hubs/{HUB}")
        data = (
            f"POST {path}?{VERSION} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: text/plain\r\nContent-Length: 1\r\n\r\nx"
        )
        status = place.raw(data.encode()).split(b" ")[1]
        assert status in (b"400", b"401"), host


def test_the_reconnection_tokens_of_other_people(place: Place) -> None:
    with place.connect(place.url(groups=[ALLOWED])) as victim, place.connect() as attacker:
        own, other = hear(victim), hear(attacker)
        token = str(own["reconnectionToken"])
        flipped = [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(len(token) - 1)]
        tries = [
            (HUB, own["connectionId"], other["reconnectionToken"], JSON),
            (HUB, other["connectionId"], token, JSON),
            (OTHER_HUB, own["connectionId"], token, JSON),
            (HUB, own["connectionId"], token, PLAIN),
            *(
                (HUB, own["connectionId"], wrong, JSON)
                for wrong in ("", "x", token[:-4], token + "AAAA", *flipped[::8])
            ),
            *(
                (HUB, wrong, token, JSON)
                for wrong in ("", own["connectionId"].upper(), own["connectionId"] + " ", "a/b")
            ),
        ]
        for hub, connection, proof, subprotocol in tries:
            query = urlencode({"awps_connection_id": connection, "awps_reconnection_token": proof})
            with place.connect(f"ws://{place.origin}/client/hubs/{hub}?{query}", subprotocol) as ws:
                assert closed_with(ws) == CloseCode.POLICY_VIOLATION
        assert place.call("POST", f"/api/hubs/{HUB}/groups/{ALLOWED}/:send?{VERSION}", b"still here") == 202
        assert hear(victim)["data"] == "still here"


def test_what_is_not_allowed_does_not_happen_in_any_spelling(place: Place) -> None:
    with place.connect() as ws:
        hear(ws)
        spellings = [
            SECRET,
            f"{SECRET} ",
            f"./{SECRET}",
            f"{ALLOWED}.{SECRET}",
            f"{ALLOWED}/../{SECRET}",
            f"{ALLOWED}*",
            "*",
            "**",
        ]
        for number, group in enumerate(spellings):
            for kind in ("joinGroup", "sendToGroup", "leaveGroup"):
                ack_id = number * 3 + ("joinGroup", "sendToGroup", "leaveGroup").index(kind)
                say(ws, type=kind, group=group, ackId=ack_id, dataType="text", data="x")
                answer = hear(ws)
                assert (answer["success"], answer["error"]["name"]) == (False, "Forbidden"), (kind, group)


# -- REST


def test_paths_that_lead_somewhere_else(place: Place) -> None:
    """A token for one group of one hub, and every way to write another address."""
    token = f"Bearer {place.token(f'/api/hubs/{HUB}/groups/{ALLOWED}/:send')}"
    base = f"/api/hubs/{HUB}/groups/{ALLOWED}"
    paths = [
        f"{base}/../{SECRET}/:send", f"{base}/..%2f{SECRET}/:send", f"{base}/%2e%2e/{SECRET}/:send",
        f"{base}%2f..%2f{SECRET}/:send", f"{base}%00/:send", f"{base}%2500/:send", f"{base}/%2e/:send",
        f"{base}//:send",
        f"{base}\\..\\{SECRET}/:send", f"{base};/../{SECRET}/:send", f"{base}/:send/../../../:send",
        f"{base}/.%2e/:send",
        f"/api//hubs/{HUB}/groups/{SECRET}/:send", f"//api/hubs/{HUB}/groups/{SECRET}/:send", f"/api/hubs/{HUB}/:send",
        f"/api/hubs/{HUB}%2fgroups%2f{SECRET}/:send", f"/api/hubs/{OTHER_HUB}/:send",
        f"/api/hubs/{HUB}/groups/%ff/:send",
        f"/api/hubs/{HUB}/groups/%/:send", f"/api/hubs/{HUB}/groups/{SECRET}/%3Asend", f"/./api/hubs/{HUB}/:send",
        f"/api/hubs/..%2f{OTHER_HUB}/:send", f"/client/hubs/{HUB}/../../../api/hubs/{HUB}/:send", f"{base}/:send%00",
        f"http://example.com/api/hubs/{HUB}/:send", f"http://{place.origin}/api/hubs/{HUB}/groups/{SECRET}/:send",
        f"/api/hubs/{HUB}/groups/{SECRET}/:send#{base}/:send", f"*/api/hubs/{HUB}/:send",
    ]  # fmt: skip
    for path in paths:
        data = (
            f"POST {path}?{VERSION} HTTP/1.1\r\nHost: {place.origin}\r\nAuthorization: {token}\r\n"
            "Content-Type: text/plain\r\nContent-Length: 4\r\n\r\nleak"
        )
        status = int(place.raw(data.encode()).split(b" ")[1])
        assert 400 <= status < 500, (path, status)


def test_requests_that_are_smuggled_are_not_heard(place: Place) -> None:
    inner = (
        f"POST /api/hubs/{HUB}/groups/{SECRET}/:send?{VERSION} HTTP/1.1\r\nHost: {place.origin}\r\n"
        "Content-Type: text/plain\r\nContent-Length: 4\r\n\r\nleak"
    )
    head = f"POST /api/hubs/{HUB}/:send?{VERSION} HTTP/1.1\r\nHost: {place.origin}\r\n"
    for framing in (
        f"Content-Length: {len(inner)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"Content-Length: 0\r\nContent-Length: {len(inner)}\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: +0\r\n\r\n",
        "Content-Length: 0x0\r\n\r\n",
        f"X: y\r\n Content-Length: {len(inner)}\r\n\r\n",
    ):
        got = place.raw((head + framing + inner).encode())
        assert b" 20" not in got.partition(b"\r\n")[0], (framing, got)
        assert got.startswith(b"HTTP/1.1 4"), (framing, got)


def test_http_that_makes_no_sense(place: Place) -> None:
    chance = random.Random(SEED)
    good = (
        f"POST /api/hubs/{HUB}/groups/{SECRET}/:send?{VERSION} HTTP/1.1\r\nHost: {place.origin}\r\n"
        "Content-Type: text/plain\r\nContent-Length: 4\r\n\r\nleak"
    ).encode()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        got = place.raw(bytes(data))
        assert not got or got.startswith(b"HTTP/1.1 4"), (bytes(data), got)


FILTERS = [
    "userId eq 'a'", "(" * 5_000, "(" * 500 + "true" + ")" * 500, "not " * 5_000 + "true", "true and " * 3_000 + "true",
    "length('a') eq 1", "'" * 1001, "concat('a'," * 1000, "substring('a', 99999999999999999999)", "userId in ()",
    "1 eq",
    "startswith(userId, null)", "\x00", "groups eq 'a'", "true or", "indexof(tolower(userId), 'é') gt -1",
    "userId eq 'a' --",
]  # fmt: skip


def test_filters_that_make_no_sense_or_no_end(place: Place) -> None:
    chance = random.Random(SEED)
    words = [
        "userId",
        "groups",
        "eq",
        "and",
        "or",
        "not",
        "in",
        "(",
        ")",
        "'a'",
        "1",
        "null",
        "true",
        ",",
        "length(",
        "-1",
        "''",
    ]
    made = [" ".join(chance.choices(words, k=chance.randrange(1, 12))) for _ in range(150)]
    with place.connect(place.url(groups=[ALLOWED])) as ws:
        hear(ws)
        for text in FILTERS + made:
            query = urlencode({"filter": text})
            begin = time.monotonic()
            status = place.call("POST", f"/api/hubs/{HUB}/groups/{ALLOWED}/:send?{VERSION}&{query}", b"x")
            assert status in (202, 400, 414, 431), (text, status)
            assert time.monotonic() - begin < scaled(5), text
        say(ws, type="ping")
        while hear(ws)["type"] != "pong":
            pass


# -- memory


def test_a_flood_of_connections_leaves_nothing_behind(place: Place) -> None:
    before = place.memory
    for _ in range(3):
        sockets = [
            socket.create_connection(("127.0.0.1", place.served.port), timeout=scaled(WAIT_S)) for _ in range(300)
        ]
        for number, sock in enumerate(sockets):
            sock.sendall([b"", b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, b"\x00" * 100][number % 3])
        assert place.is_well()
        for sock in sockets:
            sock.close()
    assert place.is_well()
    assert place.memory - before < GROWTH_BYTES_MAX


@pytest.mark.parametrize("subprotocol", [PLAIN, JSON])
def test_messages_that_are_larger_than_what_a_socket_holds_are_followed_by_others(
    place: Place, subprotocol: str
) -> None:
    with place.connect(place.url(groups=[ALLOWED]), subprotocol) as ws:
        hear(ws)
        for body in (b"a", b"x" * MB, b"y" * MB, b"b"):
            assert place.call("POST", f"/api/hubs/{HUB}/groups/{ALLOWED}/:send?{VERSION}", body) == 202
            assert hear(ws)["data"] == body.decode()


def fill(place: Place, subprotocol: str) -> tuple[list[ClientConnection], int]:
    """Four who have not read any of forty large messages, and by how much the server has grown."""
    before = place.memory
    sockets = [place.connect(place.url(groups=["firehose"]), subprotocol, room=65_536) for _ in range(4)]
    for ws in sockets:
        hear(ws)
    for _ in range(FIREHOSE):
        assert place.call("POST", f"/api/hubs/{HUB}/groups/firehose/:send?{VERSION}", b"x" * MB) == 202
    return sockets, place.memory - before


def test_a_plain_client_that_reads_nothing_is_closed(place: Place) -> None:
    sockets, grown = fill(place, PLAIN)
    for ws in sockets:
        assert closed_with(ws) == CloseCode.POLICY_VIOLATION
    assert grown < GROWTH_BYTES_MAX


def test_what_a_reliable_client_has_not_read_waits_for_it_and_is_kept_once_for_all(place: Place) -> None:
    sockets, grown = fill(place, JSON)
    for ws in sockets:
        with closing(ws):
            assert {hear(ws)["type"] for _ in range(FIREHOSE)} == {"message"}
    assert grown < GROWTH_BYTES_MAX + FIREHOSE * MB


def push(sock: socket.socket, data: bytes, most: int) -> int:
    """How much is taken before nothing is taken for a while."""
    sent = 0
    with suppress(TimeoutError):
        while sent < most:
            sent += sock.send(data[sent % len(data) :])
    return sent


def test_who_asks_much_and_reads_nothing_is_not_answered_for_ever(place: Place) -> None:
    """Answers that nobody takes would fill the memory, so no more is read from who does not take them."""
    before = place.memory
    asked = b'{"type":"leaveGroup","group":"' + b"g" * 60 + b'","ackId":1}'
    frame = bytes((0x81, 0x80 | len(asked))) + bytes(4) + asked
    with socket.create_connection(("127.0.0.1", place.served.port), timeout=scaled(WAIT_S)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(place.upgrade())
        while b'"connected"' not in sock.recv(65536):
            pass
        sock.settimeout(scaled(1))
        assert push(sock, frame * 1_000, 100 * MB) < 100 * MB
    assert place.memory - before < GROWTH_BYTES_MAX
    assert place.is_well()
