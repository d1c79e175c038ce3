"""A hub as the store holds it: what a node needs to go on after a restart, or after another node has died."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from semel.kernel.position import Position
from semel.kernel.store import State, Store
from semel.pubsub.hub import Hub, HubOptions, floor_cursor
from semel.pubsub.records import stream_of
from semel.pubsub.session import AcksRow, Session, acks_key, read_acks, read_session, session_key

PAGE = 1000


def load_hub(
    store: Store, hub: str, node: str, random: Callable[[int], bytes], options: HubOptions | None = None
) -> Hub:
    """The end of the stream is looked at before the sessions: what comes after it is read from the stream, and what it
    says of a session that knows it already changes nothing."""
    head = store.head(stream_of(hub))
    sessions = list(_sessions(store, hub))
    floor = store.cursor(floor_cursor(hub, node))
    begin = min((session.acked for session in sessions), default=head.offset)
    tail = max(begin, floor.offset if floor is not None else 0)
    return Hub(hub, node, Position(head.stream, head.epoch, tail), head.offset, sessions, random, options)


def _sessions(store: Store, hub: str) -> Iterator[Session]:
    acks = dict(_states(store, acks_key(hub, "")))
    for connection, state in _states(store, session_key(hub, "")):
        row = read_session(state.value)
        told = acks.get(connection)
        taken = read_acks(told.value) if told is not None else AcksRow(row.start, ())
        yield Session(connection, row, taken, state.version, told.version if told is not None else 0)


def _states(store: Store, prefix: str) -> Iterator[tuple[str, State]]:
    after = ""
    while page := store.states(prefix, after, PAGE):
        yield from ((key.removeprefix(prefix), state) for key, state in page)
        after = page[-1][0]
