"""The first handler that takes an event gets it, and no event can choose where it goes."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.protocol.frame_values import events

from semel.errors import ConfigError
from semel.pubsub.events.handlers import Auth, EventHandler, Handlers, SystemEvent, _is_origin, event_handler

URL = "https://app.example/hooks/{hub}/{event}"
hubs = st.from_regex(r"[A-Za-z][A-Za-z0-9_`,.\[\]]{0,127}", fullmatch=True)


def test_the_first_handler_that_takes_an_event_gets_it() -> None:
    lobby = event_handler("http://a/lobby", user_events="join, Leave")
    door = event_handler("http://a/door", ["connect", "joined"])
    rest = event_handler("http://a/rest", ["connect", "connected"], "*")
    handlers = Handlers("Chat", (lobby, door, rest))
    assert handlers.hub == "chat"
    assert [handlers.for_user_event(name) for name in ("join", "LEAVE", "message")] == [lobby, lobby, rest]
    assert [handlers.for_system_event(event) for event in SystemEvent] == [door, rest, None, door, None]


def test_a_user_event_is_no_system_event_of_the_same_name() -> None:
    handlers = Handlers("chat", (event_handler("http://a", ["connected"]), event_handler("http://b", [], "left")))
    assert handlers.for_user_event("connected") is None
    assert handlers.for_system_event(SystemEvent.LEFT) is None
    assert Handlers("chat").for_user_event("message") is None


def test_plain_text_says_the_same_in_any_case() -> None:
    handler = event_handler(URL, ["Connect", " LEFT "], "*", "KEY")
    assert handler == EventHandler(URL, frozenset({SystemEvent.CONNECT, SystemEvent.LEFT}), "*", Auth.KEY)


@pytest.mark.parametrize(
    ("url", "becomes"),
    [
        (URL, "https://app.example/hooks/a%5B%60%2C%5D/my-event_1.x"),
        ("http://[::1]:8080?h={HUB}&e={Event}", "http://[::1]:8080?h=a%5B%60%2C%5D&e=my-event_1.x"),
        ("http://10.0.0.7:80/a%20b?code=x", "http://10.0.0.7:80/a%20b?code=x"),
        ("HTTP://a_b.internal", "HTTP://a_b.internal"),
    ],
)
def test_names_are_filled_in_after_the_host(url: str, becomes: str) -> None:
    assert event_handler(url, user_events="*").url_for("a[`,]", "my-event_1.x") == becomes


@given(hubs, events)
def test_no_name_leads_to_another_place(hub: str, event: str) -> None:
    handler = event_handler("https://app.example:8443/x/{hub}/.{event}?q={event}&h={hub}", user_events="*")
    url = httptools.parse_url(handler.url_for(hub, event).encode())
    assert (url.schema, url.host, url.port, handler.endpoint) == (
        b"https", b"app.example", 8443, "https://app.example:8443",
    )  # fmt: skip
    assert unquote(url.path.decode()) == f"/x/{hub}/.{event}"
    assert parse_qs(url.query.decode()) == {"q": [event], "h": [hub]}


BAD_URLS = {
    "ftp://app.example/": "begin with http",
    "app.example/{event}": "begin with http",
    "//app.example": "begin with http",
    "https://{hub}.example/": "parameter in its host",
    "https://app.example:{event}/": "parameter in its host",
    "https://user:secret@app.example/": "user or a password",
    "https://": "no host",
    "https:///path": "no host",
    "https://-a.example/": "no host",
    "https://a..example/": "no host",
    "https://999.1.1.1/": "no host",
    "https://[::1/": "no host",
    "https://[:::]/": "no host",
    "https://münchen.example/": "no host",
    "https://app.example:0/": "no host",
    "https://app.example:65536/": "no host",
    "https://app.example:/": "no host",
    "https://app.example\\.evil.example/": "characters",
    "https://app.example/a b": "characters",
    "https://app.example/a\r\nX: y": "characters",
    "https://app.example/#top": "characters",
    "https://app.example/50%": "characters",
    "https://app.example/ü": "characters",
    "https://app.example/{user}": "no parameter",
    "https://app.example/{}": "no parameter",
    "https://app.example/{hub": "brace",
    "https://app.example/" + "a" * 2048: "characters, the limit",
}


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(ConfigError, match=BAD_URLS[url]) as caught:
        event_handler(url, user_events="*")
    assert caught.value.fix


def test_secrets_in_a_url_are_not_shown() -> None:
    for bad in ("https://app.example/{x}?code=secret", "https://u:secret@app.example", "https://a b/?code=secret"):
        with pytest.raises(ConfigError) as caught:
            event_handler(bad, user_events="*")
        assert "secret" not in str(caught.value)
    shown = repr(event_handler("https://app.example/hook?code=secret", ["connect"]))
    assert "secret" not in shown
    assert "https://app.example/hook" in shown


@given(st.text() | st.text(alphabet="htps:/[]{}@?#%.\\ab0 ").map(lambda rest: f"http://{rest}"))
def test_a_url_is_refused_or_every_library_can_call_it(url: str) -> None:
    try:
        handler = event_handler(url, user_events="*")
    except ConfigError:
        return
    url = handler.url_for("hub", "event")
    one, other = httptools.parse_url(url.encode()), urlsplit(url)
    assert one.schema.decode().lower() == other.scheme
    assert other.scheme in ("http", "https")
    assert one.host.decode().lower() == other.hostname
    assert one.port == other.port
    assert not one.userinfo
    assert not one.fragment


@pytest.mark.parametrize("pattern", ["", "a,,b", "room.*", "a b", "1", "a\nb", "äpfel", "*,?"])
def test_a_pattern_that_would_take_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="neither"):
        event_handler(URL, user_events=pattern)


def test_other_mistakes_are_refused_too() -> None:
    with pytest.raises(ConfigError, match="takes no event"):
        event_handler(URL)
    with pytest.raises(ConfigError, match="system event") as caught:
        event_handler(URL, ["conect"])
    assert "connect, connected" in caught.value.fix
    with pytest.raises(ConfigError, match="auth"):
        event_handler(URL, ["connect"], auth="basic")
    with pytest.raises(ConfigError, match="hub"):
        Handlers("1st")


def test_an_origin_is_a_host_and_nothing_else() -> None:
    assert all(map(_is_origin, ("Localhost:8080", "pubsub.example", "[::1]:80")))
    assert not any(map(_is_origin, ("", "http://a", "a/", "a b", "a\r\nX: y", "a:0", "a:99999", "*")))
