"""Loads a hub from the store: what a node needs to continue after a restart, or beside other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from semel.errors import StoreError
from semel.kernel.store import State, Store
from semel.pubsub.events.handlers import Handlers
from semel.pubsub.hub.context import HubOptions
from semel.pubsub.hub.floors import floor_key, read_floor
from semel.pubsub.hub.machine import Hub
from semel.pubsub.hub.nodes import ANNOUNCED, announcement_key
from semel.pubsub.hub.records import stream_of
from semel.pubsub.hub.roster import Elsewhere
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_rows import acks_key, session_key

PAGE = 1000
ROOT = "hub/"
LAST = "\U0010ffff"


def load_hub(
    store: Store,
    hub: str,
    node: str,
    random: Callable[[int], bytes],
    options: HubOptions | None = None,
    handlers: Handlers | None = None,
) -> Hub:
    """The end of the stream is looked at before the sessions: what comes after it is read from the stream, and what it
    says of a session that knows it already changes nothing. A node that is alone has all sessions. One of several
    begins with none, under a name that was never used: what it had before is another's, or comes back to it. What
    only a newer Semel can read is left out."""
    options = options or HubOptions()
    if options.is_shared:
        node = f"{node}-{random(4).hex()}"
    head = store.head(stream_of(hub))
    floor = store.state(floor_key(hub, node))
    sessions, unreadable = _sessions(store, hub, with_acks=not options.is_shared)
    here, elsewhere = sessions, []
    if options.is_shared:
        here, elsewhere = [], [Elsewhere(each.id, each.user, each.node, each.groups) for each in sessions]
    for session in here:
        session.node = node
    begin = read_floor(floor) if floor is not None else head.offset
    machine = Hub(hub, node, head, begin, here, elsewhere, random, options, handlers)
    for session in sessions:
        machine.group_states.load(session)
    for connection, error in unreadable.items():
        if options.is_shared:
            machine.left_out.report(connection, error)
        else:
            # it can need nothing that comes before the floor of the node that had it
            machine.left_out.add(connection, read_floor(floor) if floor is not None else 0, error)
    return machine


def known_hubs(store: Store) -> Iterator[str]:
    """The hubs with sessions in the store, or with a node that had some. It takes one query for each."""
    after = ROOT
    while found := store.states(ROOT, after, 1):
        hub = found[0][0].removeprefix(ROOT).partition("/")[0]
        yield hub
        after = f"{ROOT}{hub}/{LAST}"


def announced_hubs(store: Store) -> Iterator[str]:
    """The hubs that nodes of a shared store have begun. It takes one query for a thousand."""
    return (hub for hub, _ in _states(store, ANNOUNCED))


def is_known(store: Store, hub: str) -> bool:
    """Whether it is one of `known_hubs` or `announced_hubs`."""
    return bool(store.states(f"{ROOT}{hub}/", "", 1)) or store.state(announcement_key(hub)) is not None


def _sessions(store: Store, hub: str, *, with_acks: bool) -> tuple[list[Session], dict[str, StoreError]]:
    """The sessions of a hub, and why some cannot be read. Acks are not needed for the sessions of other nodes."""
    acks = dict(_states(store, acks_key(hub, ""))) if with_acks else {}
    found: list[Session] = []
    unreadable: dict[str, StoreError] = {}
    for connection, state in _states(store, session_key(hub, "")):
        try:
            found.append(Session.of_rows(connection, state, acks.get(connection)))
        except StoreError as error:
            unreadable[connection] = error
    return found, unreadable


def _states(store: Store, prefix: str) -> Iterator[tuple[str, State]]:
    after = ""
    while True:
        page = store.states(prefix, after, PAGE)
        yield from ((key.removeprefix(prefix), state) for key, state in page)
        if len(page) < PAGE:
            return
        after = page[-1][0]
