"""Looks at the world from outside: what the applications know, and what the stores hold in the end.

nothing lost      every message acked to its producer has its effect, or is visibly dead, parked or skipped
nothing doubled   and no more than one
order             effects of a session come in the session's order, where the path promises it
conservation      every ledger tells exactly what its store holds, and what one side calls confirmed the other has
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from semel.errors import SemelError
from semel.kernel.ledger import ENDS, START, Event, Kind, balance, fold_ids
from semel.kernel.ops import OPEN_STATES, WorkState
from semel.kernel.store import Record, Records
from semel.sim.kernel.apps import Item
from semel.sim.kernel.database import Database
from semel.sim.kernel.path import HOP_IN, HUB, READER, SimulatedPath, effects, hop_handler, hop_out, inbox, outbox
from semel.sim.kernel.weather import KernelWorld, Subscription

ALL = 2**62
WAITING = ("ready", "scheduled", "claimed")


@dataclass(frozen=True, slots=True)
class Books:
    """One store as an auditor sees it: its ledger, and every record it ever had."""

    database: Database
    events: list[Event]
    records: dict[str, dict[int, str]]

    def of(self, hop: str, *kinds: Kind, pipeline: str | None = None) -> list[Event]:
        return [
            event
            for event in self.events
            if event.hop == hop and event.kind in kinds and pipeline in (None, event.pipeline)
        ]

    def stream(self, name: str) -> dict[int, str]:
        """Message ids by offset, also of records that are long trimmed."""
        return self.records.get(name, {})

    def cursor(self, name: str) -> int:
        position = self.database.store.cursor(name)
        return position.offset if position is not None else 0


def open_books(database: Database) -> Books:
    database.archive_index()
    records: dict[str, dict[int, str]] = {}
    for record in database.archive.values():
        records.setdefault(record.position.stream, {})[record.position.offset] = record.envelope.id
    return Books(database, [entry.event for entry in database.store.ledger(START, ALL)], records)


class Checker:
    def __init__(self, world: KernelWorld, path: SimulatedPath) -> None:
        self._world = world
        self._path = path
        self._items = {item.key: item for items in path.items.values() for item in items}

    # -- liveness

    def under_way(self) -> str:
        """What has not come to its end yet; empty when everything has drained."""
        if any(not node.up for node in self._path.nodes) or any(not each.up for each in self._path.databases):
            return "something is down"
        if unacked := next((item.key for item in self._items.values() if not item.acked), None):
            return f"{unacked} is not acked"
        try:
            return next((left for left in self._left_over() if left), "")
        except SemelError as error:
            return str(error)

    def _left_over(self) -> Iterable[str]:
        for name, node in self._path.producers.items():
            yield _unread(node.database, f"send/{self._path.senders[name]}", outbox(name))
            if self._world.seen["hub.restored"] and "~" not in self._path.senders[name]:
                yield f"{name} has not begun its replay"
        for sub in self._world.weather.subscriptions:
            yield _unread(self._path.hub, f"send/{sub.name}", HUB)
            if sub.target == "stream":
                yield _unread(self._path.consumer, f"follow/{sub.name}-reader", inbox(sub))
            else:
                yield self._unworked(sub)
        if self._world.weather.hub_reader != "none":
            yield _unread(self._path.hub, f"follow/{READER}", HUB)

    def _unworked(self, sub: Subscription) -> str:
        states = self._path.consumer.store.status().work.get(inbox(sub), {})
        waiting = sum(states.get(state, 0) for state in WAITING)
        return f"{waiting} rows of {inbox(sub)} wait for a worker" if waiting else ""

    # -- safety

    def check(self, *, drained: bool) -> None:
        """What must hold at every moment, and once all has drained also that nothing is missing."""
        books = {database.name: open_books(database) for database in self._path.databases if database.up}
        for name, node in self._path.producers.items():
            if node.database.name in books:
                self._check_producer(name, books[node.database.name])
        if "H" in books:
            self._check_hub(books["H"])
        if "C" in books:
            for sub in self._world.weather.subscriptions:
                self._check_subscription(sub, books, drained)
        if len(books) == len(self._path.databases) and (drained or not self._world.weather.restore):
            self._check_confirmed(books)

    def _check_producer(self, name: str, books: Books) -> None:
        stream = books.stream(outbox(name))
        self._check_ranges(f"{name} sent", books.of(HOP_IN, Kind.SENT), stream, ALL)
        for pipeline, sender in {"": name, "replay": f"{name}~replay"}.items():
            events = books.of(HOP_IN, Kind.CONFIRMED, pipeline=pipeline)
            self._check_ranges(f"{sender} confirmed", events, stream, books.cursor(f"send/{sender}"))

    def _check_hub(self, books: Books) -> None:
        stream = books.stream(HUB)
        self._check_ranges("hub accepted", books.of(HOP_IN, Kind.ACCEPTED), stream, ALL)
        self._check_arrivals(HOP_IN, books)
        for sub in self._world.weather.subscriptions:
            events = books.of(hop_out(sub), Kind.CONFIRMED)
            self._check_ranges(f"{sub.name} confirmed", events, stream, books.cursor(f"send/{sub.name}"))
        self._check_hub_reader(books)

    def _check_hub_reader(self, books: Books) -> None:
        """A reader sees every record from where it began, once and in offset order, whoever else reads."""
        begin = books.database.store.state(f"begin/{READER}")
        first, last = int(begin.value) if begin is not None else 1, books.cursor(f"follow/{READER}")
        due = [id for offset, id in sorted(books.stream(HUB).items()) if first <= offset <= last]
        seen = [record.envelope.id for record in _read(books.database, effects("hub"))]
        handled = [event.message for event in books.of(f"{HUB}>reader", Kind.HANDLED)]
        if seen != due:
            self._world.violated(f"the hub's reader handled {_short(seen)} and should have handled {_short(due)}")
        if handled != seen:
            self._world.violated(f"the hub's ledger has handled {_short(handled)} but the effects are {_short(seen)}")

    def _check_arrivals(self, hop: str, books: Books) -> None:
        arrived = sum(link.arrived for link in self._path.links if link.hop == hop)
        noted = sum(event.n for event in books.of(hop, Kind.ACCEPTED, Kind.DUPLICATE, Kind.REJECTED))
        if noted > arrived:
            self._world.violated(f"{hop}: the ledger has {noted} arrivals, and there were {arrived}")

    # -- one subscription

    def _check_subscription(self, sub: Subscription, books: dict[str, Books], drained: bool) -> None:
        consumer = books["C"]
        done = _read(self._path.consumer, effects(sub.name))
        self._check_arrivals(hop_out(sub), consumer)
        self._check_effects(sub, done)
        self._check_order(sub, done)
        if sub.target == "queue":
            self._check_queue(sub, consumer, done)
        else:
            self._check_inbox_stream(sub, consumer, done)
        if drained:
            self._check_nothing_lost(sub, books, done)

    def _check_effects(self, sub: Subscription, done: Sequence[Record]) -> None:
        for key, count in Counter(record.envelope.data.decode() for record in done).items():
            if key not in self._items:
                self._world.violated(f"{sub.name}: an effect of {key}, which nobody sent")
            elif count > 1:
                self._world.violated(f"{sub.name}: {key} took effect {count} times")
        for record in done:
            item = self._items.get(record.envelope.data.decode())
            if item is not None and record.envelope.id not in item.ids:
                self._world.violated(f"{sub.name}: {item.key} arrived as {record.envelope.id}")

    def _check_order(self, sub: Subscription, done: Sequence[Record]) -> None:
        inbound = self._world.weather.inbound
        if sub.hop.in_order and inbound.in_order:
            self._check_grows(sub, [(env.session, env.index) for env in (record.envelope for record in done)])
        if sub.hop.in_whole_order and inbound.in_whole_order and sub.target == "stream":
            self._check_grows(sub, [_number(record.envelope.data.decode()) for record in done])

    def _check_grows(self, sub: Subscription, places: Sequence[tuple[str | None, int | None]]) -> None:
        last: dict[str, int] = {}
        for line, place in places:
            if line is None or place is None:
                continue
            if place < last.get(line, 0):
                self._world.violated(f"{sub.name}: {line} {place} took effect after {last[line]}")
            last[line] = max(place, last.get(line, 0))

    def _check_queue(self, sub: Subscription, books: Books, done: Sequence[Record]) -> None:
        accepted = books.of(hop_out(sub), Kind.ACCEPTED)
        ends = books.of(hop_handler(sub), *ENDS)
        handled = [event.message for event in ends if event.kind is Kind.HANDLED]
        self._check_once(f"{sub.name} accepted", [event.message for event in accepted])
        self._check_once(f"{sub.name} ended", [event.message for event in ends])
        if handled != [record.envelope.id for record in done]:
            self._world.violated(f"{sub.name}: the ledger's handled and the effects differ")
        states = books.database.store.status().work.get(inbox(sub), {})
        open_count = sum(states.get(state.name.lower(), 0) for state in OPEN_STATES)
        sums = balance([*accepted, *ends], open_count)
        if not sums.holds:
            self._world.violated(f"{sub.name}: accepted is not ended + open: {sums}")

    def _check_inbox_stream(self, sub: Subscription, books: Books, done: Sequence[Record]) -> None:
        stream = books.stream(inbox(sub))
        self._check_ranges(f"{sub.name} accepted", books.of(hop_out(sub), Kind.ACCEPTED), stream, ALL)
        cursor = books.cursor(f"follow/{sub.name}-reader")
        due = [id for offset, id in sorted(stream.items()) if offset <= cursor]
        handled = [event.message for event in books.of(hop_handler(sub), Kind.HANDLED)]
        if not handled == due == [record.envelope.id for record in done]:
            self._world.violated(f"{sub.name}: handled, effects and cursor differ: {_short(handled)} {_short(due)}")

    def _check_nothing_lost(self, sub: Subscription, books: dict[str, Books], done: Sequence[Record]) -> None:
        found = {record.envelope.data.decode() for record in done}
        skipped = _skipped(books["H"].of(HOP_IN, Kind.ACTION)) | _skipped(books["C"].of(hop_out(sub), Kind.ACTION))
        discarded = {event.message for event in books["C"].of(hop_handler(sub), Kind.DISCARDED)}
        for item in self._items.values():
            excuse = self._excuse(sub, item, skipped, discarded)
            if item.key in found and excuse:
                self._world.violated(f"{sub.name}: {item.key} took effect and yet is {excuse}")
            elif item.acked and item.key not in found and not excuse:
                self._world.violated(f"{sub.name}: {item.key} was acked and is lost")

    def _excuse(self, sub: Subscription, item: Item, skipped: set[tuple[str, int]], discarded: set[str | None]) -> str:
        """Why a message may be without effect: because somebody can see that it is, and why."""
        if item.session is not None and item.index is not None and (item.session, item.index) in skipped:
            return "skipped"
        for id in item.ids:
            row = self._path.consumer.store.work(inbox(sub), id)
            if row is not None and row.state in (WorkState.DEAD, WorkState.PARKED):
                return row.state.name.lower()
            if row is not None and id in discarded:
                return "discarded"
        return ""

    # -- ledgers

    def _check_confirmed(self, books: dict[str, Books]) -> None:
        """Two writers: what a sender calls confirmed, the receiver must have accepted."""
        hub, consumer = books["H"], books["C"]
        accepted = set(hub.stream(HUB).values()) | _settled_unseen(hub.of(HOP_IN, Kind.ACTION), self._items)
        for name, node in self._path.producers.items():
            sender = books[node.database.name]
            cursor = sender.cursor(f"send/{self._path.senders[name]}")
            self._check_within(f"{name}>hub", _up_to(sender.stream(outbox(name)), cursor), accepted)
        for sub in self._world.weather.subscriptions:
            got = {event.message or "" for event in consumer.of(hop_out(sub), Kind.ACCEPTED)}
            got |= set(consumer.stream(inbox(sub)).values())
            got |= _settled_unseen(consumer.of(hop_out(sub), Kind.ACTION), self._items)
            self._check_within(sub.name, _up_to(hub.stream(HUB), hub.cursor(f"send/{sub.name}")), got)

    def _check_within(self, what: str, confirmed: Iterable[str], accepted: set[str]) -> None:
        if missing := sorted(set(confirmed) - accepted):
            self._world.violated(f"{what}: confirmed and never accepted: {_short(missing)}")

    def _check_ranges(self, what: str, events: Sequence[Event], stream: dict[int, str], last: int) -> None:
        """The ranges cover every record up to `last` once, and each range is about the records it claims."""
        covered: list[int] = []
        for event in events:
            first, end = event.first or 0, event.last or 0
            offsets = [offset for offset in stream if first <= offset <= end]
            covered += offsets
            ids = [stream[offset] for offset in offsets]
            if event.n != len(ids) or event.fold != fold_ids(ids):
                self._world.violated(f"{what}: the range {first}..{end} does not match the records there")
        if sorted(covered) != [offset for offset in sorted(stream) if offset <= last]:
            self._world.violated(f"{what}: the ledger has {_short(sorted(covered))} of {_short(sorted(stream))}")

    def _check_once(self, what: str, messages: Sequence[str | None]) -> None:
        for message, count in Counter(messages).items():
            if count > 1:
                self._world.violated(f"{what}: the ledger has {message} {count} times")


def _unread(database: Database, cursor: str, stream: str) -> str:
    found = database.store.read(stream, database.store.cursor(cursor), 1)
    if isinstance(found, Records) and not found.records:
        return ""
    return f"{cursor} has not reached the end of {stream}"


def _read(database: Database, stream: str) -> Sequence[Record]:
    found = database.store.read(stream, None, ALL)
    return found.records if isinstance(found, Records) else ()


def _up_to(stream: dict[int, str], cursor: int) -> list[str]:
    return [id for offset, id in stream.items() if offset <= cursor]


def _number(key: str) -> tuple[str, int]:
    """A producer, and which of its items this is; nonsense has no place anywhere."""
    producer, _, number = key.partition("-")
    return producer, int(number) if number.isdecimal() else 0


def _skipped(actions: Iterable[Event]) -> set[tuple[str, int]]:
    """The places in sessions that a receiver gave up waiting for, by its own record."""
    places: set[tuple[str, int]] = set()
    for event in actions:
        if event.message is not None and event.message.startswith("gap "):
            first, last = event.message.removeprefix("gap ").split("..")
            places |= {(event.session or "", index) for index in range(int(first), int(last) + 1)}
    return places


def _settled_unseen(actions: Iterable[Event], items: dict[str, Item]) -> set[str]:
    """Ids of messages that came after their place had been skipped: confirmed, and rightly never accepted."""
    places = _skipped(actions)
    return {id for item in items.values() if (item.session, item.index) in places for id in item.ids}


def _short(values: Sequence[object]) -> str:
    return str(list(values)) if len(values) <= 30 else f"{list(values[:30])} and {len(values) - 30} more"
