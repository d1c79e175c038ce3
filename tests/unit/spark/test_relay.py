"""The relay: small transactions, killed between any two of them, and nothing twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.spark.sinks import ids, new_store, records, told

from semel.errors import CommitInDoubt, StaleFence, StoreError
from semel.kernel.envelope import Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Outcome, Trim, Unit
from semel.kernel.store import Store
from semel.pubsub.hub.records import id_identity
from semel.runtime.host.lease_holder import Holder
from semel.spark.relay import pin, relay, relay_hop
from semel.stores.bodies import put_body
from semel.stores.sqlite import SqliteStore

HOP = "spark/orders>hub/out"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(new_store(tmp_path)) as store:
        yield store


def fill(store: Store, names: Sequence[str], stream: str = "spark/orders") -> None:
    store.commit([Unit(tuple(Append(stream, Envelope(name), name) for name in names))])


class Killed(Exception):
    pass


class Fragile:
    """A store that dies at its n-th commit, before or after it has happened."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        self._store, self._left, self._after = store, at, after

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Killed
        outcomes = self._store.commit(units)
        if self._left == 0:
            raise Killed
        return outcomes


def test_a_hub_gets_each_id_once_and_hears_for_whom_it_is(store: SqliteStore) -> None:
    """Clients may have brought the same id: then it is there."""
    told_by_client = Append("hub/out", Envelope("both"), id_identity("both"), target="g/red")
    waiting = [Append("spark/orders", Envelope(name), name, target=to) for name, to in (("both", ""), ("mine", "u/x"))]
    store.commit([Unit((told_by_client, *waiting, Append("spark/orders", Envelope("open"), "open")))])
    relay(store, "orders", "hub/out", target="g/all")
    found = [(record.envelope.id, record.target) for record in records(store, "hub/out")]
    assert found == [("both", "g/red"), ("mine", "u/x"), ("open", "g/all")]
    assert told(store)[HOP, Kind.DUPLICATE, "both"] == 1


def test_a_stream_that_is_no_hub_gets_no_targets(store: SqliteStore) -> None:
    store.commit([Unit((Append("spark/orders", Envelope("m"), "m", target="u/x"),))])
    relay(store, "orders", "inbox/out")
    assert [record.target for record in records(store, "inbox/out")] == [""]


def test_all_that_waits_goes_on_in_order_and_is_told(store: SqliteStore) -> None:
    names = [f"m{n}" for n in range(25)]
    fill(store, names)
    assert relay(store, "orders", "hub/out", rows_max=10) == 25
    assert ids(store, "hub/out") == names
    assert told(store) == {(HOP, kind, name): 1 for kind in (Kind.SENT, Kind.ACCEPTED) for name in names}
    assert relay(store, "orders", "hub/out") == 0
    at = store.cursor(relay_hop("orders", "hub/out"))
    assert at is not None
    assert at.offset == 25


def test_no_transaction_takes_more_than_its_share(store: SqliteStore) -> None:
    fill(store, [f"m{n}" for n in range(2500)])
    sizes = []

    class Watched(Fragile):
        def commit(self, units: Sequence[Unit]) -> list[Outcome]:
            sizes.append(sum(isinstance(op, Append) for unit in units for op in unit.ops))
            return store.commit(units)

    relay(Watched(store, 0, after=False), "orders", "hub/out")  # type: ignore[arg-type]
    assert sizes == [1000, 1000, 500]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_relay_that_is_killed_goes_on_where_it_ended(store: SqliteStore, at: int, after: bool) -> None:
    names = [f"m{n}" for n in range(25)]
    fill(store, names)
    with pytest.raises(Killed):
        relay(Fragile(store, at, after=after), "orders", "hub/out", rows_max=10)  # type: ignore[arg-type]
    relay(store, "orders", "hub/out", rows_max=10)
    assert ids(store, "hub/out") == names
    assert told(store) == {(HOP, kind, name): 1 for kind in (Kind.SENT, Kind.ACCEPTED) for name in names}


def test_what_is_there_already_is_a_duplicate(store: SqliteStore) -> None:
    fill(store, ["b"], "inbox/out")
    fill(store, ["a", "b", "c"])
    relay(store, "orders", "inbox/out")
    assert ids(store, "inbox/out") == ["b", "a", "c"]
    counts, hop = told(store), relay_hop("orders", "inbox/out")
    assert counts[hop, Kind.DUPLICATE, "b"] == 1
    assert counts[hop, Kind.ACCEPTED, "b"] == 0
    assert counts[hop, Kind.SENT, "b"] == 1


def test_two_relays_at_once_send_nothing_twice(store: SqliteStore) -> None:
    names = [f"m{n}" for n in range(30)]
    fill(store, names)

    class Overtaken(Fragile):
        """Another relay commits just before this one does, once."""

        def commit(self, units: Sequence[Unit]) -> list[Outcome]:
            self._left -= 1
            if self._left == 0:
                relay(store, "orders", "hub/out", rows_max=10)
            return store.commit(units)

    relay(Overtaken(store, 2, after=False), "orders", "hub/out", rows_max=10)  # type: ignore[arg-type]
    assert ids(store, "hub/out") == names
    assert told(store)[HOP, Kind.SENT, "m15"] == 1
    assert not [key for key in told(store) if key[1] is Kind.DUPLICATE]


def test_a_driver_that_was_replaced_relays_nothing(store: SqliteStore) -> None:
    fill(store, ["a"])
    with pytest.raises(StaleFence, match="another driver has taken over pipeline 'orders'"):
        relay(store, "orders", "hub/out", Guard("lease", "pipeline/orders", 7))
    assert ids(store, "hub/out") == []
    holder = Holder(store, "pipeline/orders", job="running orders")
    holder.acquire()
    relay(store, "orders", "hub/out", holder.guard)
    assert ids(store, "hub/out") == ["a"]


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_in_doubt_is_resolved(store: SqliteStore, happened: bool) -> None:
    fill(store, ["a", "b"])

    class Doubtful(Fragile):
        def commit(self, units: Sequence[Unit]) -> list[Outcome]:
            self._left -= 1
            if self._left != 0:
                return store.commit(units)
            self._outcomes = store.commit(units) if happened else None
            raise CommitInDoubt("broken", marker="m")

        def resolve(self, marker: str) -> list[Outcome] | None:
            return self._outcomes

    assert relay(Doubtful(store, 1, after=False), "orders", "hub/out") == 2  # type: ignore[arg-type]
    assert ids(store, "hub/out") == ["a", "b"]
    assert told(store)[HOP, Kind.SENT, "a"] == 1


def test_nothing_is_trimmed_before_it_is_relayed(store: SqliteStore) -> None:
    store.commit([Unit(tuple(pin(store, "orders", "hub/out")))])
    assert pin(store, "orders", "hub/out") == []
    fill(store, ["a", "b", "c"])
    store.commit([Unit((Trim("spark/orders", 3),))])
    relay(store, "orders", "hub/out")
    assert ids(store, "hub/out") == ["a", "b", "c"]


def test_what_was_trimmed_all_the_same_is_not_skipped_in_silence(store: SqliteStore) -> None:
    fill(store, ["a", "b", "c"])
    store.commit([Unit((Trim("spark/orders", 3),))])
    with pytest.raises(StoreError, match="trimmed before they were relayed"):
        relay(store, "orders", "hub/out")


def test_a_large_body_is_named_twice_and_kept_once(store: SqliteStore) -> None:
    blob = put_body(store, "body", [b"x" * 300_000])
    store.commit([Unit((Append("spark/orders", Envelope("a", blob=blob), "a"),))])
    relay(store, "orders", "hub/out")
    [record] = records(store, "hub/out")
    assert record.envelope.blob == blob
    assert b"".join(store.body("body")) == b"x" * 300_000
