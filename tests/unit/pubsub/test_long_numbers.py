"""Numbers with more digits than Python reads: whoever parses JSON refuses them in words, and none lets them pass."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.unit.auth.test_tokens import AUDIENCES, NOW, payload, signed_text
from tests.unit.auth.test_tokens import KEYS as TOKEN_KEYS
from tests.unit.pubsub.rest.rest_values import HUB, answered, asked, error

from semel.auth.tokens import read_service_token
from semel.config import load_config
from semel.errors import AuthError, ConfigError, FrameError, InputError
from semel.http import HttpResponse
from semel.kernel.envelope import Envelope, from_json, to_json
from semel.pubsub.client.checks import check_request
from semel.pubsub.client.data import value_of
from semel.pubsub.events.cloudevents import HandlerFailed, read_connect, read_user_event
from semel.pubsub.protocol.client_tokens import read_client_token
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import DIGITS_MAX, Subprotocol, check_digits
from semel.pubsub.protocol.messages import Data, DataType, Invoke, SendEvent, SendToGroup, StreamData

LONG = "1" * (DIGITS_MAX + 1)
JSON = codec_for(Subprotocol.JSON_RELIABLE)
PROTOBUF = codec_for(Subprotocol.PROTOBUF_RELIABLE)
DATA = Data(DataType.JSON, f'{{"n":[1,-{LONG}]}}'.encode())
REQUESTS = [SendToGroup("g", DATA, 1), SendEvent("e", DATA, 2), Invoke("1", "e", DATA), StreamData("s", 1, DATA)]


@pytest.mark.parametrize("codec", [JSON, PROTOBUF], ids=["json", "protobuf"])
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_frame_with_one_is_refused(codec: object, request_: SendToGroup) -> None:
    assert hasattr(codec, "decode")
    frame = codec.encode_request(request_)  # type: ignore[attr-defined]
    with pytest.raises(FrameError, match="more than 4,300 digits"):
        codec.decode(frame)


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"joinGroup","group":"g","ackId":%s}',
        '{"type":"sequenceAck","sequenceId":%s}',
        '{"type":"sendToGroup","group":"g","data":"x","ttlSeconds":%s}',
        '{"type":"ping","unknown":%s}',
        '{"type":%s}',
        "%s",
    ],
)
def test_a_frame_with_one_outside_its_data_is_refused(frame: str) -> None:
    with pytest.raises(FrameError):
        JSON.decode(frame % LONG)  # type: ignore[union-attr]


def test_a_body_of_the_rest_api_with_one_is_refused() -> None:
    for path in ("/:send", "/groups/g/:send", "/users/u/:send", "/connections/c/:send"):
        refused = answered("POST", HUB + path, body=DATA.body, content_type="application/json")
        assert refused.status == 400
        assert "more than 4,300 digits" in error(refused)["message"]
    for body in (f'{{"groups":[{LONG}]}}', f'{{"groups":["g"],"filter":{LONG}}}', LONG):
        assert answered("POST", f"{HUB}/:addToGroups", body=body, content_type="application/json").status == 400


def test_digits_in_strings_are_text() -> None:
    for text in (LONG, f'\\"{LONG}\\\\', "x" * DIGITS_MAX):
        check_digits(msgspec.json.encode({"a": text, "b": [text]}))
    check_digits(("[" + "1," * DIGITS_MAX + "1" * DIGITS_MAX + "]").encode())
    asked("POST", f"{HUB}/:send", body=f'"{LONG}"', content_type="application/json")
    with pytest.raises(FrameError):
        check_digits(f'{{"a\\\\":{LONG}}}'.encode())


def test_a_token_with_one_opens_nothing() -> None:
    long = "9" * 4301
    for claim in ("exp", "nbf", "other"):
        raw = msgspec.json.encode(payload()).decode().removesuffix("}") + f',"{claim}":{long}}}'
        for read in (read_client_token, read_service_token):
            with pytest.raises(AuthError):
                read(signed_text(raw), TOKEN_KEYS, AUDIENCES, NOW)


def test_the_answer_of_an_event_handler_with_one_counts_as_failed() -> None:
    headers = (("content-type", "application/json"),)
    assert isinstance(read_user_event(HttpResponse(200, headers, DATA.body)), HandlerFailed)
    assert isinstance(read_connect(HttpResponse(200, headers, f'{{"userId":{LONG}}}'.encode()), ()), HandlerFailed)


def test_an_event_in_structured_json_with_one_is_refused() -> None:
    event = to_json(Envelope("1", "s", "t")).decode().removesuffix("}")
    for more in (f'"data":{LONG}', f'"sequence":{LONG}', f'"sequence":"{LONG}"', f'"x":{LONG}'):
        with pytest.raises(InputError):
            from_json(f"{event},{more}}}".encode())


def test_our_client_neither_sends_nor_stumbles_over_one() -> None:
    for request in REQUESTS[:3]:
        with pytest.raises(InputError, match="more than 4,300 digits"):
            check_request(request, JSON)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"content\.body"):
        value_of(DATA)
    assert value_of(Data(DataType.JSON, b"[1e999]")) == [float("inf")]


def test_a_configuration_with_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "semel.toml"
    file.write_text(f"[server]\nport = {LONG}\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file)
    file.write_text("")
    for name, text in (("SEMEL_SERVER__PORT", LONG), ("SEMEL_SERVER__ENDPOINTS", f"[{LONG}]")):
        monkeypatch.setitem(os.environ, name, text)
        with pytest.raises(ConfigError):
            load_config(file)
        monkeypatch.delitem(os.environ, name)
