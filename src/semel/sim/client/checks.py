"""What must be true of clients and a hub, by what the applications know and what the stream holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from semel.pubsub.client.events import RequestAccepted, RequestFailed, Stopped
from semel.sim.client.actor import Actor
from semel.sim.client.network import ClientWorld

Check = Callable[[ClientWorld], Iterator[str]]


def check_once(world: ClientWorld) -> Iterator[str]:
    """Each publish that was accepted is in the stream once, and each subscriber has had each message once, in order."""
    published = world.published()
    bodies = [body for _, _, body in published]
    if len(bodies) != len(set(bodies)):
        yield "a message is in the stream twice"
    for actor in world.actors:
        if actor.acked_too_early:
            yield f"{actor.name} acknowledged before the application had it"
        yield from _check_publishes(actor, set(bodies))
        yield from _check_deliveries(actor, published)


def _check_publishes(actor: Actor, bodies: set[str]) -> Iterator[str]:
    for token, body in actor.bodies.items():
        result = actor.settled.get(token)
        if isinstance(result, RequestAccepted) and body not in bodies:
            yield f"{body} was accepted and is not in the stream"
        elif isinstance(result, RequestFailed) and not result.maybe_taken and body in bodies:
            yield f"{body} was not accepted and is in the stream"


def _check_deliveries(actor: Actor, published: list[tuple[int, str, str]]) -> Iterator[str]:
    offsets = {body: offset for offset, _, body in published}
    got = [offsets[body] for _, body, _ in actor.got]
    if got != sorted(set(got)):
        yield f"delivered to {actor.name} twice or out of order"
    due = {offset for offset, group, _ in published if offset > actor.joined_at.get(group, 1 << 60)}
    if not actor.losses and not due <= set(got):
        yield f"{actor.name} has not had {sorted(due - set(got))}"


def check_done(world: ClientWorld) -> Iterator[str]:
    for actor in world.actors:
        if actor.unsettled:
            yield f"{actor.name} still waits"
        if not actor.connection or any(isinstance(state, Stopped) for state in actor.states):
            yield f"{actor.name} is not online"


def check_nothing_failed(world: ClientWorld) -> Iterator[str]:
    for actor in world.actors:
        failed = [result for result in actor.settled.values() if not isinstance(result, RequestAccepted)]
        yield from (f"{actor.name} was answered {result}" for result in failed)


def check_order(world: ClientWorld) -> Iterator[str]:
    """Each publisher's messages are in the stream in the order in which they were asked, but for what was given up."""
    bodies = [body for _, _, body in world.published()]
    for actor in world.actors:
        found = [body for body in bodies if body in actor.bodies.values()]
        if found != [body for body in actor.bodies.values() if body in found]:
            yield f"the messages of {actor.name} changed places"


def check_all_published(world: ClientWorld) -> Iterator[str]:
    bodies = {body for _, _, body in world.published()}
    for actor in world.actors:
        yield from (f"{body} is not in the stream" for body in actor.bodies.values() if body not in bodies)


def check_most_published(world: ClientWorld) -> Iterator[str]:
    """Each refusal costs a message, or a few that were under way with it."""
    asked, published = sum(len(actor.bodies) for actor in world.actors), len(world.published())
    if published <= asked * 0.82:
        yield f"only {published} of {asked} are in the stream: those that were given up have held up others"


def check_kept(world: ClientWorld) -> Iterator[str]:
    """What was in an outbox is in the stream, and in no outbox any more."""
    bodies = {body for _, _, body in world.published()}
    for actor in world.actors:
        yield from (f"{actor.name} has lost {body}" for body in sorted(actor.kept - bodies))
        if actor.outbox:
            yield f"{actor.name} has {len(actor.outbox)} in its outbox"
