from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.parts import STREAM, live

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.position import Position
from semel.kernel.store import Record
from semel.kernel.text import ID_CHARS_MAX
from semel.pubsub.hub.records import (
    GROUPS,
    NO_TERMS,
    RELIABLE,
    DeliveryTerms,
    RecordKind,
    digest_of,
    id_identity,
    kind_of,
    message,
    of_record,
    opened,
    opened_on,
    order,
    ordered,
    terms_of,
)
from semel.pubsub.protocol.messages import Data, DataType, StreamPart
from semel.record_types import type_names

TEXT = Data(DataType.TEXT, b"x")


def test_terms_survive_the_stream() -> None:
    terms = DeliveryTerms(True, ("a", "b"), "userId eq 'x'", 7, {"key": "value"}, StreamPart("s", 3))
    made = message(
        STREAM, "m", "g/g", TEXT, at=1, sender="alice", user=None, terms=terms, on_fresh=Event(Kind.ACCEPTED, "h")
    )
    assert terms_of(made.envelope) == terms
    assert terms_of(Envelope("m")) is NO_TERMS


def test_two_messages_under_one_id_are_the_same_if_all_of_it_is() -> None:
    same = digest_of("g/g", TEXT, (False, 0))
    assert digest_of("g/g", TEXT, (False, 0)) == same
    others = [
        digest_of("g/h", TEXT, (False, 0)),
        digest_of("g/g", Data(DataType.JSON, b"x"), (False, 0)),
        digest_of("g/g", TEXT, (True, 0)),
        digest_of("g/g", Data(DataType.TEXT, b"y"), (False, 0)),
    ]
    assert len({same, *others}) == 5


def test_an_id_of_any_length_is_an_identity() -> None:
    assert id_identity("order-7") == "id/order-7"
    assert len(id_identity("x" * 1000)) <= ID_CHARS_MAX
    assert id_identity("x" * 1000) != id_identity("x" * 1001)


def test_an_open_names_the_node_and_the_groups() -> None:
    record = opened(STREAM, live(groups=["b", "a"]), "two", 0, "o")
    assert opened_on(record.envelope) == ("two", ("a", "b"))
    assert RELIABLE in record.envelope.headers


def test_a_session_with_too_many_groups_is_not_audited_and_other_nodes_keep_what_they_know() -> None:
    record = opened(STREAM, live(groups=[f"{n:0500}" for n in range(1000)]), "two", 0, "o")
    assert opened_on(record.envelope) == ("two", None)
    assert GROUPS not in record.envelope.headers


def test_an_order_names_its_nodes() -> None:
    assert ordered(order(STREAM, "one", ["two", "three"], b"", 0, "o").envelope) == ("two", "three")


@pytest.mark.parametrize(
    ("content", "body", "kind"),
    [
        ("application/json", b'{"a": 1}', DataType.JSON),
        ("application/json; charset=utf-8", b"1", DataType.JSON),
        ("application/json", b"{", DataType.BINARY),
        ("text/plain", b"\xff", DataType.BINARY),
        ("image/png", b"x", DataType.BINARY),
        (None, b"x", DataType.BINARY),
    ],
)
def test_data_that_is_not_what_it_says_becomes_binary(content: str | None, body: bytes, kind: DataType) -> None:
    envelope = Envelope("m", data=body, datacontenttype=content)
    record = Record(Position(STREAM, 1, 1), envelope, 0, 0, "g/g", None, None)
    assert kind_of(of_record(record).envelope) is kind


# -- kinds of records


def test_numbers_that_are_stored_never_change() -> None:
    assert {kind.name: kind.value for kind in RecordKind} == {
        "MESSAGE": 0,
        "JOIN": 1,
        "LEAVE": 2,
        "OPEN": 3,
        "CLOSE": 4,
        "STATE": 5,
        "ORDER": 6,
        "REPLY": 7,
    }


def test_the_exported_index_calls_them_by_name() -> None:
    names = ["message", "join", "leave", "open", "close", "state", "order", "reply"]
    assert dict(enumerate(names)) == type_names()
