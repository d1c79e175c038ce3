"""Receivers with a mistake built in. A verdict that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from semel.kernel.effects import Commit, Effect, Send
from semel.kernel.hop import Confirm, HopMessage, ReceiveOrder, Receiver, ReceiverConfig

EARLY_BATCH = 50


class NoDedup(Receiver):
    """Takes every copy for a new message."""

    def _arrived(self, peer: str, message: HopMessage, now: float) -> Sequence[Effect]:
        return self._commit((self._accept(message, identity=None),), [(peer, message.delivery)], None)


class ConfirmEarly(Receiver):
    """Confirms on arrival and commits when enough have come together: what is in memory dies with the process."""

    def __init__(self, config: ReceiverConfig) -> None:
        super().__init__(config)
        self._kept: list[Effect] = []

    def _arrived(self, peer: str, message: HopMessage, now: float) -> Sequence[Effect]:
        effects = super()._arrived(peer, message, now)
        self._kept += [effect for effect in effects if isinstance(effect, Commit)]
        others = [effect for effect in effects if not isinstance(effect, Commit)]
        kept: list[Effect] = []
        if len(self._kept) >= EARLY_BATCH:
            kept, self._kept = self._kept, []
        return [*others, *kept, Send(peer, Confirm((message.delivery,)))]


def no_order(config: ReceiverConfig) -> Receiver:
    """Dedups by id, so nothing is lost or doubled, but accepts in the order of arrival."""
    return Receiver(replace(config, order=ReceiveOrder.ID))


_PLANTED: dict[str, Callable[[ReceiverConfig], Receiver]] = {
    "no-dedup": NoDedup,
    "no-order": no_order,
    "confirm-early": ConfirmEarly,
}


def planted(name: str, config: ReceiverConfig) -> Receiver:
    return _PLANTED[name](config)
