from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.inbox.commits import commit

from semel.errors import InputError
from semel.inbox.cron import Schedule
from semel.inbox.identity import IdentityMode, identify_id
from semel.inbox.outbox import (
    DESTINATION_HEADER,
    PUBLIC_CHARS_MAX,
    Destination,
    DestinationKind,
    OutboxCalls,
    destination_of,
    outbox_hop,
    outbox_queue,
    parse_destination,
)
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind
from semel.kernel.ops import Claim, Claimed, Duplicate, Enqueue, Fresh, Op, Result, WorkState
from semel.stores.memory import MemoryStore

INCOMING = identify_id("shop", "orders", "order-7", IdentityMode.ID)
LATER = 4_000_000_000_000_000


def handler_calls() -> OutboxCalls:
    return OutboxCalls("shop", "reserve", INCOMING)


def caller() -> OutboxCalls:
    return OutboxCalls("shop")


# -- destinations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hub:chat", Destination(DestinationKind.HUB, "chat")),
        ("hub:chat/group/room 1/a", Destination(DestinationKind.HUB, "chat", "group", "room 1/a")),
        ("hub:chat/user/ann", Destination(DestinationKind.HUB, "chat", "user", "ann")),
        ("hub:chat/connection/c1", Destination(DestinationKind.HUB, "chat", "connection", "c1")),
        ("stream:hub/chat", Destination(DestinationKind.STREAM, "hub/chat")),
        ("endpoint:billing", Destination(DestinationKind.ENDPOINT, "billing")),
        ("https://a.example:8443/x?y=1", Destination(DestinationKind.URL, "https://a.example:8443/x?y=1")),
        ("nats:orders.new", Destination(DestinationKind.BROKER, "nats", to="orders.new")),
        ("amqp:orders", Destination(DestinationKind.BROKER, "amqp", to="orders")),
        ("kafka:orders", Destination(DestinationKind.BROKER, "kafka", to="orders")),
    ],
)
def test_a_destination_and_its_text_undo_each_other(text: str, expected: Destination) -> None:
    assert parse_destination(text) == expected
    assert str(expected) == text


@given(st.text("hubnatsreml:/pgocx. %@", max_size=20).map(lambda rest: f"hub:{rest}") | st.text(max_size=30))
def test_any_text_is_a_destination_that_comes_back_or_is_refused(text: str) -> None:
    with suppress(InputError):
        destination = parse_destination(text)
        assert parse_destination(str(destination)) == destination


def test_an_envelope_keeps_its_headers() -> None:
    calls = caller()
    calls.publish(Envelope("1", headers={"mine": "yes"}), "hub:chat", id="1")
    assert calls.enqueues[0].envelope.headers == {"mine": "yes", DESTINATION_HEADER: "hub:chat"}


def test_names_of_a_hub_that_differ_in_case_are_one() -> None:
    assert parse_destination("hub:Chat") == parse_destination("hub:chat")


@pytest.mark.parametrize(
    "wrong",
    ["", "chat", "hub:", "hub:1", "hub:chat/", "hub:chat/room", "hub:chat/group", "hub:chat/group/", "hub:chat/all/x",
     "stream:", "stream:Orders", "endpoint:", "endpoint:" + "x" * 200, "https://", "https:///x", "http://a:b@c/",
     "http://a/#f", "http://a b/", "http://a:x/", "http://a:0/", "http://[::/",
     "nats:", "nats:a b", "Kafka:t", "kafka:", "ka fka:t", "kafka://ann:secret@broker/t", "x" * 3000],
)  # fmt: skip
def test_what_is_no_destination_is_refused(wrong: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_destination(wrong)
    assert caught.value.fix


def test_a_password_is_not_shown_in_the_error() -> None:
    with pytest.raises(InputError) as caught:
        parse_destination("https://ann:secret@example.com/")
    assert "secret" not in str(caught.value)


def test_a_row_knows_its_destination() -> None:
    calls = caller()
    calls.publish("x", "hub:chat/group/a", id="1", type="t", headers={"mine": "yes"})
    [row] = calls.enqueues
    assert str(destination_of(row.envelope)) == "hub:chat/group/a"
    assert row.envelope.headers["mine"] == "yes"
    with pytest.raises(InputError, match="has no header"):
        destination_of(Envelope("1"))


# -- ids


def test_a_handler_that_runs_again_sends_the_same_ids() -> None:
    def run() -> list[str]:
        calls = handler_calls()
        return [calls.publish("x", "hub:chat", type="t") for _ in range(3)]

    assert run() == run()
    assert len(set(run())) == 3


def test_what_a_handler_sends_again_is_stored_once() -> None:
    store = MemoryStore()
    for expected in (Fresh, Duplicate):
        calls = handler_calls()
        calls.publish("x", "hub:chat", type="t")
        calls.schedule("x", "hub:chat", due=LATER, type="t")
        assert [type(result) for result in commit(store, calls.enqueues)] == [expected, expected]


def test_a_given_id_stays() -> None:
    calls = handler_calls()
    assert calls.publish("x", "hub:chat", id="mine", type="t") == "mine"
    assert calls.enqueues[0].envelope.id == "mine"


def test_outside_a_handler_an_id_must_be_given() -> None:
    with pytest.raises(InputError, match="no id") as caught:
        caller().publish("x", "hub:chat", type="t")
    assert caught.value.fix


def test_one_message_to_two_destinations_is_two_rows() -> None:
    store, calls = MemoryStore(), caller()
    for to in ("hub:chat", "stream:orders", "hub:chat"):
        calls.publish("x", to, id="1", type="t")
    assert [type(result) for result in commit(store, calls.enqueues)] == [Fresh, Fresh, Duplicate]


def test_the_ledger_knows_what_the_outbox_has_taken() -> None:
    calls = handler_calls()
    calls.publish("x", "hub:chat", id="1", type="t")
    event = calls.enqueues[0].on_fresh
    assert event is not None
    assert (event.kind, event.hop, event.message) == (Kind.ACCEPTED, outbox_hop("shop"), "1")
    assert event.delivery == "hub:chat"


def test_the_ledger_is_not_told_what_may_be_secret_in_a_url() -> None:
    calls = handler_calls()
    calls.publish("x", "https://example.com/orders?code=secret", id="1", type="t")
    calls.publish("x", f"https://example.com/{'a' * 1900}", id="2", type="t")
    short, long = (op.on_fresh.delivery for op in calls.enqueues if op.on_fresh is not None)
    assert short == "https://example.com/orders"
    assert len(long or "") == PUBLIC_CHARS_MAX
    commit(MemoryStore(), calls.enqueues)


# -- order


def claimed(store: MemoryStore) -> list[str]:
    [result] = commit(store, [Claim(outbox_queue("shop"), "relay", limit=10)])
    assert isinstance(result, Claimed)
    return [row.envelope.id for row in result.rows]


def test_a_key_is_sent_in_order_for_each_destination() -> None:
    store, calls = MemoryStore(), caller()
    for id, to in (("1", "hub:chat"), ("2", "hub:chat"), ("3", "https://down.example/")):
        calls.publish("x", to, id=id, key="c7", type="t")
    commit(store, calls.enqueues)
    assert claimed(store) == ["1", "3"]


def test_two_keys_are_never_taken_for_one() -> None:
    calls = caller()
    calls.publish("x", "hub:chat/group/a", id="1", key="b c", type="t")
    calls.publish("x", "hub:chat/group/a b", id="2", key="c", type="t")
    assert len({op.key for op in calls.enqueues}) == 2


def test_one_that_is_scheduled_for_later_does_not_block_its_key() -> None:
    store, calls = MemoryStore(), caller()
    calls.schedule("x", "hub:chat", due=LATER, id="later", key="c7", type="t")
    calls.publish("x", "hub:chat", id="now", key="c7", type="t")
    commit(store, calls.enqueues)
    assert claimed(store) == ["now"]


# -- schedule and cancel


def scheduled(store: MemoryStore, *, due: int, replace: bool = False) -> Result:
    calls = caller()
    calls.schedule("x", "hub:chat", due=due, id="timer", replace=replace, type="t")
    [result] = commit(store, calls.enqueues)
    return result


def test_to_schedule_again_moves_the_row_and_adds_none() -> None:
    store = MemoryStore()
    assert isinstance(scheduled(store, due=LATER), Fresh)
    for due in (LATER + 1, 1):
        assert isinstance(scheduled(store, due=due, replace=True), Duplicate)
    assert claimed(store) == ["timer"]


def test_without_replace_the_first_time_stays() -> None:
    store = MemoryStore()
    scheduled(store, due=LATER)
    scheduled(store, due=1)
    assert claimed(store) == []


def test_what_is_to_be_replaced_needs_its_id() -> None:
    with pytest.raises(InputError, match="replaced"):
        handler_calls().schedule("x", "hub:chat", due=1, replace=True, type="t")


def cancel(store: MemoryStore, id: str) -> list[Op]:
    calls = caller()
    calls.cancel(id, "hub:chat")
    commit(store, calls.cancels)
    return list(calls.cancels)


def test_a_cancelled_message_is_not_sent_and_stays_cancelled() -> None:
    store = MemoryStore()
    scheduled(store, due=LATER)
    cancel(store, "timer")
    assert isinstance(scheduled(store, due=1), Duplicate)
    assert claimed(store) == []


def test_what_is_cancelled_before_the_commit_is_not_stored() -> None:
    calls = handler_calls()
    id = calls.publish("x", "hub:chat", type="t")
    kept = calls.publish("x", "hub:chat", type="t")
    calls.cancel(id, "hub:chat")
    assert [op.envelope.id for op in calls.enqueues] == [kept]


def test_a_cancel_is_apart_from_what_is_sent() -> None:
    """It may come too late. Then it is refused, and what the handler sends must not be."""
    calls = handler_calls()
    calls.publish("x", "hub:chat", type="t")
    calls.cancel("unknown", "hub:chat")
    assert all(isinstance(op, Enqueue) for op in calls.enqueues)
    assert [op.to for op in calls.cancels] == [WorkState.DONE]


def test_a_periodic_message_is_one_however_many_processes_send_it() -> None:
    store, daily = MemoryStore(), Schedule("report", "@daily")
    noon = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1_000_000)
    verdicts = []
    for after in (noon, noon + 5, noon + 3_600_000_000):
        calls = caller()
        assert calls.schedule_next(daily, {"day": 1}, "endpoint:reports", after=after, type="report") == (
            "report@2026-01-02T00:00:00Z"
        )
        verdicts += [type(result) for result in commit(store, calls.enqueues)]
    assert verdicts == [Fresh, Duplicate, Duplicate]
