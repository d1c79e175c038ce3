"""One delivery at an inline endpoint: the handler runs with the body that has come, and its end is settled."""

from __future__ import annotations

from dataclasses import dataclass

from semel import App, on
from semel.errors import StoreUnavailable
from semel.inbox.messages import envelope_of
from semel.inbox.settle import DeliveryEnd
from semel.runtime.inbox.endpoint import InboxEndpoint
from semel.runtime.inbox.inline import InlineDelivery, failure_of, not_now
from semel.stores.memory import MemoryStore


@dataclass
class Mail:
    id: str


class Scene:
    """An endpoint whose handler fails as often as it is given errors."""

    def __init__(self, *errors: Exception, style: str = "none") -> None:
        self.app = App(MemoryStore(), name="shop")
        self.endpoint: InboxEndpoint = self.app.endpoint("mail", mode="inline", errors=[on(ValueError).retry_now(1)])
        self.errors, self.calls = list(errors), 0

        @self.endpoint.on(Mail, idempotency=style)
        async def send(mail: Mail) -> None:
            self.calls += 1
            if self.errors:
                raise self.errors.pop(0)

    def delivery(self) -> InlineDelivery:
        return InlineDelivery(self.app, self.endpoint, envelope_of(Mail("a"), "a"))


async def test_what_was_handled_is_acknowledged_and_its_copy_is_not_handled_again() -> None:
    scene = Scene(style="reserved")
    assert await scene.delivery().handle() is DeliveryEnd.ACK
    assert await scene.delivery().handle() is DeliveryEnd.ACK
    assert scene.calls == 1


async def test_what_a_rule_tries_again_is_tried_with_the_same_body() -> None:
    scene = Scene(ValueError("once"))
    delivery = scene.delivery()
    assert await delivery.handle() is DeliveryEnd.ACK
    assert (scene.calls, delivery.tries.count) == (2, 2)


async def test_trouble_of_the_store_gives_the_delivery_back_and_is_no_attempt() -> None:
    scene = Scene(StoreUnavailable("it is away", fix="wait"))
    delivery = scene.delivery()
    assert await delivery.handle() is DeliveryEnd.GIVE_BACK
    assert (scene.calls, delivery.tries.count) == (1, 0)


async def test_a_paused_endpoint_begins_nothing() -> None:
    scene = Scene()
    scene.app.gate("mail").hold(True)
    assert await scene.delivery().settle() == not_now()
    assert scene.calls == 0


def test_a_failure_is_known_by_all_its_classes() -> None:
    failure = failure_of(UnicodeError("what"))
    assert "what" in failure.text
    assert [name.rpartition(".")[2] for name in failure.types][:2] == ["UnicodeError", "ValueError"]
