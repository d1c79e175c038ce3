from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench, append, live, run, session

from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import DeliveryTerms
from semel.pubsub.hub.roster import Here
from semel.pubsub.hub.runs import Run
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionChange
from semel.pubsub.hub.sockets import ClosePeer, Write
from semel.websocket import CloseCode


class Delivering:
    def __init__(self, **options: object) -> None:
        self.bench = Bench(**options)  # type: ignore[arg-type]
        self.outgoing, self.roster = Outgoing(self.bench.context), Here()
        self.acks, self.closing = Mock(spec=AckFlush), Mock(spec=Closing)
        self.delivery = Delivery(self.bench.context, self.outgoing, self.roster, self.acks, self.closing)

    def add(self, *sessions: Session) -> None:
        for each in sessions:
            self.roster.add(each)

    def written(self) -> list[tuple[list[str], int]]:
        """To which sockets, and how many frames in all."""
        self.bench.effects.clear()
        self.outgoing.flush()
        writes = [message for _, message in self.bench.sent() if isinstance(message, Write)]
        return [(sorted(peers), frames.count(b"sequenceId")) for write in writes for peers, frames in write.writes]


@pytest.fixture
def scene() -> Delivering:
    return Delivering()


def test_one_encoding_goes_to_all_with_the_same_protocol(scene: Delivering) -> None:
    scene.add(*(live(name, groups=["g"]) for name in ("alice", "bob")), live("carol", groups=["h"]))
    scene.delivery.fan_out(run(1, 3), NOW)
    assert scene.written() == [(["socket of alice", "socket of bob"], 3)]
    assert scene.bench.context.counts.deliveries == 6


def as_runs(scene: Delivering, *targets: str) -> list[tuple[int, int]]:
    """The runs that messages to these targets, from offset 1 on, are delivered as."""
    runs: list[tuple[int, int]] = []
    scene.delivery.fan_out = lambda run, now: runs.append((run.first, run.last))  # type: ignore[method-assign]
    scene.delivery.on_messages(1, [append(f"m{at}", target) for at, target in enumerate(targets)], NOW)
    return runs


def test_messages_to_one_target_are_one_run(scene: Delivering) -> None:
    assert as_runs(scene, "g/g", "g/g", "g/h") == [(1, 2), (3, 3)]


def test_they_are_divided_where_this_node_began() -> None:
    assert as_runs(Delivering(head=2), "g/g", "g/g", "g/g") == [(1, 2), (3, 3)]


def test_a_session_without_a_socket_gets_it_later(scene: Delivering) -> None:
    scene.add(alice := live("alice", peer="", groups=["g"]))
    scene.delivery.fan_out(run(1, 2), NOW)
    assert scene.written() == []
    alice.attach("socket", in_order=False)
    scene.delivery.catch_up(alice, NOW)
    assert scene.written() == [(["socket"], 2)]


def test_what_a_session_had_on_another_node_is_not_sent_again(scene: Delivering) -> None:
    scene.add(alice := live("alice", groups=["g"]), bob := live("bob", groups=["g"]))
    alice.opened, bob.backlog.acked = 2, 3
    scene.delivery.fan_out(run(1, 3), NOW)
    assert scene.written() == [(["socket of alice"], 1)]
    assert (alice.backlog.count, bob.backlog.count) == (1, 0)


def test_terms_exclude_the_sender_and_those_that_they_name(scene: Delivering) -> None:
    scene.add(*(live(name, groups=["g"]) for name in ("rest", "alice", "bob")))
    terms = DeliveryTerms(no_echo=True, excluded=("alice",))
    found = scene.delivery.due(scene.roster, run(1, terms=terms), NOW)
    assert [each.id for each in found] == ["bob"]


def test_what_has_expired_is_for_nobody(scene: Delivering) -> None:
    scene.add(live("alice", groups=["g"]))
    assert list(scene.delivery.due(scene.roster, run(1, terms=DeliveryTerms(expires=1)), NOW)) == []


def test_a_filter_chooses_receivers(scene: Delivering) -> None:
    scene.add(live("alice", user="ann", groups=["g"]), live("bob", user="ben", groups=["g"]))
    found = scene.delivery.due(scene.roster, run(1, terms=DeliveryTerms(filter="userId eq 'ben'")), NOW)
    assert [each.id for each in found] == ["bob"]


def test_what_expires_while_it_waits_is_logged_and_not_sent(scene: Delivering) -> None:
    scene.add(alice := live("alice", peer="", groups=["g"]))
    terms = DeliveryTerms(expires=round((NOW + 1) * 1e6))
    scene.delivery.fan_out(run(1, terms=terms), NOW)
    alice.attach("socket", in_order=False)
    scene.delivery.catch_up(alice, NOW + 2)
    assert scene.bench.logged() == [("expired", 1, 1, 1)]
    assert scene.written() == []


@pytest.mark.parametrize("options", [{"backlog_count": 2}, {"backlog_bytes": 2}])
def test_a_session_that_is_owed_too_much_ends(options: dict[str, int]) -> None:
    scene = Delivering(**options)
    scene.add(alice := live("alice", peer="", groups=["g"]))
    scene.delivery.fan_out(run(1, 2), NOW)
    scene.closing.discard.assert_not_called()
    scene.delivery.fan_out(run(3), NOW)
    scene.closing.discard.assert_called_once_with(alice, "3 messages are not acknowledged", NOW)
    assert alice.end == 3


def delivered(scene: Delivering, each: Run) -> Session:
    alice = live("alice", groups=["g"])
    scene.add(alice)
    scene.delivery.fan_out(each, NOW)
    return alice


def test_an_acknowledgement_is_written_down_later(scene: Delivering) -> None:
    alice = delivered(scene, run(1, 3))
    scene.delivery.acknowledge(alice, 2, NOW)
    assert (alice.backlog.acked, alice.backlog.count) == (2, 1)
    scene.acks.add.assert_called_once_with(alice)


def test_an_old_acknowledgement_changes_nothing(scene: Delivering) -> None:
    alice = delivered(scene, run(1, 3))
    scene.delivery.acknowledge(alice, 2, NOW)
    scene.delivery.acknowledge(alice, 1, NOW)
    assert alice.backlog.acked == 2


@pytest.mark.parametrize(("is_shared", "code"), [(False, CloseCode.POLICY), (True, CloseCode.INTERNAL)])
def test_what_was_never_sent_cannot_be_acknowledged(is_shared: bool, code: CloseCode) -> None:
    scene = Delivering(is_shared=is_shared)
    alice = delivered(scene, run(1, 3))
    scene.delivery.acknowledge(alice, 4, NOW)
    reason = "4 is acknowledged, but 3 is the last one sent"
    assert scene.bench.sent()[-1] == ("socket of alice", ClosePeer(code, reason))
    scene.closing.drop.assert_called_once_with(alice, NOW)
    assert alice.backlog.acked == 0


def test_an_acknowledgement_waits_for_what_was_missed(scene: Delivering) -> None:
    alice = session("alice", groups=["g"])
    alice.change(SessionChange.FALL_BEHIND)
    alice.backlog.sent = 5
    scene.delivery.acknowledge(alice, 4, NOW)
    assert (alice.backlog.acked, alice.backlog.early_ack) == (0, 4)
