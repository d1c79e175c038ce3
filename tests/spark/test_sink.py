"""The sink under a real Spark: what it promises to call, and when."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit.spark.sinks import ids, records, row, told

from semel.kernel.ledger import Kind
from semel.spark import register
from semel.spark.landing import read_state
from semel.spark.rows import MESSAGE, Row, batch_of
from semel.spark.sink import taken_up_to
from semel.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOP = "hub/chat>spark/orders"


class Place:
    """A store, a folder that rows come from, and queries between the two."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        register(spark)
        self.spark = spark
        self.folder = tmp_path
        self.checkpoint = tmp_path / "checkpoint"
        (tmp_path / "in").mkdir()
        self.store = SqliteStore(f"sqlite:///{tmp_path}/semel.db")

    def give(self, name: str, rows: Sequence[Row]) -> None:
        pq.write_table(pa.Table.from_batches([batch_of(rows)]), self.folder / "in" / f"{name}.parquet")

    @property
    def source(self) -> DataFrame:
        stream = self.spark.readStream.schema(f"{MESSAGE}, input string, ordinal int")
        return stream.option("maxFilesPerTrigger", 1).parquet(str(self.folder / "in"))

    def run(self, frame: DataFrame | None = None, **options: str) -> None:
        given = {"store": self.store.url, "pipeline": "orders", "checkpointLocation": str(self.checkpoint), **options}
        writer = (self.source if frame is None else frame).writeStream.format("semel").options(**given)
        writer.trigger(availableNow=True).start().awaitTermination()

    @property
    def staged(self) -> list[Path]:
        return list(self.folder.rglob("*.arrow"))


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[Place]:
    place = Place(spark, tmp_path)
    with closing(place.store):
        yield place


def test_a_query_lands_each_batch_once_whatever_spark_forgot(place: Place) -> None:
    place.give("1", [row(f"a{n}", session="s", index=n) for n in range(1, 101)])
    place.give("2", [row(f"b{n}", session="t", index=n) for n in range(1, 51)])
    place.run(to="hub/out")
    expected = [f"a{n}" for n in range(1, 101)] + [f"b{n}" for n in range(1, 51)]
    assert ids(place.store, "spark/orders") == ids(place.store, "hub/out") == expected
    before = told(place.store)
    assert all(before[HOP, kind, id] == 1 for kind in (Kind.ACCEPTED, Kind.FORWARDED) for id in expected)
    assert place.staged == []

    # the driver died between the sink's commit and Spark's own
    for path in (place.checkpoint / "commits").glob("*1*"):
        path.unlink()
    place.give("3", [row("c")])
    place.run(to="hub/out")
    assert ids(place.store, "hub/out") == [*expected, "c"]
    assert not [key for key in told(place.store) if key[1] is Kind.DUPLICATE]
    assert read_state("", place.store.state("sink/orders")).batch == 2

    shutil.rmtree(place.checkpoint)
    place.run(to="hub/out")
    assert ids(place.store, "hub/out") == [*expected, "c"]
    counts = told(place.store)
    assert all(counts[HOP, Kind.DUPLICATE, id] == counts[HOP, Kind.ACCEPTED, id] == 1 for id in expected)


def test_a_batch_that_fails_lands_nothing_and_comes_again(place: Place) -> None:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F

    place.give("1", [row("a"), row("b")])
    broken = place.source.withColumn("id", F.expr("if(id = 'b', raise_error('planted'), id)"))
    with pytest.raises(StreamingQueryException, match="planted"):
        place.run(broken)
    assert ids(place.store, "spark/orders") == []
    place.run()
    assert ids(place.store, "spark/orders") == ["a", "b"]


def test_what_is_wrong_is_said_in_our_words(place: Place) -> None:
    from pyspark.errors import PySparkException

    place.give("1", [row("a")])
    with pytest.raises(PySparkException, match=r"no store at .*typo.db"):
        place.run(store=f"sqlite:///{place.folder}/typo.db")
    with pytest.raises(PySparkException, match="no option 'tabel'"):
        place.run(tabel="x")


def test_from_a_stream_of_the_store_to_another_and_back_to_its_source(place: Place) -> None:
    from semel.kernel.ops import Append, Unit

    place.store.commit([Unit(tuple(Append("hub/in", row(f"m{n}").envelope, f"m{n}") for n in range(20)))])
    options = {"store": place.store.url, "stream": "hub/in", "maxRowsPerBatch": "8"}
    place.run(place.spark.readStream.format("semel").options(**options).load())
    assert ids(place.store, "spark/orders") == [f"m{n}" for n in range(20)]
    assert told(place.store)["hub/in>spark/orders", Kind.FORWARDED, "m7"] == 1
    assert taken_up_to(place.store, "orders") == {"hub/in": 20}
    at = place.store.cursor("spark/orders/hub/in")
    assert at is not None
    assert at.offset == 16


def test_jobs_write_streams_and_tables(place: Place) -> None:
    import sqlite3

    frame = place.spark.createDataFrame([("a", 1), ("b", 2)], "id string, no int").repartition(2)
    options = {"store": place.store.url, "pipeline": "orders"}
    for _ in range(2):
        frame.write.format("semel").options(**options).mode("append").save()
    assert sorted(ids(place.store, "spark/orders")) == ["a", "b"]
    assert told(place.store)["input>spark/orders", Kind.DUPLICATE, "b"] == 1

    with closing(sqlite3.connect(place.folder / "semel.db")) as connection:
        connection.execute("CREATE TABLE mine (id text PRIMARY KEY, no integer)")
        for _ in range(2):
            frame.write.format("semel").options(**options, table="mine", key="id").mode("append").save()
        assert connection.execute("SELECT * FROM mine ORDER BY no").fetchall() == [("a", 1), ("b", 2)]


def test_a_query_fills_a_folder_of_parquet(place: Place) -> None:
    place.give("1", [row("a"), row("b")])
    place.give("2", [row("c")])
    place.run(place.source.select("id", "session"), path=str(place.folder / "out"))
    for path in (place.checkpoint / "commits").glob("*1*"):
        path.unlink()
    place.run(place.source.select("id", "session"), path=str(place.folder / "out"))
    assert sorted(pq.read_table(place.folder / "out")["id"].to_pylist()) == ["a", "b", "c"]
    found = place.spark.read.parquet(str(place.folder / "out"))
    assert sorted(each.id for each in found.collect()) == ["a", "b", "c"]


def test_large_bodies_come_through(place: Place) -> None:
    body = bytes(range(256)) * 2000
    place.give("1", [Row(row("big").envelope, large=body)])
    place.run()
    [record] = records(place.store, "spark/orders")
    assert record.envelope.blob is not None
    assert b"".join(place.store.body(record.envelope.blob.name)) == body
