"""Two regional logs of the same messages, worn as logs are: each misses some, holds some twice, and is out of order."""

from __future__ import annotations

import random
from typing import Any

from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Unit
from semel.stores.open import open_store

NAME = "delivery"
EAST, WEST = "queue/east/orders", "queue/west/orders"
SESSIONS = 500
LOST, TWICE = 0.01, 0.02
SHUFFLE = 200
UNIT_ROWS = 5_000


def regional_logs(messages: int, seed: int, sessions: int = SESSIONS) -> tuple[list[Envelope], list[Envelope], int]:
    """Two logs of the same messages, and how many messages there are. What one log misses the other one has."""
    chance = random.Random(seed)
    everything = [
        Envelope(id=f"m{number}", session=f"s{number % sessions}", index=number // sessions + 1, data=b"%d" % number)
        for number in range(messages)
    ]
    east, west = list(everything), list(everything)
    for number in range(messages):
        if chance.random() < 2 * LOST:
            (east if chance.random() < 0.5 else west)[number] = None  # type: ignore[call-overload]
    return _worn(east, chance), _worn(west, chance), messages


def _worn(log: list[Any], chance: random.Random) -> list[Envelope]:
    """Some twice, and all within a distance of where they belong."""
    copies = [each for each in log if each is not None for _ in range(2 if chance.random() < TWICE else 1)]
    places = [number + chance.random() * SHUFFLE for number in range(len(copies))]
    return [copies[at] for at in sorted(range(len(copies)), key=places.__getitem__)]


def fill(url: str, stream: str, log: list[Envelope]) -> None:
    """As a region would have it: nothing was deduplicated on the way in."""
    store = open_store(url, node=stream)
    try:
        for first in range(0, len(log), UNIT_ROWS):
            store.commit([Unit((Append(stream, each),)) for each in log[first : first + UNIT_ROWS]])
    finally:
        store.close()
