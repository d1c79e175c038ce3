"""A durable stage on a memory store: what it has committed it never loses, and it confirms no sooner than it may."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ConfigError, StoreUnavailable
from semel.kernel.effects import Committed, PeerConnected, PeerDisconnected, Received, Resume
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.ledger import Kind
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.pipes.language.options import ConfirmOn, DedupBy
from semel.pipes.workers.durable import DurableStage
from semel.pipes.workers.inlet import InletConfig
from semel.pipes.workers.outlet import OutletConfig
from semel.pipes.workers.route import Parcel
from semel.pipes.workers.stage import StageConfig
from unit.kernel.bench import Bench

DOWN = StoreUnavailable("gone", fix="wait")


def policy(retries: int | None = None, window: int = 1) -> ResendPolicy:
    return ResendPolicy(window, 1.0, RetryPolicy(retries, 1.0, then="discard"))


def inlet(confirm: ConfirmOn | None = ConfirmOn.RECEIPT, dedup: DedupBy = DedupBy.NONE) -> InletConfig:
    return InletConfig("A>S", ("A",), confirm, dedup)


def forwards(into: InletConfig, *outlets: OutletConfig) -> StageConfig:
    return StageConfig("S", "path", (into,), outlets or (OutletConfig("S>B", "B", policy()),))


def handles(into: InletConfig) -> StageConfig:
    return StageConfig("S", "path", (into,), (), handles=True)


class World(Bench):
    """One durable stage, which may be killed and started again from its store."""

    def __init__(self, config: StageConfig) -> None:
        super().__init__()
        self.config = config
        self.start()

    def start(self) -> None:
        self.wires.clear()
        self.machine = DurableStage(self.config, self.store)
        self.add(self.machine)

    def hear(self, body: object, peer: str = "A") -> None:
        self.tell(Received(peer, body))

    def tell(self, event: Any) -> None:
        seat = self.interpreter.seat("S")
        assert seat is not None
        self.interpreter.feed(seat, event)
        self.run()

    def confirm_all(self, peer: str = "B") -> None:
        """The peer confirms what it has been sent, one thing after the other."""
        while messages := self.sent_to(peer):
            self.wires[peer] = []
            self.hear(Confirm(tuple(message.delivery for message in messages)), peer)


def message(id: str = "m", index: int = 1, run: str = "a") -> HopMessage:
    return HopMessage(f"{run}/{index}", Envelope(id), index)


def confirms(world: World, peer: str = "A") -> list[str]:
    return [delivery for body in world.sent_to(peer) if isinstance(body, Confirm) for delivery in body.deliveries]


def sent(world: World, peer: str = "B") -> list[str]:
    return [body.envelope.id for body in world.sent_to(peer) if isinstance(body, HopMessage)]


def test_it_commits_then_confirms_and_sends_on() -> None:
    world = World(forwards(inlet()))
    world.hear(message())
    assert confirms(world) == ["a/1"]
    assert sent(world) == ["m"]
    assert world.store.head(world.config.stream).offset == 1
    assert (world.machine.unconfirmed, world.machine.is_full) == (1, False)


def test_what_could_not_be_committed_is_not_confirmed() -> None:
    world = World(forwards(inlet()))
    world.fail_commits = [DOWN]
    world.hear(message())
    assert (confirms(world), sent(world)) == ([], [])
    world.hear(message())
    assert (confirms(world), sent(world)) == (["a/1"], ["m"])


def test_a_copy_is_dropped_by_its_id_even_in_a_later_life() -> None:
    world = World(forwards(inlet()))
    world.hear(message())
    world.confirm_all()
    world.start()
    world.hear(message("m", 9, "other run"))
    assert confirms(world) == ["other run/9"]
    assert sent(world) == []


def test_after_a_crash_it_sends_on_what_was_not_confirmed() -> None:
    world = World(forwards(inlet()))
    for index, id in enumerate("mno", 1):
        world.hear(message(id, index))
    assert sent(world) == ["m"], "one at a time"
    (first,) = world.sent_to("B")
    world.hear(Confirm((first.delivery,)), "B")
    world.start()
    assert sent(world) == ["n"]
    world.confirm_all()
    assert world.machine.unconfirmed == 0
    assert world.machine.passed == 3


def test_the_application_hands_in_envelopes_alone_or_together() -> None:
    world = World(StageConfig("S", "path", (), (OutletConfig("S>B", "B", policy(window=9)),)))
    world.hear(Envelope("m"), "app")
    world.hear(Parcel((), (), (Envelope("n"), Envelope("o"))), "app")
    assert sent(world) == ["m", "n", "o"]
    assert confirms(world, "app") == ["m", "n", "o"]


def test_it_sends_again_by_its_timer_and_after_a_reconnect() -> None:
    world = World(forwards(inlet()))
    world.hear(message())
    assert world.machine.next_deadline() == world.now + 1.0
    world.wait(1.0)
    assert sent(world) == ["m", "m"]
    world.tell(PeerConnected("B"))
    assert sent(world) == ["m", "m", "m"]


def test_a_hop_without_retries_is_sent_until_confirmed_all_the_same() -> None:
    world = World(forwards(inlet(), OutletConfig("S>B", "B")))
    world.hear(message())
    world.wait(60.0)
    assert len(sent(world)) > 2


def test_out_of_retries_it_keeps_the_message_and_waits_for_an_operator() -> None:
    world = World(forwards(inlet(), OutletConfig("S>B", "B", policy(retries=1))))
    world.hear(message())
    world.wait(10.0)
    assert [note.topic for note in world.notes] == ["suspended"]
    assert len(sent(world)) == 2
    world.tell(Resume())
    assert len(sent(world)) == 3
    world.confirm_all()
    assert world.machine.passed == 1


# -- confirming later than the commit


def test_a_cascade_waits_until_every_onward_hop_has_confirmed() -> None:
    outlets = OutletConfig("S>B", "B", policy()), OutletConfig("S>C", "C", policy())
    world = World(forwards(inlet(ConfirmOn.CASCADE), *outlets))
    world.hear(message())
    assert (sent(world, "B"), sent(world, "C"), confirms(world)) == (["m"], ["m"], [])
    world.confirm_all("B")
    assert confirms(world) == []
    world.confirm_all("C")
    assert confirms(world) == ["a/1"]


def test_a_cascade_answers_a_copy_when_the_first_one_is_through() -> None:
    world = World(forwards(inlet(ConfirmOn.CASCADE)))
    world.hear(message())
    world.start()
    world.hear(message())
    assert confirms(world) == [], "not even after a crash"
    world.confirm_all()
    assert confirms(world) == ["a/1"]
    world.hear(message())
    assert confirms(world) == ["a/1", "a/1"], "now at once"


@pytest.mark.parametrize("dedup", [DedupBy.INDEX, DedupBy.STRICT])
def test_a_copy_by_its_index_waits_for_all_that_is_stored(dedup: DedupBy) -> None:
    """The store does not say where its first copy stands, and a new life has not seen it come."""
    world = World(forwards(inlet(ConfirmOn.CASCADE, dedup)))
    world.hear(message())
    world.start()
    world.hear(message())
    assert confirms(world) == []
    world.confirm_all()
    assert confirms(world) == ["a/1"]


def test_processing_waits_for_the_handler_and_its_commit() -> None:
    world = World(handles(inlet(ConfirmOn.PROCESSING)))
    outcomes = iter([ValueError("not today"), None])

    def handler(item: object) -> tuple[()]:
        error = next(outcomes)
        if error is not None:
            raise error
        return ()

    world.handler = handler
    world.hear(message())
    assert (world.delivered, confirms(world)) == (["m"], [])
    world.wait(60.0)
    assert (world.delivered, confirms(world)) == (["m", "m"], ["a/1"])


def test_on_receipt_it_confirms_before_the_handler() -> None:
    world = World(handles(inlet()))

    def handler(item: object) -> tuple[()]:
        assert confirms(world) == ["a/1"]
        return ()

    world.handler = handler
    world.hear(message())
    assert world.delivered == ["m"]


def test_each_message_is_handled_once_over_all_lives() -> None:
    world = World(handles(inlet()))
    for _ in range(3):
        for index, id in enumerate("mno", 1):
            world.hear(message(id, index))
        world.start()
    assert world.delivered == ["m", "n", "o"]
    handled = [event for event in world.ledger() if event.kind is Kind.HANDLED]
    assert sum(event.n for event in handled) == 3


# -- by index


def test_strict_keeps_the_order_over_a_crash() -> None:
    world = World(handles(inlet(ConfirmOn.RECEIPT, DedupBy.STRICT)))
    world.hear(message("m", 1))
    world.hear(message("o", 3))
    assert world.delivered == ["m"]
    world.start()
    world.hear(message("o", 3))
    world.hear(message("n", 2))
    assert world.delivered == ["m", "n", "o"]


def test_a_new_run_of_the_sender_numbers_anew() -> None:
    world = World(handles(inlet(ConfirmOn.RECEIPT, DedupBy.INDEX)))
    world.hear(message("m", 5, "first"))
    world.hear(message("n", 1, "second"))
    world.hear(message("late", 4, "first"))
    assert world.delivered == ["m", "n"]
    assert confirms(world) == ["first/5", "second/1", "first/4"], "to the peer, whatever its run"


def test_ways_in_must_agree_on_how_to_tell_copies() -> None:
    ways = inlet(), InletConfig("X>S", ("X",), dedup=DedupBy.STRICT)
    with pytest.raises(ConfigError, match="one memory"):
        World(StageConfig("S", "path", ways, ()))


def test_reading_is_tried_again_when_the_store_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(forwards(inlet()))
    right = world.store.read
    failures = iter([DOWN])

    def read(*args: Any, **kwargs: Any) -> Any:
        if error := next(failures, None):
            raise error
        return right(*args, **kwargs)

    monkeypatch.setattr(world.store, "read", read)
    world.hear(message())
    world.wait(5.0)
    assert "m" in sent(world)


def test_a_report_for_nobody_is_ignored() -> None:
    world = World(forwards(inlet()))
    assert world.machine.receive(Committed(999, ()), 0.0) == []
    assert world.machine.receive(PeerDisconnected("B"), 0.0) == ()


@pytest.mark.parametrize(("peer", "run"), [("A\x1fevil", "a"), ("A", "a\x1fevil")])
def test_nobody_leads_a_confirm_to_another_by_a_name(peer: str, run: str) -> None:
    """A confirm of somebody else's message would make A forget its own."""
    world = World(handles(inlet(ConfirmOn.RECEIPT, DedupBy.STRICT)))
    world.hear(message(run=run), peer)
    assert confirms(world) == []
    assert [notice.topic for notice in world.notes] == ["rejected"]
    world.hear(message())
    assert confirms(world) == ["a/1"]
