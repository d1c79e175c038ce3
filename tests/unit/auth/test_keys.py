"""Keys stay hidden, are replaced one at a time, and travel in connection strings."""

from __future__ import annotations

import hashlib
import hmac
import logging

import pytest
from azure.messaging.webpubsubservice import WebPubSubServiceClient
from hypothesis import given
from hypothesis import strategies as st

from semel.auth.keys import (
    DEV_KEY,
    KEY_CHARS_MAX,
    KEY_CHARS_MIN,
    AccessKeys,
    ConnectionString,
    connection_string,
    new_key,
    parse_connection_string,
)
from semel.errors import ConfigError

ONE, TWO = "1" * 40 + "+/=", "2" * 40 + "-_."
KEYS = AccessKeys(ONE, TWO)
RANDOM = bytes(range(32))


def test_keys_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    connection = connection_string("http://localhost:8080", ONE)
    with caplog.at_level(logging.INFO):
        logging.getLogger("semel").info("%s %r %s", KEYS, AccessKeys(ONE), connection)
    shown = f"{KEYS} {KEYS!r} {[KEYS]} {connection} {connection!r} {caplog.text}"
    assert ONE not in shown
    assert TWO not in shown
    assert "http://localhost:8080" in shown


def test_the_first_key_is_the_one_to_sign_with() -> None:
    assert KEYS.all == (ONE, TWO)
    assert AccessKeys(ONE).all == (ONE,)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_a_new_key_is_a_good_key_and_another_for_other_bytes(one: bytes, other: bytes) -> None:
    assert AccessKeys(new_key(one)).primary == new_key(one)
    assert (new_key(one) == new_key(other)) == (one == other)
    assert parse_connection_string(connection_string("https://x", new_key(one)).text()).key == new_key(one)


def test_a_key_needs_its_bytes() -> None:
    with pytest.raises(ConfigError, match="32 random bytes, not 31"):
        new_key(RANDOM[:31])


@pytest.mark.parametrize(
    "key",
    [
        "",
        "s" * (KEY_CHARS_MIN - 1),
        "s" * (KEY_CHARS_MAX + 1),
        "secret;" * 8,
        "secret " * 8,
        "secret\n" * 8,
        "sécret" * 8,
        "ssh-rsa-" + "s" * 40,
        '{"kty":"oct","k":"' + "s" * 40 + '"}',
    ],
)
def test_a_bad_key_is_refused_and_not_shown(key: str) -> None:
    for make in (lambda: AccessKeys(key), lambda: AccessKeys(ONE, key), lambda: connection_string("http://x", key)):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.fix
        assert not key or key[:6] not in str(caught.value)


def test_the_signature_has_a_part_for_each_key() -> None:
    def part(key: str) -> str:
        return "sha256=" + hmac.new(key.encode(), b"conn-1", hashlib.sha256).hexdigest()

    assert KEYS.signature("conn-1") == f"{part(ONE)},{part(TWO)}"
    assert AccessKeys(ONE).signature("conn-1") == part(ONE)


def test_the_signature_is_what_openssl_makes_of_it() -> None:
    # printf conn-1 | openssl dgst -sha256 -hmac ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ABCDEFGH
    expected = "261f7f58ff9fb9bb8be7e4951a807fe6091e5c074885bf63b865eccd28728881"
    assert AccessKeys(DEV_KEY).signature("conn-1") == f"sha256={expected}"


# -- connection strings


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        (f"Endpoint=http://127.0.0.1:8080;AccessKey={ONE};Version=1.0;", "http://127.0.0.1:8080"),
        (f"Endpoint=http://127.0.0.1;Port=8080;AccessKey={ONE}", "http://127.0.0.1:8080"),
        (f"accesskey={ONE};ENDPOINT=https://Example.com/;", "https://Example.com"),
        (f" Endpoint = https://example.com ; AccessKey = {ONE} ; ", "https://example.com"),
        (f"Endpoint=https://example.com/base/;AccessKey={ONE};Port=444", "https://example.com:444/base"),
        (f"Endpoint=http://[::1];AccessKey={ONE};Port=9", "http://[::1]:9"),
        (f"Endpoint=http://x:9;AccessKey={ONE};Port=9", "http://x:9"),
        (f";;Endpoint=http://x;;AccessKey={ONE}", "http://x"),
    ],
)
def test_reading_a_connection_string(text: str, endpoint: str) -> None:
    assert parse_connection_string(text) == ConnectionString(endpoint, ONE)


def test_a_connection_string_is_written_and_read() -> None:
    made = connection_string("http://127.0.0.1:8080/", ONE)
    assert made.text() == f"Endpoint=http://127.0.0.1:8080;AccessKey={ONE};Version=1.0;"
    assert parse_connection_string(made.text()) == made


def test_microsofts_library_reads_what_is_written() -> None:
    text = connection_string("http://127.0.0.1:8080", DEV_KEY).text()
    token = WebPubSubServiceClient.from_connection_string(text, hub="chat").get_client_access_token()
    assert token["baseUrl"] == "ws://127.0.0.1:8080/client/hubs/chat"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no Endpoint"),
        (f"AccessKey={ONE}", "no Endpoint"),
        (f"Endpoint=;AccessKey={ONE}", "no Endpoint"),
        ("Endpoint=http://x", "no AccessKey"),
        (f"Endpoint=http://x;AccessKey:{ONE}", "part 2"),
        (f"Endpoint=http://x;{ONE.rstrip('=')}", "part 2"),
        (f"Endpoint=http://x;AccessKey={ONE};AuthType=azure", "part 3"),
        (f"Endpoint=http://x;AccessKey={ONE};AccessKey={TWO}", "AccessKey twice"),
        (f"Endpoint=http://x;AccessKey={ONE};Version=2.0", "unknown version"),
        ("Endpoint=http://x;AccessKey=short", "5 characters"),
        (f"Endpoint=x;AccessKey={ONE}", "no address"),
        (f"Endpoint=ftp://x;AccessKey={ONE}", "no address"),
        (f"Endpoint=http://;AccessKey={ONE}", "no address"),
        (f"Endpoint=http://x:99999;AccessKey={ONE}", "no address"),
        (f"Endpoint=http://x:0;AccessKey={ONE}", "no address"),
        (f"Endpoint=http://[::1;AccessKey={ONE}", "no address"),
        (f"Endpoint=http://é;AccessKey={ONE}", "no address"),
        (f"Endpoint=http://x?a=b;AccessKey={ONE}", "more than"),
        (f"Endpoint=http://x:;AccessKey={ONE}", "more than"),
        (f"Endpoint=http://me:pw@x;AccessKey={ONE}", "more than"),
        (f"Endpoint=http://x;AccessKey={ONE};Port=0", "no port"),
        (f"Endpoint=http://x;AccessKey={ONE};Port=65536", "no port"),
        (f"Endpoint=http://x;AccessKey={ONE};Port=http", "no port"),
        (f"Endpoint=http://x:1;AccessKey={ONE};Port=2", "port 1 in its Endpoint"),
        ("x" * 5000, "5,000 characters"),
    ],
)
def test_a_bad_connection_string_says_what_is_wrong_without_the_key(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_connection_string(text)
    assert caught.value.fix
    assert ONE[:10] not in str(caught.value)


PIECES = [
    "Endpoint=",
    "AccessKey=",
    "Port=",
    "Version=1.0",
    ";",
    "http://",
    "x",
    ":1",
    "[",
    "]",
    "@",
    "%",
    ONE,
    "é",
    "\n",
]


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_other_text_is_a_config_error(text: str) -> None:
    try:
        parsed = parse_connection_string(text)
    except ConfigError:
        return
    assert parse_connection_string(parsed.text()) == parsed
