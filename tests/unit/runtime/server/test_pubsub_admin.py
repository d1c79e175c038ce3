"""What operators may see of hubs: pages of messages, and hubs that nobody makes by looking."""

from __future__ import annotations

from unittest.mock import AsyncMock, patch

import pytest

from semel.auth.authority import Authority
from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import service_token
from semel.errors import StoreUnavailable
from semel.http import HttpRequest, HttpResponse
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Trim, Unit
from semel.kernel.position import Position
from semel.pubsub.hub.calls import Answer
from semel.pubsub.hub.records import RecordKind
from semel.runtime.host.outages import Outages
from semel.runtime.server import pubsub_admin
from semel.runtime.server.pubsub_admin import PubSubAdmin, read_page
from semel.stores.memory import MemoryStore

STREAM, ENDPOINT, NOW = "hub/chat", "http://127.0.0.1", 1_800_000_000.0
START = Position(STREAM, 1, 0)


def stored(*records: tuple[str, str, int]) -> MemoryStore:
    """Each with its id, its target and its kind."""
    store = MemoryStore()
    for id, target, kind in records:
        store.commit([Unit((Append(STREAM, Envelope(id, "app", data=b"x" * 10), kind=kind, target=target),))])
    return store


def messages(*ids: str) -> MemoryStore:
    return stored(*((id, "g:a", RecordKind.MESSAGE) for id in ids))


def ids(page: pubsub_admin.MessagePage) -> list[str]:
    return [record.envelope.id for record in page.records]


def test_a_page_has_messages_of_one_target_and_goes_on_behind_what_it_has_seen() -> None:
    store = stored(("1", "g:a", 0), ("2", "g:a", RecordKind.JOIN), ("3", "g:b", 0), ("4", "g:a", 0), ("5", "g:b", 0))
    assert ids(read_page(store, START, None, 10)) == ["1", "3", "4", "5"]
    page = read_page(store, START, "g:a", 10)
    assert (ids(page), page.after.offset) == (["1", "4"], 5)


def test_a_page_ends_at_its_limit_and_the_next_begins_there() -> None:
    store = messages("1", "2", "3")
    page = read_page(store, START, None, 2)
    assert (ids(page), page.after.offset) == (["1", "2"], 2)
    assert ids(read_page(store, page.after, None, 2)) == ["3"]


def test_a_page_has_at_least_one_message_however_large() -> None:
    with patch.object(pubsub_admin, "PAGE_BYTES_MAX", 5):
        page = read_page(messages("1", "2"), START, None, 10)
    assert (ids(page), page.after.offset) == (["1"], 1)


def test_a_page_says_how_many_are_gone() -> None:
    store = messages("1", "2", "3")
    store.commit([Unit((Trim(STREAM, 3),))])
    page = read_page(store, START, None, 10)
    assert (ids(page), page.missed, page.after.offset) == ([], 2, 2)


def admin(store: MemoryStore, *running: str) -> tuple[PubSubAdmin, AsyncMock, Outages]:
    ask, outages = AsyncMock(return_value=Answer()), Outages()
    authority = Authority(AccessKeys(DEV_KEY), (ENDPOINT,))
    return PubSubAdmin(store, outages, authority, ask, lambda: running, clock=lambda: NOW), ask, outages


async def get(made: PubSubAdmin, path: str) -> HttpResponse:
    token = service_token(AccessKeys(DEV_KEY), f"{ENDPOINT}{path}", now=NOW)
    return await made.handle(HttpRequest("GET", path, headers={"authorization": f"Bearer {token}"}, host="127.0.0.1"))


async def test_looking_at_a_hub_that_nobody_has_used_makes_none() -> None:
    made, ask, _ = admin(MemoryStore())
    assert (await get(made, "/v1/pubsub/hubs/typo/connections")).status == 200
    ask.assert_not_awaited()
    made, ask, _ = admin(MemoryStore(), "chat")
    await get(made, "/v1/pubsub/hubs/chat/connections")
    ask.assert_awaited_once()


async def test_a_store_in_trouble_is_not_asked() -> None:
    made, ask, outages = admin(messages("1"))
    outages.record(StoreUnavailable("it is gone", fix="look"))
    with patch.object(made._store, "read", side_effect=AssertionError("asked")):
        response = await get(made, "/v1/pubsub/hubs/chat/messages")
    assert response.status == 503
    ask.assert_not_awaited()


async def test_nobody_is_kept_waiting_by_a_server_that_stops() -> None:
    made, _, _ = admin(MemoryStore())
    made.stop()
    assert (await get(made, "/v1/pubsub/hubs/chat/messages")).status == 200


@pytest.mark.parametrize("path", ["/v1/pubsub/hubs", "/v1/pubsub/hubs/chat/messages"])
async def test_nothing_is_shown_without_a_token(path: str) -> None:
    made, _, _ = admin(MemoryStore())
    assert (await made.handle(HttpRequest("GET", path, host="127.0.0.1"))).status == 401
