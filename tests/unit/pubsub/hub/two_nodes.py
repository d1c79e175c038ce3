"""What tests of a hub with two nodes share; the nodes themselves are fixtures, `one` and `two`."""

from __future__ import annotations

from tests.unit.pubsub.hub.world import HUB, World

from semel.errors import StoreUnavailable
from semel.kernel.effects import Read
from semel.kernel.interpreter import Seat
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.protocol.messages import GroupMessage

ALICE, BOB = "alice", "bob"
STREAM = f"hub/{HUB}"
SHARED = HubOptions(is_shared=True, lease_s=10.0, trim_s=5.0)
AWAY = StoreUnavailable("away")


def hold_reads(world: World) -> list[tuple[Seat, Read]]:
    """What it reads comes later. Returns what it asked for."""
    asked: list[tuple[Seat, Read]] = []
    world.read = lambda seat, effect: asked.append((seat, effect))  # type: ignore[method-assign]
    return asked


def answer_reads(world: World, asked: list[tuple[Seat, Read]]) -> None:
    del world.read
    for seat, effect in asked:
        world.read(seat, effect)


def sequence(said: list[object]) -> list[tuple[str, int | None]]:
    return [(m.data.body.decode(), m.sequence_id) for m in said if isinstance(m, GroupMessage) and m.data is not None]
