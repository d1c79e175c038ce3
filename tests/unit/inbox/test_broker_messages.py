"""What a broker delivers, as an envelope, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError, InputError, MessageRefused
from semel.inbox.broker_messages import ForeignMessage, event_headers, excerpt, quoted, read_message, unquoted
from semel.inbox.identity import identity_text
from semel.inbox.outbox import DESTINATION_HEADER
from semel.inbox.reservation import RESERVED_HEADER
from semel.inbox.sources import check_broker_url, parse_source
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope

NATS = parse_source("nats:ORDERS")


def message(data: bytes = b"{}", **fields: Any) -> ForeignMessage:
    return ForeignMessage(data, **{"subject": "orders.new", **fields})


def test_the_brokers_own_field_is_the_id_and_the_subject_the_type() -> None:
    found = read_message(message(id="a"), NATS)
    assert (found.id, found.type, found.source, found.subject) == ("a", "orders.new", "semel", "orders.new")


def test_a_cloudevent_brings_its_id_with_its_source() -> None:
    headers = {"ce-id": "7", "CE-Source": "/shop/a", "ce-type": "order", "ce-partitionkey": "ada", "ce-sequence": "3"}
    found = read_message(message(id="other", headers=headers), NATS)
    assert (found.id, found.source, found.type, found.session, found.index) == ("7", "/shop/a", "order", "ada", 3)
    another = read_message(message(headers={**headers, "CE-Source": "/shop/b"}), NATS)
    assert identity_text(found) != identity_text(another), "an id is one per source"


def test_an_id_that_the_endpoint_names_is_the_same_from_every_source() -> None:
    source = parse_source("nats:ORDERS?id=header:order-id")
    texts = {
        identity_text(read_message(message(headers={"Order-Id": "7", "ce-id": str(n), "ce-source": f"/{n}"}), source))
        for n in (1, 2)
    }
    assert texts == {"7"}


@pytest.mark.parametrize(
    ("rule", "data", "id"),
    [
        ("json:order.id", {"order": {"id": "a"}}, "a"),
        ("json:order.id", {"order": {"id": 7}}, "7"),
        ("json:order.id", {"order": {"id": True}}, None),
        ("json:order.id", {"order": "a"}, None),
        ("json:order.id", {}, None),
        ("header:Order-Id", {}, None),
    ],
)
def test_the_id_stands_where_the_endpoint_says(rule: str, data: dict, id: str | None) -> None:
    foreign = message(json.dumps(data).encode(), id="the broker's own")
    if id is not None:
        assert read_message(foreign, parse_source(f"amqp:orders?id={rule}")).id == id
        return
    with pytest.raises(MessageRefused, match="no id") as refused:
        read_message(foreign, parse_source(f"amqp:orders?id={rule}"))
    assert rule in refused.value.fix


def test_what_has_no_id_is_refused_and_never_gets_one() -> None:
    with pytest.raises(MessageRefused, match="no id") as refused:
        read_message(message(headers={"Nats-Sequence": "12"}), NATS)
    assert "Nats-Msg-Id" in refused.value.fix


def test_the_type_may_be_a_word_or_stand_elsewhere() -> None:
    foreign = message(b'{"kind": "json"}', id="a", type="property", headers={"Kind": "header", "ce-type": "event"})
    for rule, type in {
        "auto": "event", "subject": "orders.new", "header:kind": "header", "json:kind": "json", "text:Order": "Order",
    }.items():  # fmt: skip
        assert read_message(foreign, parse_source(f"amqp:orders?type={rule}")).type == type


def test_a_structured_event_is_read_and_names_no_body_of_ours() -> None:
    event = {"specversion": "1.0", "id": "7", "source": "/a", "type": "order", "data": {"x": 1}, "traceparent": "t"}
    foreign = message(json.dumps(event).encode(), content_type="application/cloudevents+json; charset=utf-8")
    found = read_message(foreign, NATS)
    assert (found.id, found.source, found.data, found.headers) == ("7", "/a", b'{"x":1}', {"traceparent": "t"})
    event["blob"] = {"name": "somebody's", "size": 1}
    del event["data"]
    with pytest.raises(MessageRefused, match="names a body in our store"):
        read_message(message(json.dumps(event).encode(), content_type="application/cloudevents+json"), NATS)


def test_the_trace_is_carried_over_and_our_own_headers_are_not_a_strangers_to_set() -> None:
    headers = {
        "Traceparent": "00-1-2-01", "Semel-Deduplication-Id": "intent", DESTINATION_HEADER: "hub:x",
        RESERVED_HEADER: "1", "Nats-Msg-Id": "a", "X-Mine": "yes",
    }  # fmt: skip
    found = read_message(message(id="a", headers=headers), NATS)
    assert found.headers == {"traceparent": "00-1-2-01", "semel-deduplication-id": "intent", "X-Mine": "yes"}
    assert identity_text(found) == "intent"


def test_a_function_of_the_user_finds_the_id_and_its_failure_is_a_dead_letter() -> None:
    from dataclasses import replace

    source = replace(NATS, id=lambda foreign: foreign.subject.rpartition(".")[2])
    assert read_message(message(), source).id == "new"
    for broken, why in ((lambda foreign: 7, "gave 7"), (lambda foreign: foreign.nothing, "AttributeError")):
        with pytest.raises(MessageRefused, match=why):
            read_message(message(), replace(NATS, id=broken))


def test_what_is_too_large_leaves_an_excerpt_that_is_its_own() -> None:
    data = b"x" * (DATA_INLINE_BYTES_MAX + 1)
    with pytest.raises(InputError, match="at most"):
        read_message(message(data, id="a"), NATS)
    kept, other = excerpt(data), excerpt(data + b"y")
    assert len(kept) == DATA_INLINE_BYTES_MAX
    assert kept != other
    assert excerpt(b"small") == b"small"


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=40)


@given(TEXT, TEXT, TEXT, st.none() | TEXT)
def test_an_envelope_comes_back_as_it_went(id: str, source: str, type: str, session: str | None) -> None:
    envelope = Envelope(id, source=source, type=type, session=session, data=b"body", time=1_000_000, index=4)
    headers = event_headers(envelope)
    assert all(value.isascii() and value.isprintable() and value == value.strip() for value in headers.values())
    found = read_message(ForeignMessage(b"body", "x", headers=headers), NATS)
    assert (found.id, found.source, found.type, found.session) == (id, source, type, session)
    assert (found.time, found.index, found.data) == (1_000_000, 4, b"body")


def test_headers_that_mean_something_to_a_broker_do_not_go_out() -> None:
    headers = {"Nats-Rollup": "all", "ce-id": "b", DESTINATION_HEADER: "nats:x", "traceparent": "t", "odd name": "a\nb"}
    found = event_headers(Envelope("a", headers=headers))
    assert found["ce-id"] == "a"
    assert found["traceparent"] == "t"
    assert found["odd%20name"] == "a%0Ab"
    assert not {"Nats-Rollup", DESTINATION_HEADER} & found.keys()


@given(TEXT)
def test_quoting_is_undone(text: str) -> None:
    assert unquoted(quoted(text)) == text


def test_what_only_looks_quoted_stays() -> None:
    assert unquoted("100%") == "100%"
    assert unquoted("%ff") == "%ff"


# -- sources


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("kafka:orders", "nats:<stream>"),
        ("nats:", "nats:<name>"),
        ("nats://host/ORDERS", "in App"),
        ("nats:A.B", "letters"),
        ("nats:A?consumer=a b", "letters"),
        ("nats:A?cosumer=a", "consumer"),
        ("nats:A?id=headr:x", "header:<name>"),
        ("nats:A?type=sequence", "header:<name>"),
        ("nats:A?strict=2", "strict=yes"),
        ("amqp:a?consumer=b", "id, type"),
    ],
)
def test_a_source_that_cannot_be_is_refused_with_what_to_write(text: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_source(text)
    assert fix in refused.value.fix


def test_a_source_has_its_options() -> None:
    found = parse_source("nats:ORDERS?consumer=shop&subject=eu.>&id=header:Order-Id&strict=yes")
    assert (found.name, found.consumer, found.subject, found.id, found.strict) == (
        "ORDERS", "shop", "eu.>", "header:Order-Id", True,
    )  # fmt: skip
    assert parse_source("amqp:orders%20of%20today").name == "orders of today"


@pytest.mark.parametrize("url", ["http://host", "nats://:4222", "nats://host:99999", "host:4222", "nats://a,amqp://b"])
def test_a_url_that_cannot_be_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_broker_url("nats", url)
    assert url not in str(refused.value)
