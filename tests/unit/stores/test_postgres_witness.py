"""What a process may answer, and what it remembers of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from semel.errors import StoreUnavailable
from semel.stores import postgres_witness
from semel.stores.postgres_members import _may_live, _this_process
from semel.stores.postgres_witness import MARKER_KEEP_US, Witness, WitnessedCommit

STREAM = "hub/orders"


@dataclass
class Time:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Server:
    """What a new primary has, in the place of its statements."""

    markers: dict[str, int] = field(default_factory=dict)
    records: dict[tuple[str, int], int] = field(default_factory=dict)
    first: int = 1

    def ask(self, name: str, *params: Any) -> list[tuple[Any, ...]]:
        if name == "has_marker":
            return [(self.markers.get(params[0], 0) >= params[1],)]
        assert name == "lost_records"
        streams, offsets, ats, is_pending = params
        reads = zip(streams, offsets, ats, strict=True)
        return [
            (stream, offset)
            for stream, offset, at in reads
            if self.records.get((stream, offset)) != at and not (is_pending and offset < self.first)
        ]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(postgres_witness, "Statements", lambda session: session)
    monkeypatch.setattr(postgres_witness, "texts", list)
    monkeypatch.setattr(postgres_witness, "bigints", list)
    return server


@pytest.fixture
def witness(time: Time) -> Witness:
    """A member on the first timeline."""
    witness = Witness(time)
    witness.meet(1)
    witness.move_on(1)
    turn(witness, 100)
    return witness


def turn(witness: Witness, lsn: int) -> None:
    witness.end_turn(witness.term, witness.begin_turn(witness.term), 40.0, lsn)


def loss(witness: Witness, server: Server, switch_lsn: int | None, *, is_pending: bool = True, now: int = 0) -> Any:
    return witness.find_loss(server, switch_lsn, now, is_pending=is_pending)  # type: ignore[arg-type]


def test_a_commit_is_there_when_its_marker_is(witness: Witness, server: Server) -> None:
    witness.committed(0, WitnessedCommit("w", 7, 0))
    server.markers["w"] = 7
    assert loss(witness, server, 500) is None
    server.markers["w"] = 6
    assert "acknowledged" in loss(witness, server, 500)
    assert "acknowledged" in loss(witness, server, None)


def test_a_marker_that_may_have_been_swept_proves_nothing(witness: Witness, server: Server) -> None:
    witness.committed(0, WitnessedCommit("w", 7, 0))
    assert loss(witness, server, None, now=MARKER_KEEP_US) is None
    assert "swept" in loss(witness, server, 500, now=MARKER_KEEP_US)


def test_what_was_seen_must_not_lie_behind_the_switch(witness: Witness, server: Server) -> None:
    witness.saw(0, 500)
    assert loss(witness, server, 500) is None
    assert "0/1F4" in loss(witness, server, 499)


def test_records_are_known_by_themselves_for_two_turns_and_then_by_a_place(witness: Witness, server: Server) -> None:
    witness.read(0, STREAM, 3, 33)
    server.records[STREAM, 3] = 33
    assert loss(witness, server, 100) is None, "where the log ended does not matter while the record is there"
    server.records[STREAM, 3] = 44
    assert "record 3" in loss(witness, server, 10_000), "another one has taken its place"
    turn(witness, 600)
    assert "record 3" in loss(witness, server, 10_000)
    turn(witness, 700)
    assert loss(witness, server, 600) is None
    assert "0/258" in loss(witness, server, 599)


def test_a_turn_that_fails_covers_nothing(witness: Witness, server: Server) -> None:
    """The place in the log is known only when the server has answered."""
    witness.read(0, STREAM, 3, 33)
    witness.begin_turn(0)
    witness.begin_turn(0)
    assert "record 3" in loss(witness, server, 10_000)
    turn(witness, 600)
    assert "record 3" in loss(witness, server, 10_000)


def test_the_highest_record_of_a_stream_counts(witness: Witness, server: Server) -> None:
    witness.read(0, STREAM, 9, 99)
    witness.read(0, STREAM, 3, 33)
    server.records[STREAM, 3] = 33
    assert "record 9" in loss(witness, server, 10_000)


def test_a_trimmed_record_was_there_unless_others_have_written_since(witness: Witness, server: Server) -> None:
    witness.read(0, STREAM, 3, 33)
    server.first = 4
    assert loss(witness, server, 10_000) is None
    assert "record 3" in loss(witness, server, 10_000, is_pending=False)


def test_nothing_is_answered_from_before_a_switch(witness: Witness) -> None:
    """From the moment on at which it is noticed, and not only when it is decided."""
    witness.meet(1)
    witness.saw(0, 1)
    witness.meet(2)
    for answer in (
        lambda: witness.committed(0, WitnessedCommit("w", 1, 0)),
        lambda: witness.read(0, STREAM, 1, 1),
        lambda: witness.saw(0, 1),
    ):
        with pytest.raises(StoreUnavailable, match="switched"):
            answer()
    witness.meet(2)
    witness.move_on(2)
    witness.saw(1, 1)


def test_what_was_read_before_a_switch_is_remembered_until_it_is_decided(witness: Witness, server: Server) -> None:
    witness.read(0, STREAM, 3, 33)
    witness.meet(2)
    assert "record 3" in loss(witness, server, 10_000)
    witness.move_on(2)
    assert loss(witness, server, 10_000) is None


def test_nothing_is_answered_without_a_lease(witness: Witness, time: Time) -> None:
    time.now += 35.9
    witness.saw(0, 1)
    assert witness.has_lease
    time.now += 0.2
    assert not witness.has_lease
    with pytest.raises(StoreUnavailable, match="lease"):
        witness.read(0, STREAM, 1, 1)
    turn(witness, 200)
    witness.read(0, STREAM, 1, 1)


def test_a_lease_counts_from_before_it_was_asked_for(time: Time) -> None:
    witness = Witness(time)
    begun = witness.begin_turn(0)
    time.now += 36.0
    witness.end_turn(0, begun, 40.0, 1)
    assert not witness.has_lease


def test_a_lease_on_a_server_that_was_replaced_is_none(witness: Witness, time: Time) -> None:
    """Those who decide about the new one do not see it."""
    begun = witness.begin_turn(0)
    time.now += 30.0
    witness.meet(2)
    with pytest.raises(StoreUnavailable, match="switched"):
        witness.end_turn(0, begun + 30.0, 40.0, 1)
    with pytest.raises(StoreUnavailable, match="switched"):
        witness.begin_turn(0)
    time.now += 6.1
    assert not witness.has_lease


def test_a_raised_epoch_must_not_be_lost_itself(witness: Witness, server: Server) -> None:
    witness.committed(0, WitnessedCommit("w", 7, 0))
    witness.read(0, STREAM, 3, 33)
    witness.on_epoch_raised(800)
    assert loss(witness, server, 800) is None
    assert "0/320" in loss(witness, server, 799)


def test_only_a_process_of_this_machine_that_has_ended_is_known_to_be_dead() -> None:
    ours = _this_process()
    machine, pid, started = ours.rsplit(" ", 2)
    assert _may_live(ours)
    assert not _may_live(f"{machine} {pid} {int(started) + 1}")
    assert not _may_live(f"{machine} {2**22 + 1} {started}")
    assert _may_live(f"another {2**22 + 1} {started}")
    assert _may_live(f" {2**22 + 1} {started}")
