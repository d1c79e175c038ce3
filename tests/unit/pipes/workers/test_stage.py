"""One stage by itself: what it sends, what it confirms, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from semel.errors import StoreUnavailable
from semel.kernel.dedup import GapPolicy, OnGap
from semel.kernel.effects import (
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Deliver,
    Delivered,
    DeliverFailed,
    Effect,
    Notify,
    PeerConnected,
    Received,
    Resume,
    Send,
    Wake,
)
from semel.kernel.envelope import Envelope
from semel.kernel.hop import AskForGap, Confirm, HopMessage
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Log
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import GiveUp, RetryPolicy
from semel.pipes.language.options import ConfirmOn, DedupBy
from semel.pipes.workers import stage as module
from semel.pipes.workers.inlet import InletConfig
from semel.pipes.workers.outlet import PACKED_BYTES_MAX, OutletConfig, pack
from semel.pipes.workers.route import Parcel
from semel.pipes.workers.stage import Stage, StageConfig

CASCADE, PROCESSING, RECEIPT = ConfirmOn.CASCADE, ConfirmOn.PROCESSING, ConfirmOn.RECEIPT


def policy(retries: int | None = None, window: int = 1, then: GiveUp = "discard") -> ResendPolicy:
    return ResendPolicy(window, 1.0, RetryPolicy(retries, 1.0, then=then))


def inlet(confirm: ConfirmOn | None = None, dedup: DedupBy = DedupBy.NONE, **options: Any) -> InletConfig:
    return InletConfig("A>B", ("A",), confirm, dedup, **options)


def forwards(into: InletConfig, *outlets: OutletConfig, **options: Any) -> Stage:
    return Stage(StageConfig("B", "path", (into,), outlets or (OutletConfig("B>C", "C"),), **options), "b")


def handles(into: InletConfig, **options: Any) -> Stage:
    return Stage(StageConfig("B", "path", (into,), (), handles=True, **options), "b")


def message(id: str = "m", index: int = 1, attempt: int = 1) -> HopMessage:
    return HopMessage(f"a/{index}", Envelope(id), index, attempt)


def hear(stage: Stage, body: object, peer: str = "A", now: float = 0.0) -> list[Effect]:
    return list(stage.receive(Received(peer, body), now))


def sent(effects: Sequence[Effect], peer: str) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.peer == peer]


def delivered(effects: Sequence[Effect]) -> list[Deliver]:
    return [effect for effect in effects if isinstance(effect, Deliver)]


def confirm(index: int = 1, run: str = "b") -> Confirm:
    return Confirm((f"{run}/{index}",))


CONFIRMED = [confirm(1, "a")]


# -- on receipt


def test_it_passes_on_under_a_delivery_of_its_own() -> None:
    effects = hear(forwards(inlet()), message())
    assert effects == [Send("C", HopMessage("b/1", Envelope("m"), 1))]


def test_on_receipt_it_confirms_what_it_has_handed_on() -> None:
    effects = hear(forwards(inlet(RECEIPT)), message())
    assert [effect.peer for effect in effects if isinstance(effect, Send)] == ["C", "A"]
    assert sent(effects, "A") == CONFIRMED


def test_a_copy_is_confirmed_again_but_not_passed_on() -> None:
    stage = forwards(inlet(RECEIPT, DedupBy.ID))
    hear(stage, message())
    assert hear(stage, message(attempt=2)) == [Send("A", CONFIRMED[0])]
    assert stage.inlets[0].meter.counts == {Kind.ACCEPTED: 1, Kind.DUPLICATE: 1}


def test_a_copy_is_dropped_in_silence_where_nobody_waits() -> None:
    stage = forwards(inlet(None, DedupBy.ID))
    hear(stage, message())
    assert hear(stage, message()) == []


def test_what_comes_after_its_place_was_given_up_is_confirmed_and_counted_apart() -> None:
    stage = forwards(inlet(RECEIPT, DedupBy.INDEX))
    hear(stage, message("n", 2))
    assert sent(hear(stage, message("m", 1)), "A") == CONFIRMED
    assert stage.inlets[0].meter.counts == {Kind.ACCEPTED: 1, Kind.DROPPED: 1}


def test_every_body_of_a_parcel_is_heard() -> None:
    stage = forwards(inlet(RECEIPT))
    parcel = Parcel((), (), (message("m", 1), message("n", 2)))
    assert [each.envelope.id for each in sent(hear(stage, parcel), "C")] == ["m", "n"]


def test_an_application_hands_in_envelopes() -> None:
    stage = forwards(InletConfig("app>B", ("app",)))
    assert sent(hear(stage, Envelope("m"), "app"), "C") == [HopMessage("b/1", Envelope("m"), 1)]


def test_strangers_and_strange_things_are_not_heard() -> None:
    stage = forwards(inlet(RECEIPT))
    assert hear(stage, message(), "stranger") == []
    assert hear(stage, "what is this?") == []
    assert stage.receive(Wake(), 0.0) == ()
    assert stage.start(0.0) == ()


def test_several_outlets_all_get_it() -> None:
    stage = forwards(inlet(), OutletConfig("B>C", "C"), OutletConfig("B>D", "D", repeats=1))
    effects = hear(stage, message())
    assert (len(sent(effects, "C")), len(sent(effects, "D"))) == (1, 2)


# -- resending


def test_it_sends_again_until_it_is_confirmed() -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>C", "C", policy()))
    hear(stage, message())
    assert (stage.unconfirmed, stage.next_deadline()) == (1, 1.0)
    (again,) = sent(stage.on_timer(1.0), "C")
    assert (again.delivery, again.attempt) == ("b/1", 2)
    assert hear(stage, confirm(), "stranger") == [], "only the receiver can know"
    assert stage.unconfirmed == 1
    hear(stage, confirm(), "C")
    assert (stage.unconfirmed, stage.next_deadline()) == (0, None)


def test_the_next_one_goes_out_when_there_is_room() -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>C", "C", policy()))
    hear(stage, message("m", 1))
    assert sent(hear(stage, message("n", 2)), "C") == []
    assert [each.envelope.id for each in sent(hear(stage, confirm(), "C"), "C")] == ["n"]


@pytest.mark.parametrize("event", [PeerConnected("C"), Received("C", AskForGap("", 1, 1))])
def test_a_new_connection_or_a_question_makes_it_send_at_once(event: Any) -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>C", "C", policy()), OutletConfig("B>D", "D"))
    hear(stage, message())
    assert [each.attempt for each in sent(stage.receive(event, 0.5), "C")] == [2]
    assert stage.receive(PeerConnected("D"), 0.5) == []


def test_what_nobody_confirms_is_given_up_and_people_hear_of_it() -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>C", "C", policy(retries=0)))
    hear(stage, message())
    (note,) = stage.on_timer(1.0)
    assert isinstance(note, Notify)
    assert (note.topic, note.message) == ("given-up", "b/1")
    assert "1 attempts" in note.detail
    assert stage.outlets[0].meter.counts[Kind.FAILED] == 1
    assert stage.unconfirmed == 0


def test_a_suspended_outlet_waits_for_an_operator() -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>C", "C", policy(retries=0, then="suspend")))
    hear(stage, message())
    assert stage.suspended is None
    assert stage.receive(Resume(), 0.5) == [], "nothing to resume"
    (note,) = stage.on_timer(1.0)
    assert isinstance(note, Notify)
    assert note.topic == "suspended"
    assert stage.suspended is not None
    assert [each.attempt for each in sent(stage.receive(Resume(), 9.0), "C")] == [1]
    assert stage.suspended is None


def test_a_full_stage_takes_nothing_and_confirms_nothing() -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>C", "C", policy(), queue_max=1))
    hear(stage, message("m", 1))
    assert stage.is_full
    assert hear(stage, message("n", 2)) == []
    hear(stage, confirm(), "C")
    assert sent(hear(stage, message("n", 2)), "A") == [confirm(2, "a")]


# -- cascade


def test_a_cascade_confirms_when_the_next_hop_has() -> None:
    stage = forwards(inlet(CASCADE), OutletConfig("B>C", "C", policy()))
    assert sent(hear(stage, message()), "A") == []
    assert hear(stage, confirm(), "C") == [Send("A", CONFIRMED[0])]
    assert hear(stage, confirm(), "C") == [], "once"


def test_while_the_outlet_resends_a_copy_is_only_noted() -> None:
    stage = forwards(inlet(CASCADE, DedupBy.ID), OutletConfig("B>C", "C", policy()))
    hear(stage, message("m", 1))
    assert hear(stage, message("m", 7)) == []
    assert sent(hear(stage, confirm(), "C"), "A") == [Confirm(("a/1", "a/7"))]


def test_without_a_resend_of_its_own_a_copy_is_the_resend() -> None:
    stage = forwards(inlet(CASCADE, DedupBy.ID))
    hear(stage, message())
    assert [each.delivery for each in sent(hear(stage, message(attempt=2)), "C")] == ["b/2"]
    assert sent(hear(stage, confirm(1), "C"), "A") == CONFIRMED, "whichever it answers"
    assert hear(stage, confirm(2), "C") == []
    assert hear(stage, message(attempt=3)) == [Send("A", CONFIRMED[0])], "done: only confirmed again"


def test_where_nobody_tells_copies_apart_each_is_passed_on() -> None:
    stage = forwards(inlet(CASCADE))
    for _ in range(2):
        assert len(sent(hear(stage, message()), "C")) == 1


@pytest.mark.parametrize("dedup", [DedupBy.ID, DedupBy.INDEX, DedupBy.STRICT])
def test_what_the_link_doubled_is_no_resend(dedup: DedupBy) -> None:
    stage = forwards(inlet(CASCADE, dedup))
    hear(stage, message())
    assert hear(stage, message()) == []
    assert len(sent(hear(stage, message(attempt=2)), "C")) == 1
    assert hear(stage, message(attempt=2)) == []
    assert len(sent(hear(stage, message(attempt=3)), "C")) == 1
    assert len(sent(hear(stage, message(attempt=1)), "C")) == 1, "its sender counts again: it was resumed or restarted"
    assert sent(hear(stage, confirm(1), "C"), "A") == CONFIRMED


def test_what_was_only_noted_may_still_be_a_resend() -> None:
    stage = forwards(inlet(CASCADE), OutletConfig("B>C", "C", policy(retries=0)))
    hear(stage, message())
    assert hear(stage, message(attempt=2)) == [], "the outlet has it in hand"
    stage.on_timer(1.0)
    assert len(sent(hear(stage, message(attempt=2), now=2.0), "C")) == 1, "nothing was passed on for that attempt"


def test_another_delivery_of_the_same_id_is_a_resend() -> None:
    stage = forwards(inlet(CASCADE, DedupBy.ID))
    hear(stage, message("m", 1))
    assert len(sent(hear(stage, message("m", 7)), "C")) == 1
    assert sent(hear(stage, confirm(2), "C"), "A") == [Confirm(("a/1", "a/7"))]


def test_a_message_that_is_passed_on_for_ever_takes_no_more_room() -> None:
    stage = forwards(inlet(CASCADE, DedupBy.ID))
    for attempt in range(1, 1000):
        hear(stage, message("m", attempt, attempt))
    (held,) = stage._held.values()
    assert len(stage._onward) == len(held.deliveries) == len(held.owed) == module.COPIES_MAX
    assert hear(stage, confirm(1), "C") == [], "long forgotten"
    (confirmed,) = sent(hear(stage, confirm(999), "C"), "A")
    assert confirmed.deliveries[-1] == "a/999"
    assert stage._onward == {}


def test_every_branch_is_remembered_however_many_there_are() -> None:
    branches = [OutletConfig(f"B>C{number}", f"C{number}", policy()) for number in range(module.COPIES_MAX + 2)]
    stage = forwards(inlet(CASCADE), *branches)
    hear(stage, message())
    assert sent(hear(stage, confirm(), "C0"), "A") == CONFIRMED


def test_after_the_outlet_gave_up_a_copy_begins_anew() -> None:
    stage = forwards(inlet(CASCADE), OutletConfig("B>C", "C", policy(retries=0)))
    hear(stage, message())
    assert stage.on_timer(1.0) == [], "its sender still has it"
    assert [each.delivery for each in sent(hear(stage, message(attempt=2), now=2.0), "C")] == ["b/2"]
    assert hear(stage, confirm(1), "C") == [], "of the one that was given up"
    assert sent(hear(stage, confirm(2), "C"), "A") == CONFIRMED


def test_a_plain_branch_beside_does_not_keep_a_given_up_one_busy() -> None:
    stage = forwards(inlet(CASCADE), OutletConfig("B>C", "C", policy(retries=0)), OutletConfig("B>D", "D"))
    hear(stage, message())
    stage.on_timer(1.0)
    assert len(sent(hear(stage, message(attempt=2), now=2.0), "C")) == 1


def test_one_branch_is_enough_to_confirm() -> None:
    outlets = OutletConfig("B>C", "C", policy()), OutletConfig("B>D", "D", policy())
    stage = forwards(inlet(CASCADE), *outlets)
    hear(stage, message())
    assert sent(hear(stage, confirm(), "D"), "A") == CONFIRMED
    assert hear(stage, confirm(), "C") == []


def test_the_same_id_on_two_ways_in_is_held_for_each() -> None:
    ways = tuple(InletConfig(f"{peer}>B", (peer,), CASCADE, DedupBy.ID) for peer in ("A", "X"))
    stage = Stage(StageConfig("B", "path", ways, (OutletConfig("B>C", "C", policy(window=2)),)), "b")
    assert len(sent(hear(stage, message(), "A"), "C")) == 1
    assert len(sent(hear(stage, message(), "X"), "C")) == 1


def test_a_place_held_for_nobody_is_made_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 1)
    stage = forwards(inlet(CASCADE, DedupBy.ID))
    hear(stage, message("m", 1))
    assert len(sent(hear(stage, message("n", 2)), "C")) == 1
    assert len(sent(hear(stage, message("m", 1)), "C")) == 1, "forgotten: new again"


def test_a_place_is_kept_while_it_is_busy_or_cannot_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 1)
    busy = forwards(inlet(CASCADE), OutletConfig("B>C", "C", policy(window=9)))
    strict = forwards(inlet(CASCADE, DedupBy.STRICT))
    for stage in (busy, strict):
        hear(stage, message("m", 1))
        assert hear(stage, message("n", 2)) == []


# -- strict


def test_strict_confirms_nothing_that_waits() -> None:
    stage = forwards(inlet(RECEIPT, DedupBy.STRICT))
    assert hear(stage, message("n", 2)) == []
    assert hear(stage, message("n", 2, 2)) == []
    effects = hear(stage, message("m", 1))
    assert [each.envelope.id for each in sent(effects, "C")] == ["m", "n"]
    assert sent(effects, "A") == [Confirm(("a/1", "a/2"))]


def test_behind_a_strict_inlet_the_handler_gets_one_after_the_other() -> None:
    stage = handles(inlet(PROCESSING, DedupBy.STRICT))
    (first,) = delivered(hear(stage, message("m", 1)))
    assert hear(stage, message("n", 2)) == [], "it waits for its turn"
    assert stage.receive(DeliverFailed(first.token, "no"), 0.0) == [], "and is not let past what has failed"
    assert hear(stage, message("n", 2, 2)) == []
    (again,) = delivered(hear(stage, message("m", 1, 2)))
    assert (again.item.envelope.id, again.attempt) == ("m", 2)
    (second, confirm_of_first) = stage.receive(Delivered(again.token), 0.0)
    assert isinstance(second, Deliver)
    assert second.item.envelope.id == "n"
    assert confirm_of_first == Send("A", confirm(1, "a"))
    assert stage.receive(Delivered(second.token), 0.0) == [Send("A", confirm(2, "a"))]


def test_what_failed_and_was_given_up_by_its_sender_is_waited_for_no_longer() -> None:
    stage = handles(inlet(PROCESSING, DedupBy.STRICT))
    (first,) = delivered(hear(stage, message("m", 1)))
    hear(stage, message("n", 2))
    stage.receive(DeliverFailed(first.token, "no"), 0.0)
    settled = HopMessage("a/3", Envelope("o"), 3, floor=2)
    (second,) = delivered(hear(stage, settled))
    assert second.item.envelope.id == "n"
    third = delivered(stage.receive(Delivered(second.token), 0.0))
    assert [each.item.envelope.id for each in third] == ["o"]


def test_what_failed_and_is_settled_is_left_out_when_the_next_one_is_sent_again() -> None:
    stage = handles(inlet(PROCESSING, DedupBy.STRICT))
    (first,) = delivered(hear(stage, message("m", 1)))
    hear(stage, message("n", 2))
    stage.receive(DeliverFailed(first.token, "no"), 0.0)
    assert hear(stage, message("n", 2, 2)) == [], "its sender still has the first one"
    (second,) = delivered(hear(stage, HopMessage("a/2", Envelope("n"), 2, 3, floor=2)))
    assert second.item.envelope.id == "n"


def test_on_receipt_a_handler_that_fails_lets_the_next_one_have_its_turn() -> None:
    stage = handles(inlet(RECEIPT, DedupBy.STRICT))
    (first,) = delivered(hear(stage, message("m", 1)))
    assert delivered(hear(stage, message("n", 2))) == []
    effects = stage.receive(DeliverFailed(first.token, "no"), 0.0)
    assert [each.item.envelope.id for each in delivered(effects)] == ["n"]
    assert [each.topic for each in effects if isinstance(each, Notify)] == ["handler-failed"]


def test_a_gap_is_skipped_with_a_note() -> None:
    stage = forwards(inlet(RECEIPT, DedupBy.STRICT, gap=GapPolicy(OnGap.SKIP, 5.0)))
    hear(stage, message("n", 2))
    assert stage.next_deadline() == 5.0
    effects = stage.on_timer(5.0)
    assert [effect.topic for effect in effects if isinstance(effect, Notify)] == ["gap-skipped"]
    assert sent(effects, "A") == [confirm(2, "a")]


def test_a_gap_is_asked_for() -> None:
    stage = forwards(inlet(RECEIPT, DedupBy.STRICT, gap=GapPolicy(OnGap.ASK, 5.0)))
    hear(stage, message("n", 2))
    assert stage.on_timer(5.0) == [Send("A", AskForGap("", 1, 1))]


# -- the handler


def test_processing_confirms_after_the_handler() -> None:
    stage = handles(inlet(PROCESSING))
    (deliver,) = delivered(hear(stage, message()))
    assert (deliver.item.envelope.id, deliver.attempt) == ("m", 1)
    assert hear(stage, message(attempt=2)) == [], "it is still at work"
    assert stage.receive(Delivered(deliver.token), 0.0) == [Send("A", CONFIRMED[0])]
    assert stage.receive(Delivered(deliver.token), 0.0) == [], "once"
    assert stage.handled.counts == {Kind.HANDLED: 1}


def test_processing_confirms_after_the_handlers_writes() -> None:
    stage = handles(inlet(PROCESSING))
    (deliver,) = delivered(hear(stage, message()))
    ops = (Append("effects", Envelope("e")),)
    (commit,) = stage.receive(Delivered(deliver.token, ops), 0.0)
    assert isinstance(commit, Commit)
    assert (commit.ops, commit.chain) == (ops, None)
    assert stage.receive(Committed(commit.token, ()), 0.0) == [Send("A", CONFIRMED[0])]


@pytest.mark.parametrize("outcome", ["failed", "unknown", "handler"])
def test_what_failed_is_handled_again_when_it_comes_again(outcome: str) -> None:
    stage = handles(inlet(PROCESSING, DedupBy.INDEX))
    (deliver,) = delivered(hear(stage, message()))
    if outcome == "handler":
        effects = stage.receive(DeliverFailed(deliver.token, "no"), 0.0)
    else:
        (commit,) = stage.receive(Delivered(deliver.token, (Append("effects", Envelope("e")),)), 0.0)
        assert isinstance(commit, Commit)
        failed = CommitFailed(commit.token) if outcome == "failed" else CommitUnknown(commit.token)
        effects = stage.receive(failed, 0.0)
    assert effects == []
    (again,) = delivered(hear(stage, message(attempt=2)))
    assert again.attempt == 2
    assert sent(stage.receive(Delivered(again.token), 0.0), "A") == CONFIRMED
    assert stage.handled.counts == {Kind.FAILED: 1, Kind.HANDLED: 1}


def test_what_was_confirmed_on_receipt_and_failed_is_said_to_be_lost() -> None:
    stage = handles(inlet(RECEIPT))
    effects = hear(stage, message())
    assert sent(effects, "A") == CONFIRMED
    (note,) = stage.receive(DeliverFailed(delivered(effects)[0].token, "no"), 0.0)
    assert isinstance(note, Notify)
    assert (note.topic, note.message) == ("handler-failed", "m")
    assert stage.receive(DeliverFailed(99, "no"), 0.0) == []


# -- the ends of a pipe


def test_it_takes_a_message_out_of_its_middle_and_confirms_to_the_sender() -> None:
    stage = forwards(InletConfig("P>B", ("B~in",), RECEIPT, unpacks=True))
    packed = pack("P", HopMessage("p/1", Envelope("m"), 1))
    for body in (packed, HopMessage("x/1", packed, 1)):
        effects = hear(stage, body, "B~in")
        assert [each.envelope.id for each in sent(effects, "C")] == ["m"]
        assert sent(effects, "P") == [confirm(1, "p")]


def test_what_holds_no_message_of_the_pipe_is_rejected() -> None:
    stage = forwards(InletConfig("P>B", ("B~in",), RECEIPT, unpacks=True))
    (note,) = hear(stage, message(), "B~in")
    assert isinstance(note, Notify)
    assert (note.topic, note.message) == ("rejected", "m")


CARRIED = InletConfig("P>B", ("B~in",), RECEIPT, DedupBy.ID, unpacks=True, confirms_carrier=True)


def carrier(index: int = 1) -> HopMessage:
    return HopMessage(f"x/{index}", pack("P", HopMessage(f"p/{index}", Envelope(f"m{index}"), index)), index)


def test_a_durable_middle_is_told_that_its_carrier_is_through() -> None:
    stage = forwards(CARRIED)
    for _ in range(2):
        effects = hear(stage, carrier(), "B~in")
        assert sent(effects, "B~in") == [confirm(1, "x")], "every copy, or it would stop there"
        assert sent(effects, "P") == [confirm(1, "p")]


def test_a_carrier_without_a_message_does_not_stop_the_middle() -> None:
    note, confirmed = hear(forwards(CARRIED), message(), "B~in")
    assert isinstance(note, Notify)
    assert confirmed == Send("B~in", confirm(1, "a"))


def test_a_full_stage_lets_the_middle_wait() -> None:
    stage = forwards(CARRIED, OutletConfig("B>C", "C", policy(), queue_max=1))
    assert sent(hear(stage, carrier(1), "B~in"), "B~in") == [confirm(1, "x")]
    assert hear(stage, carrier(2), "B~in") == []
    hear(stage, confirm(), "C")
    assert sent(hear(stage, carrier(2), "B~in"), "B~in") == [confirm(2, "x")]


def test_it_packs_each_attempt_and_hears_confirms_from_the_far_end() -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>Z", "B~out", policy(), packs=True))
    (first,) = sent(hear(stage, message()), "B~out")
    (second,) = sent(stage.on_timer(1.0), "B~out")
    assert isinstance(first, Envelope)
    assert first.id != second.id
    hear(stage, confirm(), "Z")
    assert stage.unconfirmed == 0


def test_what_is_too_large_for_a_middle_is_not_confirmed() -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>Z", "B~out", policy(), packs=True))
    large = HopMessage("a/1", Envelope("m", data=bytes(PACKED_BYTES_MAX + 1)), 1)
    (note,) = hear(stage, large)
    assert isinstance(note, Notify)
    assert note.topic == "rejected"
    assert stage.inlets[0].meter.counts == {Kind.REJECTED: 1}


# -- meters


def logged(effects: Sequence[Effect]) -> dict[tuple[str, Kind], int]:
    (commit,) = [effect for effect in effects if isinstance(effect, Commit)]
    events = [op.event for op in commit.ops if isinstance(op, Log)]
    return {(event.hop, event.kind): event.n for event in events}


def token(effects: Sequence[Effect]) -> int:
    return next(effect.token for effect in effects if isinstance(effect, Commit))


def test_meters_are_written_after_a_time_and_only_what_is_new() -> None:
    stage = forwards(inlet(RECEIPT), report_s=10.0)
    hear(stage, message(), now=1.0)
    assert stage.next_deadline() == 11.0
    report = stage.on_timer(11.0)
    assert logged(report) == {("A>B", Kind.ACCEPTED): 1, ("B>C", Kind.SENT): 1}
    assert stage.receive(Committed(token(report), ()), 11.0) == []
    assert stage.next_deadline() is None
    hear(stage, message("n", 2), now=12.0)
    assert logged(stage.on_timer(22.0)) == {("A>B", Kind.ACCEPTED): 1, ("B>C", Kind.SENT): 1}


@pytest.mark.parametrize("failure", [CommitFailed, CommitUnknown])
def test_what_could_not_be_written_is_told_with_the_next_report(failure: Any) -> None:
    stage = forwards(inlet(RECEIPT), report_s=10.0)
    hear(stage, message(), now=0.0)
    report = stage.on_timer(10.0)
    hear(stage, message("n", 2), now=10.0)
    down = {"error": StoreUnavailable("gone", fix="wait")} if failure is CommitFailed else {}
    stage.receive(failure(token(report), **down), 10.5)
    assert logged(stage.on_timer(20.5))[("A>B", Kind.ACCEPTED)] == 2


@pytest.mark.parametrize("good", [True, False])
def test_the_end_of_a_handler_is_reported_even_if_nothing_follows(good: bool) -> None:
    stage = handles(inlet(PROCESSING), report_s=10.0)
    (deliver,) = delivered(hear(stage, message(), now=0.0))
    stage.receive(Committed(token(stage.on_timer(10.0)), ()), 10.0)
    stage.receive(Delivered(deliver.token) if good else DeliverFailed(deliver.token, "no"), 11.0)
    assert stage.next_deadline() == 21.0
    assert logged(stage.on_timer(21.0)) == {("B>handler", Kind.HANDLED if good else Kind.FAILED): 1}


def test_handled_is_reported_after_the_writes_are_committed() -> None:
    stage = handles(inlet(PROCESSING), report_s=10.0)
    (deliver,) = delivered(hear(stage, message(), now=0.0))
    stage.receive(Committed(token(stage.on_timer(10.0)), ()), 10.0)
    (commit,) = stage.receive(Delivered(deliver.token, (Append("effects", Envelope("e")),)), 10.0)
    assert isinstance(commit, Commit)
    stage.receive(Committed(commit.token, ()), 11.0)
    assert stage.next_deadline() == 21.0


def lost(effects: Sequence[Effect]) -> list[tuple[Any, ...]]:
    events = [op.event for effect in effects if isinstance(effect, Commit) for op in effect.ops if isinstance(op, Log)]
    return [(event.kind, event.hop, event.message, event.attempt, event.cause) for event in events]


def test_what_was_confirmed_before_its_handler_failed_is_named_in_the_ledger() -> None:
    stage = handles(inlet(RECEIPT), report_s=10.0)
    (deliver,) = delivered(hear(stage, message()))
    effects = stage.receive(DeliverFailed(deliver.token, "no"), 1.0)
    assert lost(effects) == [(Kind.FAILED, "B>handler", "m", 1, "no")]
    stage.receive(Committed(token(effects), ()), 1.0)
    assert logged(stage.on_timer(10.0)) == {("A>B", Kind.ACCEPTED): 1}, "and not told twice"
    assert stage.handled.counts == {Kind.FAILED: 1}


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (CommitFailed(1, error=StoreUnavailable("gone", fix="wait")), "gone"),
        (CommitFailed(1), "its writes were refused"),
        (CommitUnknown(1), "not known"),
    ],
)
def test_writes_that_failed_after_the_confirm_are_named_in_the_ledger(failure: Any, cause: str) -> None:
    stage = handles(inlet(RECEIPT), report_s=10.0)
    (deliver,) = delivered(hear(stage, message()))
    (commit,) = stage.receive(Delivered(deliver.token, (Append("effects", Envelope("e")),)), 0.0)
    assert isinstance(commit, Commit)
    ((*_, said),) = lost(stage.receive(replace(failure, token=commit.token), 1.0))
    assert cause in said


def test_a_stage_without_a_ledger_only_tells_people() -> None:
    stage = handles(inlet(RECEIPT))
    (deliver,) = delivered(hear(stage, message()))
    (note,) = stage.receive(DeliverFailed(deliver.token, "no"), 1.0)
    assert isinstance(note, Notify)
    assert stage.handled.counts == {Kind.FAILED: 1}


@pytest.mark.parametrize("dedup", [DedupBy.NONE, DedupBy.STRICT])
@pytest.mark.parametrize("when", [RECEIPT, PROCESSING])
def test_it_is_busy_until_the_handler_and_its_writes_are_through(dedup: DedupBy, when: ConfirmOn) -> None:
    stage = handles(inlet(when, dedup))
    assert stage.busy == 0
    due = delivered([*hear(stage, message("m", 1)), *hear(stage, message("n", 2))])
    assert stage.busy == 2
    left = 2
    while due:
        (commit,) = stage.receive(Delivered(due.pop(0).token, (Append("effects", Envelope("e")),)), 0.0)
        assert isinstance(commit, Commit)
        assert stage.busy == left
        due += delivered(stage.receive(Committed(commit.token, ()), 0.0))
        left -= 1
        assert stage.busy == left
    assert left == 0


def test_it_is_not_busy_with_what_its_sender_has_to_send_again() -> None:
    stage = handles(inlet(PROCESSING))
    (deliver,) = delivered(hear(stage, message()))
    stage.receive(DeliverFailed(deliver.token, "no"), 0.0)
    assert stage.busy == 0


def test_a_resend_after_a_reconnect_is_reported() -> None:
    stage = forwards(inlet(RECEIPT), OutletConfig("B>C", "C", policy()), report_s=0.5)
    hear(stage, message(), now=0.0)
    stage.receive(Committed(token(stage.on_timer(0.5)), ()), 0.5)
    stage.receive(PeerConnected("C"), 0.6)
    assert stage.next_deadline() == 1.1


def test_without_a_report_nothing_is_due() -> None:
    stage = forwards(inlet())
    hear(stage, message())
    assert stage.next_deadline() is None
    assert stage.on_timer(99.0) == []


def test_its_stream_has_a_name_that_every_store_takes() -> None:
    assert StageConfig("P1~out", "My path").stream == "pipe/%4Dy%20path/%501~out"
    assert StageConfig("b").stream == "pipe/path/b"
