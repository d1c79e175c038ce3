"""What a seed decides of a hub: which scene is played, in which weather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from semel.pubsub.hub import spills
from semel.pubsub.hub.machine import HubOptions
from semel.sim.hub.callers import Caller
from semel.sim.hub.checks import check_all_confirmed, check_empty, check_ended, check_promises
from semel.sim.hub.guests import GuestCaller
from semel.sim.hub.node import BEGIN_S
from semel.sim.hub.questions import QuestionCaller
from semel.sim.hub.storm import HubStorm
from semel.sim.world import SeededWorld

OPTIONS = HubOptions(is_shared=True, lease_s=10.0, trim_s=2.0, recovery_s=400.0)
AGED = replace(OPTIONS, backlog_age_s=3.0)
FEW_ROWS = 3
FAULTS = (0.0, 0.02, 0.05, 0.1)


@dataclass(frozen=True, slots=True)
class Scene:
    """`steps` things happen and `messages` are published. Then everybody acknowledges, or waits, or leaves. With
    `small_rows` what leaves the stream takes several commits, rows and pages."""

    steps: int
    messages: int
    then: str = "acknowledge"
    wait_s: float = 0.0
    caller: type[Caller] = Caller
    options: HubOptions = field(default=OPTIONS)
    small_rows: bool = False


SCENES = {
    "members": Scene(600, 60),
    "emptied": Scene(300, 30, then="leave"),
    "guests": Scene(900, 80, caller=GuestCaller),
    "late guests": Scene(
        900, 80, then="wait", wait_s=36, caller=GuestCaller,
        options=replace(OPTIONS, recovery_s=12.0, backlog_count=5),
    ),
    "questions": Scene(600, 40, then="stop", caller=QuestionCaller),
    "questions, small pages": Scene(
        600, 40, then="stop", caller=QuestionCaller, options=replace(OPTIONS, read_rows=2)
    ),
    "aged": Scene(600, 80, options=AGED, small_rows=True),
    "aged guests": Scene(
        900, 80, then="wait", wait_s=120, caller=GuestCaller, options=replace(AGED, recovery_s=60.0), small_rows=True
    ),
    "aged, emptied": Scene(300, 40, then="leave", options=AGED, small_rows=True),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HubWeather:
    scene: str
    faults: float
    few_rows: bool
    restless: bool


def draw_hub_weather(seed: int) -> HubWeather:
    random = Random(f"hub {seed}")
    return weather_of(seed, random.choice(list(SCENES)), random.choice(FAULTS))


def weather_of(seed: int, scene: str, faults: float) -> HubWeather:
    """Every other few seeds read few records at once, so that reading takes longer than what happens meanwhile."""
    return HubWeather(scene, faults, bool(seed // 4 % 2), bool(seed // 8 % 2))


class HubScenario:
    def __init__(self, seed: int, log: Callable[[str], None] | None = None, weather: HubWeather | None = None) -> None:
        self._drawn = weather or draw_hub_weather(seed)
        self._scene = SCENES[self._drawn.scene]
        self.world = SeededWorld(seed, log)
        self.weather: dict[str, Any] = asdict(self._drawn)

    def run(self) -> dict[str, float]:
        with _small_rows() if self._scene.small_rows else _as_is():
            storm = self._storm()
            storm.run(self._scene.steps, self._scene.messages)
            for wrong in self._check(storm):
                self.world.violated(wrong)
        return {
            "written": len(storm.books.ids),
            "delivered": sum(len(client.got) for client in storm.clients),
            "answered": storm.caller.answered,
            "killed": self.world.seen["node.killed"],
            "virtual_s": round(self.world.now - BEGIN_S, 3),
        }

    def _storm(self) -> HubStorm:
        options = replace(self._scene.options, read_rows=FEW_ROWS) if self._drawn.few_rows else self._scene.options
        restless = 0.9 if self._drawn.restless else 0.3
        return HubStorm(self.world, options, self._drawn.faults, restless, self._scene.caller)

    def _check(self, storm: HubStorm) -> Iterator[str]:
        match self._scene.then:
            case "wait":
                storm.wait(self._scene.wait_s)
            case "leave":
                storm.empty()
                yield from check_empty(storm)
                yield from check_promises(storm)
            case "stop":
                yield from check_promises(storm)
            case _:
                yield from check_promises(storm)
                storm.acknowledge_all()
                yield from check_all_confirmed(storm) if self._scene.caller is Caller else ()
        if self._scene.caller is GuestCaller:
            yield from check_ended(storm)


@contextmanager
def _as_is() -> Iterator[None]:
    yield


@contextmanager
def _small_rows() -> Iterator[None]:
    small = {"ROW_COUNT": 3, "COMMIT_BYTES": 5 * spills.OVERHEAD_BYTES, "PAGE": 2}
    usual = {name: getattr(spills, name) for name in small}
    vars(spills).update(small)
    try:
        yield
    finally:
        vars(spills).update(usual)
