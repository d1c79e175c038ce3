"""Channels over a network that loses, doubles and reorders, with ends that are restarted."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from semel.errors import ConfigError
from semel.kernel.effects import Received, Resume
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.pipes.services.channel import (
    CARRIED,
    CHANNEL_TYPES,
    FULL,
    IDLE,
    UNKNOWN,
    Carried,
    Channel,
    ChannelConfig,
    ChannelWire,
    CloseSession,
    Initiator,
    OpenSession,
    PipeKind,
    SessionOpened,
    Spawner,
    SpawnerConfig,
)
from semel.pipes.workers.blocks import (
    confirm_pipe,
    durable_pipe,
    id_dedup,
    index_dedup,
    ordering_pipe,
    reliable_dedup_pipe,
    resend_pipe,
)
from semel.pipes.workers.route import Parcel
from unit.pipes.net import Net, Node

RESEND: PipeKind = partial(resend_pipe, window=4, timeout_s=0.5)
ORDERED: PipeKind = partial(ordering_pipe, window=8, timeout_s=0.5)
UNIQUE: PipeKind = partial(reliable_dedup_pipe, window=8, timeout_s=0.5)
BAD = {"loss": 0.25, "double": 0.2, "delay_s": (0.01, 0.4)}


class Story:
    """Node a with the application `app`, node b with `echo` (answers each message) and `sink` (takes it)."""

    def __init__(self, seed: int = 0, **weather: Any) -> None:
        self.net = Net(seed)
        self.a, self.b = self.net.node("a"), self.net.node("b")
        self.net.link("a", "b", **weather)
        self.answers: list[str] = []
        self.taken: list[str] = []
        self.backs: list[tuple[str, ...]] = []
        self.a.apps["app"] = self._answered
        self.b.apps["echo"] = self._echo
        self.b.apps["sink"] = self._take

    def _answered(self, parcel: Parcel) -> list[Parcel]:
        self.answers += [body.id for body in parcel.bodies]
        self.backs.append(parcel.back)
        return []

    def _take(self, parcel: Parcel) -> list[Parcel]:
        self.taken += [body.id for body in parcel.bodies]
        self.backs.append(parcel.back)
        return []

    def _echo(self, parcel: Parcel) -> list[Parcel]:
        self._take(parcel)
        return [Parcel(parcel.back, ("0#echo",), tuple(Envelope(f"re-{body.id}") for body in parcel.bodies))]

    def say(self, *ids: str, to: str = "echo", by: str = "up") -> None:
        for id in ids:
            self.net.send(self.a, Parcel((f"0#{by}", f"0#{to}"), ("0#app",), (Envelope(id),)))

    def static(self, pipe: PipeKind) -> tuple[Channel, Channel]:
        ends = (
            Channel(ChannelConfig("up", ("1#b", "0#down.inner"), pipe), "a1"),
            Channel(ChannelConfig("down", ("1#a", "0#up.inner"), pipe), "b1"),
        )
        for node, end in zip((self.a, self.b), ends, strict=True):
            self.net.start(node, end)
        return ends

    def session(self, pipe: PipeKind, **more: Any) -> Initiator:
        self.spawn(pipe, **more)
        return self.open(pipe)

    def spawn(self, pipe: PipeKind, run: str = "s1", **more: Any) -> Spawner:
        spawner = Spawner(SpawnerConfig("hub", pipe, **more), run)
        self.net.start(self.b, spawner)
        return spawner

    def open(self, pipe: PipeKind, run: str = "i1", **more: Any) -> Initiator:
        initiator = Initiator(ChannelConfig("up", ("1#b", "0#hub.inner"), pipe, timeout_s=0.5, **more), run)
        self.net.start(self.a, initiator)
        return initiator


IDS = [f"m{number}" for number in range(20)]
ECHOES = [f"re-{id}" for id in IDS]


# -- the wire


@pytest.mark.parametrize(
    "message",
    [
        OpenSession("s"),
        SessionOpened("s", "r"),
        CloseSession("s", "idle"),
        Carried("s", "r", HopMessage("d", Envelope("a"), 1)),
        Carried("", "", Confirm(("d",))),
    ],
)
def test_every_message_crosses_a_wire(message: Any) -> None:
    assert type(message) in CHANNEL_TYPES
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ChannelWire) == message  # type: ignore[arg-type]


# -- static channels


def test_an_answer_comes_back_through_the_channel() -> None:
    story = Story()
    story.static(RESEND)
    story.say("a")
    story.net.run(1)
    assert story.taken == ["a"]
    assert story.answers == ["re-a"]
    assert story.backs == [("0#down", "0#app"), ("0#up", "0#echo")]
    assert all(isinstance(body, Carried) for _, _, parcel in story.net.carried for body in parcel.bodies)


@pytest.mark.parametrize("seed", range(8))
def test_an_ordered_channel_loses_nothing_doubles_nothing_and_keeps_order(seed: int) -> None:
    story = Story(seed, **BAD)
    ends = story.static(ORDERED)
    story.say(*IDS)
    story.net.run(60)
    assert story.taken == IDS
    assert story.answers == ECHOES
    assert [end.unconfirmed for end in ends] == [0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_a_resend_channel_loses_nothing_and_may_double(seed: int) -> None:
    story = Story(seed, **BAD)
    story.static(RESEND)
    story.say(*IDS, to="sink")
    story.net.run(60)
    assert set(story.taken) == set(IDS)
    assert len(story.taken) > len(IDS)


@pytest.mark.parametrize("seed", range(4))
def test_a_dedup_channel_may_lose_and_doubles_nothing(seed: int) -> None:
    story = Story(seed, **BAD)
    ends = story.static(id_dedup)
    story.say(*IDS, to="sink")
    story.net.run(60)
    assert len(set(story.taken)) == len(story.taken) < len(IDS)
    assert ends[0].unconfirmed == 0, "nobody confirms, so nothing is kept"


@pytest.mark.parametrize("seed", range(8))
def test_restarted_ends_of_a_static_channel_go_on(seed: int) -> None:
    """The far end forgets which ids it has seen, so copies may pass; what the near end had not sent is lost with it."""
    story = Story(seed, **BAD)
    story.static(UNIQUE)
    story.say(*IDS[:10], to="sink")
    story.net.run(0.5)
    story.net.start(story.b, Channel(ChannelConfig("down", ("1#a", "0#up.inner"), UNIQUE), "b2"))
    story.net.run(60)
    assert set(story.taken) == set(IDS[:10])
    story.net.start(story.a, Channel(ChannelConfig("up", ("1#b", "0#down.inner"), UNIQUE), "a2"))
    before = len(story.taken)
    story.say(*IDS[10:], to="sink")
    story.net.run(60)
    assert sorted(story.taken[before:]) == sorted(IDS[10:]), "a new life of the sender is not taken for its old one"


def test_the_same_message_to_two_places_is_two() -> None:
    story = Story()
    story.static(UNIQUE)
    story.say("a", "a", to="sink")
    story.say("a", to="echo")
    story.net.run(1)
    assert story.taken == ["a", "a"]


def test_long_ids_and_routes_stay_apart() -> None:
    story = Story()
    story.static(UNIQUE)
    one, other = "x" * 250 + "1", "x" * 250 + "2"
    story.say(one, other, one, to="sink")
    story.net.run(1)
    assert story.taken == [one, other]


def test_what_does_not_fit_is_reported() -> None:
    story = Story()
    story.static(RESEND)
    big = Envelope("big", data=bytes(DATA_INLINE_BYTES_MAX))
    story.net.send(story.a, Parcel(("0#up", "0#sink"), ("0#app",), (big,)))
    story.net.send(story.a, Parcel(("0#up",), ("0#app",), (Envelope("nowhere"),)))
    story.net.run(1)
    assert [note.topic for note in story.net.notes] == ["rejected", "astray"]


def test_a_full_channel_says_so() -> None:
    story = Story(loss=1.0)
    story.net.start(story.a, Channel(ChannelConfig("up", ("1#b", "0#down.inner"), RESEND, queue_max=2), "a1"))
    story.say("a", "b", "c")
    story.net.run(1)
    assert [note.topic for note in story.net.notes] == ["full"]


def test_what_a_pipe_has_given_up_is_not_kept() -> None:
    story = Story(loss=1.0)
    ends = story.static(partial(resend_pipe, window=4, timeout_s=0.5, retries=1))
    story.say("a", "b")
    story.net.run(10)
    assert ends[0].unconfirmed == 0
    assert {note.topic for note in story.net.notes} == {"given-up"}


def test_what_is_not_a_channels_is_reported_and_not_sent_for_ever() -> None:
    story = Story()
    ends = story.static(RESEND)
    for number, envelope in enumerate((Envelope("plain"), Envelope("broken", type=CARRIED, data=b"\xc1")), start=1):
        message = HopMessage(f"r/{number}", envelope, number)
        parcel = Parcel(("0#down.inner",), ("1#a", "0#up.inner"), (Carried("", "", message),))
        story.net.tell(story.b, ends[1], Received("up", parcel))
    assert [note.topic for note in story.net.notes] == ["rejected", "rejected"]


def test_a_channel_that_stopped_is_resumed() -> None:
    story = Story(loss=1.0)
    ends = story.static(partial(confirm_pipe, timeout_s=1.0))
    story.say("a", "b", to="sink")
    story.net.run(10)
    assert [note.topic for note in story.net.notes] == ["suspended"]
    story.net.calm()
    story.net.tell(story.a, ends[0], Resume())
    story.net.run(10)
    assert story.taken == ["a", "b"]


def test_a_durable_pipe_is_no_channel() -> None:
    with pytest.raises(ConfigError, match="memory"):
        Channel(ChannelConfig("up", ("1#b",), durable_pipe), "a1")


# -- nesting


def nested(story: Story, lower: PipeKind, upper: PipeKind) -> None:
    """An upper channel whose way leads through the lower one."""
    for node, near, far, peer in ((story.a, "low-a", "low-b", "b"), (story.b, "low-b", "low-a", "a")):
        story.net.start(node, Channel(ChannelConfig(near, (f"1#{peer}", f"0#{far}.inner"), lower), f"{near}1"))
    story.net.start(story.a, Channel(ChannelConfig("up", ("0#low-a", "0#down.inner"), upper), "a1"))
    story.net.start(story.b, Channel(ChannelConfig("down", ("0#low-b", "0#up.inner"), upper), "b1"))


@pytest.mark.parametrize("seed", range(8))
def test_an_index_channel_over_a_resend_channel_is_reliable_without_copies(seed: int) -> None:
    """One at a time below, so that nothing is overtaken: then an index above drops the copies and nothing else."""
    story = Story(seed, **BAD)
    nested(story, partial(resend_pipe, window=1, timeout_s=0.5), index_dedup)
    story.say(*IDS)
    story.net.run(200)
    assert story.taken == IDS
    assert story.answers == ECHOES


@pytest.mark.parametrize("seed", range(3))
def test_reliable_over_lossy_is_reliable(seed: int) -> None:
    story = Story(seed, **BAD)
    nested(story, id_dedup, ORDERED)
    story.say(*IDS)
    story.net.run(100)
    assert story.taken == IDS
    assert story.answers == ECHOES


def test_a_session_over_a_channel() -> None:
    story = Story(3, **BAD)
    low_a = Channel(ChannelConfig("low-a", ("1#b", "0#low-b.inner"), RESEND), "la")
    low_b = Channel(ChannelConfig("low-b", ("1#a", "0#low-a.inner"), RESEND), "lb")
    story.net.start(story.a, low_a)
    story.net.start(story.b, low_b)
    story.spawn(ORDERED)
    story.net.start(story.a, Initiator(ChannelConfig("up", ("0#low-a", "0#hub.inner"), ORDERED, timeout_s=2.0), "i1"))
    story.say(*IDS)
    story.net.run(100)
    assert story.taken == IDS
    assert story.answers == ECHOES


def test_resends_over_resends_do_not_pile_up() -> None:
    """The upper one's timer is far too short: what the lower one still has must not go in again."""
    story = Story(3, **BAD)
    nested(story, partial(resend_pipe, window=1, timeout_s=1.0), partial(ordering_pipe, window=20, timeout_s=0.1))
    low = [node.machines[0] for node in (story.a, story.b)]
    most = 0
    story.say(*IDS)
    for _ in range(300):
        story.net.run(0.5)
        most = max([most, *(end.unconfirmed for end in low)])  # type: ignore[attr-defined]
    assert story.taken == IDS
    assert story.answers == ECHOES
    assert most <= 80, "each message, answer and confirm at most once"


# -- sessions


@pytest.mark.parametrize("seed", range(8))
def test_a_session_carries_both_directions(seed: int) -> None:
    story = Story(seed, **BAD)
    initiator = story.session(ORDERED)
    story.say(*IDS)
    story.net.run(60)
    assert initiator.is_open
    assert story.taken == IDS
    assert story.answers == ECHOES
    assert story.backs[0] == ("0#hub", f"0#{initiator.session}", "0#app")


def test_a_repeated_open_is_answered_by_the_same_channel() -> None:
    story = Story()
    spawner = story.spawn(ORDERED)
    for _ in range(3):
        story.net.send(story.a, Parcel(("1#b", "0#hub.inner"), ("0#up.inner",), (OpenSession("s"),)))
    story.net.run(1)
    assert list(spawner.sessions) == ["s"]
    answers = [body for one, _, parcel in story.net.carried for body in parcel.bodies if one == "b"]
    assert answers == [SessionOpened("s", "s1/1")] * 3


def test_every_initiator_has_a_responder_of_its_own() -> None:
    story = Story()
    spawner = story.spawn(ORDERED)
    story.open(ORDERED)
    other = Initiator(ChannelConfig("up2", ("1#b", "0#hub.inner"), ORDERED), "i2")
    story.net.start(story.a, other)
    story.say("a")
    story.say("b", by="up2")
    story.net.run(2)
    assert len(spawner.sessions) == 2
    assert sorted(story.answers) == ["re-a", "re-b"]


@pytest.mark.parametrize("seed", range(10))
def test_after_a_restart_of_the_spawner_what_was_unconfirmed_is_sent_again(seed: int) -> None:
    story = Story(seed, **BAD)
    initiator = story.session(ORDERED)
    story.say(*IDS[:12], to="sink")
    while not story.taken:
        story.net.run(0.1)
    session = initiator.session
    story.spawn(ORDERED, "s2")
    story.say(*IDS[12:], to="sink")
    story.net.run(100)
    assert initiator.session != session
    assert initiator.unconfirmed == 0
    assert list(dict.fromkeys(story.taken)) == IDS, "all of them, in order but for those that are sent again"


@pytest.mark.parametrize("seed", range(4))
def test_after_a_restart_of_the_initiator_a_new_session_begins_at_once(seed: int) -> None:
    story = Story(seed, **BAD)
    story.session(ORDERED)
    story.say(*IDS[:10], to="sink")
    story.net.run(60)
    story.open(ORDERED, "i2")
    story.say(*IDS[10:], to="sink")
    story.net.run(60)
    assert story.taken == IDS


def test_an_unknown_session_is_said_to_be_unknown() -> None:
    story = Story()
    story.spawn(ORDERED)
    frame = Carried("never", "r", Confirm(("d",)))
    story.net.send(story.a, Parcel(("1#b", "0#hub.inner"), ("0#up.inner",), (frame,)))
    story.net.run(1)
    assert story.net.carried[-1][2].bodies == (CloseSession("never", UNKNOWN),)


def test_idle_sessions_are_closed_and_opened_again_when_they_are_needed() -> None:
    story = Story()
    spawner = story.spawn(ORDERED, idle_s=10.0)
    initiator = story.open(ORDERED)
    story.say("a")
    story.net.run(8)
    story.say("b")
    story.net.run(8)
    assert len(spawner.sessions) == 1, "it was heard of meanwhile"
    story.net.run(8)
    assert not spawner.sessions
    assert not initiator.is_open
    assert story.net.carried[-1][2].bodies == (CloseSession(initiator.session, IDLE),)
    story.say("c")
    story.net.run(2)
    assert story.answers == ["re-a", "re-b", "re-c"]


def test_a_session_that_is_closed_as_idle_with_something_to_say_is_opened_anew() -> None:
    story = Story()
    initiator = story.session(ORDERED)
    story.net.run(1)
    story.net.links[frozenset("ab")].loss = 1.0
    story.say("a", to="sink")
    story.net.run(1)
    story.net.calm()
    idle = Parcel(("0#up.inner",), ("1#b", "0#hub.inner"), (CloseSession(initiator.session, IDLE),))
    story.net.tell(story.a, initiator, Received("hub", idle))
    assert not initiator.is_open
    story.net.run(2)
    assert initiator.is_open
    assert story.taken == ["a"]


def test_idle_sessions_that_lose_something_say_so() -> None:
    story = Story()
    story.spawn(ORDERED, idle_s=10.0)
    story.open(ORDERED)
    story.say("a")
    story.net.run(0.025)
    story.net.links[frozenset("ab")].loss = 1.0
    story.net.run(20)
    assert [note.topic for note in story.net.notes] == ["session-closed"]


def test_there_is_an_end_to_the_number_of_sessions() -> None:
    story = Story()
    spawner = story.spawn(ORDERED, sessions_max=1, idle_s=5.0)
    first = story.open(ORDERED)
    story.net.run(0.1)
    second = Initiator(ChannelConfig("up2", ("1#b", "0#hub.inner"), ORDERED, timeout_s=0.5), "i2")
    story.net.start(story.a, second)
    story.say("b", by="up2")
    story.net.run(2)
    assert first.is_open
    assert not second.is_open
    assert len(spawner.sessions) == 1
    assert story.net.carried[-1][2].bodies == (CloseSession(second.session, FULL),)
    story.net.run(10)
    assert second.is_open
    assert story.answers == ["re-b"], "it got in when the first one had been idle for long enough"


def test_a_session_ends_when_the_application_says_so_and_all_has_arrived() -> None:
    story = Story(1, **BAD)
    spawner = story.spawn(ORDERED)
    initiator = story.open(ORDERED)
    story.say(*IDS, to="sink")
    story.net.send(story.a, Parcel(("0#up",), ("0#app",), (CloseSession("", ""),)))
    story.say("too late", to="sink")
    story.net.run(60)
    assert story.taken == IDS
    assert not initiator.is_open
    assert initiator.next_deadline() is None
    assert [note.topic for note in story.net.notes] == ["full"]
    assert len(spawner.sessions) <= 1, "the word itself may be lost, and then it is idle"


def test_a_late_copy_of_an_open_does_not_make_a_new_spawner_know_the_session() -> None:
    """Its responder would wait for ever for what the old one has had."""
    story = Story()
    initiator = story.session(ORDERED)
    story.say(*IDS[:10], to="sink")
    story.net.run(2)
    story.spawn(ORDERED, "s2")
    story.net.send(story.a, Parcel(("1#b", "0#hub.inner"), ("0#up.inner",), (OpenSession(initiator.session),)))
    story.net.run(2)
    story.say(*IDS[10:], to="sink")
    story.net.run(10)
    assert story.taken == IDS


def test_a_session_that_is_closed_is_gone_from_the_spawner() -> None:
    story = Story()
    spawner = story.spawn(ORDERED)
    story.open(ORDERED)
    story.say("a")
    story.net.run(1)
    assert len(spawner.sessions) == 1
    story.net.send(story.a, Parcel(("0#up",), ("0#app",), (CloseSession("", ""),)))
    story.net.run(1)
    assert not spawner.sessions
    assert story.answers == ["re-a"]


def test_late_words_of_an_old_session_change_nothing() -> None:
    story = Story()
    initiator = story.session(ORDERED)
    story.net.run(1)
    for late in (CloseSession("i1/0", UNKNOWN), SessionOpened("i1/0", "r"), Carried("i1/0", "r", Confirm(("x",)))):
        parcel = Parcel(("0#up.inner",), ("1#b", "0#hub.inner"), (late,))
        story.net.tell(story.a, initiator, Received("hub", parcel))
    assert initiator.is_open
    story.say("a")
    story.net.run(1)
    assert story.answers == ["re-a"]


def test_an_answer_to_a_session_that_is_gone_is_astray() -> None:
    story = Story()
    story.session(ORDERED)
    story.net.send(story.b, Parcel(("0#hub", "0#gone", "0#app"), ("0#echo",), (Envelope("a"),)))
    story.net.send(story.b, Parcel(("0#hub",), ("0#echo",), (Envelope("a"),)))
    story.net.send(story.b, Parcel(("0#hub", "9#odd"), ("0#echo",), (Envelope("a"),)))
    story.net.run(1)
    assert [note.topic for note in story.net.notes] == ["astray"] * 3


def test_a_full_initiator_and_a_full_responder_say_so() -> None:
    story = Story()
    spawner = story.spawn(ORDERED, queue_max=1)
    initiator = story.open(ORDERED, queue_max=1)
    story.net.run(1)
    story.net.links[frozenset("ab")].loss = 1.0
    story.say("a", "b")
    for id in "cd":
        back = ("0#hub", f"0#{initiator.session}", "0#app")
        story.net.send(story.b, Parcel(back, ("0#echo",), (Envelope(id),)))
    story.net.run(1)
    assert [note.topic for note in story.net.notes] == ["full", "full"]
    assert len(spawner.sessions) == 1


def test_what_does_not_fit_into_a_session_is_reported() -> None:
    story = Story()
    initiator = story.session(ORDERED)
    story.net.run(1)
    big = Envelope("big", data=bytes(DATA_INLINE_BYTES_MAX))
    story.net.send(story.a, Parcel(("0#up", "0#sink"), ("0#app",), (big,)))
    story.net.send(story.b, Parcel(("0#hub", f"0#{initiator.session}", "0#app"), ("0#echo",), (big,)))
    story.net.run(1)
    assert [note.topic for note in story.net.notes] == ["rejected", "rejected"]


def test_sessions_without_a_name_or_a_way_back_are_not_opened() -> None:
    story = Story()
    spawner = story.spawn(ORDERED)
    story.net.tell(
        story.b, spawner, Received("", Parcel(("0#hub.inner",), (), (OpenSession("s"), Carried("s", "r", Confirm(())))))
    )
    story.net.tell(story.b, spawner, Received("", Parcel(("0#hub.inner",), ("1#a", "0#up.inner"), (OpenSession(""),))))
    assert not spawner.sessions
    assert [note.topic for note in story.net.notes] == ["rejected"]


def test_a_session_that_stopped_is_resumed() -> None:
    story = Story()
    spawner = story.spawn(partial(confirm_pipe, timeout_s=1.0))
    initiator = story.open(partial(confirm_pipe, timeout_s=1.0))
    story.net.run(1)
    story.net.links[frozenset("ab")].loss = 1.0
    story.say("a", to="sink")
    back = ("0#hub", f"0#{initiator.session}", "0#app")
    story.net.send(story.b, Parcel(back, ("0#sink",), (Envelope("b"),)))
    story.net.run(5)
    story.net.calm()
    story.net.tell(story.a, initiator, Resume())
    story.net.tell(story.b, spawner, Resume())
    story.net.run(5)
    assert story.taken == ["a"]
    assert story.answers == ["b"]


def test_a_route_over_a_forwarder_leads_back_over_it() -> None:
    net = Net()
    nodes: list[Node] = [net.node(name) for name in "amb"]
    net.link("a", "m")
    net.link("m", "b")
    nodes[1].forwarders.add("gate")
    story = Story()
    story.net, story.a, story.b = net, nodes[0], nodes[2]
    story.a.apps["app"] = story._answered
    story.b.apps["echo"] = story._echo
    story.spawn(ORDERED)
    initiator = Initiator(ChannelConfig("up", ("1#m", "0#gate", "1#b", "0#hub.inner"), ORDERED), "i1")
    net.start(story.a, initiator)
    story.say("a")
    net.run(2)
    assert story.answers == ["re-a"]
