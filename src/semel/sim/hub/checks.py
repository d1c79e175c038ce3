"""Looks at a hub from outside: what clients were acknowledged and received, what REST answered, what the store holds.

nothing lost      what was written while a client was in the group has come to it, in the order of the stream
nothing doubled   each message stands once in the stream, and comes once on a socket
nothing else      what is not for a client does not come to it
the ledger        tells each delivery that was acknowledged once, and all that was due to sessions that have ended
nothing left      when everybody has gone, neither the store nor a node keeps anything of them
"""

from __future__ import annotations

from collections.abc import Iterator

from semel.kernel.ledger import Event, Kind, fold_ids
from semel.pubsub.hub.calls import HubInfo, Summarize
from semel.pubsub.hub.floors import read_floor
from semel.sim.hub.members import StormClient
from semel.sim.hub.node import HUB
from semel.sim.hub.storm import HubStorm


def check_promises(storm: HubStorm) -> Iterator[str]:
    yield from (f"{key} is done and not written" for key in sorted(storm.caller.done - storm.books.offsets.keys()))
    yield from (f"nobody answered {call}" for _, _, call in storm.caller.open.values())
    yield from (f"{body} stands at {at}" for body, at in storm.books.offsets.items() if len(at) > 1)
    for client in storm.clients:
        yield from (f"{client.name} was refused for good: {reason}" for reason in client.refusals)
        yield from (f"{client.name} got no answer to {request}" for request in client.unacked.values())
        yield from _check_received(storm, client)
        yield from _check_confirmed(storm, client)


def _check_received(storm: HubStorm, client: StormClient) -> Iterator[str]:
    """Before a join was acknowledged nothing is promised, and what comes all the same is no harm."""
    due, got = storm.due(client), [body for _, body in client.got]
    received = [body for body in got if body in set(due)]
    for offset, body in client.got:
        if storm.books.offsets[body] != [offset]:
            yield f"{client.name} got {body} as another"
        target = storm.books.targets[body]
        if client.is_own_quiet(body) or any(
            stay.group == target and stay.out < offset <= stay.again for stay in client.stays
        ):
            yield f"{client.name} got {body}, which it should not"
    if received != due:
        yield f"{client.name} got {len(received)} of {len(due)}: {sorted(set(due) - set(got))[:5]}"


def _check_confirmed(storm: HubStorm, client: StormClient) -> Iterator[str]:
    """Each delivery is written down once, and none that was not made. What was not promised may be held for delivered
    by a node that did not know better."""
    ids, before = storm.books.ids, 0
    got = {offset for offset, _ in client.got}
    due = {storm.books.offsets[body][0] for body in storm.due(client)}
    for event in _confirmed_by(storm, client):
        first, last = event.first or 0, event.last or 0
        told = f"{event.n} of {first} to {last} confirmed by {client.name}"
        inside = {offset for offset in ids if first <= offset <= last}
        if not before < first <= last:
            yield f"{told} after {before}"
        if event.n > len(inside & got) + len(inside - due - got):
            yield f"{told}, but only {len(inside & got)} were had"
        if event.n == len(inside) and event.fold != fold_ids(ids[offset] for offset in inside):
            yield f"{told}, but those were others"
        before = last


def check_all_confirmed(storm: HubStorm) -> Iterator[str]:
    """What was due, came and was acknowledged is in the ledger: else an audit would take it for lost."""
    for client in storm.clients:
        left = {storm.books.offsets[body][0] for body in storm.due(client)}
        for event in _confirmed_by(storm, client):
            inside = {offset for offset in left if (event.first or 0) <= offset <= (event.last or 0)}
            if event.n < len(inside):
                yield f"only {event.n} of {sorted(inside)} confirmed by {client.name}"
            left -= inside
        if left:
            yield f"{sorted(left)} never confirmed by {client.name}"


def _confirmed_by(storm: HubStorm, client: StormClient) -> list[Event]:
    events = storm.books.ledger()
    return [event for event in events if event.kind is Kind.CONFIRMED and event.peer == client.connection]


def check_ended(storm: HubStorm) -> Iterator[str]:
    """As an audit does it: the ledger tells of all that was due to visitors whose sessions have ended."""
    books, events = storm.books, storm.books.ledger()
    for name in sorted(books.ends.keys() & storm.caller.visitors.keys()):
        (start, groups), end = books.begins[name], books.ends[name]
        due = [books.ids[at] for at, body in books.written() if start < at <= end and books.targets[body] in groups]
        told = [event for event in events if event.peer == name and event.hop.endswith(">sub")]
        fold = 0
        for event in told:
            fold ^= event.fold or 0
        if sum(event.n for event in told) != len(due) or fold != fold_ids(due):
            ranges = [(event.kind.name, event.first, event.last, event.n) for event in told]
            yield f"{len(due)} were due to {name}, and the ledger tells of {ranges}"


def check_empty(storm: HubStorm) -> Iterator[str]:
    store = storm.books.store
    for kind in ("session", "acks", "spill"):
        yield from (f"{key} is left" for key, _ in store.states(f"hub/{HUB}/{kind}/"))
    floors = {key.rpartition("/")[2]: read_floor(state) for key, state in store.states(f"hub/{HUB}/floor/")}
    if len(floors) != len(storm.nodes):
        yield f"floors of {sorted(floors)}, but {len(storm.nodes)} nodes live"
    head = store.head(f"hub/{HUB}").offset
    yield from (f"{node} pins {floor} of {head}" for node, floor in floors.items() if floor < head)
    for node in storm.nodes:
        known = storm.ask(node, Summarize()).rows
        if known != (HubInfo(0, 0, 0, 0),):
            yield f"{node.node} still knows {known}"
        kept = {part: count for part, count in node.hub.in_flight().items() if count}
        if kept:
            yield f"{node.node} keeps {kept}"
