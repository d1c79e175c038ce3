from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.rest.rest_values import HOST, HUB, KEYS, REST, Client, FakeHub, answered, asked, error

from semel.auth.keys import AccessKeys
from semel.http import HttpError
from semel.pubsub.hub.calls import ListMembers
from semel.pubsub.rest.api import Rest, RestSettings
from semel.pubsub.rest.routes import page_token, read_token

GROUP = f"{HUB}/groups/room%2F1/connections"


def _hub(count: int) -> FakeHub:
    names = [f"c{number:03}" for number in range(count)]
    return FakeHub(*(Client(name, None if number % 2 else "ann", {"room/1"}) for number, name in enumerate(names)))


def _page(hub: FakeHub, query: str, path: str = GROUP, rest: Rest = REST) -> dict[str, Any]:
    begun = asked("GET", path, query, version=None, rest=rest)
    page: dict[str, Any] = msgspec.json.decode(begun.respond(hub.answer(begun.call)).body)
    return page


def _pages(hub: FakeHub, query: str) -> list[list[str]]:
    pages, more = [], f"api-version=2024-01-01&{query}"
    while more:
        page = _page(hub, more)
        pages.append([member["connectionId"] for member in page["value"]])
        link = urlsplit(page.get("nextLink", ""))
        more = link.query
        if more:
            assert link[:3] == ("http", HOST, GROUP)
            assert parse_qs(more)["api-version"] == ["2024-01-01"]
        assert len(pages) < 300
    return pages


@pytest.mark.parametrize(
    ("query", "sizes"),
    [
        ("", [200, 1]),
        ("maxpagesize=100", [100, 100, 1]),
        ("top=1", [1]),
        ("top=200", [200]),
        ("top=201", [200, 1]),
        ("top=2147483647", [200, 1]),
        ("maxpagesize=2&top=5", [2, 2, 1]),
        ("maxpagesize=2&top=4", [2, 2]),
        ("maxpagesize=67", [67, 67, 67]),
    ],
)
def test_pages_are_full_and_end_where_they_should(query: str, sizes: list[int]) -> None:
    pages = _pages(_hub(201), query)
    assert [len(page) for page in pages] == sizes
    together = [name for page in pages for name in page]
    assert together == [f"c{number:03}" for number in range(sum(sizes))]


def test_a_page_is_as_the_service_writes_it() -> None:
    assert _page(_hub(2), "api-version=2024-12-01") == {
        "value": [{"connectionId": "c000", "userId": "ann"}, {"connectionId": "c001"}]
    }


def test_an_empty_group_is_an_empty_list() -> None:
    assert _page(FakeHub(), "api-version=2024-12-01") == {"value": []}


def test_who_goes_and_comes_between_pages_shifts_nobody() -> None:
    hub = _hub(6)
    first = _page(hub, "api-version=2024-12-01&maxpagesize=2")
    del hub.clients["c000"], hub.clients["c001"]
    hub.clients["b"] = Client("b", None, {"room/1"})
    second = _page(hub, urlsplit(first["nextLink"]).query)
    assert [member["connectionId"] for member in second["value"]] == ["c002", "c003"]


def test_the_link_is_for_the_address_that_the_caller_knows() -> None:
    rest = Rest(RestSettings(KEYS, endpoints=("https://events.example.com/hubs/",)))
    page = _page(_hub(2), "api-version=2024-12-01&maxpagesize=1", rest=rest)
    assert page["nextLink"].startswith(f"https://events.example.com/hubs{GROUP}?")


@pytest.mark.parametrize(
    "query",
    [
        "maxpagesize=0", "maxpagesize=-1", "maxpagesize=201", "maxpagesize=1.5", "maxpagesize=", "maxpagesize=x",
        "maxpagesize=1&maxpagesize=2", "top=0", "top=-1", "top=2147483648", "top=", "top=1&top=2",
        "continuationToken=", "continuationToken=c000", "continuationToken=e30", "continuationToken=%25%2F%2B",
        "continuationToken=a&continuationToken=b", f"continuationToken={'z' * 2049}",
    ],
)  # fmt: skip
def test_another_page_is_refused(query: str) -> None:
    response = answered("GET", GROUP, query)
    assert response.status == 400
    assert error(response)["target"] == query.partition("=")[0]


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=255))
def test_a_token_is_for_one_list_under_one_key(after: str) -> None:
    token = page_token(KEYS, "chat", "g", after)
    assert read_token(token, KEYS, "chat", "g") == after
    other = AccessKeys("y" * 40)
    for keys, hub, group in ((KEYS, "other", "g"), (KEYS, "chat", "G"), (other, "chat", "g")):
        with pytest.raises(HttpError):
            read_token(token, keys, hub, group)
    assert read_token(token, AccessKeys("y" * 40, KEYS.primary), "chat", "g") == after


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9_-]{0,60}", fullmatch=True))
def test_no_token_is_made_up(token: str) -> None:
    with pytest.raises(HttpError):
        read_token(token, KEYS, "chat", "g")


def test_a_token_goes_on_after_its_connection() -> None:
    token = page_token(KEYS, "chat", "room/1", "c1")
    assert asked("GET", GROUP, f"continuationToken={token}&top=7").call == ListMembers("room/1", "c1", 7)
