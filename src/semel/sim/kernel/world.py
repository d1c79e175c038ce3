"""The world of a path of messages: its weather is drawn first, from the same chance as all that follows."""

from __future__ import annotations

from collections.abc import Callable

from semel.sim.kernel.weather import Weather, draw_weather
from semel.sim.world import SeededWorld


class KernelWorld(SeededWorld):
    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, log)
        self.weather: Weather = draw_weather(self.random)
