"""The source inside Spark: batch and streaming reads of streams and datasets, restarts, and what stops a query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Append, Log, Op, Trim, Unit
from semel.kernel.store import Store
from semel.stores.open import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "hub/chat"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/semel.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        yield store


def commit(store: Store, *ops: Op) -> None:
    store.commit([Unit(ops)])


def append(store: Store, first: int, last: int) -> None:
    envelopes = (
        Envelope(
            id=f"m{n}", session=f"s{n % 5}", index=n, time=n, data=b"%d" % n, headers={"n": str(n)} if n % 2 else {}
        )
        for n in range(first, last + 1)
    )
    commit(store, *(Append(STREAM, envelope, identity=envelope.id) for envelope in envelopes))


def read(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("semel").options(store=url, **({"stream": STREAM} | options)).load()


def follow(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.readStream.format("semel").options(store=url, **({"stream": STREAM} | options)).load()


class Seen:
    """What reached the end of a query, by batch. A batch that is run again takes the place of the first run."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def __call__(self, batch: DataFrame, number: int) -> None:
        self.batches[number] = [row.key for row in batch.collect()]

    @property
    def all(self) -> list[str]:
        return [key for number in sorted(self.batches) for key in self.batches[number]]


def run(frame: DataFrame, seen: Seen, checkpoint: Path, key: str = "id") -> None:
    query = (
        frame.selectExpr(f"{key} AS key").writeStream.foreachBatch(seen).trigger(availableNow=True)
        .option("checkpointLocation", str(checkpoint)).start()
    )  # fmt: skip
    query.awaitTermination()


def test_a_batch_read_gives_every_column_of_every_message(spark: SparkSession, url: str, store: Store) -> None:
    append(store, 1, 50_000)
    frame = read(spark, url, partitions="3")
    assert frame.rdd.getNumPartitions() == 3
    assert frame.selectExpr("count(id)", "count(distinct id)", "sum(offset)", "sum(index)").first() == (
        50_000, 50_000, 50_000 * 50_001 // 2, 50_000 * 50_001 // 2,
    )  # fmt: skip
    row = frame.where("id = 'm7'").first()
    assert row is not None
    assert row.asDict() | {"time": None} == {
        "id": "m7", "source": "semel", "type": "message", "subject": None, "time": None, "session": "s2", "index": 7,
        "datacontenttype": None, "data": bytearray(b"7"), "headers": {"n": "7"}, "stream": STREAM, "epoch": 1,
        "offset": 7, "target": "",
    }  # fmt: skip
    assert read(spark, url).selectExpr("unix_micros(time)").where("offset = 7").first() == (7,)


def test_columns_are_chosen_by_schema(spark: SparkSession, url: str, store: Store) -> None:
    append(store, 1, 3)
    frame = spark.read.format("semel").schema("offset long, id string").options(store=url, stream=STREAM).load()
    assert [tuple(row) for row in frame.collect()] == [(1, "m1"), (2, "m2"), (3, "m3")]


def test_filters_reach_the_database_and_change_nothing(spark: SparkSession, url: str, store: Store) -> None:
    append(store, 1, 100)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    where = "offset > 20 AND offset <= 40 AND session = 's1' AND time < timestamp_micros(35) AND id LIKE 'm%'"
    pushed, plain = (
        read(spark, url, pushFilters=flag).where(where).select("id").orderBy("id") for flag in ("true", "false")
    )
    assert pushed.collect() == plain.collect()
    assert [row.id for row in pushed.collect()] == ["m21", "m26", "m31"]
    # what the database has filtered is no longer in Spark's own plan
    assert "s1" in _condition(plain)
    assert "s1" not in _condition(pushed)


def _condition(frame: DataFrame) -> str:
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return "\n".join(line for line in plan.splitlines() if "Filter (" in line or "Filter ((" in line)


def test_a_stream_is_followed_over_restarts(spark: SparkSession, url: str, store: Store, tmp_path: Path) -> None:
    append(store, 1, 250)
    seen = Seen()
    run(follow(spark, url, maxRowsPerBatch="100"), seen, tmp_path / "checkpoint")
    assert [len(batch) for batch in seen.batches.values()] == [100, 100, 50]
    append(store, 251, 300)
    run(follow(spark, url, maxRowsPerBatch="100"), seen, tmp_path / "checkpoint")
    assert seen.all == [f"m{n}" for n in range(1, 301)]


def test_a_batch_that_is_run_again_is_the_same_batch(
    spark: SparkSession, url: str, store: Store, tmp_path: Path
) -> None:
    append(store, 1, 150)
    first, again = Seen(), Seen()
    run(follow(spark, url, maxRowsPerBatch="100"), first, tmp_path / "checkpoint")
    # as if the driver had died between the sink's commit and Spark's own
    for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        file.unlink()
    append(store, 151, 200)
    run(follow(spark, url, maxRowsPerBatch="100"), again, tmp_path / "checkpoint")
    assert again.batches[1] == first.batches[1] == [f"m{n}" for n in range(101, 151)]
    assert again.batches[2] == [f"m{n}" for n in range(151, 201)]


def test_a_new_epoch_stops_the_query_and_says_why(spark: SparkSession, url: str, store: Store, tmp_path: Path) -> None:
    append(store, 1, 5)
    run(follow(spark, url), Seen(), tmp_path / "checkpoint")
    store.raise_epoch("restored")
    append(store, 6, 7)
    with pytest.raises(Exception, match="the store is in epoch 2") as caught:
        run(follow(spark, url), Seen(), tmp_path / "checkpoint")
    assert "fix: begin a new query" in str(caught.value)


def test_a_trimmed_stream_stops_the_query_and_names_the_way_out(
    spark: SparkSession, url: str, store: Store, tmp_path: Path
) -> None:
    append(store, 1, 9)
    commit(store, Trim(STREAM, 5))
    with pytest.raises(Exception, match="it has been trimmed") as caught:
        read(spark, url).collect()
    assert 'startingPosition "available"' in str(caught.value)
    seen = Seen()
    run(follow(spark, url, startingPosition="available"), seen, tmp_path / "checkpoint")
    assert seen.all == ["m5", "m6", "m7", "m8", "m9"]


def test_a_store_that_went_away_before_the_tasks_ran(spark: SparkSession, url: str, tmp_path: Path) -> None:
    with closing(open_store(url)) as store:
        append(store, 1, 5)
    frame = read(spark, url)
    assert frame.rdd.getNumPartitions() == 1
    for file in tmp_path.glob("semel.db*"):
        file.unlink()
    with pytest.raises(Exception, match="there is no store at") as caught:
        frame.collect()
    assert "fix: correct the option `store`" in str(caught.value)


def test_the_ledger_and_the_index_of_a_store(spark: SparkSession, url: str, store: Store) -> None:
    template = Event(Kind.ACCEPTED, "a>b", "pipe")
    commit(store, *(Append(STREAM, Envelope(id=f"m{n}"), on_fresh=template) for n in range(3)))
    commit(store, Log(Event(Kind.SENT, "a>b", message="m9", session="s")))
    ledger = spark.read.format("semel").options(store=url, dataset="ledger").load()
    rows = ledger.where("hop = 'a>b'").selectExpr("kind", "message", "session", "n", "first", "store").collect()
    assert [tuple(row) for row in rows] == [
        (int(Kind.ACCEPTED), None, None, 3, 1, store.store_id),
        (int(Kind.SENT), "m9", "s", 1, None, store.store_id),
    ]
    assert dict(ledger.dtypes)["at"] == "timestamp"
    index = spark.read.format("semel").options(store=url, dataset="index").load()
    found = index.select("stream", "offset", "type", "message", "session").collect()
    assert [tuple(row) for row in found] == [(STREAM, n + 1, "message", f"m{n}", f"m{n}") for n in range(3)]


@pytest.mark.connected
def test_nothing_is_lost_beside_writers_of_which_one_never_ends(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    """Two queries follow the ledger and a stream while three threads write. Each third transaction stays open while
    others, which began later, commit."""
    messages, seen = Seen(), Seen()
    with closing(open_store(postgres_url)) as store:
        append(store, 0, 0)
        queries = [
            _start(follow(spark, postgres_url), messages, tmp_path / "stream", "id"),
            _start(_ledger(spark, postgres_url), seen, tmp_path / "ledger", "message"),
        ]
        _write_all([lambda k=k: _writer(postgres_url, k) for k in range(3)])
        for query in queries:
            query.processAllAvailable()
            query.stop()
    events = [key for key in seen.all if key is not None]
    assert sorted(events) == sorted(f"e{k}.{n}" for k in range(3) for n in range(40))
    assert sorted(messages.all) == sorted(["m0", *(f"w{k}.{n}" for k in range(3) for n in range(40))])


def _ledger(spark: SparkSession, url: str) -> DataFrame:
    return spark.readStream.format("semel").options(store=url, dataset="ledger").load()


def _start(frame: DataFrame, seen: Seen, checkpoint: Path, key: str) -> Any:
    writer = frame.selectExpr(f"{key} AS key").writeStream.foreachBatch(seen)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def _writer(url: str, k: int) -> None:
    with closing(open_store(url, node=f"n{k}")) as store, psycopg.connect(url) as slow:
        for n in range(40):
            if n % 3 == 0:
                slow.commit()
                store.bind(slow).apply([Log(Event(Kind.SENT, "a>b", message=f"e{k}.{n}"))])
            else:
                commit(store, Log(Event(Kind.SENT, "a>b", message=f"e{k}.{n}")))
            commit(store, Append(STREAM, Envelope(id=f"w{k}.{n}"), identity=f"w{k}.{n}"))
        slow.commit()


def _write_all(writers: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guarded(write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(write,)) for write in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
