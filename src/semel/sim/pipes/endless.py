"""Refuses a path on which a sender would send for ever: no confirm can come back, and it never gives up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from semel.errors import ConfigError
from semel.pipes.language.options import ConfirmOn
from semel.pipes.language.path import Path
from semel.pipes.workers.build import Built, Route
from semel.pipes.workers.outlet import OutletConfig


def check_ends(path: Path, built: Built, handler_fails: float = 0.0) -> None:
    _Check(path, built, handler_fails).all()


@dataclass(frozen=True, slots=True)
class _Check:
    path: Path
    built: Built
    handler_fails: float

    def all(self) -> None:
        for worker in self.built.workers:
            for outlet in worker.config.outlets:
                endless = outlet.resend is not None and (worker.durable or outlet.resend.retry.retries is None)
                if endless and not self._can_confirm(worker.config.name, outlet):
                    raise ConfigError(
                        f"{self.path.name}: {outlet.hop} sends for ever, since no confirm can come back: {self.path}",
                        fix="give it an end with retries=n, or let losses and crashes be less than 1",
                    )

    def _can_confirm(self, sender: str, outlet: OutletConfig) -> bool:
        receiver = self._receiver(sender, outlet)
        if not self._reaches(sender, receiver):
            return False
        if not _carries([link.confirm_loss for link in self.built.back[receiver, sender]]):
            return False
        plan = self.built.worker(receiver)
        if plan.durable and plan.crash >= 1:
            return False
        confirm = next((each.confirm for each in plan.config.inlets if each.hop == outlet.hop), None)
        if confirm is ConfirmOn.PROCESSING:
            return self.handler_fails < 1 and (plan.durable or plan.crash < 1)
        if confirm is ConfirmOn.CASCADE and not plan.durable:
            return plan.crash < 1 and any(self._can_confirm(receiver, onward) for onward in plan.config.outlets)
        return True

    def _receiver(self, sender: str, outlet: OutletConfig) -> str:
        """Who confirms: the peer, or the far end of the pipe whose middle the peer begins."""
        if not outlet.packs:
            return outlet.peer
        return next(back for back, to in self.built.back if to == sender and back != outlet.peer)

    def _reaches(self, sender: str, receiver: str) -> bool:
        """Whether a copy can come from one worker to the other."""
        found, seen = [sender], {sender}
        while found:
            at = found.pop()
            if at == receiver:
                return True
            for (begin, end), route in self.built.routes.items():
                if begin == at and end not in seen and _passes(route) and self._lets_pass(end, receiver):
                    seen.add(end)
                    found.append(end)
        return False

    def _lets_pass(self, worker: str, receiver: str) -> bool:
        plan = self.built.worker(worker)
        return worker == receiver or plan.durable or plan.crash < 1


def _passes(route: Route) -> bool:
    return _carries([link.loss for link in route]) and _carries([link.crash for link in route])


def _carries(losses: list[float]) -> bool:
    return math.prod(1 - loss for loss in losses) > 0
