"""Group states of a client: what it says is said again in a new session, and what it was told is what there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.client.test_machine import BUSY, Bench, failure

from semel.errors import Forbidden, InputError, LocalProtocolError, RequestInDoubt
from semel.pubsub.client.events import (
    ClientOptions,
    GroupStateLost,
    NotifyApplication,
    Online,
    ReportStates,
    RequestAccepted,
    Settle,
    Stop,
    SubmitRequest,
    Withdraw,
)
from semel.pubsub.client.states import Changes, WatchedGroup
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import (
    Ack,
    ErrorName,
    Fault,
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    JoinGroup,
    LeaveGroup,
    SetGroupState,
    SubscribeGroupState,
    UnsubscribeGroupState,
)

NO = Fault(ErrorName.FORBIDDEN, "no")
DUPLICATE = Fault(ErrorName.DUPLICATE, "had it")


def item(connection: str, at: int, mood: str | None = "good") -> GroupStateItem:
    return GroupStateItem(connection, at, f"user of {connection}", None if mood is None else {"mood": mood})


class Watcher(Bench):
    def __init__(self, options: ClientOptions | None = None) -> None:
        super().__init__(options)
        self.connect()
        self.take()

    def told(self) -> list[tuple[str, tuple[GroupStateItem, ...]]]:
        return [(effect.group, effect.changed) for effect in self.take() if isinstance(effect, ReportStates)]

    @property
    def seen(self) -> dict[str, GroupStateItem]:
        return self.client.states.views["g"].items

    def watch(self, *items: GroupStateItem) -> None:
        self.ask(1, SubscribeGroupState("g"))
        self.say(Ack(1), GroupStateSnapshot("g", items))
        assert self.client.states.views["g"].has_snapshot


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


# -- what it says of itself


def test_a_state_is_said_when_it_is_acknowledged_and_taken_back_likewise(watcher: Watcher) -> None:
    watcher.ask(1, SetGroupState("g", state={"mood": "good"}))
    assert watcher.sent() == [SetGroupState("g", 1, {"mood": "good"})]
    assert watcher.client.states.own == {}
    watcher.say(Ack(1))
    assert watcher.settled() == {1: RequestAccepted()}
    assert watcher.client.states.own == {"g": {"mood": "good"}}
    watcher.ask(2, SetGroupState("g"))
    watcher.say(Ack(2))
    assert watcher.client.states.own == {}


def test_two_states_of_one_group_go_one_after_the_other(watcher: Watcher) -> None:
    """Otherwise the first, refused for a time and repeated, would be the last."""
    watcher.ask(1, SetGroupState("g", state={"n": "1"}))
    watcher.ask(2, SetGroupState("g", state={"n": "2"}))
    assert watcher.sent() == [SetGroupState("g", 1, {"n": "1"})]
    watcher.say(Ack(1, BUSY))
    assert watcher.sent() == []
    watcher.say(Ack(1))
    assert watcher.sent() == [SetGroupState("g", 2, {"n": "2"})]


def test_who_leaves_a_group_says_nothing_there_any_more(watcher: Watcher) -> None:
    watcher.ask(1, SetGroupState("g", state={}))
    watcher.say(Ack(1))
    assert watcher.client.states.own == {"g": {}}
    watcher.ask(2, LeaveGroup("g"))
    watcher.say(Ack(2))
    assert watcher.client.states.own == {}


def test_a_new_session_says_and_watches_what_the_one_before_did_before_anything_else(watcher: Watcher) -> None:
    watcher.ask(1, JoinGroup("g"))
    watcher.say(Ack(1))
    watcher.ask(2, SubscribeGroupState("g"))
    watcher.say(Ack(2), GroupStateSnapshot("g", ()))
    watcher.ask(3, SetGroupState("g", state={"mood": "good"}))
    watcher.say(Ack(3))
    watcher.ask(4, SetGroupState("g", state={"mood": "better"}))
    watcher.take()
    watcher.lose()
    assert watcher.sent() == [JoinGroup("g", 1)]
    watcher.say(Ack(1))
    assert watcher.sent() == [SubscribeGroupState("g", 2)]
    watcher.say(Ack(2))
    assert watcher.sent() == [SetGroupState("g", 3, {"mood": "good"})]
    assert not any(isinstance(state, Online) for state in watcher.states())
    watcher.say(Ack(3))
    effects = watcher.take()
    assert NotifyApplication(Online("c2", "ann")) in effects
    watcher.say(Ack(4))
    assert watcher.settled() == {4: RequestAccepted()}
    assert watcher.client.states.own == {"g": {"mood": "better"}}


def test_what_the_new_session_may_not_do_is_told_and_forgotten(watcher: Watcher) -> None:
    watcher.watch()
    watcher.ask(2, SetGroupState("g", state={"mood": "good"}))
    watcher.say(Ack(2))
    watcher.take()
    watcher.lose()
    watcher.say(Ack(1, NO), Ack(2, NO))
    lost = [state for state in watcher.states() if isinstance(state, GroupStateLost)]
    assert [(state.group, state.is_watch, type(state.error)) for state in lost] == [
        ("g", True, Forbidden),
        ("g", False, Forbidden),
    ]
    assert not watcher.client.states.own
    assert not watcher.client.states.views
    watcher.lose("c3")
    assert watcher.sent() == []


@pytest.mark.parametrize("protocol", [Subprotocol.JSON_RELIABLE, Subprotocol.PROTOBUF_RELIABLE])
@pytest.mark.parametrize("state", [{"a": 1}, {1: "a"}, {"a": None}, {"a": "\ud800"}, {"a": "x" * 2**20}])
def test_what_would_make_the_server_close_the_connection_is_not_sent(
    state: dict[str, str], protocol: Subprotocol
) -> None:
    watcher = Watcher(ClientOptions(protocol))
    watcher.ask(1, SetGroupState("g", state=state))
    [effect] = watcher.take()
    assert isinstance(effect, Settle)
    assert isinstance(failure(effect.result), InputError)


# -- what it watches


def test_watching_returns_when_there_is_something_to_look_at(watcher: Watcher) -> None:
    watcher.ask(1, SubscribeGroupState("g"))
    assert watcher.sent() == [SubscribeGroupState("g", 1)]
    watcher.say(Ack(1))
    assert watcher.settled() == {}
    assert watcher.client.is_reading
    watcher.say(GroupStateSnapshot("g", (item("a", 5),)))
    assert watcher.take() == [ReportStates("g", (item("a", 5),)), Settle(1, RequestAccepted())]


def test_the_snapshot_may_come_before_the_answer(watcher: Watcher) -> None:
    """The answer was lost with a socket, and the next one begins with a snapshot."""
    watcher.ask(1, SubscribeGroupState("g"))
    watcher.close()
    watcher.pass_time(1)
    watcher.open()
    watcher.say(GroupStateSnapshot("g", (item("a", 5),)))
    assert watcher.settled() == {}
    watcher.say(Ack(1, DUPLICATE))
    assert watcher.settled() == {1: RequestAccepted()}
    assert watcher.seen == {"a": item("a", 5)}


def test_only_what_is_new_is_told(watcher: Watcher) -> None:
    watcher.watch(item("a", 5), item("b", 5))
    watcher.take()
    watcher.say(GroupStateUpdate("g", (item("a", 5, "bad"), item("b", 6), item("c", 4, None))))
    assert watcher.told() == [("g", (item("b", 6),))]
    watcher.say(GroupStateUpdate("g", (item("a", 7, None),)), GroupStateUpdate("other", (item("x", 1),)))
    assert watcher.told() == [("g", (item("a", 7, None),))]
    assert watcher.seen == {"b": item("b", 6)}


def test_a_snapshot_after_recovery_tells_what_was_missed_and_what_was_taken_back(watcher: Watcher) -> None:
    watcher.watch(item("a", 5), item("b", 5))
    watcher.recover()
    watcher.take()
    watcher.say(GroupStateSnapshot("g", (item("b", 5), item("c", 8))))
    assert watcher.told() == [("g", (item("a", 5, None), item("c", 8)))]
    watcher.say(GroupStateSnapshot("g", (item("b", 5), item("c", 8))))
    assert watcher.told() == []


def test_who_does_not_watch_any_more_hears_nothing(watcher: Watcher) -> None:
    watcher.watch(item("a", 5))
    watcher.ask(2, UnsubscribeGroupState("g"))
    watcher.say(Ack(2))
    watcher.take()
    watcher.say(GroupStateUpdate("g", (item("a", 6),)))
    assert watcher.take() == []
    watcher.lose()
    assert watcher.sent() == []


def test_a_watch_that_is_refused_fails(watcher: Watcher) -> None:
    watcher.ask(1, SubscribeGroupState("g"))
    watcher.say(Ack(1, NO))
    assert isinstance(failure(watcher.settled()[1]), Forbidden)
    assert not watcher.client.states.views


def test_who_waits_for_a_snapshot_waits_as_long_as_it_wants_to(watcher: Watcher) -> None:
    watcher.tell(SubmitRequest(1, SubscribeGroupState("g"), timeout_s=2))
    watcher.ask(2, SubscribeGroupState("g"))
    watcher.say(Ack(1), Ack(2))
    watcher.pass_time(3)
    watcher.tell(Withdraw(2))
    settled = watcher.settled()
    assert isinstance(failure(settled[1]), RequestInDoubt)
    assert isinstance(failure(settled[2]), LocalProtocolError)
    watcher.ask(3, SubscribeGroupState("g"))
    watcher.say(Ack(3))
    watcher.tell(Stop(0))
    assert isinstance(failure(watcher.settled()[3]), RequestInDoubt)


# -- any course of things


@given(st.data())
def test_whatever_is_missed_between_snapshots_what_was_told_is_what_there_is(data: st.DataObject) -> None:
    """The server changes; the client hears each change, or misses some and then gets a snapshot."""
    there: dict[str, GroupStateItem] = {}
    told: dict[str, GroupStateItem] = {}
    view, clock, is_behind = WatchedGroup(), 0, True
    for _ in range(data.draw(st.integers(0, 25))):
        if data.draw(st.booleans()):
            clock += 1
            changed = item(data.draw(st.sampled_from("abc")), clock, data.draw(st.none() | st.just("good")))
            if changed.state is None:
                there.pop(changed.connection_id, None)
            else:
                there[changed.connection_id] = changed
            is_behind = is_behind or data.draw(st.booleans())
            news = [] if is_behind else view.take_update((changed,))
        else:
            news, is_behind = view.take_snapshot(tuple(there.values())), False
        for each in news:
            if each.state is None:
                del told[each.connection_id]
            else:
                told[each.connection_id] = each
        assert told == view.items
        assert is_behind or view.items == there


@given(st.lists(st.tuples(st.sampled_from("gh"), st.sampled_from("abc"), st.integers(0, 9))))
def test_what_waits_to_be_told_is_the_last_of_each(changes: list[tuple[str, str, int]]) -> None:
    waiting, last = Changes(), dict[str, dict[str, GroupStateItem]]()
    for group, connection, at in changes:
        waiting.add(group, (item(connection, at),))
        last.setdefault(group, {})[connection] = item(connection, at)
    told = {}
    while (found := waiting.take()) is not None:
        told[found[0]] = {each.connection_id: each for each in found[1]}
        assert len(told[found[0]]) == len(found[1])
    assert told == last
