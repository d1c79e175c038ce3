"""A broker that delivers at least once: again after a silence, twice by mistake, and in order only within a key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from semel.inbox.endpoint import EndpointMode
from semel.inbox.messages import envelope_of
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.sim.inbox.process import AppProcess
from semel.sim.inbox.shop import ShopOrder
from semel.sim.inbox.weather import EndpointPlan, InboxWorld
from semel.sim.world import BEGIN_S

NOBODY_S = 0.3


@dataclass(slots=True, eq=False)
class BrokerMessage:
    """A message at the broker. `turn` counts deliveries: an old one's silence starts no new one."""

    plan: EndpointPlan
    id: str
    key: str
    index: int
    envelope: Envelope
    is_acked: bool = False
    turn: int = 0


@dataclass(slots=True)
class Broker:
    world: InboxWorld
    processes: Sequence[AppProcess]
    on_ack: Callable[[BrokerMessage], None]
    messages: list[BrokerMessage] = field(default_factory=list)
    _waiting: dict[tuple[str, str], list[BrokerMessage]] = field(default_factory=dict)

    def publish(self, plan: EndpointPlan, id: str, key: str, index: int) -> None:
        time = int((BEGIN_S + self.world.now) * 1_000_000)
        envelope = envelope_of(ShopOrder(id, key, index), id, time=time)
        message = BrokerMessage(plan, id, key, index, envelope)
        self.messages.append(message)
        if not plan.keyed:
            self._deliver([message])
            return
        line = self._waiting.setdefault((plan.name, key), [])
        line.append(message)
        if len(line) == 1:
            self._deliver([message])

    def deliver_together(self, messages: Sequence[BrokerMessage]) -> None:
        """What came in one fetch, once more as one batch."""
        self._deliver(messages)

    def _deliver(self, messages: Sequence[BrokerMessage]) -> None:
        """All of them are for one endpoint."""
        waiting = [message for message in messages if not message.is_acked]
        if not waiting:
            return
        up = [process for process in self.processes if process.up]
        for message in waiting:
            message.turn += 1
            delay_s = self.world.weather.broker.again_s if up else NOBODY_S
            self.world.after(delay_s, f"broker {message.id} again", self._again, message, message.turn)
        if not up:
            return
        self._hand_over(self.world.random.choice(up), waiting)
        if self.world.strikes("broker.doubled", self.world.weather.broker.double):
            self._hand_over(self.world.random.choice(up), waiting)

    def _hand_over(self, process: AppProcess, messages: Sequence[BrokerMessage]) -> None:
        delay_s = self.world.between((0.0, 0.1))
        self.world.after(delay_s, f"broker to {process.name}", self._arrive, process, messages)

    def _arrive(self, process: AppProcess, messages: Sequence[BrokerMessage]) -> None:
        plan = messages[0].plan
        if plan.mode is EndpointMode.DURABLE:
            envelopes = [message.envelope for message in messages]
            process.receive(plan.name, envelopes, [self._settle_of(message) for message in messages])
            return
        begin = process.begin_inline if plan.mode is EndpointMode.INLINE else process.buffer
        for message in messages:
            begin(plan.name, message.envelope, self._settle_of(message))

    def _again(self, message: BrokerMessage, turn: int) -> None:
        if not message.is_acked and turn == message.turn:
            self.world.see("broker.again")
            self._deliver([message])

    def _settle_of(self, message: BrokerMessage) -> Callable[[DeliveryEnd], None]:
        turn = message.turn

        def settle(end: DeliveryEnd) -> None:
            self.world.clock.detail(message.plan.name, message.id, end.value)
            if end is DeliveryEnd.ACK:
                self.on_ack(message)
                self._acked(message)
            elif end is DeliveryEnd.GIVE_BACK:
                self.world.see("broker.given-back")
                self.world.after(self.world.between((0.1, 1.0)), f"broker {message.id}", self._again, message, turn)
            else:
                self.world.violated(f"{message.plan.name}: the delivery of {message.id} ended as {end.value}")

        return settle

    def _acked(self, message: BrokerMessage) -> None:
        if message.is_acked or self.world.strikes("broker.ack-lost", self.world.weather.broker.ack_lost):
            return
        message.is_acked = True
        line = self._waiting.get((message.plan.name, message.key), [])
        if line and line[0] is message:
            line.pop(0)
            self._deliver(line[:1])
