"""Nobody gets events who has not said that he wants them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.http import HttpResponse, OutgoingRequest
from semel.pubsub.events.abuse import (
    GET,
    LAPSE_S,
    OPTIONS,
    UNKNOWN,
    VALID_S,
    HandlerConsent,
    UrlVerdict,
    host_of,
    judge,
    validation_request,
)
from semel.pubsub.events.cloudevents import HandlerUnreachable
from semel.pubsub.events.handlers import event_handler

ORIGIN = "pubsub.example"
NOW = 1_800_000_000.0


def answer(status: int, *origins: str) -> HttpResponse:
    return HttpResponse(status, tuple(("WebHook-Allowed-Origin", origin) for origin in origins))


def test_the_question_proves_nothing_of_us() -> None:
    handler = event_handler("https://app.example/{hub}/{event}?e={event}", ["connect"], auth="key")
    headers = (("WebHook-Request-Origin", ORIGIN), ("ce-awpsversion", "1.0"), ("Accept-Encoding", "identity"))
    for method in (OPTIONS, GET):
        assert validation_request(handler, "chat", ORIGIN, method) == OutgoingRequest(
            method, "https://app.example/chat/validate?e=validate", headers
        )


@pytest.mark.parametrize(
    ("reply", "method", "verdict"),
    [
        (answer(200, "*"), OPTIONS, UrlVerdict.YES),
        (answer(204, " PubSub.Example "), OPTIONS, UrlVerdict.YES),
        (answer(200, "pubsub.example:8080"), OPTIONS, UrlVerdict.YES),
        (answer(299, "other.example", ORIGIN), GET, UrlVerdict.YES),
        (HttpResponse(200, (("webhook-allowed-origin", "*"),)), OPTIONS, UrlVerdict.YES),
        (answer(200), OPTIONS, UrlVerdict.NO),
        (answer(200, "other.example"), OPTIONS, UrlVerdict.NO),
        (answer(200, "pubsub.example.org"), OPTIONS, UrlVerdict.NO),
        (answer(200, "pubsub.example:"), OPTIONS, UrlVerdict.NO),
        (answer(200, "localhost"), OPTIONS, UrlVerdict.NO),
        (answer(200, f"other.example, {ORIGIN}"), OPTIONS, UrlVerdict.NO),
        (answer(302, "*"), OPTIONS, UrlVerdict.NO),
        (answer(400, "*"), OPTIONS, UrlVerdict.NO),
        (answer(405, "*"), OPTIONS, UrlVerdict.NO),
        (answer(404, "*"), OPTIONS, UrlVerdict.ASK_WITH_GET),
        (answer(404, "*"), GET, UrlVerdict.NO),
        (answer(408, "*"), OPTIONS, UrlVerdict.NO_ANSWER),
        (answer(503, "*"), GET, UrlVerdict.NO_ANSWER),
        (HandlerUnreachable("refused"), OPTIONS, UrlVerdict.NO_ANSWER),
        (HandlerUnreachable("late", is_late=True), OPTIONS, UrlVerdict.NO_ANSWER),
    ],
)
def test_what_an_answer_means(reply: HttpResponse | HandlerUnreachable, method: str, verdict: UrlVerdict) -> None:
    assert judge(reply, ORIGIN, method) is verdict


@pytest.mark.parametrize("origin", ["127.0.0.1", "localhost", "[::1]"])
def test_this_machine_has_more_than_one_name(origin: str) -> None:
    for allowed in ("localhost:8080", "127.0.0.1", "[::1]:8080"):
        assert judge(answer(200, allowed), origin) is UrlVerdict.YES
    assert judge(answer(200, "127.0.0.2"), origin) is UrlVerdict.NO


@pytest.mark.parametrize(
    ("origin", "host"),
    [("A.example", "a.example"), ("a.example:80", "a.example"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("", "")],
)
def test_the_host_of_an_origin(origin: str, host: str) -> None:
    assert host_of(origin) == host


def test_a_yes_holds_and_is_asked_about_again() -> None:
    assert UNKNOWN.is_due(NOW)
    assert not UNKNOWN.is_allowed(NOW)
    yes = UNKNOWN.after(UrlVerdict.YES, NOW)
    assert yes.is_allowed(NOW)
    assert not yes.is_due(NOW + VALID_S - 1)
    assert yes.is_due(NOW + VALID_S)
    assert yes.is_allowed(NOW + VALID_S)


def waits(consent: HandlerConsent, verdict: UrlVerdict, count: int) -> list[float]:
    now, found = NOW, []
    for _ in range(count):
        consent = consent.after(verdict, now)
        found.append(consent.ask_at - now)
        now = consent.ask_at
    return found


@pytest.mark.parametrize("verdict", [UrlVerdict.NO, UrlVerdict.NO_ANSWER])
@pytest.mark.parametrize("before", [UNKNOWN, UNKNOWN.after(UrlVerdict.YES, NOW)])
def test_who_does_not_say_yes_is_asked_ever_more_seldom(before: HandlerConsent, verdict: UrlVerdict) -> None:
    assert waits(before, verdict, 8) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_after_a_yes_the_waits_begin_anew() -> None:
    consent = UNKNOWN.after(UrlVerdict.NO, NOW).after(UrlVerdict.NO, NOW).after(UrlVerdict.YES, NOW)
    assert waits(consent, UrlVerdict.NO, 2) == [1, 2]


def test_a_no_holds_at_once_but_silence_takes_nothing_back() -> None:
    yes = UNKNOWN.after(UrlVerdict.YES, NOW)
    assert not yes.after(UrlVerdict.NO, NOW + 60).is_allowed(NOW + 60)
    assert not yes.after(UrlVerdict.NO, NOW + 60).after(UrlVerdict.NO_ANSWER, NOW + 61).is_allowed(NOW + 61)
    assert not UNKNOWN.after(UrlVerdict.NO_ANSWER, NOW).is_allowed(NOW)
    silent = yes.after(UrlVerdict.NO_ANSWER, NOW + 60).after(UrlVerdict.NO_ANSWER, NOW + 61)
    assert silent.is_allowed(NOW + LAPSE_S - 1)
    assert not silent.is_allowed(NOW + LAPSE_S)


@given(
    st.integers(),
    st.lists(st.tuples(st.sampled_from(["WebHook-Allowed-Origin", "webhook-allowed-origin"]) | st.text(), st.text())),
    st.binary(),
    st.sampled_from([OPTIONS, GET]),
)
def test_only_a_clear_yes_is_one(status: int, headers: list[tuple[str, str]], body: bytes, method: str) -> None:
    verdict = judge(HttpResponse(status, tuple(headers), body), ORIGIN, method)
    if verdict is UrlVerdict.YES:
        assert 200 <= status < 300
        assert {value.strip().lower() for _, value in headers} & {"*", ORIGIN}
