"""The publisher: pushes until stored, confirms only then, and is believed by nobody but its service."""

from __future__ import annotations

from semel.kernel.effects import Effect, Notify, Received, Resume, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.pipes.services.publisher import Publisher, PublisherConfig
from semel.pipes.services.storage import NO_STREAM, Create, Created, Push, Pushed, StorageRefused

TWICE = ResendPolicy(2, 1.0, RetryPolicy(1, interval_s=1.0))


def publisher(**more: object) -> Publisher:
    return Publisher(PublisherConfig("pub", "store", "orders", policy=TWICE, report_s=None, **more), "run")  # type: ignore[arg-type]


def offered(id: str, delivery: str = "") -> Received:
    envelope = Envelope(id, "app", data=b"x")
    return Received("up", HopMessage(delivery or id, envelope, 1))


def pushes(effects: object) -> list[str]:
    sends = [each for each in effects if isinstance(each, Send)]  # type: ignore[attr-defined]
    return [each.message.request for each in sends if isinstance(each.message, Push)]


def answer(message: object, peer: str = "store") -> Received:
    return Received(peer, message)


def test_a_message_is_confirmed_upstream_when_it_is_stored_and_once() -> None:
    made = publisher()
    (request,) = pushes(made.receive(offered("a", "d1"), 0.0))
    assert made.receive(offered("a", "d2"), 0.0) == []
    assert made.receive(answer(Pushed(request), peer="stranger"), 0.0) == ()
    confirmed = made.receive(answer(Pushed(request, offset=1)), 0.0)
    assert confirmed == [Send("up", Confirm(("d1",))), Send("up", Confirm(("d2",)))]
    assert made.receive(answer(Pushed(request, offset=1)), 0.0) == []


def test_a_message_that_the_service_will_not_store_is_reported_and_not_confirmed() -> None:
    made = publisher()
    (request,) = pushes(made.receive(offered("a"), 0.0))
    (notify,) = made.receive(answer(Pushed(request, error="too large")), 0.0)
    assert isinstance(notify, Notify)
    assert (notify.topic, made.unconfirmed) == ("rejected", 0)


def test_without_room_a_message_is_left_to_whoever_resends() -> None:
    made = publisher(queue_max=1)
    made.receive(offered("a"), 0.0)
    assert made.is_full
    assert made.receive(offered("b"), 0.0) == []
    assert made.unconfirmed == 1


def test_a_missing_stream_is_created_and_what_it_lacked_goes_again() -> None:
    made = publisher()
    (create,) = made.start(0.0)
    assert isinstance(create, Send)
    assert isinstance(create.message, Create)
    (request,) = pushes(made.receive(offered("a"), 0.0))
    again = made.receive(answer(StorageRefused(request, NO_STREAM)), 0.0)
    assert again == [create]
    assert pushes(made.receive(answer(Created(create.message.request, "orders")), 0.0)) == [request]


def test_any_other_refusal_is_reported_once_and_only_if_it_was_asked() -> None:
    made = publisher()
    (request,) = pushes(made.receive(offered("a"), 0.0))
    assert made.receive(answer(StorageRefused("other", "forbidden")), 0.0) == []
    assert len(made.receive(answer(StorageRefused(request, "forbidden")), 0.0)) == 1
    assert made.receive(answer(StorageRefused(request, "forbidden")), 0.0) == []


def test_after_all_attempts_it_stops_until_somebody_resumes_it() -> None:
    made = publisher()
    (request,) = pushes(made.receive(offered("a"), 0.0))
    found: list[Effect] = []
    for second in range(1, 5):
        found += made.on_timer(float(second))
    assert [each.topic for each in found if isinstance(each, Notify)] == ["suspended"]
    assert made.suspended is not None
    assert pushes(made.receive(Resume(), 9.0)) == [request]
