"""Several nodes, when something goes wrong at the worst moment. Each of these lost something once, or kept it."""

from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.two_nodes import ALICE, AWAY, BOB, SHARED, STREAM, answer_reads, hold_reads, sequence
from tests.unit.pubsub.hub.world import HUB, World, text

from semel.kernel.effects import CommitFailed, LoadAll, Read, ReadDone
from semel.kernel.group import CommitGroup
from semel.kernel.interpreter import Seat
from semel.kernel.ops import Trim, Unit
from semel.kernel.position import Position
from semel.kernel.store import Record, Records, Trimmed
from semel.pubsub.hub.answers import MOVING
from semel.pubsub.hub.calls import (
    Call,
    Check,
    CloseConnections,
    Connection,
    Everybody,
    Find,
    Grant,
    JoinMembers,
    ListMembers,
    Outcome,
)
from semel.pubsub.hub.floors import floor_key, read_floor
from semel.pubsub.hub.records import RecordKind, ordered
from semel.pubsub.hub.session_rows import read_session, session_key
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.hub.tail import READ_ROWS, Tail
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import Ack, LeaveGroup, SendToGroup
from semel.pubsub.protocol.permissions import Permission
from semel.websocket import CloseCode


def floor_of(world: World, node: str) -> int | None:
    state = world.store.state(floor_key(HUB, node))
    return read_floor(state) if state is not None else None


# -- reads


def test_a_read_that_failed_is_made_again_though_nobody_wakes_it(one: World, two: World) -> None:
    two.read = lambda seat, effect: two.interpreter.read_failed(seat, effect, AWAY)  # type: ignore[method-assign]
    two.interpreter.wake = lambda is_own: None  # type: ignore[method-assign, assignment]
    two.hub.tail.read_on()
    two.interpreter._perform(two.seat, two.hub._end(two.now))
    two.pass_time(0)
    one.publish(ALICE, "g", "hello")
    assert two.bodies(BOB) == []
    del two.read
    two.pass_time(5)
    assert two.bodies(BOB) == ["hello"]


def test_of_two_reads_from_one_place_each_gets_its_own_answer() -> None:
    """The first may have looked before that was there for which the second asks."""
    asked: list[Read] = []
    tail = Tail(Position("s", 0, 0), asked.append)
    found: list[str] = []
    tail.read_after(0, lambda records, now: found.append("first"))
    tail.read_after(0, lambda records, now: found.append("second"))
    assert len(asked) == 1
    answer = ReadDone("s", (), asked[0].after, READ_ROWS)
    tail.receive_read(answer, 0.0)
    assert (found, len(asked)) == (["first"], 2)
    tail.receive_read(answer, 0.0)
    assert found == ["first", "second"]


def test_a_node_whose_load_fails_asks_again(one: World, two: World) -> None:
    one.die()
    load = two.load

    def failing(seat: Seat, effect: LoadAll) -> None:
        two.interpreter.load_failed(seat, effect, AWAY)

    two.load = failing  # type: ignore[assignment, method-assign]
    two.interpreter._driver.load = failing  # type: ignore[attr-defined]
    for _ in range(4):
        two.pass_time(4)
    assert len(two.hub.context) == 0
    two.load = two.interpreter._driver.load = load  # type: ignore[attr-defined, method-assign]
    for _ in range(3):
        two.pass_time(4)
    assert ALICE in two.hub.roster.sessions


@pytest.mark.parametrize("failing", ["read", "load"])
def test_one_failed_read_does_not_hold_up_the_sessions_of_a_dead_node(one: World, two: World, failing: str) -> None:
    """The claim on the dead node is given back, and not kept until it runs out a minute later."""
    one.die()
    failed: list[float] = []

    def once(seat: Seat, effect: Read | LoadAll) -> None:
        if failed or not any("is dead" in note.detail for note in two.notes):
            (read if failing == "read" else load)(seat, effect)  # type: ignore[arg-type]
        else:
            failed.append(two.now)
            fail = two.interpreter.read_failed if failing == "read" else two.interpreter.load_failed
            fail(seat, effect, AWAY)  # type: ignore[arg-type]

    driver = two.interpreter._driver
    read, load = driver.read, driver.load
    setattr(driver, failing, once)
    for _ in range(40):
        two.pass_time(0.5)
    assert failed
    assert ALICE in two.hub.roster.sessions
    assert floor_of(two, one.hub.node) is None


def test_a_session_that_the_dead_node_had_taken_from_here_is_taken_back(one: World, two: World) -> None:
    """It was still held for one that is here, and was nobody's from then on."""
    asked = hold_reads(two)
    one.resume("there", BOB)
    one.die()
    while not any("is dead" in note.detail for note in two.notes):
        two.pass_time(1)
    assert BOB in two.hub.roster.sessions, "it has not read of it"
    answer_reads(two, asked)
    for _ in range(4):
        two.pass_time(1)
    assert floor_of(two, one.hub.node) is None
    assert BOB in two.hub.roster.sessions
    assert _row(two, BOB).node == two.hub.node


# -- sessions that come


def test_what_a_session_was_owed_before_it_left_a_group_goes_with_it(one: World, two: World) -> None:
    """Though the node that it comes to has not read so far yet."""
    three = World(SHARED, "three", beside=one)
    asked = hold_reads(three)
    two.publish(BOB, "g", "before leaving")
    one.send(ALICE, LeaveGroup("g", 40))
    three.resume("new", ALICE)
    answer_reads(three, asked)
    assert three.bodies("new") == ["before leaving"]


def test_a_stay_that_ends_while_a_session_waits_for_what_it_missed_counts_once(
    one: World,
    two: World,
) -> None:
    """That it has left is decided, but the stream has not come there on this node."""
    one.connect("carol", groups=("g",))
    one.publish(ALICE, "g", "owed")
    asked = hold_reads(two)
    two.resume("first", ALICE)
    two.resume("new", "carol")
    carol = two.hub.roster.sessions["carol"]
    carol.decide_group("g", two.hub.tail.offset + 10, False, two.hub.tail.offset)
    answer_reads(two, asked)
    assert two.bodies("new") == ["owed"]


def test_one_that_was_lost_and_came_back_while_others_were_read_for_misses_nothing_twice(
    one: World, two: World
) -> None:
    """It waits for the next pass as the one that was lost and as the one that came back."""
    one.connect("carol", groups=("g",))
    one.publish(ALICE, "g", "owed")
    asked = hold_reads(two)
    two.resume("first", "carol")
    two.resume("lost", ALICE)
    one.resume("between", ALICE)
    two.publish("lost", "g", "refused", 7)
    assert two.hub.roster.get(ALICE) is None
    two.resume("back", ALICE)
    answer_reads(two, asked)
    assert two.bodies("back") == ["owed"]


def test_a_session_of_another_epoch_is_not_gone_on_with_elsewhere(one: World, two: World) -> None:
    """Its positions mean nothing any more. Whoever takes it up says so, to the client and in the store."""
    one.publish(ALICE, "g", "hello")
    one.die()
    one.store.raise_epoch("a backup")
    two.restart()
    two.resume("new", ALICE)
    assert two.take("new") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]
    assert two.store.state(session_key(HUB, ALICE)) is None


def test_what_the_node_before_sent_may_be_acknowledged_though_it_has_expired_since(one: World, two: World) -> None:
    """Nothing is sent to the client here that says how far it may have got."""
    one.send(ALICE, SendToGroup("g", text("short"), ttl_s=5))
    [(_, sent)] = sequence(one.take(ALICE))
    assert sent is not None
    one.drop(ALICE)
    one.pass_time(6)
    two.resume("new", ALICE)
    two.ack("new", sent)
    assert two.take("new") == []
    two.publish(BOB, "g", "after", 5)
    assert [body for body, _ in sequence(two.take("new"))] == ["after"]


@pytest.mark.parametrize("has_sessions", [True, False])
def test_a_node_that_misses_what_is_gone_begins_anew(one: World, two: World, has_sessions: bool) -> None:
    """Without sessions of its own it would still believe what it knew of those of others."""
    if not has_sessions:
        two.drop(BOB, CloseCode.NORMAL)
    one.nodes.remove(two)
    one.publish(ALICE, "g", "missed by two")
    head = one.store.head(STREAM).offset
    one.store.commit([Unit((Trim(STREAM, head + 1),))])
    one.nodes.append(two)
    before = two.hub
    one.publish(ALICE, "g", "next", 7)
    assert two.hub is not before
    assert [note.topic for note in two.notes] == ["hub-read"]
    if has_sessions:
        assert ClosePeer(CloseCode.INTERNAL, "messages are missing here") in two.take(BOB)


def test_a_node_without_sessions_need_not_see_what_is_gone_from_before_its_time(one: World, two: World) -> None:
    """What the rows say was read after it."""
    one.publish(ALICE, "g", "hello")
    one.store.commit([Unit((Trim(STREAM, one.store.head(STREAM).offset + 1),))])
    three = World(one.options, "three", beside=one)
    begun = three.hub
    one.publish(ALICE, "g", "more", 5)
    assert three.hub is begun
    assert three.notes == []
    assert three.hub.tail.offset == one.store.head(STREAM).offset


def test_a_floor_is_said_again_when_the_commit_that_said_it_has_failed(one: World, two: World) -> None:
    one.publish(ALICE, "g", "kept")
    offset = one.hub.tail.offset
    two.ack(BOB, offset)
    for _ in range(3):
        two.pass_time(3)
    assert (floor_of(two, two.hub.node) or 0) >= offset
    two.failing = [AWAY]
    two.resume("refused", ALICE)
    two.resume("new", ALICE)
    assert (floor_of(two, two.hub.node) or 0) < offset


def test_a_trim_that_failed_is_made_again(one: World, two: World) -> None:
    one.die()
    for _ in range(40):
        two.pass_time(4)
    two.publish(BOB, "g", "done with")
    two.ack(BOB, two.hub.tail.offset)
    two.pass_time(1)
    commit = two.commit

    def failing(group: CommitGroup) -> None:
        if any(isinstance(op, Trim) for unit in group.units for op in unit.ops):
            two.commit = commit  # type: ignore[method-assign]
            two.interpreter.failed(group, AWAY)
        else:
            commit(group)

    two.commit = failing  # type: ignore[method-assign]
    for _ in range(24):
        two.pass_time(1)
    assert two.commit == commit
    found = two.store.read("hub/chat", None, 1)
    assert isinstance(found, Trimmed)
    assert found.first.offset == two.hub.tail.offset + 1


def test_one_that_is_here_is_not_taken_again(one: World, two: World) -> None:
    """Its client came faster than the list of those whom the dead node had."""
    before = one.hub.node
    two.resume("new", ALICE)
    two.take("new")
    heard: list[bool] = []
    two.hub.take_over.take_from(before, ALICE, heard.append)
    assert heard == [True]
    two.publish(BOB, "g", "hello")
    assert two.bodies("new") == ["hello"]


def test_what_was_lost_and_came_back_is_not_lost_twice(one: World, two: World) -> None:
    first = one.hub.roster.sessions[ALICE]
    two.resume("there", ALICE)
    one.resume("back", ALICE)
    one.hub.closing.release(first)
    two.publish(BOB, "g", "hello")
    assert "hello" in one.bodies("back")


def test_a_take_over_of_which_nobody_knows_whether_it_happened_leaves_no_orphan(one: World, two: World) -> None:
    """The row may say that the session is here. Who then cannot read it may not go on as if it were not."""
    one.drop(ALICE)
    two.held = []
    two.resume("new", ALICE)
    [group], two.held = two.held, None
    two.store.commit(group.units)
    two.load = lambda seat, effect: two.interpreter.load_failed(seat, effect, AWAY)  # type: ignore[method-assign]
    two.interpreter._driver.load = two.load  # type: ignore[attr-defined]
    two.interpreter.unknown(group)
    del two.load
    two.interpreter._driver.load = two.load  # type: ignore[attr-defined]
    for _ in range(10):
        two.pass_time(3)
    assert _row(two, ALICE).node in (one.hub.node, two.hub.node)
    assert [ALICE in world.hub.roster.sessions for world in (one, two)].count(True) == 1


def test_a_plain_session_of_a_dead_node_is_forgotten_only_when_it_is_gone(one: World, two: World) -> None:
    one.connect("plain", protocol=Subprotocol.JSON)
    one.drop(ALICE, CloseCode.NORMAL)
    dead = one.hub.node
    one.die()
    failure = CommitFailed(0, error=AWAY)
    two.hub.closing.close = lambda session, kind, reason, now, then: then(failure)  # type: ignore[method-assign, assignment]
    for _ in range(4):
        two.pass_time(4)
    assert floor_of(two, dead) is not None
    del two.hub.closing.close
    for _ in range(30):
        two.pass_time(4)
    assert floor_of(two, dead) is None
    assert two.store.state(session_key(HUB, "plain")) is None


# -- groups


@pytest.mark.parametrize("is_by_service", [False, True])
def test_a_join_whose_row_failed_is_written_when_it_is_asked_for_again(
    one: World,
    two: World,
    is_by_service: bool,
) -> None:
    one.held = []
    if is_by_service:
        one.call_later(JoinMembers(Connection(ALICE), ("h",)))
    else:
        one.join(ALICE, "h", 50)
    [record], one.held = one.held, None
    one.failing = []
    commit, commits = one.commit, []

    def first_only(group):  # type: ignore[no-untyped-def]
        commits.append(group)
        if len(commits) == 1:
            commit(group)
        else:
            one.interpreter.failed(group, AWAY)

    one.interpreter._driver.commit = first_only  # type: ignore[attr-defined]
    first_only(record)
    one.interpreter._driver.commit = commit  # type: ignore[attr-defined]
    assert "h" not in _row(one, ALICE).groups
    one.take(ALICE)
    if is_by_service:
        assert one.call(JoinMembers(Connection(ALICE), ("h",))).outcome is Outcome.DONE
    else:
        one.join(ALICE, "h", 50)
        assert one.take(ALICE) == [Ack(50)]
    assert "h" in _row(one, ALICE).groups


def _row(world: World, connection: str):  # type: ignore[no-untyped-def]
    state = world.store.state(session_key(HUB, connection))
    assert state is not None
    return read_session(state.value)


def test_a_session_in_very_many_groups_can_move(one: World, two: World) -> None:
    groups = tuple(f"{number} {'x' * 1000}" for number in range(300))
    one.call(JoinMembers(Connection(ALICE), groups))
    two.resume("new", ALICE)
    assert two.hub.roster.sessions[ALICE].groups.keys() == {"g", *groups}
    assert one.hub.elsewhere.sessions[ALICE].groups.keys() == {"g", *groups}
    [member] = one.call(ListMembers(groups[0])).members
    assert member.connection == ALICE


# -- dead nodes that still write


def test_what_a_dead_node_writes_late_leaves_nothing_behind(one: World, two: World) -> None:
    """A floor that nobody removes would keep the stream for ever, a session that nobody has would never end."""
    dead = one.hub.node
    one.nodes.remove(one)
    one.held = []
    one.connect("late")
    one.hub.roster.sessions[ALICE].backlog.queue.clear()
    two.publish(BOB, "g", "more")
    one.hub.tail.offset += 1
    one.hub.floors.update()
    one.interpreter._perform(one.seat, one.hub._end(one.now))
    for _ in range(6):
        two.pass_time(3)
    assert floor_of(two, dead) is None
    queue, interpreter = one.interpreter.queue, one.interpreter
    while queue._under_way is not None:
        interpreter.committed(queue._under_way, one.store.commit(queue._under_way.units))
    assert floor_of(two, dead) is None
    assert two.store.state(session_key(HUB, "late")) is None


# -- calls


def test_an_order_follows_a_session_that_has_moved(one: World, two: World) -> None:
    """Who gives it has not heard of that yet."""
    three = World(SHARED, "three", beside=one)
    asked = hold_reads(one)
    three.resume("new", BOB)
    one.call_later(CloseConnections(Connection(BOB)))
    answer_reads(one, asked)
    [answer] = one.take("later")
    assert answer.outcome is Outcome.DONE  # type: ignore[union-attr]
    assert three.call(Find(Connection(BOB))).outcome is Outcome.NOT_FOUND


def test_an_order_follows_a_session_that_has_come_here(one: World, two: World) -> None:
    one.held = []
    one.resume("new", BOB)
    one.call_later(JoinMembers(Connection(BOB), ("h",)))
    one.let_go()
    assert [answer.outcome for answer in one.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    assert "h" in one.hub.roster.sessions[BOB].groups


@pytest.mark.parametrize("is_asked_there", [False, True])
@pytest.mark.parametrize("call", [JoinMembers(Connection(ALICE), ("h",)), Grant(ALICE, Permission.SEND_TO_GROUP, "x")])
def test_what_is_asked_of_a_session_waits_until_its_take_over_is_heard_of(
    one: World,
    two: World,
    call: Call,
    is_asked_there: bool,
) -> None:
    """Its record and the order stand in the stream, and are read there, before the commit is reported."""
    one.drop(ALICE)
    two.held = []
    two.resume("new", ALICE)
    [taken], two.held = two.held, None
    outcomes = two.store.commit(taken.units)
    for world in (one, two):
        world.interpreter.wake(is_own=False)
    asker = two if is_asked_there else one
    asker.feed("later", call)
    two.interpreter.wake(is_own=False)
    assert asker.take("later") == []
    two.interpreter.committed(taken, outcomes)
    assert [answer.outcome for answer in asker.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    row = _row(two, ALICE)
    assert "h" in row.groups or row.permissions.has(Permission.SEND_TO_GROUP, "x")


def test_a_session_that_came_while_it_was_ordered_about_is_looked_for_here_too(one: World, two: World) -> None:
    """The order went to the node that had it, and stands after the record that says that it is here."""
    two.held = []
    two.resume("new", ALICE)
    two.feed("later", CloseConnections(Connection(ALICE)))
    [taken], two.held = two.held, None
    outcomes = two.store.commit(taken.units)
    one.interpreter.wake(is_own=False)
    two.interpreter.committed(taken, outcomes)
    assert [answer.outcome for answer in two.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    assert two.store.state(session_key(HUB, ALICE)) is None


def test_an_order_is_for_all_who_came_before_it_whichever_nodes_it_names(one: World, two: World) -> None:
    """Whoever came to a third node before it was written is asked for there, and who came after it is not."""
    three = World(SHARED, "three", beside=one)
    one.held = []
    one.call_later(JoinMembers(Everybody(), ("h",)))
    three.connect("before")
    two.connect("before too")
    [group], one.held = one.held, None
    outcomes = one.store.commit(group.units)
    three.connect("after")
    one.connect("after too")
    one.interpreter.committed(group, outcomes)
    for world in (one, two, three):
        world.interpreter.wake()
    assert [answer.outcome for answer in one.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    found = [member.connection for member in one.call(ListMembers("h")).members]
    assert found == [ALICE, "before", "before too", BOB]
    orders = [record for record in records(one) if record.kind == RecordKind.ORDER]
    assert [ordered(record.envelope) for record in orders] == [(two.hub.node,)]


@pytest.mark.parametrize("call", [JoinMembers(Connection(BOB), ("h",)), CloseConnections(Connection(BOB))])
def test_an_order_follows_a_session_that_its_node_has_lost_and_does_not_know_to_whom(
    one: World, two: World, call: Call
) -> None:
    """The order stands before the record that says so. The node does not say that the session is gone."""
    three = World(SHARED, "three", beside=one)
    for world in (one, two):
        one.nodes.remove(world)
    one.feed("later", call)
    three.resume("new", BOB)
    two.publish(BOB, "g", "refused", 60)
    for world in (two, one):
        one.nodes.append(world)
        world.interpreter.wake(is_own=False)
    assert [answer.outcome for answer in one.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    replies = [record.envelope for record in records(one) if record.kind == RecordKind.REPLY]
    assert [(reply.source, MOVING.message.encode() in reply.data) for reply in replies] == [
        (two.hub.node, True), (three.hub.node, False),
    ]  # fmt: skip
    assert [BOB in world.hub.elsewhere.sessions for world in (one, two)] == [BOB in three.hub.roster.sessions] * 2


@pytest.mark.parametrize("is_closed_there", [False, True])
def test_a_session_that_another_node_took_while_its_end_was_on_its_way_is_closed_there(
    one: World, two: World, is_closed_there: bool
) -> None:
    """Who has taken it may be heard of before the refusal."""
    one.held = []
    one.feed("later", CloseConnections(Connection(ALICE)))
    [end], one.held = one.held, None
    two.resume("new", ALICE)
    outcomes = one.store.commit(end.units)
    if is_closed_there:
        two.drop("new", CloseCode.NORMAL)
    one.interpreter.committed(end, outcomes)
    assert [answer.outcome for answer in one.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    for world in (one, two):
        assert ALICE not in world.hub.roster.sessions
        assert ALICE not in world.hub.elsewhere.sessions
    assert two.store.state(session_key(HUB, ALICE)) is None


def test_a_session_whose_end_is_on_its_way_is_not_taken_up_again(one: World, two: World) -> None:
    """It would be here twice, and get everything twice."""
    one.held = []
    one.feed("later", CloseConnections(Connection(ALICE)))
    [end], one.held = one.held, None
    one.resume("new", ALICE)
    assert one.take("new") == [ClosePeer(CloseCode.INTERNAL, "the session is about to end")]
    one.commit(end)
    assert [answer.outcome for answer in one.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    one.resume("new", ALICE)
    assert one.take("new") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]
    assert one.store.state(session_key(HUB, ALICE)) is None


def test_one_whose_end_failed_is_taken_up_again_and_is_here_once(one: World, two: World) -> None:
    one.held = []
    one.feed("later", CloseConnections(Connection(ALICE)))
    [end], one.held = one.held, None
    one.interpreter.failed(end, AWAY)
    one.resume("new", ALICE)
    two.publish(BOB, "g", "hello")
    assert one.bodies("new") == ["hello"]


def records(world: World) -> list[Record]:
    found = world.store.read(f"hub/{HUB}", Position(f"hub/{HUB}", world.store.epoch, 0), 1000)
    assert isinstance(found, Records)
    return list(found.records)


def test_a_session_is_not_nowhere_while_its_take_over_is_not_heard_of(one: World, two: World) -> None:
    one.drop(ALICE)
    two.held = []
    two.resume("new", ALICE)
    [taken], two.held = two.held, None
    for is_written in (False, True):
        if is_written:
            outcomes = two.store.commit(taken.units)
            two.interpreter.wake(is_own=False)
        assert two.call(Find(Connection(ALICE))).outcome is Outcome.DONE
        assert two.call(Check(ALICE, Permission.SEND_TO_GROUP, "g")).outcome is Outcome.DONE
        assert [member.connection for member in two.call(ListMembers("g")).members] == [ALICE, BOB]
    two.interpreter.committed(taken, outcomes)
    assert len(two.hub.arrivals) == 0


def test_an_order_that_is_too_large_is_refused(one: World, two: World) -> None:
    excluded = tuple(f"{number:0100}" for number in range(4000))
    assert one.call(CloseConnections(Everybody(), excluded)).outcome is Outcome.REFUSED
    assert BOB in two.hub.roster.sessions


def test_an_order_that_failed_after_it_was_given_up_is_no_trouble(one: World, two: World) -> None:
    one.held = []
    one.call_later(CloseConnections(Connection(BOB)))
    [group], one.held = one.held, None
    one.hub.orders.on_timer(one.now + 21)
    one.interpreter.failed(group, AWAY)
    assert len(one.hub.orders) == 0


def test_a_call_for_a_session_that_another_took_is_answered(one: World, two: World) -> None:
    one.nodes.remove(one)
    two.resume("new", ALICE)
    one.feed("later", Grant(ALICE, Permission.SEND_TO_GROUP, "x"))
    one.interpreter.wake()
    assert [answer.outcome for answer in one.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    assert ALICE not in one.hub.roster.sessions
    assert _row(two, ALICE).permissions.has(Permission.SEND_TO_GROUP, "x")
