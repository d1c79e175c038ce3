"""The audit of messages with many receivers: hubs of which the truth is known, each with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.shared_session import SharedSession
from tests.tools.ledgers import BEGIN_US, SECOND_US, Book

from semel.kernel.ledger import Event, Kind, fold_ids
from semel.kernel.ops import Append, Fresh, Log
from semel.pubsub.hub import records
from semel.pubsub.hub.records import NO_TERMS, DeliveryTerms, RecordKind
from semel.pubsub.protocol.messages import Data, DataType
from semel.spark.audit.compact import compact
from semel.spark.audit.follow import FollowOptions, opened
from semel.spark.audit.result import Audit, CellFigures, Example, Finding
from semel.spark.audit.run import AuditOptions, prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class _Session:
    id: str
    user: str | None
    start: int
    is_reliable: bool
    groups: dict[str, int]


class HubBook:
    """A hub as it writes to its store. Ids are `<hub>-<number>`; `told` may say what is not so."""

    def __init__(self, book: Book, hub: str) -> None:
        self.book, self.hub, self.stream = book, hub, records.stream_of(hub)
        self.accepted = records.accepted_event(hub)
        self.places: dict[str, int] = {}
        self.number = 0

    def _append(self, append: Append) -> int:
        [result] = self.book.commit(append)
        assert isinstance(result, Fresh)
        return result.position.offset

    def open(
        self, connection: str, user: str | None = None, *, start: int | None = None, groups: Sequence[str] = (),
        reliable: bool = True,
    ) -> None:  # fmt: skip
        start = start if start is not None else self.book.store.head(self.stream).offset
        session = _Session(connection, user, start, reliable, dict.fromkeys(groups, start))
        self._append(records.opened(self.stream, session, "node", 0, f"{connection}-open"))

    def close(self, connection: str, end: int | None = None) -> None:
        end = end if end is not None else self.book.store.head(self.stream).offset
        self._append(records.closed(self.stream, connection, None, end, 0, f"{connection}-close"))

    def join(self, connection: str, group: str, kind: RecordKind = RecordKind.JOIN) -> None:
        self.number += 1
        self._append(records.membership(self.stream, kind, group, connection, None, 0, f"change-{self.number}"))

    def leave(self, connection: str, group: str) -> None:
        self.join(connection, group, RecordKind.LEAVE)

    def send(self, target: str, sender: str = records.REST, terms: DeliveryTerms = NO_TERMS) -> str:
        self.number += 1
        id = f"{self.hub}-{self.number}"
        append = records.message(
            self.stream, id, target, Data(DataType.TEXT, b"x"), at=0, sender=sender, user=None, terms=terms,
            on_fresh=self.accepted,
        )  # fmt: skip
        self.places[id] = self._append(append)
        return id

    def told(
        self, connection: str, *ids: str, kind: Kind = Kind.CONFIRMED, n: int | None = None, fold: int | None = None
    ) -> None:
        places = [self.places[id] for id in ids]
        event = Event(
            kind, f"{self.stream}>sub", peer=connection, stream=self.stream, epoch=1, first=min(places),
            last=max(places), n=len(ids) if n is None else n, fold=fold_ids(ids) if fold is None else fold,
        )  # fmt: skip
        self.book.commit(Log(event))


def everything_a_hub_does(hub: HubBook) -> None:
    early = hub.send("")
    hub.open("a", "ann", start=hub.places[early], groups=("red",))
    hub.open("b", start=hub.places[early])
    hub.open("plain", reliable=False)
    hub.join("b", "red")
    both = [hub.send("g/red") for _ in range(3)]
    echo = hub.send("g/red", sender="a", terms=DeliveryTerms(no_echo=True))
    without_b = hub.send("g/red", terms=DeliveryTerms(excluded=("b",)))
    to_ann, to_b, to_all = hub.send("u/ann"), hub.send("c/b"), hub.send("")
    hub.leave("b", "red")
    only_a = hub.send("g/red")
    hub.told("a", *both, without_b)
    hub.told("a", to_ann, to_all, only_a)
    hub.told("b", *both, echo, to_b)
    hub.told("b", to_all, kind=Kind.EXPIRED)
    hub.close("b", end=hub.places[only_a])
    unseen = hub.send("c/b")
    assert unseen
    hub.send("")
    hub.send("u/ann")


def terms_decide(hub: HubBook) -> None:
    """What a filter or a time to live decides is known by the fold, as long as it can be: here of two of three."""
    hub.open("a")
    sure = [hub.send("") for _ in range(2)]
    one, two, three = (hub.send("", terms=DeliveryTerms(filter="userId eq 'x'")) for _ in range(3))
    hub.told("a", *sure)
    hub.told("a", one, two)
    assert three


def terms_hide_names(hub: HubBook) -> None:
    hub.open("a")
    ids = [hub.send("", terms=DeliveryTerms(expires=1)) for _ in range(6)]
    hub.told("a", *ids[:1], *ids[2:4], *ids[5:])


def a_wrong_count(hub: HubBook) -> None:
    hub.open("a")
    ids = [hub.send("") for _ in range(3)]
    hub.told("a", *ids, n=4)


def a_wrong_fold(hub: HubBook) -> None:
    hub.open("a")
    ids = [hub.send("") for _ in range(3)]
    hub.told("a", *ids, fold=17)


def confirmed_twice(hub: HubBook) -> None:
    hub.open("a")
    hub.open("b")
    ids = [hub.send("") for _ in range(3)]
    hub.told("a", *ids)
    hub.told("a", ids[1])
    hub.told("b", *ids)


def skipped(hub: HubBook) -> None:
    """One in the midst of a range, and one that later ranges have passed by."""
    hub.open("a")
    ids = [hub.send("") for _ in range(5)]
    hub.told("a", ids[0], ids[2])
    hub.told("a", ids[4])


def forgotten_at_the_end(hub: HubBook) -> None:
    hub.open("a")
    ids = [hub.send("") for _ in range(2)]
    hub.told("a", ids[0])
    hub.close("a")


def confirmed_and_expired(hub: HubBook) -> None:
    hub.open("a")
    ids = [hub.send("") for _ in range(2)]
    hub.told("a", *ids)
    hub.told("a", ids[1], kind=Kind.EXPIRED)
    hub.close("a")


def out_of_order(hub: HubBook) -> None:
    hub.open("a")
    ids = [hub.send("") for _ in range(4)]
    hub.told("a", *ids[2:])
    hub.told("a", *ids[:2])


def copies_gone(hub: HubBook) -> None:
    """What was kept for a session is lost, and it ends: nobody knows how many messages of the range that was."""
    hub.open("a")
    ids = [hub.send("") for _ in range(3)]
    hub.told("a", *ids, kind=Kind.DISCARDED, n=0, fold=0)
    hub.close("a")


def one_copy_gone(hub: HubBook) -> None:
    hub.open("a")
    ids = [hub.send("") for _ in range(3)]
    hub.told("a", ids[0], ids[2], kind=Kind.DISCARDED)
    hub.close("a")


def a_stranger(hub: HubBook) -> None:
    """Somebody acknowledges who was never there."""
    hub.told("ghost", hub.send(""))


HUBS: dict[str, Callable[[HubBook], None]] = {
    "good": everything_a_hub_does,
    "terms": terms_decide,
    "hidden": terms_hide_names,
    "count": a_wrong_count,
    "fold": a_wrong_fold,
    "twice": confirmed_twice,
    "skipped": skipped,
    "forgotten": forgotten_at_the_end,
    "expired": confirmed_and_expired,
    "order": out_of_order,
    "stranger": a_stranger,
    "copies": copies_gone,
    "copy": one_copy_gone,
}

Found = dict[str, dict[Finding, set[str]]]


@pytest.fixture(scope="module")
def hubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hubs")
    book = Book(folder / "hub.db", "node")
    try:
        for at, (name, play) in enumerate(HUBS.items()):
            book.now = BEGIN_US + at * SECOND_US
            play(HubBook(book, name))
        book.export(folder / "lake")
    finally:
        book.store.close()
    return folder / "lake"


@pytest.fixture(scope="module")
def audited(shared_spark: SharedSession, hubs: Path) -> tuple[Audit, Found, dict[str, CellFigures]]:
    """Long after, so that everything has had its time. Once for the whole module."""
    with prepared(shared_spark.get(), [hubs], AuditOptions(deadline_s=1, now=BEGIN_US + 1000 * SECOND_US)) as case:
        result = case.audit()
    return (
        result,
        _by_hub(result.examples),
        {_hub(cell.hop): cell for cell in result.totals if cell.hop.endswith(">sub")},
    )


def _hub(hop: str) -> str:
    return hop.removeprefix("hub/").removesuffix(">sub")


def _by_hub(examples: Sequence[Example]) -> Found:
    found: Found = {}
    for example in examples:
        found.setdefault(_hub(example.hop), {}).setdefault(example.finding, set()).add(example.message)
    return found


def test_a_good_hub_is_good_for_each_receiver(audited: tuple[Audit, Found, dict[str, CellFigures]]) -> None:
    _, found, totals = audited
    assert "good" not in found
    good = totals["good"]
    # a: 3 and one that is not for b; its user's, everybody's, one more of the group; then two that it has not taken
    # b: 3, the one that a does not hear itself, its own, and everybody's, which its end has taken
    assert (good.sent, good.accepted_unique, good.given_up, good.in_flight, good.lost) == (15, 12, 1, 2, 0)
    assert good.open == 0


def test_what_terms_decide_is_named_where_the_fold_can(audited: tuple[Audit, Found, dict[str, CellFigures]]) -> None:
    result, found, totals = audited
    assert not {"terms", "hidden"} & set(found)
    assert (totals["terms"].sent, totals["terms"].accepted_unique) == (4, 4)
    assert "hidden" not in totals
    [note] = [note for note in result.notes if note.startswith("hub/hidden>sub")]
    assert "of 4 deliveries" in note


@pytest.mark.parametrize(
    ("hub", "finding", "messages"),
    [
        ("count", Finding.GAP, {"hub/count@1:2..4"}),
        ("fold", Finding.GAP, {"hub/fold@1:2..4"}),
        ("stranger", Finding.GAP, {"hub/stranger@1:1..1"}),
        ("copies", Finding.GAP, {"hub/copies@1:2..4"}),
        ("copy", Finding.LOST, {"copy-2"}),
        ("twice", Finding.DUPLICATE, {"twice-2"}),
        ("skipped", Finding.LOST, {"skipped-2", "skipped-4"}),
        ("forgotten", Finding.LOST, {"forgotten-2"}),
        ("expired", Finding.UNBALANCED, {"expired-2"}),
        ("order", Finding.ORDER, {"order-1", "order-2"}),
    ],
)
def test_what_a_hub_does_wrong_is_found_by_name(
    audited: tuple[Audit, Found, dict[str, CellFigures]], hub: str, finding: Finding, messages: set[str]
) -> None:
    assert audited[1][hub] == {finding: messages}


def test_a_day_with_a_hub_is_not_compacted(spark: SparkSession, hubs: Path) -> None:
    done = compact(spark, hubs)
    assert done.days == ()
    assert done.left == {"2026-01-01": "the deliveries of a hub are judged by all its days together"}


def test_a_hub_is_not_followed_and_that_is_said(spark: SparkSession, tmp_path: Path) -> None:
    book = Book(tmp_path / "hub.db", "node")
    try:
        skipped(HubBook(book, "skipped"))
    finally:
        book.store.close()
    options = AuditOptions(deadline_s=1, now=BEGIN_US + 1000 * SECOND_US)
    with opened(spark, [book.url], options, FollowOptions(tmp_path / "state")) as follower:
        result, _ = follower.step()
    assert [cell.hop for cell in result.totals] == ["client>hub/skipped"]
    assert "hub/skipped>sub: not followed; audit it without --follow" in result.notes
