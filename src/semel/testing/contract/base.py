"""What every contract test needs: the fixtures a store supplies, small builders, and time that a test can move."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Entry, Event, Kind
from semel.kernel.ops import (
    Append,
    Applied,
    Claim,
    Claimed,
    Enqueue,
    Fresh,
    Log,
    Op,
    Outcome,
    Refused,
    Result,
    Unit,
    WorkRow,
)
from semel.kernel.position import Position
from semel.kernel.store import IndexEntry, Records, Store, Trimmed

STREAM = "hub/contract"
QUEUE = "inbox/contract"
HOP = "client>hub/contract"
LONG_S = 3600.0
DAY_US = 24 * 3600 * 1_000_000

MakeStore = Callable[[], Store]
Connect = Callable[[], Any]

_PROBE = "contract/probe"
_MARKER = "contract/marker"


class ManualClock:
    """A clock for stores that take one: microseconds, moved by the test alone."""

    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)


@dataclass(frozen=True, slots=True)
class Time:
    """The store's own time. It is read by claiming a row for no time at all, so it works with every store.

    With a clock of our own `advance` moves it. Without one, leases are made short enough to be waited for, and
    `advance` asks the store until its clock has passed.
    """

    store: Store
    clock: ManualClock | None

    @property
    def short_s(self) -> float:
        """A lease or delay that `advance` can outlast."""
        return 60.0 if self.clock is not None else 0.05

    @property
    def soon_s(self) -> float:
        """A delay that `advance` can outlast, and that is not over before the next commit even on a slow machine."""
        return 60.0 if self.clock is not None else 0.5

    def now(self) -> int:
        probe = Enqueue(_PROBE, "clock", Envelope(id="clock"))
        claim = Claim(_PROBE, "clock", lease_s=0.0)
        while True:
            answer = commit(self.store, probe, claim)[1]
            assert isinstance(answer, Claimed)
            if answer.rows:
                return answer.rows[0].due

    def advance(self, seconds: float) -> None:
        until = self.now() + int(seconds * 1_000_000)
        if self.clock is not None:
            self.clock.advance(seconds)
        while self.now() < until:
            pass

    def outlast_short(self) -> None:
        self.advance(self.short_s)


class StoreSuite:
    """The fixtures. A subclass gives `make_store`, and `clock` and `connect` where the store has them."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Opens the store. The first call gives an empty one; a later call another handle on the same data."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> ManualClock | None:
        """The clock that `make_store` hands to the store, or None when the store goes by its own."""
        return None

    @pytest.fixture
    def connect(self) -> Connect:
        """Opens a connection of the user's own to the data of `store`, with commit, rollback and close."""
        raise NotImplementedError

    @pytest.fixture
    def lossy_connections(self) -> dict[str, Connect]:
        """Connections that `bind` has to refuse, by what is wrong with them. A store without such has none."""
        return {}

    @pytest.fixture
    def odd_connections(self) -> dict[str, Connect]:
        """Connections whose rows, texts or cursors are made the user's way."""
        return {}

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Store:
        return make_store()

    @pytest.fixture
    def time(self, store: Store, clock: ManualClock | None) -> Time:
        return Time(store, clock)


def message(id: str, **fields: Any) -> Envelope:
    return Envelope(id=id, **fields)


def commit(store: Store, *ops: Op) -> tuple[Result, ...]:
    """Commit one unit that must be applied; answers its results."""
    outcome = store.commit([Unit(ops)])[0]
    assert isinstance(outcome, Applied), outcome
    return outcome.results


def commit_refused(store: Store, *ops: Op) -> tuple[Result, ...]:
    """Commit one unit that must be refused; answers its results."""
    outcome = store.commit([Unit(ops)])[0]
    assert isinstance(outcome, Refused), outcome
    return outcome.results


def append(store: Store, *ids: str, stream: str = STREAM) -> list[Position]:
    """Append messages that must be new, in one commit; answers their positions."""
    results = commit(store, *(Append(stream, message(id), identity=id) for id in ids))
    assert all(isinstance(result, Fresh) for result in results), results
    return [result.position for result in results if isinstance(result, Fresh)]


def enqueue(store: Store, *ids: str, key: str | None = None, queue: str = QUEUE) -> None:
    """Enqueue messages that must be new, in one commit."""
    results = commit(store, *(Enqueue(queue, id, message(id), key=key) for id in ids))
    assert all(isinstance(result, Fresh) for result in results), results


def claim(store: Store, limit: int = 1, *, owner: str = "w", lease_s: float = LONG_S, **more: Any) -> list[WorkRow]:
    """Claim from QUEUE; answers the rows."""
    more.setdefault("queue", QUEUE)
    answer = commit(store, Claim(owner=owner, limit=limit, lease_s=lease_s, **more))[0]
    assert isinstance(answer, Claimed)
    return list(answer.rows)


def claim_one(store: Store, **more: Any) -> WorkRow:
    """Claim exactly one row from QUEUE."""
    rows = claim(store, **more)
    assert len(rows) == 1, rows
    return rows[0]


def identities(rows: Sequence[WorkRow]) -> list[str]:
    return [row.identity for row in rows]


def read_ids(found: Records | Trimmed) -> list[str]:
    assert isinstance(found, Records), found
    return [record.envelope.id for record in found.records]


def logged(kind: Kind, id: str) -> Event:
    """A ledger event about one message."""
    return Event(kind, HOP, message=id)


def entries(store: Store) -> list[Entry]:
    """All ledger entries up to now.

    A store may show an entry a moment later than its commit, but never out of order: once the marker written here is
    visible, everything before it is.
    """
    marker = str(uuid.uuid4())
    commit(store, Log(Event(Kind.ACTION, "contract>marker", message=marker)))
    while True:
        found = read_ledger(store)
        for at, entry in enumerate(found):
            if entry.event.message == marker:
                return [entry for entry in found[:at] if entry.event.hop != "contract>marker"]


def events(store: Store) -> list[Event]:
    return [entry.event for entry in entries(store)]


def read_ledger(store: Store, limit: int = 1000) -> list[Entry]:
    """Page through the whole ledger."""
    found: list[Entry] = []
    mark = START
    while page := store.ledger(mark, limit):
        found += page
        mark = page[-1].mark
    return found


def index_entries(store: Store) -> list[IndexEntry]:
    """All of the index up to now, by the same device as `entries`."""
    commit(store, Append(_MARKER, message("marker")))
    marker = store.head(_MARKER).offset
    while True:
        found = read_index(store)
        for at, entry in enumerate(found):
            position = entry.record.position
            if (position.stream, position.offset) == (_MARKER, marker):
                return [entry for entry in found[:at] if entry.record.position.stream != _MARKER]


def read_index(store: Store, limit: int = 1000) -> list[IndexEntry]:
    """Page through the whole index."""
    found: list[IndexEntry] = []
    mark = START
    while page := store.index(mark, limit):
        found += page
        mark = page[-1].mark
    return found


def applied(outcomes: Sequence[Outcome]) -> list[bool]:
    return [isinstance(outcome, Applied) for outcome in outcomes]
