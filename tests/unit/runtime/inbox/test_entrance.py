"""What becomes of every delivery, whichever transport brings it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from semel import App, Envelope
from semel.errors import StoreUnavailable
from semel.inbox.settle import DeliveryEnd
from semel.kernel.ops import WorkState
from semel.runtime.inbox.entrance import Arrival, Entrance, Unreadable
from semel.stores.open import open_store

ACK, GIVE_BACK = DeliveryEnd.ACK, DeliveryEnd.GIVE_BACK


@pytest.fixture
def app() -> Iterator[App]:
    app = App(open_store("memory:"), name="shop")
    for name, mode in (("orders", "durable"), ("calls", "inline"), ("hints", "buffered")):
        app.endpoint(name, mode=mode).on("placed")(_handle)
    yield app
    app.close()


def _handle(order: dict) -> None:  # type: ignore[type-arg]
    if order.get("fails"):
        raise ValueError("no")


def message(id: str, data: bytes = b"{}", session: str | None = None) -> Envelope:
    return Envelope(id, type="placed", data=data, session=session)


async def take(app: App, endpoint: str, *arrivals: Arrival) -> Sequence[DeliveryEnd]:
    return await Entrance(app, endpoint).take(arrivals)


async def test_what_is_stored_or_known_is_acknowledged(app: App) -> None:
    assert await take(app, "orders", message("a"), message("b"), message("a")) == [ACK, ACK, ACK]
    assert await take(app, "orders", message("b")) == [ACK]
    assert [row.identity for row in app.store.work_rows("inbox/orders", (WorkState.READY,))] == ["a", "b"]


@pytest.mark.parametrize("endpoint", ["orders", "calls", "hints"])
async def test_what_is_no_message_is_a_dead_letter(app: App, endpoint: str) -> None:
    assert await take(app, endpoint, Unreadable(b"no text", "it has no id"), message("a")) == [ACK, ACK]
    [letter] = app.dead_letters(endpoint)
    assert (letter.body, letter.cause) == ("no text", "it has no id")


async def test_one_that_cannot_be_stored_costs_the_others_nothing(app: App) -> None:
    bad = Envelope("c", type="placed", data=b"{}", headers={"semel-deduplication-id": ""})
    assert await take(app, "orders", message("a"), bad, Unreadable(b"x", "why"), message("b")) == [ACK] * 4
    assert [row.identity for row in app.store.work_rows("inbox/orders", (WorkState.READY,))] == ["a", "b"]
    assert sorted(letter.body for letter in app.dead_letters("orders")) == ["x", "{}"]


async def test_a_store_that_is_away_gives_everything_back(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away", fix="wait")

    monkeypatch.setattr(app.store, "commit", away)
    assert await take(app, "orders", message("a"), Unreadable(b"x", "why")) == [GIVE_BACK, GIVE_BACK]
    assert await take(app, "orders", Unreadable(b"x", "why")) == [GIVE_BACK]


async def test_an_inline_endpoint_has_handled_what_is_acknowledged(app: App) -> None:
    assert await take(app, "calls", message("a"), message("b", b'{"fails": true}')) == [ACK, ACK]
    assert [letter.message for letter in app.dead_letters("calls")] == ["b"]
