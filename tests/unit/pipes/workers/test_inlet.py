"""The receiving half of a stage: what passes, what is a copy, and what waits."""

from __future__ import annotations

import pytest

from semel.errors import ConfigError
from semel.kernel.dedup import GapPolicy, OnGap, Repeated
from semel.kernel.envelope import Envelope
from semel.kernel.hop import HopMessage
from semel.pipes.language.options import DedupBy
from semel.pipes.workers import inlet as module
from semel.pipes.workers.inlet import Arrival, Inlet, InletConfig
from semel.pipes.workers.meter import HopMeter

AGAIN = Repeated(waiting=False)


def make(dedup: DedupBy = DedupBy.NONE, **options: object) -> Inlet:
    return Inlet(InletConfig("A>B", dedup=dedup, **options), HopMeter("A>B"))  # type: ignore[arg-type]


def came(id: str, index: int, run: str = "r", peer: str = "A", floor: int = 0) -> Arrival:
    return peer, HopMessage(f"{run}/{index}", Envelope(id), index, floor=floor)


def test_without_dedup_every_copy_passes() -> None:
    inlet = make()
    assert inlet.admit(came("m", 1), 0.0) == [came("m", 1)]
    assert inlet.admit(came("m", 1), 0.0) == [came("m", 1)]
    assert inlet.can_forget
    assert not inlet.is_late(came("m", 1))


def test_an_id_passes_once_whoever_sends_it() -> None:
    inlet = make(DedupBy.ID)
    assert inlet.admit(came("m", 1), 0.0) == [came("m", 1)]
    assert inlet.admit(came("m", 9, "other", "C"), 0.0) == AGAIN
    assert inlet.can_forget
    inlet.forget(came("m", 1))
    assert inlet.admit(came("m", 1), 0.0) == [came("m", 1)]


def test_an_id_is_remembered_for_a_time_and_up_to_a_number() -> None:
    inlet = make(DedupBy.ID, keep_s=5.0, size=2)
    inlet.admit(came("a", 1), 0.0)
    assert inlet.admit(came("a", 1), 4.9) == AGAIN
    assert inlet.admit(came("a", 1), 5.0) == [came("a", 1)]
    inlet.admit(came("b", 2), 5.0)
    inlet.admit(came("c", 3), 5.0)
    assert inlet.admit(came("a", 1), 5.0) == [came("a", 1)]
    assert inlet.ids is not None
    assert inlet.ids.leaked == 2


def test_an_index_never_goes_back() -> None:
    inlet = make(DedupBy.INDEX)
    assert inlet.admit(came("c", 3), 0.0) == [came("c", 3)]
    assert inlet.admit(came("c", 3), 0.0) == AGAIN
    assert not inlet.is_late(came("c", 3))
    assert inlet.admit(came("b", 2), 0.0) == AGAIN
    assert inlet.is_late(came("b", 2)), "it never passed: no copy"
    assert not inlet.is_late(came("b", 2)), "but the next one is"
    assert not inlet.can_forget
    inlet.forget(came("c", 3))
    assert inlet.admit(came("c", 3), 0.0) == AGAIN


def test_every_run_of_a_peer_has_numbers_of_its_own() -> None:
    inlet = make(DedupBy.INDEX)
    inlet.admit(came("a", 5, "first"), 0.0)
    assert inlet.admit(came("b", 1, "second"), 0.0) == [came("b", 1, "second")]
    assert inlet.admit(came("c", 1, "first", "C"), 0.0) == [came("c", 1, "first", "C")]
    assert inlet.admit(came("d", 5, "first"), 0.0) == AGAIN


def test_the_run_that_was_longest_unheard_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNS_MAX", 2)
    inlet = make(DedupBy.INDEX)
    for run in ("a", "b", "a", "c"):
        inlet.admit(came("m", 1, run), 0.0)
    assert inlet.admit(came("m", 1, "a"), 0.0) == AGAIN
    assert inlet.admit(came("m", 1, "b"), 0.0) == [came("m", 1, "b")]


def test_strict_passes_each_once_and_in_order() -> None:
    inlet = make(DedupBy.STRICT, buffer_max=2)
    assert inlet.admit(came("c", 3), 0.0) == []
    assert inlet.admit(came("c", 3), 0.0) == Repeated(waiting=True)
    assert inlet.admit(came("b", 2), 0.0) == []
    assert inlet.admit(came("d", 4), 0.0) == [], "no place: not kept"
    assert inlet.admit(came("a", 1), 0.0) == [came("a", 1), came("b", 2), came("c", 3)]
    assert inlet.admit(came("b", 2), 0.0) == AGAIN
    assert inlet.admit(came("d", 4), 0.0) == [came("d", 4)]
    assert inlet.next_deadline() is None
    assert not inlet.can_forget


def test_a_gap_is_skipped_after_its_time_and_a_late_one_is_known() -> None:
    inlet = make(DedupBy.STRICT, gap=GapPolicy(OnGap.SKIP, 10.0))
    inlet.admit(came("c", 3), 1.0)
    assert inlet.next_deadline() == 11.0
    assert inlet.on_timer(10.9) == ([], [], [])
    passed, asks, gaps = inlet.on_timer(11.0)
    assert (passed, asks) == ([came("c", 3)], [])
    assert gaps == ["A/r: 1..2 never came"]
    assert inlet.admit(came("b", 2), 12.0) == AGAIN
    assert inlet.is_late(came("b", 2))
    assert not inlet.is_late(came("c", 3))


def test_a_gap_is_asked_for_again_and_again() -> None:
    inlet = make(DedupBy.STRICT, gap=GapPolicy(OnGap.ASK, 10.0))
    inlet.admit(came("c", 3), 0.0)
    for at in (10.0, 20.0):
        passed, asks, gaps = inlet.on_timer(at)
        assert (passed, gaps) == ([], [])
        assert [(peer, ask.first, ask.last) for peer, ask in asks] == [("A", 1, 2)]


def test_strict_does_not_wait_for_what_its_sender_has_settled() -> None:
    """A worker that has lost its memory would wait for ever for what its former life has confirmed."""
    inlet = make(DedupBy.STRICT)
    assert inlet.admit(came("m", 57, floor=57), 0.0) == [came("m", 57, floor=57)]
    assert inlet.admit(came("l", 56, floor=50), 0.0) == AGAIN
    assert make(DedupBy.STRICT).admit(came("m", 57, floor=56), 0.0) == [], "56 is still to come"


def test_what_waits_below_the_floor_passes_in_order() -> None:
    """Its sender has given up what was before it, so nothing more is to be waited for."""
    inlet = make(DedupBy.STRICT)
    waiting = [came("c", 3), came("e", 5), came("f", 6)]
    assert [inlet.admit(each, 0.0) for each in waiting] == [[], [], []]
    last = came("g", 8, floor=5)
    assert inlet.admit(last, 0.0) == waiting
    assert inlet.is_late(came("b", 2))
    assert inlet.admit(came("h", 7), 0.0) == [came("h", 7), last]


def test_the_same_message_is_known_by_its_id_on_the_hop_or_by_its_delivery() -> None:
    by_id, by_delivery = make(DedupBy.ID), make()
    assert by_id.key(came("m", 1)) == by_id.key(came("m", 2, "other"))
    assert by_id.key(came("m", 1)) != Inlet(InletConfig("C>B", dedup=DedupBy.ID), HopMeter("C>B")).key(came("m", 1))
    assert by_delivery.key(came("m", 1)) == by_delivery.key(came("m", 1))
    assert by_delivery.key(came("m", 1)) != by_delivery.key(came("m", 2))


def test_it_hears_those_who_are_named_or_everybody() -> None:
    assert make().accepts_from("anybody")
    assert make(peers=("A",)).accepts_from("A")
    assert not make(peers=("A",)).accepts_from("C")


def test_memory_by_session_must_survive() -> None:
    with pytest.raises(ConfigError, match="survives"):
        make(DedupBy.SESSION)
