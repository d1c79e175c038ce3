"""From the method and the path of a request to what answers it."""

from __future__ import annotations

import pytest

from semel.http import HttpError, Routes

ROUTES = Routes(
    [
        ("GET", "/v1/queues", "list"),
        ("GET", "/v1/queues/{queue}", "show"),
        ("PUT", "/v1/queues/{queue}", "make"),
        ("POST", "/v1/queues/{queue}/sessions/{session}/:accept", "accept"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "what", "names"),
    [
        ("GET", "/v1/queues", "list", {}),
        ("GET", "/v1/queues/a%2Fb", "show", {"queue": "a/b"}),
        ("PUT", "/v1/queues/sessions", "make", {"queue": "sessions"}),
        ("POST", "/v1/queues/a/sessions/%20/:accept", "accept", {"queue": "a", "session": " "}),
    ],
)
def test_what_is_found_and_by_which_names(method: str, path: str, what: str, names: dict[str, str]) -> None:
    assert ROUTES.find(method, path) == (what, names)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/V1/queues", 404),
        ("GET", "/v1/queues/", 404),
        ("GET", "/v1/queues/a/", 404),
        ("GET", "/v1/queues/a/sessions", 404),
        ("GET", "/v1/queues/a/b", 404),
        ("GET", "/v1/queues/..", 400),
        ("GET", "/v1/queues/%2e%2e", 400),
        ("GET", "/v1/queues/%zz", 400),
        ("GET", "*", 400),
        ("DELETE", "/v1/queues/a", 405),
        ("get", "/v1/queues/a", 405),
    ],
)
def test_what_is_not_there(method: str, path: str, status: int) -> None:
    with pytest.raises(HttpError) as caught:
        ROUTES.find(method, path)
    assert caught.value.status == status
    assert caught.value.headers == ((("allow", "GET, PUT"),) if status == 405 else ())


@pytest.mark.parametrize("pattern", ["/v1/queues/{queue}", "/v1/queues/mine", "/v1/{other}"])
def test_a_word_and_a_name_at_one_place_or_a_route_twice_is_a_mistake(pattern: str) -> None:
    with pytest.raises(AssertionError):
        Routes([("GET", "/v1/queues/{queue}", 1), ("GET", pattern, 2)])
