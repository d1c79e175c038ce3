"""A user's own table: its rows, the number of the batch and the ledger are one commit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from tests.unit.spark.sinks import ids, options_of, records, told

from semel.errors import ConfigError, InputError, StaleFence, StoreGone, StoreUnavailable
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX
from semel.kernel.ledger import Kind
from semel.kernel.store import Store
from semel.runtime.host.lease_holder import Holder
from semel.spark import tables as module
from semel.spark.landing import Job, read_state
from semel.spark.staging import Staged, Task
from semel.spark.tables import TableTarget
from semel.spark.tables_postgres import PostgresDatabase
from semel.stores.open import open_store
from semel.stores.sqlite import path_of
from semel.testing.limits import scaled

HOP = "input>spark/orders"
COLUMNS = pa.schema([("id", pa.string()), ("no", pa.int64()), ("amount", pa.decimal128(10, 2))])


class Table:
    """A database with a store and a table of the user, and a query that writes into it."""

    def __init__(self, url: str, tmp_path: Path) -> None:
        self.store: Store = open_store(url, node="spark")
        self.url = url
        self.tmp_path = tmp_path

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        if self.url.startswith("sqlite:"):
            with closing(sqlite3.connect(path_of(self.url), isolation_level=None)) as connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(statement)  # type: ignore[call-overload]
            return found.fetchall() if found.description else []

    def target(
        self, schema: pa.Schema = COLUMNS, table: str = "orders", key: str = "no", **more: object
    ) -> TableTarget:
        options = options_of(self.tmp_path, self.store, table=table, key=(key,), **more)
        return TableTarget(options, from_arrow_schema(schema))

    def write(
        self, batch: pa.RecordBatch, number: int = 0, query: str = "q1", target: TableTarget | None = None
    ) -> list[Staged]:
        target = target or self.target(batch.schema)
        staged = [target.stage(iter([batch]), Task(query, number, 0, 0, 0))]
        target.commit(Job("orders", query, number), staged)
        return staged

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT id, no FROM orders ORDER BY no")


@pytest.fixture(params=["sqlite", "postgres"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    url = f"sqlite:///{tmp_path}/semel.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    found = Table(url, tmp_path)
    found.run("CREATE TABLE orders (id text, no bigint PRIMARY KEY, amount numeric(10, 2) CHECK (amount < 100))")
    with closing(found.store):
        yield found


def orders(*rows: tuple[object, object], amount: str = "1.50", **columns: Sequence[object]) -> pa.RecordBatch:
    given = [*zip(*rows, strict=True)] if rows else [(), ()]
    amounts = pa.array([Decimal(amount)] * len(rows), COLUMNS.field("amount").type)
    found = pa.record_batch([pa.array(given[0], pa.string()), pa.array(given[1], pa.int64()), amounts], schema=COLUMNS)
    for name, values in columns.items():
        found = found.append_column(name, pa.array(values, pa.string()))
    return found


def test_rows_and_their_events_are_there_together(table: Table) -> None:
    table.write(orders(("a", 1), ("b", 2)))
    assert table.rows == [("a", 1), ("b", 2)]
    assert told(table.store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.HANDLED) for id in "ab"}
    assert read_state("", table.store.state("sink/orders")).has("q1", 0)
    assert list((table.tmp_path / "staging").rglob("*.arrow")) == []


def test_a_batch_that_comes_again_changes_nothing(table: Table) -> None:
    table.write(orders(("a", 1)))
    before = told(table.store)
    table.run("UPDATE orders SET id = 'changed by its owner'")
    table.write(orders(("a", 1)))
    assert table.rows == [("changed by its owner", 1)]
    assert told(table.store) == before


def test_a_lost_checkpoint_gives_duplicates_and_no_second_row(table: Table) -> None:
    table.write(orders(("a", 1), ("b", 2)))
    table.write(orders(("b", 2), ("c", 3), ("c", 3)), query="q2")
    assert table.rows == [("a", 1), ("b", 2), ("c", 3)]
    counts = told(table.store)
    assert [counts[HOP, Kind.DUPLICATE, id] for id in "abc"] == [0, 1, 1]
    assert [counts[HOP, Kind.HANDLED, id] for id in "abc"] == [1, 1, 1]


class Killed(BaseException):
    pass


def kill_at(patched: pytest.MonkeyPatch, place: str, after: bool) -> None:
    """Let the process die before or after a step of the transaction."""
    for database in (module.SqliteDatabase, PostgresDatabase):
        step = getattr(database, place)

        def die(self: object, *arguments: Any, step: Any = step) -> Any:
            if after:
                step(self, *arguments)
            raise Killed

        patched.setattr(database, place, die)


def all_of(table: Table) -> object:
    streams = ("dead/input", "spark/orders/receipts", "spark/orders/dead")
    state = table.store.state("sink/orders")
    landed = read_state("", state).landed
    return table.rows, [ids(table.store, stream) for stream in streams], told(table.store), landed


@pytest.mark.parametrize(
    ("place", "after", "happened"),
    [
        ("apply", False, False), ("apply", True, False), ("insert", False, False), ("insert", True, False),
        ("commit", False, False), ("commit", True, True),
    ],
)  # fmt: skip
def test_a_driver_that_dies_leaves_all_or_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch, place: str, after: bool, happened: bool
) -> None:
    outcomes = [None, "dead", "handled", None]
    batch = orders(("a", 1), ("b", 2), ("c", 3), ("no key", None), outcome=outcomes, cause=[None, "no", None, None])
    before = all_of(table)
    with monkeypatch.context() as patched:
        kill_at(patched, place, after)
        with pytest.raises(Killed):
            table.write(batch)
    left = all_of(table)
    table.write(batch)
    assert left == (all_of(table) if happened else before)
    assert table.rows == [("a", 1)]
    assert ids(table.store, "dead/input") == ids(table.store, "spark/orders/dead") == ["b", "no key"]
    assert ids(table.store, "spark/orders/receipts") == ["a", "c"]
    ends = {"a": Kind.HANDLED, "b": Kind.DEAD_LETTERED, "c": Kind.HANDLED, "no key": Kind.DEAD_LETTERED}
    assert told(table.store) == {(HOP, kind, id): 1 for id, end in ends.items() for kind in (Kind.ACCEPTED, end)}


def test_what_died_and_passes_later_was_replayed(table: Table) -> None:
    table.write(orders(("a", 1), ("b", 2), outcome=["dead", None]))
    table.write(orders(("a", 1), ("b", 2), outcome=[None, "dead"]), query="q2")
    assert table.rows == [("a", 1), ("b", 2)]
    assert ids(table.store, "dead/input") == ["a"]
    kinds = {kind: told(table.store)[HOP, kind, "a"] for kind in Kind}
    assert {kind: n for kind, n in kinds.items() if n} == {
        Kind.ACCEPTED: 1, Kind.DEAD_LETTERED: 1, Kind.REPLAYED: 1, Kind.HANDLED: 1,
    }  # fmt: skip
    assert told(table.store)[HOP, Kind.DUPLICATE, "b"] == told(table.store)[HOP, Kind.ACCEPTED, "b"] == 1


def test_whoever_waits_for_dead_letters_is_woken(table: Table) -> None:
    woken = threading.Event()
    stop = table.store.listen(woken.set)
    try:
        table.write(orders(("a", 1), outcome=["dead"]))
        assert woken.wait(scaled(30))
    finally:
        stop()


def test_large_bodies_of_dead_letters_are_kept(table: Table) -> None:
    body = "x" * (DATA_INLINE_BYTES_MAX + 1)
    given = orders(("a", 1), ("b", 2), outcome=["dead", "handled"], stream=["hub/chat", "No Stream"])
    given = given.append_column("data", pa.array([body.encode()] * 2, pa.binary()))
    table.write(given)
    letters = [*records(table.store, "dead/hub/chat"), *records(table.store, "dead/input")]
    names = [letter.envelope.blob.name for letter in letters if letter.envelope.blob is not None]
    assert len(set(names)) == 2
    assert [b"".join(table.store.body(name)) for name in names] == [body.encode()] * 2


def test_a_stale_fence_leaves_no_dead_letters_either(table: Table) -> None:
    old = Holder(table.store, "pipeline/orders", job="x", lease_s=0.0, owner="old")
    old.acquire()
    Holder(table.store, "pipeline/orders", job="x", owner="new").acquire()
    batch = orders(("a", 1), ("b", 2), outcome=["dead", "handled"])
    with pytest.raises(StaleFence, match="another driver"):
        table.write(batch, target=table.target(batch.schema, fence=old.fence))
    assert table.store.status().streams == ()


def test_a_stale_fence_writes_nothing(table: Table) -> None:
    old = Holder(table.store, "pipeline/orders", job="x", lease_s=0.0, owner="old")
    old.acquire()
    Holder(table.store, "pipeline/orders", job="x", owner="new").acquire()
    with pytest.raises(StaleFence, match="another driver"):
        table.write(orders(("a", 1)), target=table.target(fence=old.fence))
    assert table.rows == []


def test_another_driver_that_was_first_is_noticed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([True])
    write = TableTarget._write

    def overtaken(self: TableTarget, *arguments: Any) -> dict[int, str]:
        if next(turns, None):
            table.write(orders(("b", 2)), query="q2")
        return write(self, *arguments)

    monkeypatch.setattr(TableTarget, "_write", overtaken)
    table.write(orders(("a", 1), ("b", 2)))
    assert table.rows == [("a", 1), ("b", 2)]
    assert told(table.store)[HOP, Kind.DUPLICATE, "b"] == 1
    assert read_state("", table.store.state("sink/orders")).landed == {"q2": 0, "q1": 0}


def test_rows_that_the_table_refuses_become_dead_letters(table: Table) -> None:
    batch = pa.Table.from_batches([
        orders(("a", 1), ("b", 2)),
        orders(("too much", 3), ("also", 4), amount="500.00"),
        orders(("no key", None), ("c", 5)),
    ]).combine_chunks().to_batches()[0]  # fmt: skip
    table.write(batch)
    assert table.rows == [("a", 1), ("b", 2), ("c", 5)]
    dead = {record.envelope.id: record.envelope for record in records(table.store, "dead/input")}
    assert set(dead) == {"too much", "also", "no key"}
    assert "check" in dead["also"].headers["semel-cause"].lower()
    assert "its key (no) is empty" in dead["no key"].headers["semel-cause"]
    assert dead["also"].data == b'{"id":"also","no":4,"amount":"500.00"}'
    counts = told(table.store)
    assert counts[HOP, Kind.DEAD_LETTERED, "also"] == counts[HOP, Kind.HANDLED, "c"] == 1
    assert counts[HOP, Kind.HANDLED, "also"] == 0
    table.write(batch)
    assert told(table.store) == counts


def test_a_refused_row_without_an_id_stops_the_batch_and_is_named(table: Table) -> None:
    with pytest.raises(InputError, match=r"refuses the row \{'no': 3\}"):
        table.write(orders(("x", 3), amount="500.00").drop_columns(["id"]))
    assert table.rows == []


def test_a_table_that_fits_nothing_is_no_heap_of_dead_letters(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSED_MAX", 3)
    with pytest.raises(ConfigError, match="refuses more than 3 rows"):
        table.write(orders(*[(f"m{n}", n) for n in range(5)], amount="500.00"))
    assert ids(table.store, "dead/input") == []


def test_rows_with_an_outcome_are_told_and_not_written(table: Table) -> None:
    outcomes = [None, "duplicate", "dead", "handled", "rejected"]
    batch = orders(*[(id, n) for n, id in enumerate("abcde")], outcome=outcomes, cause=[None] * 5)
    for query in ("q1", "q2"):
        table.write(batch, query=query)
    assert table.rows == [("a", 0)]
    assert ids(table.store, "dead/input") == ["c"]
    assert ids(table.store, "spark/orders/receipts") == ["a", "d"]
    counts = told(table.store)
    assert [counts[HOP, Kind.ACCEPTED, id] for id in "abcde"] == [1, 0, 1, 1, 0]
    assert counts[HOP, Kind.REJECTED, "e"] == 2


def test_an_input_with_several_rows_is_told_once(table: Table) -> None:
    batch = orders(("x", 1), ("y", 2), input=["m", "m"]).append_column("ordinal", pa.array([0, 1], pa.int32()))
    table.write(batch)
    assert told(table.store) == {(HOP, Kind.ACCEPTED, "m"): 1, (HOP, Kind.HANDLED, "m"): 1}


def test_columns_of_the_message_that_the_table_lacks_are_left_out(table: Table) -> None:
    batch = orders(("a", 1), session=["s"], subject=["x"]).append_column("headers", pa.array(
        [[("h", "v")]], pa.map_(pa.string(), pa.string())))  # fmt: skip
    table.write(batch)
    assert table.rows == [("a", 1)]


def test_a_column_of_the_user_that_the_table_lacks_is_an_error(table: Table) -> None:
    with pytest.raises(ConfigError, match="no column 'colour'"):
        table.write(orders(("a", 1), colour=["red"]))


def test_a_missing_table_comes_with_the_statement_that_makes_it(table: Table) -> None:
    with pytest.raises(ConfigError, match="there is no table more") as caught:
        table.write(orders(("a", 1)), target=table.target(table="more"))
    table.run(caught.value.fix.removeprefix("create it: "))
    table.write(orders(("a", 1)), target=table.target(table="more"))
    assert table.run("SELECT id, no FROM more") == [("a", 1)]


def test_a_key_that_is_not_unique_comes_with_the_statement_that_makes_it_so(table: Table) -> None:
    table.run("CREATE TABLE more (id text, no bigint, amount numeric)")
    with pytest.raises(ConfigError, match=r"nothing makes \(no\) unique in table more") as caught:
        table.write(orders(("a", 1)), target=table.target(table="more"))
    table.run(caught.value.fix.removeprefix("add a key: "))
    table.write(orders(("a", 1)), target=table.target(table="more"))
    assert table.run("SELECT id, no FROM more") == [("a", 1)]


def test_odd_names_are_quoted(table: Table) -> None:
    table.run('CREATE TABLE "Drop ""all""" ("a;b" text PRIMARY KEY, "select" text)')
    batch = pa.record_batch({"a;b": ["1"], "select": ["x"]})
    table.write(batch, target=table.target(batch.schema, table='Drop "all"', key="a;b"))
    assert table.run('SELECT * FROM "Drop ""all"""') == [("1", "x")]


def test_simple_values_come_back(table: Table) -> None:
    moment = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
    values: dict[str, pa.Array] = {
        "no": pa.array([1], pa.int64()),
        "ok": pa.array([True]),
        "share": pa.array([0.25]),
        "sum": pa.array([Decimal("12345678901234.05")], pa.decimal128(20, 2)),
        "at": pa.array([moment], pa.timestamp("us", tz="Europe/Berlin")),
        "day": pa.array([date(2026, 1, 31)]),
        "body": pa.array([b"\x00\xff"]),
        "text": pa.array(["käse\t\\N\n"]),
        "nothing": pa.array([None], pa.string()),
    }
    batch = pa.record_batch(values)
    with pytest.raises(ConfigError) as caught:
        table.write(batch, target=table.target(batch.schema, table="kinds"))
    table.run(caught.value.fix.removeprefix("create it: "))
    table.write(batch, target=table.target(batch.schema, table="kinds"))
    [found] = table.run("SELECT * FROM kinds")
    by_name = dict(zip(values, found, strict=True))
    if table.url.startswith("sqlite:"):
        assert by_name["at"] == "2026-01-31 12:30:00+00:00"
        assert (by_name["day"], by_name["sum"]) == ("2026-01-31", "12345678901234.05")
    else:
        assert (by_name["at"], by_name["day"], by_name["sum"]) == (
            moment,
            date(2026, 1, 31),
            Decimal("12345678901234.05"),
        )
    assert (by_name["ok"], by_name["share"], by_name["body"], by_name["text"], by_name["nothing"]) == (
        True, 0.25, b"\x00\xff", "käse\t\\N\n", None,
    )  # fmt: skip


def test_a_number_as_id_is_one_as_text(table: Table) -> None:
    table.run("CREATE TABLE plain (id bigint PRIMARY KEY, time text)")
    batch = pa.record_batch({"id": [7], "time": ["noon"]})
    table.write(batch, target=table.target(batch.schema, table="plain", key="id"))
    assert table.run("SELECT * FROM plain") == [(7, "noon")]
    assert told(table.store)[HOP, Kind.HANDLED, "7"] == 1


def test_a_batch_without_rows_still_counts(table: Table) -> None:
    table.write(orders())
    assert table.rows == []
    assert read_state("", table.store.state("sink/orders")).has("q1", 0)


def test_an_abort_undoes_nothing(table: Table) -> None:
    staged = table.write(orders(("a", 1)))
    table.target().abort(Job("orders", "q1", 0), staged)
    assert table.rows == [("a", 1)]


def test_nested_columns_and_missing_keys_are_refused_at_once(table: Table) -> None:
    nested = pa.schema([("no", pa.int64()), ("items", pa.list_(pa.string()))])
    with pytest.raises(ConfigError, match=r"column items is array<string>"):
        table.target(nested)
    with pytest.raises(ConfigError, match="no column 'nr'"):
        table.target(key="nr")
    with pytest.raises(ConfigError, match="need an id"):
        table.target(pa.schema([("no", pa.int64()), ("outcome", pa.string())]))
    with pytest.raises(ConfigError, match="has none"):
        table.target(store="memory:")


def test_a_database_that_fails_is_named(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        if table.url.startswith("sqlite:"):
            raise sqlite3.OperationalError("disk I/O error")
        raise psycopg.OperationalError("the connection is lost")

    for database in (module.SqliteDatabase, PostgresDatabase):
        monkeypatch.setattr(database, "commit", fail)
    with pytest.raises(StoreUnavailable, match="failed"):
        table.write(orders(("a", 1)))
    assert table.rows == []


# -- the file of a table in SQLite


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL of a store that is open, as it is while a batch lands."""
    url = f"sqlite:///{tmp_path}/semel.db"
    with closing(open_store(url)):
        yield url


def test_a_commit_to_sqlite_waits_for_the_disk(url: str) -> None:
    full = 2
    with closing(module.SqliteDatabase(url)) as database:
        database.connection.execute("COMMIT")
        assert database.connection.execute("PRAGMA synchronous").fetchall() == [(full,)]


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/semel.db")) as store:
        (tmp_path / "semel.db").unlink()
        with pytest.raises(StoreUnavailable), module.open_database(store):
            pytest.fail("there is nothing to open")
        assert not (tmp_path / "semel.db").exists()


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("name", ["semel.db", "semel.db-wal"])
def test_a_commit_into_files_that_went_is_not_answered(url: str, tmp_path: Path, name: str, replaced: bool) -> None:
    with closing(module.SqliteDatabase(url)) as database:
        (tmp_path / name).unlink()
        if replaced:
            (tmp_path / name).touch()
        with pytest.raises(StoreGone, match=name):
            database.commit()
    if replaced:
        assert (tmp_path / name).stat().st_size == 0, "what is somebody else's was not written to"


def test_a_lock_that_is_not_let_go_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_S", 0.01)
    with closing(open_store(url)) as store, closing(sqlite3.connect(tmp_path / "semel.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"), module.open_database(store):
            pytest.fail("somebody else has it")
