"""What a follower decides, from nothing but its arguments."""

from __future__ import annotations

import msgspec
import pytest

from semel.errors import ConfigError, InputError
from semel.inbox.following import (
    BATCH_MAX,
    CONNECTION_HEADER,
    UNREADABLE_TYPE,
    WHY_HEADER,
    FollowCursor,
    FollowedStream,
    FollowStart,
    first_cursor,
    follow_batch,
    in_history,
    is_held,
    read_cursor,
    stop_ops,
    stop_reason,
    trimmed_reason,
)
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Enqueue, Log, Put, PutBlob
from semel.kernel.position import Position
from semel.kernel.store import Record

HUB = FollowedStream("orders", "hub/chat", store="sqlite:///server.db")
GUARD = Guard("lease", "x", 7)
CURSOR = FollowCursor("s1", "hub/chat", 1, 10)


def record(offset: int, id: str = "", **more: object) -> Record:
    envelope = more.pop("envelope", None) or Envelope(id or f"m{offset}", "connection-1", data=b"1")
    return Record(Position("hub/chat", 1, offset), envelope, 0, **more)  # type: ignore[arg-type]


def enqueue(envelope: Envelope) -> Enqueue:
    if envelope.id == "bad":
        raise InputError("its deduplication id is too long", fix="shorten it")
    accepted = message_event(Kind.ACCEPTED, "inbox/orders>handler", "", envelope)
    return Enqueue("inbox/orders", envelope.id, envelope, on_fresh=accepted)


def batch(options: FollowedStream, *records: Record) -> tuple[list[Enqueue], list[object], FollowCursor]:
    made = follow_batch(options, "shop", CURSOR, records, 3, GUARD, enqueue)
    rows = [op for op in made.ops if isinstance(op, Enqueue)]
    assert made.taken == len(rows)
    return rows, list(made.ops), made.cursor


def test_rows_and_cursor_are_one_commit_under_the_fence_and_over_what_was_read() -> None:
    rows, ops, moved = batch(HUB, record(11), record(12))
    assert [row.envelope.id for row in rows] == ["m11", "m12"]
    put = ops[-1]
    assert isinstance(put, Put)
    assert (put.expected, put.guard, put.value and read_cursor(put.value).offset) == (3, GUARD, 12)
    assert moved == msgspec.structs.replace(CURSOR, offset=12)


def test_what_is_no_message_is_passed_and_the_cursor_stands_behind_it() -> None:
    rows, _, moved = batch(HUB, record(11, kind=1), record(12), record(13, kind=3))
    assert [row.envelope.id for row in rows] == ["m12"]
    assert moved.offset == 13


def test_groups_choose_and_only_then_the_follower_says_what_was_sent() -> None:
    groups = FollowedStream("orders", "hub/chat", store="x", groups=("eu", "us"))
    records = [record(11, target="g/eu"), record(12, target="u/eu"), record(13, target=""), record(14, target="g/us")]
    rows, ops, _ = batch(groups, *records)
    assert [row.envelope.id for row in rows] == ["m11", "m14"]
    sent = [op.event for op in ops if isinstance(op, Log)]
    assert [(event.kind, event.hop, event.message) for event in sent] == [
        (Kind.SENT, "hub/chat>inbox/orders", "m11"), (Kind.SENT, "hub/chat>inbox/orders", "m14"),
    ]  # fmt: skip
    assert not [op for op in batch(HUB, *records)[1] if isinstance(op, Log)], "the stream itself says it"


def test_the_ledger_has_the_way_and_the_place() -> None:
    [row], _, _ = batch(HUB, record(11))
    assert isinstance(row.on_fresh, tuple)
    assert [(event.hop, event.delivery) for event in row.on_fresh] == [
        ("hub/chat>inbox/orders", "hub/chat/1/11"), ("inbox/orders>handler", None),
    ]  # fmt: skip
    assert row.on_duplicate is not None
    assert (row.on_duplicate.kind, row.on_duplicate.hop) == (Kind.DUPLICATE, "hub/chat>inbox/orders")


def test_an_id_of_a_hub_is_the_hubs_whichever_connection_brings_it() -> None:
    [row], _, _ = batch(HUB, record(11))
    assert (row.envelope.source, row.envelope.headers) == ("hub/chat", {CONNECTION_HEADER: "connection-1"})
    full = {f"h{at}": "" for at in range(64)}
    [row], _, _ = batch(HUB, record(11, envelope=Envelope("a", "c", headers=full)))
    assert (row.envelope.source, row.envelope.headers) == ("hub/chat", full)
    plain = FollowedStream("orders", "orders-in", store="x")
    [row], _, _ = batch(plain, record(11))
    assert row.envelope.source == "connection-1", "elsewhere a source is what its sender says"


def test_what_cannot_be_stored_is_kept_as_a_dead_letter_and_holds_nobody_up() -> None:
    rows, _, moved = batch(HUB, record(11), record(12, "bad"), record(13))
    assert [row.envelope.type for row in rows] == ["message", UNREADABLE_TYPE, "message"]
    letter = rows[1].envelope
    assert letter.data == b"1"
    assert "'bad'" in letter.headers[WHY_HEADER]
    assert "too long" in letter.headers[WHY_HEADER]
    assert moved.offset == 13
    again, _, _ = batch(HUB, record(12, "bad"))
    assert again[0].identity == rows[1].identity, "however often it is read, it is one"


def test_a_body_in_chunks_comes_along_and_one_that_is_too_large_does_not() -> None:
    large = record(11, envelope=Envelope("a", blob=Blob("b", 300_000)), body=b"x" * 300_000)
    _, ops, _ = batch(HUB, large)
    assert [(op.name, op.part, len(op.data)) for op in ops if isinstance(op, PutBlob)] == [
        ("b", 0, 262144), ("b", 1, 37856),
    ]  # fmt: skip
    huge = record(11, envelope=Envelope("a", blob=Blob("b", 10**9)))
    [row], _, _ = batch(HUB, huge)
    assert row.envelope.type == UNREADABLE_TYPE
    own = FollowedStream("orders", "orders-in")
    [row], _, _ = batch(own, huge)
    assert row.envelope.blob == Blob("b", 10**9), "in the same store nothing is copied"


@pytest.mark.parametrize(
    ("source", "head", "why"),
    [
        ("s1", Position("hub/chat", 1, 10), None),
        ("s1", Position("hub/chat", 1, 99), None),
        ("s2", Position("hub/chat", 1, 99), "is another one"),
        ("s1", Position("hub/chat", 2, 99), "is in epoch 2"),
        ("s1", Position("hub/chat", 1, 9), "ends at"),
    ],
)
def test_a_history_that_is_not_the_one_that_was_read_stops_it(source: str, head: Position, why: str | None) -> None:
    found = stop_reason(CURSOR, source, head)
    assert (why is None) == (found is None)
    assert why is None or why in (found or "")


def test_the_inboxs_own_stream_is_restored_with_its_cursor() -> None:
    own = FollowedStream("orders", "orders-in")
    assert in_history(own, CURSOR, "s1", 2).epoch == 2
    assert in_history(own, CURSOR, "s2", 2).epoch == 1
    assert in_history(HUB, CURSOR, "s1", 2).epoch == 1, "another store may be the same database one day, or a copy"


def test_a_stop_is_written_down_with_its_reason() -> None:
    why = trimmed_reason(CURSOR, Position("hub/chat", 1, 15))
    assert why.startswith("4 records of hub/chat were trimmed")
    put, log = stop_ops("shop", HUB, CURSOR, 3, why, GUARD)
    assert isinstance(put, Put)
    assert put.value is not None
    assert read_cursor(put.value) == msgspec.structs.replace(CURSOR, stopped=why)
    assert isinstance(log, Log)
    assert (log.event.kind, log.event.cause) == (Kind.ACTION, why)


@pytest.mark.parametrize(
    ("start", "first", "offset"),
    [("earliest", None, 0), ("earliest", 5, 4), ("latest", None, 20), ("latest", 5, 20)],
)
def test_where_it_begins(start: str, first: int | None, offset: int) -> None:
    options = FollowedStream("orders", "hub/chat", store="x", start=start)
    left = Position("hub/chat", 3, first) if first is not None else None
    assert first_cursor(options, "s1", Position("hub/chat", 3, 20), left) == FollowCursor("s1", "hub/chat", 3, offset)


def test_back_pressure_begins_above_high_and_ends_below_low() -> None:
    assert [is_held(rows, False, 10, 5) for rows in (9, 10, 11)] == [False, False, True]
    assert [is_held(rows, True, 10, 5) for rows in (11, 5, 4)] == [True, True, False]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stream": "Hub Chat"}, "not a valid part"),
        ({"stream": "inbox/orders"}, "its own stream"),
        ({"stream": "inbox/orders/log"}, "its own stream"),
        ({"stream": "orders", "groups": ("a",)}, "has no groups"),
        ({"stream": "hub/chat", "groups": tuple(map(str, range(101)))}, "101 groups"),
        ({"stream": "orders", "start": "middle"}, "start is 'middle'"),
        ({"stream": "orders", "batch": BATCH_MAX + 1}, "batch is"),
    ],
)
def test_what_cannot_be_followed_is_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        FollowedStream("orders", **options)  # type: ignore[arg-type]


def test_names_are_apart_and_fit_however_long_they_are() -> None:
    def key(**more: str) -> str:
        return FollowedStream(**{"endpoint": "orders", "stream": "a", **more}).key("shop")  # type: ignore[arg-type]

    keys = {key(), key(endpoint="other"), key(name="b"), key(name="x" * 500), key(name="x" * 499)}
    assert len(keys) == 5
    assert max(map(len, keys)) <= 255
    assert FollowedStream("orders", "a").start is FollowStart.EARLIEST
    assert "secret" not in repr(FollowedStream("orders", "a", store="postgresql://me:secret@host/db"))
