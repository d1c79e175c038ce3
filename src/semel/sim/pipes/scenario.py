"""Drawn paths of pipes, each with what it promises, and the storage pipe in the weather of the kernel's world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from semel.errors import LimitExceeded
from semel.pipes.language.notation import parse_path
from semel.sim.pipes.simulate import Simulated, simulate
from semel.sim.pipes.storage import StorageWorld
from semel.sim.world import SeededWorld

MESSAGES = 60
EVENTS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Promised:
    """A path with places for chances, and what it promises of its messages: that each arrives, that none arrives twice,
    that they keep their order. With a spacing they meet on the way, else each goes alone."""

    path: str
    complete: bool = True
    once: bool = False
    in_order: bool = False
    spacing_s: float | None = None
    handler_fails: float = 0.0


PATHS = (
    Promised("A -[loss={p},retries=inf,timeout=1,delay=0.8]-> B", spacing_s=100),
    Promised("A -[loss={p},retries=inf,window=4,timeout=1,delay=0.1]-> B", spacing_s=0.05),
    Promised("A -[loss={p},retries=inf,confirm=processing]-> B{{crash={q}}}"),
    Promised("A -[retries=inf,confirm=cascade]-> B -[loss={p}]-> C"),
    Promised(
        "A -[loss={p},retries=inf,window=4,timeout=1,delay=0.1,confirm=processing,dedup=strict]-> B{{crash={q}}}",
        spacing_s=0.05,
    ),
    Promised("A -[loss={p},retries=inf,confirm=processing,dedup=index]-> B", once=True, handler_fails=0.3),
    Promised("A -[retries=inf,confirm=cascade,dedup=id]-> B -[loss={p}]-> C"),
    Promised("A -[loss={q},confirm_loss={p},retries=inf,dedup=index]-> B", once=True),
    Promised("A -[loss={p},retries=inf,timeout=1]-> B", in_order=True, spacing_s=0.2),
    Promised("A -[loss={p},retries=inf]-> S{{durable=yes,crash={q}}} -[loss={q},retries=inf,dedup=id]-> B", once=True),
)


@dataclass(frozen=True, slots=True)
class StorageWeather:
    durable: bool
    window: int


class PipesScenario:
    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        random = Random(f"pipes {seed}")
        self._seed = seed
        if random.random() < 0.4:
            self._drawn: Promised | StorageWeather = StorageWeather(random.random() < 0.5, random.choice((1, 1, 4)))
            self._in_storage = StorageWorld(seed, durable=self._drawn.durable, window=self._drawn.window, log=log)
            self.world: SeededWorld = self._in_storage.world
        else:
            promised = random.choice(PATHS)
            text = promised.path.format(p=round(random.uniform(0.1, 0.5), 2), q=round(random.uniform(0.1, 0.4), 2))
            self._drawn = replace(promised, path=text)
            self.world = SeededWorld(seed, log)
        self.weather: dict[str, Any] = asdict(self._drawn)
        self.world.clock.note(f"drawn {self.weather}")

    def run(self) -> dict[str, float]:
        if isinstance(self._drawn, StorageWeather):
            self._in_storage.run()
            return {"messages": len(self._in_storage.ids), "events": self.world.clock.events}
        return self._run_path(self._drawn)

    def _run_path(self, promised: Promised) -> dict[str, float]:
        try:
            found = simulate(
                parse_path(promised.path),
                messages=MESSAGES,
                seed=self._seed,
                spacing_s=promised.spacing_s,
                handler_fails=promised.handler_fails,
                events_max=EVENTS_MAX,
            )
        except LimitExceeded as error:
            self.world.violated(f"it does not come to rest: {error.message}")
            return {}
        self.world.clock.note(f"simulated {found}")
        self._check(promised, found)
        return {"messages": found.sent, "received": found.received, "events": found.events}

    def _check(self, promised: Promised, found: Simulated) -> None:
        for number, copies in enumerate(found.copies):
            if promised.complete and not copies:
                self.world.violated(f"message {number} is lost")
            if promised.once and copies > 1:
                self.world.violated(f"message {number} came {copies} times")
        if promised.in_order and found.disorder:
            self.world.violated(f"{found.disorder} messages came after a later one")
