"""Counts what happened, from what the two processes wrote down: their ledgers and their streams.

Loss and doubling are found by comparing two writers. What the sender's store says was sent is held against what the
receiver's store says was accepted; neither is asked about itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from semel.demo.options import HOP, INBOX, OUTBOX
from semel.kernel.ledger import START, Event, Kind, fold_ids
from semel.kernel.store import Record, Records, Store

BATCH = 1000


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """`acked_lost` are orders that were confirmed to a customer, and that the receiver never accepted. `unknown` are
    accepted messages that nobody sent. `ledger_gaps` are ranges of a ledger that do not fit the records they name."""

    sent: int
    resent: int
    arrived: int
    arrived_unique: int
    accepted: int
    accepted_unique: int
    duplicates: int
    rejected: int
    lost: int
    doubled: int
    disorder: int
    unknown: int
    acked: int
    acked_lost: int
    ledger_gaps: int

    @property
    def holds(self) -> bool:
        wrong = (self.lost, self.doubled, self.disorder, self.unknown, self.acked_lost, self.ledger_gaps)
        return self.sent > 0 and not any(wrong)

    @property
    def r_before(self) -> float:
        """The part of what was sent that came through the link at all, resends included."""
        return _share(self.arrived_unique, self.sent)

    @property
    def ur_before(self) -> float:
        """The part of what came out of the link that was not a repetition."""
        return _share(self.arrived_unique, self.arrived)

    @property
    def r_after(self) -> float:
        return _share(self.accepted_unique, self.sent)

    @property
    def ur_after(self) -> float:
        return _share(self.accepted_unique, self.accepted)


def count(sender: Store, receiver: Store, acked: set[str]) -> DemoFigures:
    """`acked` is what was confirmed to the customers, as reported to the parent of both processes."""
    outbox, inbox = list(_records(sender, OUTBOX)), list(_records(receiver, INBOX))
    by_sender, by_receiver = list(_events(sender)), list(_events(receiver))
    sent_ids, sent_gaps = _expand(by_sender, Kind.SENT, outbox)
    accepted_ids, accepted_gaps = _expand(by_receiver, Kind.ACCEPTED, inbox)
    duplicates = [event.message for event in by_receiver if event.kind is Kind.DUPLICATE]
    rejected = [event.message for event in by_receiver if event.kind is Kind.REJECTED]
    sent, accepted = set(sent_ids), set(accepted_ids)
    return DemoFigures(
        sent=len(sent),
        resent=sum(event.n for event in by_sender if event.kind is Kind.RESENT),
        arrived=len(accepted_ids) + len(duplicates) + len(rejected),
        arrived_unique=len(accepted.union(duplicates, rejected)),
        accepted=len(accepted_ids),
        accepted_unique=len(accepted),
        duplicates=len(duplicates),
        rejected=len(rejected),
        lost=len(sent - accepted),
        doubled=sum(copies - 1 for copies in Counter(accepted_ids).values()),
        disorder=_disorder(inbox),
        unknown=len(accepted - sent),
        acked=len(acked),
        acked_lost=len(acked - accepted),
        ledger_gaps=sent_gaps + accepted_gaps,
    )


def _records(store: Store, stream: str) -> Iterator[Record]:
    after = None
    while True:
        found = store.read(stream, after, BATCH)
        if not isinstance(found, Records) or not found.records:
            return
        yield from found.records
        after = found.records[-1].position


def _events(store: Store) -> Iterator[Event]:
    mark = START
    while entries := store.ledger(mark, BATCH):
        yield from (entry.event for entry in entries if entry.event.hop == HOP)
        mark = entries[-1].mark


def _expand(events: Sequence[Event], kind: Kind, records: Sequence[Record]) -> tuple[list[str], int]:
    """The ids that the ranges of a ledger stand for, and how many ranges do not fit the records."""
    by_offset = {record.position.offset: record.envelope.id for record in records}
    ids: list[str] = []
    gaps = 0
    for event in events:
        if event.kind is not kind:
            continue
        if event.first is None or event.last is None:
            ids.append(event.message or "")
            continue
        found = [by_offset[at] for at in range(event.first, event.last + 1) if at in by_offset]
        gaps += len(found) != event.n or fold_ids(found) != event.fold
        ids += found
    return ids, gaps


def _disorder(records: Sequence[Record]) -> int:
    """Records that stand after one with a higher index of the same session."""
    highest: dict[str, int] = {}
    late = 0
    for record in records:
        session, index = record.envelope.session or "", record.envelope.index or 0
        late += index < highest.get(session, 0)
        highest[session] = max(index, highest.get(session, 0))
    return late


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
