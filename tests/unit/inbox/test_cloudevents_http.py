"""CloudEvents by HTTP: three ways to write one event, and nothing else is taken for one."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.cloudevents import BATCH, STRUCTURED, attribute_header, attribute_of
from semel.http import HttpError, unavailable
from semel.inbox.cloudevents_http import (
    BODY_BYTES_MAX,
    EventLimits,
    EventRequest,
    accepted,
    consent,
    error_response,
    read_events,
)
from semel.inbox.identity import identity_text
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope, to_json

BINARY = {"ce-specversion": "1.0", "ce-id": "e-1", "ce-source": "/shop", "ce-type": "order.placed"}
EVENT = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "order.placed"}
HUB_EVENT = {
    "ce-specversion": "1.0", "ce-awpsversion": "1.0", "ce-id": "ack-1", "ce-type": "azure.webpubsub.user.order",
    "ce-source": "/hubs/chat/client/c1", "ce-hub": "chat", "ce-connectionid": "c1", "ce-eventname": "order",
    "content-type": "application/json",
}  # fmt: skip


def one(headers: dict[str, str], body: bytes = b"", **how: Any) -> Envelope:
    [envelope] = read_events(headers, body, **how).envelopes
    return envelope


def structured(event: object, **how: Any) -> Envelope:
    return one({"content-type": STRUCTURED}, json.dumps(event).encode(), **how)


def refusal(headers: dict[str, str], body: bytes = b"", **how: Any) -> HttpError:
    with pytest.raises(HttpError) as refused:
        read_events(headers, body, **how)
    assert refused.value.message
    assert refused.value.fix
    return refused.value


# -- three ways to write one event


def test_one_event_is_the_same_message_however_it_is_written() -> None:
    more = {"subject": "order 7", "time": "2026-01-31T12:00:00Z", "partitionkey": "ann", "traceparent": "00-a-b-01"}
    binary = one(
        {**BINARY, **{f"ce-{name}": value for name, value in more.items()}, "content-type": "application/json"},
        b'{"total":1.50}',
    )
    text = json.dumps({**EVENT, **more, "datacontenttype": "application/json"})[:-1] + ',"data":{"total":1.50}}'
    alone = one({"content-type": f"{STRUCTURED}; charset=utf-8"}, text.encode())
    [batched] = read_events({"content-type": BATCH}, f"[{text}]".encode()).envelopes
    assert binary == alone == batched
    assert binary == Envelope(
        "e-1", "/shop", "order.placed", b'{"total":1.50}', "ann", time=1_769_860_800_000_000, subject="order 7",
        datacontenttype="application/json", headers={"traceparent": "00-a-b-01"},
    )  # fmt: skip


texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=40)
names = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True).filter(
    lambda name: name not in {
        "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "data", "partitionkey", "headers",
        "blob", "sequence", "semelid", "hub",
    }
)  # fmt: skip
envelopes = st.builds(
    Envelope,
    texts,
    texts,
    texts.filter(lambda text: not text.startswith("azure.webpubsub.")),
    st.binary(max_size=200),
    session=st.none() | texts,
    index=st.none() | st.integers(0, 2**53 - 1),
    time=st.none() | st.integers(0, 4 * 10**15),
    subject=st.none() | texts,
    datacontenttype=st.sampled_from(["application/octet-stream", "application/json", "text/plain"]),
    headers=st.dictionaries(names, texts, max_size=4),
)


def as_binary(envelope: Envelope) -> tuple[dict[str, str], bytes]:
    event = msgspec.json.decode(to_json(envelope))
    said = {**event.pop("headers", {}), **event}
    for name in ("data", "data_base64", "datacontenttype"):
        said.pop(name, None)
    headers = {f"ce-{name}": attribute_header(str(value)) for name, value in said.items()}
    return {**headers, "content-type": envelope.datacontenttype or ""}, envelope.data


@given(envelopes)
def test_what_semel_sends_is_what_comes_in(envelope: Envelope) -> None:
    assert one({"content-type": STRUCTURED}, to_json(envelope)) == envelope
    assert one(*as_binary(envelope)) == envelope


@given(st.lists(envelopes, max_size=5))
def test_a_batch_is_all_its_events_in_order(found: list[Envelope]) -> None:
    body = b"[" + b",".join(to_json(each) for each in found) + b"]"
    request = read_events({"content-type": BATCH}, body)
    assert request.envelopes == tuple(found)
    assert request.is_batch


@given(st.text(st.characters(codec="utf-8")))
def test_two_values_are_never_written_alike(value: str) -> None:
    header = attribute_header(value)
    assert header.isascii()
    assert attribute_of("ce-x", header) == value


@given(st.dictionaries(st.text(), st.text()), st.binary(max_size=300), st.sampled_from([STRUCTURED, BATCH, "x/y"]))
def test_whatever_comes_is_read_or_refused(headers: dict[str, str], body: bytes, content: str) -> None:
    status = 200
    try:
        read_events({**headers, "content-type": content}, body)
    except HttpError as error:
        status = error.status
    assert status == 200 or 400 <= status < 500


# -- data


@pytest.mark.parametrize(
    ("event", "data", "content"),
    [
        ({"data": {"n": 1}}, b'{"n": 1}', "application/json"),
        ({"data": "text"}, b'"text"', "application/json"),
        ({"data": "text", "datacontenttype": "text/plain"}, b"text", "text/plain"),
        ({"data": "<a/>", "datacontenttype": "application/xml"}, b"<a/>", "application/xml"),
        (
            {"data": "x", "datacontenttype": "application/json; charset=utf-8"},
            b'"x"',
            "application/json; charset=utf-8",
        ),
        ({"data": 12345678901234567890}, b"12345678901234567890", "application/json"),
        ({"data_base64": base64.b64encode(b"\x00\xff").decode()}, b"\x00\xff", None),
        ({"data": None}, b"null", "application/json"),
        ({}, b"", None),
        ({"subject": None}, b"", None),
    ],
)
def test_the_data_of_json_is_what_its_type_says(event: dict[str, Any], data: bytes, content: str | None) -> None:
    found = structured({**EVENT, **event})
    assert (found.data, found.datacontenttype, found.subject) == (data, content, None)


def test_a_number_is_kept_as_it_was_written() -> None:
    body = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"price":0.10000000000000000555}}'
    assert one({"content-type": STRUCTURED}, body).data == b'{"price":0.10000000000000000555}'


def test_values_that_are_no_text_are_headers_as_text() -> None:
    assert structured({**EVENT, "retries": 3, "test": True}).headers == {"retries": "3", "test": "true"}


@pytest.mark.parametrize("sequence", ["A7", "99999999999999999999", "-1"])
def test_a_sequence_that_is_no_number_of_ours_stays_a_header(sequence: str) -> None:
    found = structured({**EVENT, "sequence": sequence})
    assert (found.index, found.headers) == (None, {"sequence": sequence})


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Euro%20%E2%82%AC", "Euro €"),
        ('"quoted \\"text\\""', 'quoted "text"'),
        ("50%", "50%"),
        ("Ã¤", "ä"),
        ("  a b ", "a b"),
    ],
)
def test_headers_are_read_as_the_specification_says(header: str, value: str) -> None:
    assert one({**BINARY, "ce-subject": header}).subject == value


# -- what is refused


@pytest.mark.parametrize(
    ("headers", "body", "status", "word"),
    [
        ({}, b"{}", 400, "no CloudEvent"),
        ({"content-type": "application/json"}, b"{}", 400, "no CloudEvent"),
        ({name: value for name, value in BINARY.items() if name != "ce-id"}, b"", 400, "'id'"),
        ({**BINARY, "ce-id": ""}, b"", 400, "'id'"),
        ({**BINARY, "ce-id": "x" * 256}, b"", 400, "256"),
        ({**BINARY, "ce-id": "%00"}, b"", 400, "NUL"),
        ({**BINARY, "ce-specversion": "0.3"}, b"", 400, "specversion"),
        ({**BINARY, "ce-time": "yesterday"}, b"", 400, "time"),
        ({**BINARY, "ce-time": "2026-01-31T12:00:00"}, b"", 400, "offset"),
        ({**BINARY, "ce-source": "%FF"}, b"", 400, "UTF-8"),
        ({**BINARY, "ce-my-name": "x"}, b"", 400, "no attribute"),
        ({**BINARY, "ce-partitionkey": "x" * 256}, b"", 400, "session"),
        ({**BINARY, "content-encoding": "gzip"}, b"", 415, "compressed"),
        ({**BINARY, **{f"ce-x{number}": "v" for number in range(70)}}, b"", 400, "headers"),
        ({"content-type": "application/cloudevents+avro"}, b"", 415, "avro"),
        ({"content-type": "application/cloudevents+xml"}, b"", 415, "xml"),
        ({"content-type": f"{STRUCTURED}; charset=klingon"}, b"", 415, "charset"),
        ({"content-type": STRUCTURED, "content-encoding": "br"}, b"", 415, "compressed"),
        ({"content-type": STRUCTURED}, b"[]", 400, "no CloudEvent"),
        ({"content-type": STRUCTURED}, b"\xff", 400, "charset"),
        ({"content-type": STRUCTURED}, b"{", 400, "no CloudEvent"),
        ({"content-type": STRUCTURED}, b'{"a":' * 5000, 400, "no CloudEvent"),
        ({"content-type": BATCH}, b"{}", 400, "no CloudEvent"),
        ({"content-type": BATCH}, b'[{"id":"1"}]', 400, "event 1 of the batch"),
    ],
)
def test_what_is_no_event_is_refused_with_what_to_correct(
    headers: dict[str, str], body: bytes, status: int, word: str
) -> None:
    error = refusal(headers, body)
    assert (error.status, word in error.message) == (status, True), error.message


@pytest.mark.parametrize(
    "more",
    [
        {"data": 1, "data_base64": "AA=="},
        {"data_base64": "not base64!"},
        {"data_base64": 7},
        {"subject": {"a": 1}},
        {"ratio": 1.5},
        {"headers": ["a"]},
        {"headers": {"a": {}}},
        {"datacontenttype": 7},
    ],
)
def test_what_no_attribute_can_be_is_refused(more: dict[str, Any]) -> None:
    assert refusal({"content-type": STRUCTURED}, json.dumps({**EVENT, **more}).encode()).status == 400


def test_nobody_can_name_a_body_that_is_in_the_store_already() -> None:
    """It would hand somebody else's message to the handler."""
    error = refusal({"content-type": STRUCTURED}, json.dumps({**EVENT, "blob": {"name": "b", "size": 1}}).encode())
    assert (error.status, "elsewhere" in error.message) == (400, True)
    assert one({**BINARY, "ce-blob": "b"}).blob is None


def test_too_much_is_413() -> None:
    large = b"x" * (DATA_INLINE_BYTES_MAX + 1)
    assert refusal(BINARY, large).status == 413
    assert one(BINARY, large[1:]).size == DATA_INLINE_BYTES_MAX
    assert refusal(BINARY, b"x" * (BODY_BYTES_MAX + 1)).status == 413
    three = json.dumps([EVENT] * 3).encode()
    assert refusal({"content-type": BATCH}, three, limits=EventLimits(events=2)).status == 413
    assert len(read_events({"content-type": BATCH}, three, limits=EventLimits(events=3)).envelopes) == 3
    batched = json.dumps([{**EVENT, "data": large.decode()}]).encode()
    error = refusal({"content-type": BATCH}, batched)
    assert (error.status, "event 1" in error.message) == (413, True)


# -- who an event is


def test_the_same_id_from_two_sources_is_two_messages() -> None:
    here, there = one(BINARY), one({**BINARY, "ce-source": "/other"})
    assert identity_text(here) != identity_text(there)


def test_an_event_of_a_hub_goes_by_hub_and_the_application_s_id() -> None:
    """Its source is the connection, and a client that lost its session comes back under another one."""
    again = {**HUB_EVENT, "ce-source": "/hubs/chat/client/c2", "ce-connectionid": "c2", "ce-id": "ack-9"}
    by_id = [one({**event, "ce-semelid": "order-7"}, b"{}") for event in (HUB_EVENT, again)]
    assert [each.id for each in by_id] == ["order-7", "order-7"]
    assert len({identity_text(each) for each in by_id}) == 1
    assert len({identity_text(one(event, b"{}")) for event in (HUB_EVENT, again)}) == 2, "without one they are two"
    first = by_id[0].headers
    assert (first["ceid"], first["cesource"], first["connectionid"]) == ("ack-1", "/hubs/chat/client/c1", "c1")
    other = one({**HUB_EVENT, "ce-hub": "news", "ce-semelid": "order-7"}, b"{}")
    assert identity_text(other) != identity_text(by_id[0]), "another hub's order-7 is another message"


def test_metadata_has_the_id_where_a_hub_sends_no_attribute_for_it() -> None:
    found = one({**HUB_EVENT, "x-webpubsub-metadata-semel-id": "order-7", "x-webpubsub-metadata-k": "v"}, b"{}")
    assert (found.id, found.source) == ("order-7", "/hubs/chat")
    assert found.headers["x-webpubsub-metadata-k"] == "v"


def test_a_field_of_the_body_has_the_id_where_the_endpoint_says_so() -> None:
    body = b'{"order":{"id":7},"total":3}'
    again = {**HUB_EVENT, "ce-source": "/hubs/chat/client/c2"}
    found = [one(event, body, id_field="order.id") for event in (HUB_EVENT, again)]
    assert [(each.id, each.source) for each in found] == [("7", "/hubs/chat")] * 2
    named = one({**HUB_EVENT, "ce-semelid": "own"}, body, id_field="order.id")
    assert named.id == "own", "what the client says of this event comes first"
    plain = one({**BINARY, "content-type": "application/json"}, body, id_field="order.id")
    assert (plain.id, plain.source) == ("7", "/shop")


@pytest.mark.parametrize(
    "body", [b"{}", b'{"order":3}', b'{"order":{"id":true}}', b'{"order":{"id":""}}', b"no", b"[1]"]
)
def test_without_the_field_source_and_id_decide(body: bytes) -> None:
    found = one(HUB_EVENT, body, id_field="order.id")
    assert (found.id, found.source) == ("ack-1", "/hubs/chat/client/c1")


def test_who_is_no_hub_cannot_take_the_place_of_one() -> None:
    found = one({**BINARY, "ce-hub": "chat", "ce-semelid": "order-7"})
    assert (found.id, found.source) == ("order-7", "/shop")


# -- answers


def test_a_hub_gets_204_and_others_202_until_it_is_handled() -> None:
    plain, hub = EventRequest((one(BINARY),)), EventRequest((one(HUB_EVENT, b"{}"),))
    assert [accepted(each, is_handled=False).status for each in (plain, hub)] == [202, 204]
    assert [accepted(each, is_handled=True).status for each in (plain, hub)] == [204, 204]
    assert accepted(plain, is_handled=False).body == b""


def test_an_error_has_its_cause_in_a_header_and_no_body() -> None:
    answer = error_response(unavailable("the store\r\nis away: größer", 5))
    assert (answer.status, answer.body) == (503, b"")
    assert dict(answer.headers) == {"retry-after": "5", "semel-error": "the store?is away: gr?er; try again"}
    assert len(dict(error_response(refusal({**BINARY, "ce-id": "x" * 2000})).headers)["semel-error"]) <= 512


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        (("*",), "semel.example", "semel.example"),
        (("semel.example",), "Semel.example", "Semel.example"),
        (("*",), "", None),
        (("*",), "two words", None),
    ],
)
def test_a_sender_may_ask_whether_it_is_wanted(origins: tuple[str, ...], origin: str, allowed: str | None) -> None:
    answer = consent({"webhook-request-origin": origin, "webhook-request-rate": "120"}, origins)
    assert (answer.status, answer.body) == (200, b"")
    assert dict(answer.headers).get("WebHook-Allowed-Origin") == allowed
    assert ("WebHook-Allowed-Rate" in dict(answer.headers)) is (allowed is not None)


def test_an_origin_that_is_not_named_is_not_wanted() -> None:
    with pytest.raises(HttpError) as refused:
        consent({"webhook-request-origin": "evil.example"}, ("semel.example",))
    assert refused.value.status == 403
