"""Messages in a row: whole, in parts, and as frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.hub.world import frames_of, payload_of

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import fold_ids
from semel.kernel.ops import Append
from semel.pubsub.hub.records import EVERYBODY, NO_TERMS, DeliveryTerms, accepted_event, group_target, message
from semel.pubsub.hub.runs import Run, runs_of
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import RELIABLE, Subprotocol
from semel.pubsub.protocol.messages import Data, DataType, GroupMessage, ServerMessage, StreamPart

ACCEPTED = accepted_event("h")
A, B = group_target("a"), group_target("b")


def append(id: str, target: str = A, *, data: Data | None = None, terms: DeliveryTerms = NO_TERMS) -> Append:
    data = data or Data(DataType.TEXT, id.encode())
    return message("hub/h", id, target, data, at=1, sender="alice", user="al", terms=terms, on_fresh=ACCEPTED)


def run(count: int, first: int = 1) -> Run:
    return Run(first, [append(f"m{number}") for number in range(first, first + count)])


def told(run: Run, subprotocol: str = Subprotocol.JSON_RELIABLE) -> list[GroupMessage | ServerMessage]:
    codec = codec_for(subprotocol)
    return [codec.decode_response(payload_of(frame)) for frame in frames_of(run.frames(subprotocol))]  # type: ignore[union-attr, misc]


def test_a_run_knows_how_much_it_is() -> None:
    found = run(3, first=7)
    assert (found.first, found.last, found.count, found.size) == (7, 9, 3, 6)
    assert found.fold == fold_ids(["m7", "m8", "m9"])


@given(st.integers(1, 6), st.data())
def test_a_part_of_a_run_is_what_stands_between(count: int, data: st.DataObject) -> None:
    whole = run(count, first=10)
    after = data.draw(st.integers(0, whole.last - 1))
    until = data.draw(st.integers(max(after + 1, whole.first), whole.last + 3))
    part = whole.between(after, until)
    offsets = [offset for offset in range(whole.first, whole.last + 1) if after < offset <= until]
    assert [part.first, part.last, part.count] == [offsets[0], offsets[-1], len(offsets)]
    assert part.fold == fold_ids([f"m{offset}" for offset in offsets])
    assert part.size == sum(len(f"m{offset}") for offset in offsets)
    assert [each.sequence_id for each in told(part)] == offsets


def test_all_of_a_run_is_the_run_itself() -> None:
    """So that its frames are made once."""
    whole = run(3, first=5)
    assert whole.between(4, 7) is whole
    assert whole.after(0) is whole


@pytest.mark.parametrize("subprotocol", [*Subprotocol, "", "chat.v1"])
def test_the_frames_of_a_run_are_those_of_its_messages(subprotocol: str) -> None:
    data = [
        Data(DataType.TEXT, 'plain, "quoted", ünï'.encode()),
        Data(DataType.JSON, b'{"a": 1.0}'),
        Data(DataType.BINARY, bytes(range(256)) * 300),
        Data(DataType.TEXT, b""),
    ]
    whole = Run(3, [append(f"m{at}", data=each) for at, each in enumerate(data)])
    alone = [Run(3 + at, (append(f"m{at}", data=each),)) for at, each in enumerate(data)]
    assert whole.frames(subprotocol) == b"".join([each.frames(subprotocol) for each in alone])
    if subprotocol in tuple(Subprotocol):
        numbers = range(3, 7) if subprotocol in RELIABLE else [None] * 4
        user = "al" if subprotocol.startswith("json") else None  # protobuf has no place for it
        expected = [GroupMessage("a", each, user, number) for each, number in zip(data, numbers, strict=True)]
        assert told(whole, subprotocol) == expected


def test_a_message_to_everybody_comes_from_the_server() -> None:
    found = told(Run(4, [append("one", EVERYBODY), append("two", EVERYBODY)]))
    assert found == [
        ServerMessage(Data(DataType.TEXT, b"one"), 4, None),
        ServerMessage(Data(DataType.TEXT, b"two"), 5, None),
    ]


def test_a_large_body_is_beside_its_row() -> None:
    body = b"x" * 300_000
    found = Run(9, (append("m", data=Data(DataType.TEXT, b"")),), body)
    assert found.size == len(body)
    [message] = told(found)
    assert message.data == Data(DataType.TEXT, body)


@pytest.mark.parametrize("subprotocol", list(Subprotocol))
def test_a_record_with_nothing_in_it_is_still_a_message(subprotocol: str) -> None:
    """Others than hubs may write one."""
    nothing = Append("hub/h", Envelope("m"), target=A)
    with_terms = Append("hub/h", Envelope("m", headers={"no-echo": "1"}), target=A)
    for each in (nothing, with_terms):
        assert [found.data for found in told(Run(1, (each,)), subprotocol)] == [Data(DataType.BINARY, b"")]


def test_the_end_of_a_stream_has_no_data() -> None:
    part = StreamPart("s", 3, is_end=True)
    end = message(
        "hub/h", "m", A, None, at=1, sender="alice", user=None, terms=DeliveryTerms(stream=part), on_fresh=ACCEPTED
    )  # fmt: skip
    [found] = told(Run(1, (end,)))
    assert isinstance(found, GroupMessage)
    assert found.stream == part


def test_runs_end_where_the_target_changes() -> None:
    appends = [append("1"), append("2"), append("3", B), append("4"), append("5")]
    assert [(run.first, run.count, run.target) for run in runs_of(10, appends)] == [(10, 2, A), (12, 1, B), (13, 2, A)]


def test_with_terms_each_message_stands_alone() -> None:
    appends = [append("1"), append("2", terms=DeliveryTerms(no_echo=True)), append("3"), append("4", B), append("5", B)]
    found = list(runs_of(1, appends))
    assert [(run.first, run.count) for run in found] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert found[1].terms == DeliveryTerms(no_echo=True)
    assert found[1].source == "alice"


def test_what_expires_is_expired_from_then_on() -> None:
    found = Run(1, (append("m", terms=DeliveryTerms(expires=2_000_000)),))
    assert [found.is_expired(now) for now in (1.9, 2.0, 3.0)] == [False, True, True]
    assert not run(2).is_expired(1e9)
