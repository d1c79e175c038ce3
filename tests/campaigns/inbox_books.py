"""What the inbox campaign must find in the end, counted in the shop's own tables, at the receivers and in the ledgers.

charges       one row for each order that the broker was given, in the order of its key where that is promised
outgoing      each once, at the endpoint, at the hub and in the stream; in the queue that nobody reads, where copies
              cannot be told apart by the broker, every copy under the one id of its message
the ledger    what an endpoint has accepted has ended, and nothing is a dead letter
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.campaigns.inbox_soak_child import (
    BULK,
    ORDERS,
    POSTS,
    RECEIPTS,
    SENT,
    TO_HUB,
    TO_INBOX,
    TO_QUEUE,
    TO_STREAM,
    WAYS,
    connect,
)

from semel.inbox.following import read_cursor
from semel.kernel.ledger import START, Event, Kind, balance
from semel.kernel.ops import WorkState
from semel.kernel.store import Records, Store
from semel.runtime.inbox.operating import LETTERS
from semel.stores import open_store

BATCH = 1000
TABLES = {
    "sqlite": "CREATE TABLE charge (seq integer PRIMARY KEY AUTOINCREMENT, id text, key text, number integer);"
    "CREATE TABLE receipt (id text); CREATE TABLE post (id text)",
    # a number is taken while the transaction is open, and a key has one at a time: so it has the order of the commits
    "postgresql": "CREATE TABLE charge (seq bigserial PRIMARY KEY, id text, key text, number integer);"
    "CREATE TABLE receipt (id text); CREATE TABLE post (id text)",
}


@dataclass(slots=True)
class Wrong:
    lost: int = 0
    doubled: int = 0
    disorder: int = 0
    unknown: int = 0


def once(wanted: Iterable[str], got: Iterable[str]) -> Wrong:
    expected, found = set(wanted), Counter(got)
    return Wrong(
        lost=len(expected - found.keys()),
        doubled=found.total() - len(found),
        unknown=len(found.keys() - expected),
    )


def disorder(numbers: Iterable[tuple[str, int]]) -> int:
    """How often the number of a key is not the next one. One that was there already counts as doubled, not here."""
    last, seen, late = Counter[str](), set[tuple[str, int]](), 0
    for key, number in numbers:
        if (key, number) not in seen:
            late += number != last[key] + 1
            last[key] = number
        seen.add((key, number))
    return late


def id_of(key: str, number: int) -> str:
    return f"{key}-{number}"


@dataclass
class InboxBooks:
    """`quotas` says how many orders there are of each key. The order is promised for the keys in `ordered`."""

    url: str
    hub: str
    hub_url: str
    quotas: dict[str, int]
    ordered: set[str]
    queue: Sequence[tuple[str, bytes]] = field(default_factory=list)
    """What was left in the queue that nobody reads."""

    def open(self) -> None:
        """Make the tables, and keep what is asked again and again."""
        self._db = connect(self.url)
        for statement in TABLES[self.url.partition(":")[0]].split(";"):
            self._db.execute(statement)
        self._store, self._hub = open_store(self.url), open_store(self.hub_url, create=False)

    def close(self) -> None:
        for each in (self._db, self._store, self._hub):
            each.close()

    def rows(self, statement: str) -> list[Any]:
        return list(self._db.execute(statement).fetchall())

    def charged(self) -> int:
        return int(self.rows("SELECT count(*) FROM charge")[0][0])

    def left(self) -> int:
        """How much there is to do: rows that are not done, and records of the hub that were not taken."""
        rows = sum(n for state, n in self._states() if state not in LETTERS)
        taken = sum(read_cursor(state.value).offset for _, state in self._store.states("inbox/follow/"))
        return rows + self._hub.head(f"hub/{self.hub}").offset - taken

    def _states(self) -> Iterator[tuple[WorkState, int]]:
        for queue, counts in self._store.work_counts().items():
            if queue.startswith(("inbox/", "outbox/")):
                yield from counts.items()

    def wanted(self, way: int | None = None) -> list[str]:
        """The ids of all orders, or of those whose outgoing message goes this way."""
        return [
            id_of(key, number)
            for key, quota in self.quotas.items()
            for number in range(1, quota + 1)
            if way is None or number % WAYS == way
        ]

    # -- figures

    def figures(self) -> dict[str, Any]:
        events, dead = list(_events(self._store)), sum(n for _, n in self._states())
        sent = list(_bodies(self._store, SENT))
        charges = self.rows("SELECT id, key, number FROM charge ORDER BY seq")
        wrong = once(self.wanted(), (id for id, _, _ in charges))
        wrong.disorder = disorder((key, number) for _, key, number in charges if key in self.ordered)
        outgoing = {
            "inbox": once(self.wanted(TO_INBOX), (id for (id,) in self.rows("SELECT id FROM receipt"))),
            "hub": self._at_hub(),
            "stream": once(self.wanted(TO_STREAM), (each["id"] for each in sent)),
            "queue": self._in_queue(),
        }
        ledger = {name: _balance(events, name) for name in (ORDERS, BULK, RECEIPTS, POSTS)}
        accepted = ledger[ORDERS]["accepted"] + ledger[BULK]["accepted"]
        return {
            "holds": wrong == Wrong()
            and all(each == Wrong() for each in outgoing.values())
            and not dead
            and all(each["holds"] for each in ledger.values())
            and accepted == len(self.wanted()),
            "charges": len(charges),
            **asdict(wrong),
            "outgoing": {name: asdict(each) for name, each in outgoing.items()},
            "copies_in_the_queue": len(self.queue) - len({id for id, _ in self.queue}),
            "dead": dead,
            "duplicates_turned_away": sum(each["duplicates"] for each in ledger.values()),
            "handled_at_second_attempt_or_later": sum(
                event.n for event in events if event.kind is Kind.HANDLED and event.attempt > 1
            ),
            "ledger": ledger,
        }

    def _at_hub(self) -> Wrong:
        """What came of it at the endpoint behind it. That endpoint knows copies, so the hub's own ledger is asked for
        them."""
        wrong = once(self.wanted(TO_HUB), (id for (id,) in self.rows("SELECT id FROM post")))
        hop = f">hub/{self.hub}"
        accepted = sum(
            event.n for event in _events(self._hub) if event.kind is Kind.ACCEPTED and event.hop.endswith(hop)
        )
        wrong.doubled += max(0, accepted - len(self.wanted(TO_HUB)))
        return wrong

    def _in_queue(self) -> Wrong:
        """A message is doubled there if it has two ids, by which whoever reads it could not tell."""
        pairs = {(json.loads(body)["id"], id) for id, body in self.queue}
        return once(self.wanted(TO_QUEUE), (order for order, _ in pairs))


def _balance(events: Iterable[Event], endpoint: str) -> dict[str, Any]:
    """Nothing is open any more when this is asked."""
    mine = [event for event in events if event.hop == f"inbox/{endpoint}>handler"]
    found = balance(mine, 0)
    duplicates = sum(event.n for event in mine if event.kind is Kind.DUPLICATE)
    return {**asdict(found), "duplicates": duplicates, "holds": found.holds}


def _events(store: Store) -> Iterator[Event]:
    mark = START
    while entries := store.ledger(mark, BATCH):
        yield from (entry.event for entry in entries)
        mark = entries[-1].mark


def _bodies(store: Store, stream: str) -> Iterator[Any]:
    after = None
    while isinstance(found := store.read(stream, after, BATCH), Records) and found.records:
        yield from (json.loads(record.envelope.data) for record in found.records)
        after = found.records[-1].position
