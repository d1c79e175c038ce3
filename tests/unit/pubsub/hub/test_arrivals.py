from __future__ import annotations

from tests.unit.pubsub.hub.parts import session

from semel.pubsub.hub.roster import Arrivals


def test_who_waits_for_several_is_called_when_all_are_decided() -> None:
    arrivals, alice, bob = Arrivals(), session("alice"), session("bob")
    arrivals.begin(alice)
    arrivals.begin(bob)
    called: list[float] = []
    arrivals.when_decided([alice, bob], called.append)
    arrivals.decided(alice, 1.0)
    assert called == []
    arrivals.decided(bob, 2.0)
    assert called == [2.0]
    assert len(arrivals) == 0


def test_who_asks_while_others_are_called_waits_for_the_next() -> None:
    arrivals, alice, bob = Arrivals(), session("alice"), session("bob")
    arrivals.begin(alice)
    arrivals.begin(bob)
    called: list[str] = []

    def again(now: float) -> None:
        called.append("first")
        arrivals.when_decided([bob], lambda now: called.append("second"))

    arrivals.when_decided([alice], again)
    arrivals.decided(alice, 1.0)
    assert called == ["first"]
    arrivals.decided(bob, 2.0)
    assert called == ["first", "second"]
