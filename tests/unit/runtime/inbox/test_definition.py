"""What an application is made of, and how messages get into it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from semel import App
from semel.errors import ConfigError, InputError
from semel.inbox.messages import envelope_of
from semel.inbox.outbox import parse_destination
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkState
from semel.pubsub.hub.idempotency import KEEP_S as HUB_KEYS_S
from semel.runtime.inbox.definition import First, Periodic, Verdict
from semel.stores.memory import MemoryStore


@dataclass
class Order:
    id: str


@pytest.fixture
def app() -> App:
    made = App(MemoryStore(), name="shop")
    made.endpoint("orders").on(Order)(lambda order: None)
    return made


def test_two_endpoints_of_one_name_are_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="two endpoints 'orders'"):
        app.endpoint("orders")


def test_an_identity_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="identity is 'body'"):
        App(MemoryStore(), identity="body")


def test_a_message_is_stored_once(app: App) -> None:
    assert app.send(Order("a"), to="orders", id="a") == ("a", Verdict.STORED)
    assert app.send(Order("a"), to="orders", id="a") == ("a", Verdict.DUPLICATE)
    assert app.receive("orders", [envelope_of(Order("a"), "a"), envelope_of(Order("b"), "b")]) == [
        Verdict.DUPLICATE,
        Verdict.STORED,
    ]


def test_a_hub_is_not_trusted_to_know_a_key_for_longer_than_it_does(app: App) -> None:
    hub, url = parse_destination("hub:chat/user/ada"), parse_destination("https://example.com/orders")
    assert app.memory_of(hub) <= HUB_KEYS_S, "else a relay that was halted for longer sends a message twice"
    assert app.memory_of(url) == app.keep_s
    app.receiver("hub", keep_s=60)
    assert app.memory_of(hub) == 60


def test_a_sender_gets_an_error_for_what_nobody_would_handle(app: App) -> None:
    with pytest.raises(InputError, match="no endpoint 'mails'") as refused:
        app.send(Order("a"), to="mails")
    assert "orders" in refused.value.fix
    with pytest.raises(InputError, match="knows messages of type 'other'"):
        app.send(Envelope("a", type="other"), to="orders")
    app.endpoint("calls", mode="inline")
    with pytest.raises(InputError, match="is inline and stores nothing"):
        app.send(Order("a"), to="calls")


def test_a_transport_may_bring_a_type_that_nobody_knows(app: App) -> None:
    assert app.receive("orders", [Envelope("a", type="other")]) == [Verdict.STORED]


def test_what_cannot_be_read_is_a_dead_letter_and_kept_once(app: App) -> None:
    id = app.keep_unreadable("orders", b"\xff", "no id")
    assert app.keep_unreadable("orders", b"\xff", "no id") == id
    [entry, *more] = [entry.event.kind.name for entry in app.store.history(id)]
    assert (entry, more) == ("ACCEPTED", ["DEAD_LETTERED", "DUPLICATE"])
    who = app.identity_of("orders", Envelope(id))
    row = app.store.work(who.queue, who.identity)
    assert row is not None
    assert (row.state, row.cause) == (WorkState.DEAD, "no id")


def test_the_first_in_a_transaction_of_the_user_leaves_its_result_for_the_others(app: App) -> None:
    store = app.store
    assert isinstance(store, MemoryStore)
    for answer in (First(True, b"done"), First(False, b"done")):
        connection = store.connect()
        assert app.first(connection, "orders", "a", result=b"done") == answer
        connection.commit()


def test_a_periodic_message_is_made_each_time_if_it_is_a_function() -> None:
    made = iter([Order("1"), Order("2")])
    schedule: object = None
    each = Periodic(schedule, lambda: next(made), "orders")  # type: ignore[arg-type]
    assert [each.make(), each.make()] == [Order("1"), Order("2")]
    assert Periodic(schedule, Order("same"), "orders").make() == Order("same")  # type: ignore[arg-type]
