"""One silent client does not pin a hub: what it leaves unacknowledged for long is copied into rows of its session."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tests.unit.pubsub.hub.world import HUB, World, text

from semel.errors import StoreUnavailable
from semel.kernel.effects import Load, LoadAll
from semel.kernel.interpreter import Seat
from semel.kernel.ledger import START, Kind
from semel.kernel.ops import Put, Unit
from semel.kernel.store import Trimmed
from semel.pubsub.hub import session_rows, spills
from semel.pubsub.hub.calls import CloseConnections, Connection, Find, Outcome, Publish
from semel.pubsub.hub.calls import Group as ToGroup
from semel.pubsub.hub.catchup import LOST
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.roster import UNREADABLE
from semel.pubsub.hub.session_rows import AcksRow, SpilledAcks, SpillRow, acks_key, read_acks, session_key
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.protocol.messages import (
    Disconnected,
    GroupMessage,
    SendToGroup,
    ServerMessage,
    StartStream,
    StreamData,
    StreamEnd,
)
from semel.websocket import CloseCode

ALICE, BOB = "alice", "bob"
STREAM = f"hub/{HUB}"
AGE_S = 60.0
OPTIONS = HubOptions(backlog_age_s=AGE_S, recovery_s=10_000.0)
SHARED = HubOptions(backlog_age_s=AGE_S, recovery_s=10_000.0, is_shared=True, lease_s=1_000.0)
AWAY = StoreUnavailable("away")


@pytest.fixture
def world() -> World:
    """Alice acknowledges what she gets, bob does not."""
    return with_both(World(OPTIONS))


@pytest.fixture
def one() -> World:
    return with_both(World(SHARED, "one"))


@pytest.fixture
def two(one: World) -> World:
    return World(SHARED, "two", beside=one)


def with_both(world: World) -> World:
    for peer in (ALICE, BOB):
        world.connect(peer, groups=("g",))
        world.take(peer)
    return world


def publish(world: World, *bodies: str) -> None:
    for body in bodies:
        world.call(Publish(ToGroup("g"), text(body)))


def numbers(world: World, peer: str) -> dict[str, int]:
    """What came since the last time, with the sequenceIds."""
    said = [each for each in world.take(peer) if isinstance(each, GroupMessage | ServerMessage)]
    return {each.data.body.decode(): each.sequence_id or 0 for each in said if each.data is not None}


def acknowledge(world: World, peer: str = ALICE) -> None:
    found = numbers(world, peer)
    if found:
        world.ack(peer, max(found.values()))


def grow_old(world: World) -> None:
    """Alice acknowledges what there is; what bob was given becomes too old."""
    acknowledge(world)
    world.pass_time(5)
    world.pass_time(AGE_S)
    world.pass_time(5)
    world.pass_time(5)


def is_gone(world: World, offset: int) -> bool:
    found = world.store.read(STREAM)
    return isinstance(found, Trimmed) and found.first.offset > offset


def spilled(world: World, connection: str = BOB) -> list[str]:
    return [key.rpartition(f"{connection}/")[2] for key, _ in world.store.states(f"hub/{HUB}/spill/{connection}/")]


def rows_of(world: World, connection: str = BOB) -> tuple[SpillRow, ...]:
    """As the acks row names them."""
    state = world.store.state(acks_key(HUB, connection))
    assert state is not None
    acked = read_acks(state.value).acked
    return acked.rows if isinstance(acked, SpilledAcks) else ()


def told(world: World, kind: Kind) -> list[tuple[str, int]]:
    return [(e.event.peer, e.event.n) for e in world.store.ledger(START) if e.event.kind is kind]


# -- out of the stream


def test_what_is_too_old_goes_into_rows_of_the_session_and_the_stream_is_trimmed(world: World) -> None:
    publish(world, "m1", "m2")
    found = numbers(world, BOB)
    grow_old(world)
    assert is_gone(world, found["m2"])
    assert rows_of(world) == (SpillRow(found["m1"], found["m2"]),)
    assert len(spilled(world)) == 1
    assert world.hub.counts.spilled == 2
    assert [note.topic for note in world.notes] == ["backlog-age"]
    world.ack(BOB, found["m2"])
    world.pass_time(2)
    assert spilled(world) == []
    assert rows_of(world) == ()
    assert told(world, Kind.CONFIRMED)[-1] == (BOB, 2)


def test_what_is_young_stays_where_it_is(world: World) -> None:
    publish(world, "m1")
    found = numbers(world, BOB)
    acknowledge(world)
    for _ in range(int(AGE_S // 5) - 1):
        world.pass_time(5)
    assert not is_gone(world, found["m1"])
    assert spilled(world) == []


def test_one_that_has_spilled_all_it_is_owed_holds_nothing_back(world: World) -> None:
    """Though it is owed something."""
    publish(world, "m1")
    grow_old(world)
    for number in range(10):
        world.call(Publish(Connection(ALICE), text(f"a{number}")))
        acknowledge(world)
    world.pass_time(5)
    world.pass_time(5)
    assert is_gone(world, world.store.head(STREAM).offset)


def test_a_client_that_acknowledges_too_slowly_does_not_pin_the_hub_either(world: World) -> None:
    """Some acknowledgement of it is always on its way, and none of what it has acknowledged may be missing in the
    ledger, though nobody can read it again."""
    publish(world, *(f"m{number}" for number in range(40)))
    waiting = list(numbers(world, BOB).values())
    acknowledge(world)
    for number in range(30):
        world.ack(BOB, waiting[number])
        world.pass_time(2.5)
    assert is_gone(world, waiting[-1])
    world.restart()
    world.resume("again", BOB)
    assert list(numbers(world, "again").values())[-10:] == waiting[30:]
    world.ack("again", waiting[-1])
    world.pass_time(2)
    assert sum(n for peer, n in told(world, Kind.CONFIRMED) if peer == BOB) == 40


def test_the_last_row_is_filled_up_before_another_one_begins(world: World) -> None:
    """Or a client that is given one message an hour would have as many rows as messages."""
    bodies = [f"m{number}" for number in range(12)]
    for body in bodies:
        publish(world, body)
        grow_old(world)
    assert len(rows_of(world)) == len(spilled(world)) == 1
    world.restart()
    world.resume("again", BOB)
    assert list(numbers(world, "again")) == bodies


def test_much_is_spilled_in_several_commits_and_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spills, "ROW_COUNT", 3)
    monkeypatch.setattr(spills, "COMMIT_BYTES", 7 * spills.OVERHEAD_BYTES)
    monkeypatch.setattr(spills, "PAGE", 2)
    bodies = [f"m{number}" for number in range(40)]
    publish(world, *bodies)
    found = numbers(world, BOB)
    grow_old(world)
    assert is_gone(world, found["m39"])
    rows = rows_of(world)
    assert len(rows) > 10
    assert [row.first for row in rows] == sorted(row.first for row in rows)
    world.restart()
    world.resume("again", BOB)
    assert numbers(world, "again") == found
    world.ack("again", found["m20"])
    world.pass_time(2)
    assert rows_of(world) == tuple(row for row in rows if row.last > found["m20"])
    assert len(spilled(world)) == len(rows_of(world))


def test_who_acknowledges_all_while_it_is_spilled_has_no_rows_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spills, "COMMIT_BYTES", 7 * spills.OVERHEAD_BYTES)
    publish(world, *(f"m{number}" for number in range(40)))
    found = numbers(world, BOB)
    acknowledge(world)
    world.pass_time(5)
    world.held = []
    world.pass_time(AGE_S)
    world.ack(BOB, found["m39"])
    world.let_go()
    world.pass_time(2)
    assert spilled(world) == []
    assert rows_of(world) == ()
    assert sum(n for peer, n in told(world, Kind.CONFIRMED) if peer == BOB) == 40


def with_a_crowd(world: World, count: int) -> list[str]:
    """Members of one group who acknowledge nothing: they grow old together."""
    silent = [f"silent{number:02}" for number in range(count)]
    for peer in silent:
        world.connect(peer, groups=("g",))
    return silent


def test_of_many_that_grow_old_together_only_some_are_spilled_at_a_time(world: World) -> None:
    """Or one tick would encode a megabyte for each of them, and the store have it all in its queue."""
    silent = with_a_crowd(world, 30)
    publish(world, "m1", "m2")
    acknowledge(world)
    world.pass_time(5)
    world.held = []
    world.pass_time(AGE_S)
    assert len(spilling(world)) == spills.AT_ONCE
    world.pass_time(5)
    assert len(spilling(world)) == spills.AT_ONCE
    world.let_go()
    assert all(len(spilled(world, peer)) == 1 for peer in [BOB, *silent])
    assert len(world.hub.spills) == 0
    assert world.hub.counts.spilled == 2 * 31


def spilling(world: World) -> list[str]:
    """The rows of messages that are on their way into the store."""
    ops = [op for group in world.held or () for unit in group.units for op in unit.ops]
    return [op.key for op in ops if isinstance(op, Put) and "/spill/" in op.key]


def test_of_many_that_grow_old_together_one_notice_tells(world: World) -> None:
    silent = with_a_crowd(world, 30)
    publish(world, "m1")
    grow_old(world)
    assert [note.detail for note in world.notes] == [
        f"{STREAM}: not acknowledged for 60 s by {BOB}, {silent[0]}, {silent[1]} and 28 more"
    ]


def test_who_acknowledges_or_goes_while_it_waits_to_be_spilled_has_no_rows(world: World) -> None:
    """And the others do not wait for it."""
    silent = with_a_crowd(world, 30)
    publish(world, "m1")
    last = numbers(world, BOB)["m1"]
    acknowledge(world)
    world.pass_time(5)
    world.held = []
    world.pass_time(AGE_S)
    world.ack(silent[10], last)
    world.drop(silent[11], CloseCode.NORMAL)
    world.let_go()
    world.pass_time(2)
    assert {peer for peer in [BOB, *silent] if not spilled(world, peer)} == {silent[10], silent[11]}
    assert len(world.hub.spills) == 0


def test_many_that_could_not_be_spilled_are_spilled_when_the_store_is_back(world: World) -> None:
    silent = with_a_crowd(world, 30)
    publish(world, "m1")
    acknowledge(world)
    world.pass_time(5)
    world.failing = [AWAY] * 1000
    world.pass_time(AGE_S)
    assert 1000 - len(world.failing) < 20
    world.failing = []
    world.pass_time(5)
    assert all(len(spilled(world, peer)) == 1 for peer in [BOB, *silent])


def test_one_that_has_spilled_all_and_cannot_write_down_what_it_acknowledged_waits(world: World) -> None:
    publish(world, "m1", "m2")
    found = numbers(world, BOB)
    grow_old(world)
    world.call(Publish(Connection(ALICE), text("for alice")))
    acknowledge(world)
    world.pass_time(2)
    world.ack(BOB, found["m1"])
    world.failing = [AWAY] * 1000
    for _ in range(30):
        world.pass_time(5)
    world.failing = []
    world.pass_time(5)
    assert len(rows_of(world)) == 1
    assert told(world, Kind.CONFIRMED)[-1] == (BOB, 1)


def test_a_large_body_goes_with_its_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "PART_BYTES", 100_000)
    large = "x" * 300_000
    publish(world, "m1", large, "m2")
    found = numbers(world, BOB)
    grow_old(world)
    assert any(row.parts > 1 for row in rows_of(world))
    world.restart()
    world.resume("again", BOB)
    assert numbers(world, "again") == found
    world.ack("again", max(found.values()))
    world.pass_time(2)
    assert spilled(world) == []


def test_a_spill_that_failed_is_made_again(world: World) -> None:
    publish(world, "m1")
    found = numbers(world, BOB)
    acknowledge(world)
    world.pass_time(5)
    world.failing = [AWAY] * 3
    world.pass_time(AGE_S + 5)
    assert not is_gone(world, found["m1"])
    assert world.hub.counts.spilled == 0
    world.failing = []
    world.pass_time(5)
    world.pass_time(5)
    assert is_gone(world, found["m1"])
    assert world.hub.counts.spilled == 1
    assert len(world.hub.spills) == 0


def test_one_whose_acknowledgements_cannot_be_written_down_has_nothing_to_spill(world: World) -> None:
    """It holds the stream for as long as the store takes nothing, and that is right."""
    publish(world, "m1")
    found = numbers(world, BOB)
    acknowledge(world)
    world.pass_time(2)
    world.ack(BOB, found["m1"])
    world.failing = [AWAY] * 1000
    for _ in range(30):
        world.pass_time(5)
    assert not is_gone(world, found["m1"])
    assert spilled(world) == []
    world.failing = []
    world.pass_time(5)
    world.pass_time(5)
    assert is_gone(world, found["m1"])
    assert told(world, Kind.CONFIRMED)[-1] == (BOB, 1)


def test_nothing_is_given_up_before_the_store_has_said_that_it_is_spilled(world: World) -> None:
    """The floor is written while a copy is on its way that will fail, and then the node dies."""
    publish(world, "m1")
    found = numbers(world, BOB)
    acknowledge(world)
    world.pass_time(5)
    world.held = []
    world.pass_time(AGE_S)
    world.pass_time(5)
    [under_way], world.held = world.held, None
    world.interpreter.failed(under_way, AWAY)
    assert not is_gone(world, found["m1"])
    world.restart()
    world.resume("again", BOB)
    assert numbers(world, "again") == found


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_node_that_dies_while_it_spills_loses_nothing_and_doubles_nothing(world: World, is_stored: bool) -> None:
    """Between asking for the commit and hearing of it."""
    publish(world, "m1", "m2")
    found = numbers(world, BOB)
    acknowledge(world)
    world.pass_time(5)
    world.held = []
    world.pass_time(AGE_S)
    [under_way], world.held = world.held, None
    if is_stored:
        world.store.commit(under_way.units)
    assert len(spilled(world)) == is_stored
    world.restart()
    world.resume("again", BOB)
    publish(world, "m3")
    assert list(numbers(world, "again").items())[:-1] == list(found.items())


# -- back again


def test_what_is_acknowledged_is_in_the_ledger_before_the_stream_is_trimmed_behind_it(world: World) -> None:
    """Bob acknowledges the first message a moment before the second is too old. The rows of the second let the stream
    go, so what he has acknowledged has to be written down with them: nobody could tell of it after a crash."""
    publish(world, "m1", "m2")
    found = numbers(world, BOB)
    acknowledge(world)
    for _ in range(12):
        world.pass_time(5)
    world.pass_time(4.5)
    world.ack(BOB, found["m1"])
    world.pass_time(0.6)
    assert rows_of(world) == (SpillRow(found["m2"], found["m2"]),)
    world.restart()
    world.resume("again", BOB)
    world.ack("again", found["m2"])
    world.pass_time(5)
    assert sum(count for peer, count in told(world, Kind.CONFIRMED) if peer == BOB) == 2


def test_after_a_restart_what_was_spilled_comes_first_and_then_what_is_in_the_stream(world: World) -> None:
    publish(world, "m1", "m2")
    grow_old(world)
    publish(world, "m3")
    found = numbers(world, BOB)
    assert list(found) == ["m1", "m2", "m3"]
    world.restart()
    publish(world, "m4")
    world.resume("again", BOB)
    publish(world, "m5")
    again = numbers(world, "again")
    assert list(again) == ["m1", "m2", "m3", "m4", "m5"]
    assert {body: again[body] for body in found} == found


def test_what_is_spilled_and_still_in_the_stream_comes_once(world: World) -> None:
    """The node dies before anything was given up, and for another one it is read from further back."""
    world.connect("carol", groups=("h",))
    world.call(Publish(ToGroup("h"), text("for carol")))
    publish(world, "m1", "m2")
    found = numbers(world, BOB)
    acknowledge(world)
    world.pass_time(5)
    world.pass_time(AGE_S)
    assert len(spilled(world)) == len(spilled(world, "carol")) == 1
    assert not is_gone(world, found["m1"])
    world.restart()
    world.resume("again", BOB)
    said = [each for each in world.take("again") if isinstance(each, GroupMessage)]
    assert [each.sequence_id for each in said] == list(found.values())


def test_what_of_a_row_is_acknowledged_is_not_sent_again(world: World) -> None:
    publish(world, "m1", "m2", "m3")
    found = numbers(world, BOB)
    grow_old(world)
    world.ack(BOB, found["m2"])
    world.pass_time(2)
    assert len(spilled(world)) == 1
    world.restart()
    world.resume("again", BOB)
    assert list(numbers(world, "again")) == ["m3"]


def test_what_has_expired_meanwhile_is_not_sent(world: World) -> None:
    world.send(ALICE, SendToGroup("g", text("short"), ttl_s=100))
    publish(world, "long")
    numbers(world, BOB)
    grow_old(world)
    assert len(spilled(world)) == 1
    world.now += 100
    world.restart()
    world.resume("again", BOB)
    assert list(numbers(world, "again")) == ["long"]


def test_parts_of_a_stream_come_back_as_they_were(world: World) -> None:
    world.send(ALICE, StartStream("g", "s"))
    world.send(ALICE, StreamData("s", 1, text("one")), StreamData("s", 2, text("two")), StreamEnd("s"))
    before = [each for each in world.take(BOB) if isinstance(each, GroupMessage)]
    assert len(before) == 3
    grow_old(world)
    assert is_gone(world, before[-1].sequence_id or 0)
    world.restart()
    world.resume("again", BOB)
    assert [each for each in world.take("again") if isinstance(each, GroupMessage)] == before


def test_rows_that_cannot_be_read_now_are_read_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(world, "m1")
    grow_old(world)
    load, failures = world.load, [AWAY]

    def fail_once(seat: Seat, effect: Load | LoadAll) -> None:
        if failures:
            world.interpreter.load_failed(seat, effect, failures.pop())
        else:
            load(seat, effect)

    monkeypatch.setattr(world, "load", fail_once)
    world.restart()
    world.take(BOB)
    world.resume("again", BOB)
    publish(world, "m2")
    assert numbers(world, "again") == {}
    world.pass_time(6)
    assert list(numbers(world, "again")) == ["m1", "m2"]


def lose_a_row(world: World, value: bytes | None = None) -> tuple[str, bytes]:
    """The first one of bob's is gone, or is something that this Semel cannot read. Returns what was there."""
    (key, state), *_ = world.store.states(f"hub/{HUB}/spill/{BOB}/")
    world.store.commit([Unit((Put(key, value),))])
    world.notes.clear()
    return key, state.value


def ended(world: World) -> bool:
    rows = (session_key(HUB, BOB), acks_key(HUB, BOB))
    return spilled(world) == [] and all(world.store.state(key) is None for key in rows)


def discarded(world: World) -> list[tuple[int | None, int | None, int, str | None]]:
    events = [entry.event for entry in world.store.ledger(START) if entry.event.kind is Kind.DISCARDED]
    return [(event.first, event.last, event.n, event.cause) for event in events if event.peer == BOB]


def test_rows_that_are_lost_are_not_passed_over_in_silence(world: World) -> None:
    """The client is not given what comes after them: its session is over, as after too large a backlog."""
    publish(world, "m1")
    grow_old(world)
    publish(world, "m2")
    found = numbers(world, BOB)
    lose_a_row(world)
    world.restart()
    assert [note.topic for note in world.notes] == ["hub-body"]
    assert "are lost" in world.notes[0].detail
    world.resume("again", BOB)
    assert world.take("again") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]
    assert ended(world)
    # how many were lost nobody knows, so the range does not fit and an audit asks
    assert discarded(world) == [(found["m1"], found["m2"], 1, LOST)]


def test_the_ledger_tells_of_lost_rows_though_nothing_else_was_owed(world: World) -> None:
    publish(world, "m1", "m2")
    found = numbers(world, BOB)
    grow_old(world)
    lose_a_row(world)
    world.restart()
    assert ended(world)
    assert discarded(world) == [(found["m1"], found["m2"], 0, LOST)]


def test_a_client_that_is_back_before_the_rows_are_read_hears_that_they_are_lost(world: World) -> None:
    publish(world, "m1")
    grow_old(world)
    lose_a_row(world)
    let_go = restart_without_reading(world)
    world.resume("again", BOB)
    assert world.take("again") == []
    let_go()
    assert world.take("again") == [Disconnected(LOST), ClosePeer(CloseCode.POLICY, LOST)]
    assert ended(world)


def test_one_that_ends_before_the_rows_are_read_ends_as_it_was_asked_to(world: World) -> None:
    publish(world, "m1", "m2")
    grow_old(world)
    publish(world, "m3")
    lose_a_row(world)
    let_go = restart_without_reading(world)
    world.call_later(CloseConnections(Connection(BOB)))
    let_go()
    assert ended(world)
    assert discarded(world) == []
    assert (BOB, 1) in told(world, Kind.CANCELLED)


def restart_without_reading(world: World) -> Callable[[], None]:
    """What is asked of the store waits until this is called."""
    load, asked = world.load, list[tuple[Seat, Load | LoadAll]]()
    world.load = lambda seat, effect: asked.append((seat, effect))  # type: ignore[method-assign]
    world.restart()

    def let_go() -> None:
        world.load = load  # type: ignore[method-assign]
        for seat, effect in asked:
            world.load(seat, effect)

    return let_go


def test_rows_that_only_a_newer_semel_can_read_are_kept_for_it(world: World) -> None:
    """With all that the stream has for the session."""
    publish(world, "m1")
    grow_old(world)
    publish(world, "m2")
    key, value = lose_a_row(world, b"newer")
    world.restart()
    assert [note.topic for note in world.notes] == ["session-unreadable"]
    world.resume("again", BOB)
    assert world.take("again") == [ClosePeer(CloseCode.INTERNAL, UNREADABLE)]
    world.resume("alice again", ALICE)
    acknowledge(world, "alice again")
    publish(world, "m3")
    acknowledge(world, "alice again")
    for _ in range(3):
        world.pass_time(10_001)
    assert rows_of(world) != ()
    assert discarded(world) == []
    world.store.commit([Unit((Put(key, value),))])
    world.restart()
    world.resume("again", BOB)
    assert list(numbers(world, "again")) == ["m1", "m2", "m3"]


def test_a_client_that_is_back_before_the_rows_are_read_may_come_again_if_they_are_unreadable(world: World) -> None:
    publish(world, "m1")
    grow_old(world)
    lose_a_row(world, b"newer")
    let_go = restart_without_reading(world)
    world.resume("again", BOB)
    let_go()
    assert world.take("again") == [ClosePeer(CloseCode.INTERNAL, UNREADABLE)]
    assert not ended(world)


def test_a_semel_that_knows_of_no_spilled_messages_does_not_read_on_without_them(world: World) -> None:
    class OldAcksRow(msgspec.Struct, array_like=True):
        acked: int
        taken: tuple[tuple[int, int], ...]

    state = world.store.state(acks_key(HUB, BOB))
    assert state is not None
    msgspec.msgpack.decode(state.value, type=OldAcksRow)
    publish(world, "m1")
    grow_old(world)
    state = world.store.state(acks_key(HUB, BOB))
    assert state is not None
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(state.value, type=OldAcksRow)
    assert isinstance(read_acks(state.value), AcksRow)


# -- how a session ends


def end_by_client(world: World) -> None:
    world.drop(BOB, CloseCode.NORMAL)


def end_by_service(world: World) -> None:
    world.call(CloseConnections(Connection(BOB)))


def end_by_time(world: World) -> None:
    world.drop(BOB)
    world.pass_time(10_001)


def end_by_time_after_a_restart(world: World) -> None:
    world.restart()
    world.pass_time(10_001)


def end_while_it_is_read_for(world: World) -> None:
    """Its rows are not there yet when it ends."""
    let_go = restart_without_reading(world)
    world.call_later(CloseConnections(Connection(BOB)))
    let_go()


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (end_by_client, Kind.CANCELLED),
        (end_by_service, Kind.CANCELLED),
        (end_by_time, Kind.EXPIRED),
        (end_by_time_after_a_restart, Kind.EXPIRED),
        (end_while_it_is_read_for, Kind.CANCELLED),
    ],
)
def test_the_end_of_a_session_removes_its_rows_and_the_ledger_tells_of_them(world: World, end, kind: Kind) -> None:  # type: ignore[no-untyped-def]
    publish(world, "m1", "m2")
    grow_old(world)
    publish(world, "m3")
    end(world)
    assert world.store.states(f"hub/{HUB}/spill/{BOB}/") == []
    assert world.store.state(acks_key(HUB, BOB)) is None
    assert (BOB, 3) in told(world, kind)


def test_a_backlog_of_spilled_messages_has_its_limits_too(world: World) -> None:
    world.hub.context.options = world.options = HubOptions(backlog_age_s=AGE_S, backlog_count=5)
    publish(world, "m1", "m2", "m3")
    grow_old(world)
    assert len(spilled(world)) == 1
    publish(world, "m4", "m5", "m6")
    assert world.call(Find(Connection(BOB))).outcome is Outcome.NOT_FOUND
    assert told(world, Kind.DISCARDED) == [(BOB, 6)]
    assert spilled(world) == []


def test_after_a_restore_the_rows_are_gone_with_their_sessions(world: World) -> None:
    publish(world, "m1")
    grow_old(world)
    world.store.raise_epoch("a backup")
    world.restart()
    world.resume("again", BOB)
    assert world.take("again") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]
    assert world.store.states(f"hub/{HUB}/spill/") == []


# -- several nodes


def test_another_node_gives_what_was_spilled_on_the_first(one: World, two: World) -> None:
    publish(one, "m1", "m2")
    found = numbers(one, BOB)
    grow_old(one)
    assert is_gone(one, found["m2"])
    publish(one, "m3")
    two.resume("again", BOB)
    again = numbers(two, "again")
    assert list(again) == ["m1", "m2", "m3"]
    two.ack("again", again["m2"])
    two.pass_time(2)
    assert spilled(two) == []
    publish(two, "m4")
    assert list(numbers(two, "again")) == ["m4"]


def test_a_node_that_was_replaced_spills_nothing(one: World, two: World) -> None:
    publish(one, "m1")
    found = numbers(one, BOB)
    acknowledge(one)
    one.pass_time(5)
    one.held = []
    one.nodes.remove(two)
    one.pass_time(AGE_S)
    one.pass_time(5)
    two.resume("again", BOB)
    assert numbers(two, "again") == found
    one.let_go()
    one.nodes.append(two)
    assert spilled(two) == []
    assert rows_of(two) == ()
    assert one.hub.roster.get(BOB) is None
    assert not is_gone(two, found["m1"])


def test_a_node_ends_a_session_of_which_rows_are_lost_when_it_has_taken_it(one: World, two: World) -> None:
    publish(one, "m1")
    grow_old(one)
    lose_a_row(one)
    two.resume("again", BOB)
    assert two.take("again") == [ClosePeer(CloseCode.POLICY, LOST)]
    assert ended(two)
    assert [n for _, _, n, _ in discarded(two)] == [0]
    two.resume("and again", BOB)
    assert two.take("and again") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_node_does_not_take_a_session_of_which_it_cannot_read_the_rows(one: World, two: World, is_dead: bool) -> None:
    """Nor when the one that had it is dead: the stream is kept by its floor."""
    publish(one, "m1")
    grow_old(one)
    publish(one, "m2")
    key, value = lose_a_row(one, b"newer")
    before = [one.store.state(row) for row in (session_key(HUB, BOB), acks_key(HUB, BOB))]
    if is_dead:
        one.die()
        for _ in range(5):
            two.pass_time(1_000)
    two.resume("again", BOB)
    assert two.take("again") == [ClosePeer(CloseCode.INTERNAL, UNREADABLE)]
    assert [two.store.state(row) for row in (session_key(HUB, BOB), acks_key(HUB, BOB))] == before
    two.store.commit([Unit((Put(key, value),))])
    two.resume("again", BOB)
    assert list(numbers(two, "again")) == ["m1", "m2"]


def test_rows_that_change_while_a_node_reads_them_are_not_taken_for_lost(one: World, two: World) -> None:
    publish(one, "m1", "m2")
    found = numbers(one, BOB)
    grow_old(one)
    load, asked = two.load, list[tuple[Seat, Load | LoadAll]]()

    def hold_spilled(seat: Seat, effect: Load | LoadAll) -> None:
        if isinstance(effect, LoadAll) and "/spill/" in effect.prefix and not asked:
            asked.append((seat, effect))
        else:
            load(seat, effect)

    two.load = hold_spilled  # type: ignore[method-assign]
    two.restart()
    two.resume("again", BOB)
    assert len(asked) == 1
    one.ack(BOB, found["m2"])
    one.pass_time(2)
    assert spilled(one) == []
    publish(one, "m3")
    load(*asked[0])
    assert list(numbers(two, "again")) == ["m3"]
    assert discarded(two) == []


def test_a_session_of_another_epoch_leaves_no_rows_when_another_node_ends_it(one: World, two: World) -> None:
    publish(one, "m1")
    grow_old(one)
    one.die()
    one.store.raise_epoch("a backup")
    two.restart()
    two.resume("again", BOB)
    assert two.take("again") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]
    assert spilled(two) == []


def test_the_floor_of_the_next_node_does_not_fall_to_what_is_gone(one: World, two: World) -> None:
    publish(one, "m1", "m2")
    found = numbers(one, BOB)
    grow_old(one)
    two.resume("again", BOB)
    session = two.hub.roster.get(BOB)
    assert session is not None
    assert session.missing_after == found["m2"]
    assert two.hub.floors._floor >= found["m2"]
