"""The sending half of a stage."""

from __future__ import annotations

import pytest

from semel.errors import InputError
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.hop import HopMessage
from semel.kernel.ledger import Kind
from semel.kernel.resend import GaveUp, ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.pipes.workers.meter import HopMeter
from semel.pipes.workers.outlet import PACKED_BYTES_MAX, Outlet, OutletConfig, pack, unpack

M, N = Envelope("m"), Envelope("n")


def policy(window: int = 1, retries: int | None = None) -> ResendPolicy:
    return ResendPolicy(window, 1.0, RetryPolicy(retries, 1.0, then="discard"))


def make(resend: ResendPolicy | None = None, **options: object) -> Outlet:
    config = OutletConfig("A>B", "B", resend, **options)  # type: ignore[arg-type]
    return Outlet(config, HopMeter("A>B"), "run", stage="A")


def test_without_retries_it_sends_once_and_asks_for_nothing() -> None:
    outlet = make()
    assert outlet.offer(M, 0.0) == ("run/1", [HopMessage("run/1", M, 1)])
    assert outlet.offer(N, 0.0) == ("run/2", [HopMessage("run/2", N, 2)])
    assert outlet.unconfirmed == 0
    assert not outlet.is_full
    assert outlet.confirm(["run/1"], 0.0) == []
    assert outlet.meter.counts == {Kind.SENT: 2}


def test_blind_copies_follow_at_once_under_the_same_delivery() -> None:
    outlet = make(repeats=2)
    _, messages = outlet.offer(M, 0.0)
    assert [(each.delivery, each.index, each.attempt) for each in messages] == [("run/1", 1, at) for at in (1, 2, 3)]
    assert outlet.meter.counts == {Kind.SENT: 1, Kind.RESENT: 2}


def test_a_resend_keeps_delivery_and_index() -> None:
    outlet = make(policy())
    outlet.offer(M, 0.0)
    assert outlet.offer(N, 0.0) == ("run/2", []), "one at a time"
    assert outlet.resend is not None
    assert outlet.messages(outlet.resend.on_timer(1.0)) == [HopMessage("run/1", M, 1, 2)]
    assert outlet.confirm(["run/1"], 1.5) == [HopMessage("run/2", N, 2)]
    assert outlet.confirm(["run/1", "other/1"], 1.6) == [], "a second confirm says nothing new"
    assert outlet.unconfirmed == 1
    assert outlet.meter.counts == {Kind.SENT: 2, Kind.RESENT: 1, Kind.CONFIRMED: 1}


def test_messages_say_below_which_index_all_is_settled() -> None:
    config = OutletConfig("A>B", "B", policy(window=3), floors=True)
    outlet = Outlet(config, HopMeter("A>B"), "run", stage="A")
    floors = [outlet.offer(M, 0.0)[1][0].floor for _ in range(3)]
    assert floors == [1, 1, 1]
    outlet.offer(M, 0.0)
    assert [each.floor for each in outlet.confirm(["run/2"], 0.0)] == [1], "the first is not yet confirmed"
    outlet.offer(M, 0.0)
    assert [each.floor for each in outlet.confirm(["run/1"], 0.0)] == [3]
    assert outlet.resend is not None
    assert {each.floor for each in outlet.messages(outlet.resend.on_timer(1.0))} == {3}


def test_what_is_given_up_is_counted_and_not_sent() -> None:
    outlet = make(policy(retries=0))
    outlet.offer(M, 0.0)
    outlet.offer(N, 0.0)
    assert outlet.resend is not None
    outcomes = outlet.resend.on_timer(1.0)
    (gave_up,) = [each for each in outcomes if isinstance(each, GaveUp)]
    outlet.gave_up(gave_up)
    assert outlet.messages(outcomes) == [HopMessage("run/2", N, 2)]
    assert outlet.meter.counts == {Kind.SENT: 2, Kind.FAILED: 1}


def test_it_is_full_when_its_queue_is() -> None:
    outlet = make(policy(), queue_max=2)
    outlet.offer(M, 0.0)
    assert not outlet.is_full
    outlet.offer(N, 0.0)
    assert outlet.is_full


def test_a_message_goes_through_a_middle_and_comes_out_again() -> None:
    message = HopMessage("run/1", Envelope("m", session="s", data=b"x"), 1)
    outlet = make(packs=True)
    packed = outlet.wire(message)
    assert isinstance(packed, Envelope)
    assert (packed.source, packed.session) == ("A", "s")
    assert unpack(packed) == ("A", message)
    assert make().wire(message) is message


def test_each_attempt_is_a_message_of_its_own_to_the_middle() -> None:
    first, second = (pack("A", HopMessage("run/1", M, 1, attempt)) for attempt in (1, 2))
    assert first.id != second.id
    longest = Envelope("m" * 255)
    assert pack("A", HopMessage("run/1", longest, 1)).id != pack("A", HopMessage("run/2", longest, 2)).id


def test_what_is_no_pipe_message_is_refused() -> None:
    with pytest.raises(InputError, match="not a pipe's message"):
        unpack(M)
    with pytest.raises(InputError, match="does not hold"):
        unpack(Envelope("m", type="semel.pipe.message", data=b"nonsense"))


def test_inside_another_message_there_is_less_room() -> None:
    assert make(packs=True).takes(Envelope("m", data=bytes(PACKED_BYTES_MAX)))
    assert not make(packs=True).takes(Envelope("m", data=bytes(PACKED_BYTES_MAX + 1)))
    assert not make(packs=True).takes(Envelope("m", blob=Blob("b", 1)))
    assert make().takes(Envelope("m", blob=Blob("b", 1)))
