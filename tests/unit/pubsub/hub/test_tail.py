"""The end of a hub's stream, as one node follows it."""

from __future__ import annotations

from collections.abc import Sequence

from semel.kernel.effects import Read, ReadDone
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.ops import Append, Fresh
from semel.kernel.position import Position
from semel.kernel.store import Record
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.tail import READ_ROWS, PendingReads, Tail

Told = tuple[int, list[str]]


class Following:
    """A tail, and what it told: together or one by one."""

    def __init__(self) -> None:
        self.together: list[Told] = []
        self.alone: list[int] = []
        self.asked: list[Read] = []
        self.ends: list[int | None] = []
        self.epoch_changes = 0
        self.tail = Tail(Position("hub/h", 1, 0), self.asked.append)
        self.tail.on_messages, self.tail.listener = self.on_messages, self

    def on_record(self, offset: int, append: Append, body: bytes | None, now: float) -> None:
        self.alone.append(offset)

    def on_messages(self, first: int, appends: Sequence[Append], now: float) -> None:
        self.together.append((first, [append.envelope.id for append in appends]))

    def on_gap(self, offset: int, is_first: bool) -> None: ...

    def on_end(self, number: int | None, now: float) -> None:
        self.ends.append(number)

    def on_epoch_changed(self) -> None:
        self.epoch_changes += 1

    def read(self, *records: Record) -> None:
        self.tail.read_on()
        self.tail.receive_read(ReadDone("hub/h", records, self.asked[-1].after, READ_ROWS), 0.0)


def record(offset: int, kind: RecordKind = RecordKind.MESSAGE, blob: Blob | None = None) -> Record:
    envelope = Envelope(f"m{offset}", blob=blob)
    body = b"large" if blob is not None else None
    return Record(Position("hub/h", 1, offset), envelope, 0, kind, "g/a", None, body)


def test_messages_of_others_are_told_together() -> None:
    following = Following()
    following.read(record(1), record(2), record(3))
    assert following.together == [(1, ["m1", "m2", "m3"])]
    assert following.tail.offset == 3


def test_who_joins_between_two_messages_divides_them() -> None:
    following = Following()
    following.read(record(1), record(2, RecordKind.JOIN), record(3), record(4))
    assert following.together == [(1, ["m1"]), (3, ["m3", "m4"])]
    assert following.alone == [2]


def test_a_gap_divides_them() -> None:
    """A new epoch leaves one."""
    following = Following()
    following.read(record(1), record(2), record(1000), record(1001))
    assert following.together == [(1, ["m1", "m2"]), (1000, ["m1000", "m1001"])]


def test_a_large_body_is_told_alone() -> None:
    following = Following()
    following.read(record(1), record(2, blob=Blob("b", 5)), record(3))
    assert (following.together, following.alone) == ([(1, ["m1"]), (3, ["m3"])], [2])


def test_what_was_told_is_not_told_again() -> None:
    following = Following()
    own = Append("hub/h", Envelope("m1"), target="g/a")
    following.tail.take_own([own], [Fresh(Position("hub/h", 1, 1))], 0.0)
    following.read(record(1), record(2))
    assert following.together == [(1, ["m1"]), (2, ["m2"])]


def test_who_waits_for_a_record_is_called_when_it_is_applied() -> None:
    following = Following()
    called: list[str] = []
    following.tail.when_applied(2, lambda: called.append("at 2"))
    following.tail.when_applied(0, lambda: called.append("at once"))
    following.read(record(1))
    assert called == ["at once"]
    following.read(record(2), record(3))
    assert called == ["at once", "at 2"]


def test_a_commit_in_another_epoch_is_not_applied() -> None:
    following = Following()
    own = Append("hub/h", Envelope("m1"), target="g/a")
    following.tail.take_own([own], [Fresh(Position("hub/h", 2, 1))], 0.0)
    assert (following.epoch_changes, following.together, following.tail.offset) == (1, [], 0)


# -- reads under way


def test_who_asks_while_an_answer_is_on_its_way_gets_another_read() -> None:
    asked: list[str] = []
    reads = PendingReads[str, str](asked.append)
    for who in ("first", "second", "third"):
        reads.ask("key", who)
    assert asked == ["key"]
    assert reads.answered("key") == ["first"]
    assert asked == ["key", "key"]
    assert reads.answered("key") == ["second", "third"]
    assert (reads.answered("key"), len(reads), asked) == ([], 0, ["key", "key"])


def test_reads_of_different_keys_do_not_wait_for_each_other() -> None:
    asked: list[str] = []
    reads = PendingReads[str, str](asked.append)
    reads.ask("a", "first")
    reads.ask("b", "second")
    assert (asked, list(reads)) == (["a", "b"], ["a", "b"])
    assert reads.answered("b") == ["second"]
