"""Pipelines as they run: two regions become one, whatever ends a run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from semel.bench.regions import EAST, WEST, fill, regional_logs
from semel.errors import HandlerError, SemelError, StaleFence, StoreBusy, StoreError
from semel.kernel.dedup import StrictIndex
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Kind
from semel.kernel.ops import Append, Trim, Unit
from semel.kernel.store import Records, Store
from semel.runtime.host.lease_holder import Holder
from semel.spark import runner
from semel.spark.audit.result import CellFigures
from semel.spark.audit.run import AuditOptions, audit
from semel.spark.delivery import delivery
from semel.spark.pipeline import Input, Order, Pipeline, from_file, replay
from semel.spark.waiting import Wait
from semel.stores.open import open_store
from semel.testing.limits import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 400


def refuse_some(envelope: Envelope) -> Envelope | list[Envelope] | None:
    """Every tenth is refused, every tenth is done with, every tenth becomes two."""
    number = int(envelope.data)
    if number % 10 == 3:
        raise ValueError(f"order {number} has no address")
    if number % 10 == 5:
        return None
    if number % 10 == 7:
        from semel.spark.handlers import derived

        return [derived(envelope, 0, type="first"), derived(envelope, 1, type="second")]
    return msgspec.structs.replace(envelope, type="handled")


class Regions:
    """Two stores with logs of the same messages, and a place for checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.east, self.west = (f"sqlite:///{folder}/{name}.db" for name in ("east", "west"))
        self.folder = folder
        self.logs = regional_logs(MESSAGES, seed=7, sessions=20)[:2]
        fill(self.east, EAST, self.logs[0])
        fill(self.west, WEST, self.logs[1])
        self.store = open_store(self.east)

    def pipeline(self, **settings: object) -> Pipeline:
        given = {"store": self.east, "max_rows_per_batch": 300, **settings}
        return delivery(Input(self.east, EAST), Input(self.west, WEST), **given)  # type: ignore[arg-type]

    def run(
        self, spark: SparkSession, pipeline: Pipeline, checkpoint: str = "place", **options: object
    ) -> runner.PipelineRun:
        chosen = runner.RunOptions(checkpoint=str(self.folder / checkpoint), once=True, **options)  # type: ignore[arg-type]
        return runner.run(spark, pipeline, self.store, chosen)


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Regions]:
    regions = Regions(tmp_path)
    yield regions
    regions.store.close()


def records(store: Store, stream: str) -> list[Envelope]:
    found = store.read(stream, None, 10_000)
    assert isinstance(found, Records)
    return [record.envelope for record in found.records]


def by_session(envelopes: list[Envelope]) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = {}
    for envelope in envelopes:
        found.setdefault(envelope.session, []).append(envelope.id)
    return found


def kernel_says(*logs: list[Envelope]) -> dict[str | None, list[str]]:
    """What one machine per session passes, of all logs one after the other."""
    machines: dict[str | None, StrictIndex[Envelope]] = {}
    passed: list[Envelope] = []
    for envelope in (each for log in logs for each in log):
        machine = machines.setdefault(envelope.session, StrictIndex(buffer_max=10_000))
        assert envelope.index is not None
        answer = machine.offer(envelope.index, envelope, 0.0)
        passed += [item for _, item in getattr(answer, "items", ())]
    return by_session(passed)


def counted(store: Store, hop_end: str) -> dict[Kind, int]:
    found: dict[Kind, int] = {}
    for entry in store.ledger(START, 100_000):
        if entry.event.hop.endswith(hop_end):
            found[entry.event.kind] = found.get(entry.event.kind, 0) + entry.event.n
    return found


def test_two_regions_become_one_as_the_kernel_would_have_it(spark: SparkSession, regions: Regions) -> None:
    ended = regions.run(spark, regions.pipeline(to="inbox/orders"))
    assert ended.state == "finished"
    assert ended.rows == sum(map(len, regions.logs))
    output = records(regions.store, "spark/delivery")
    assert by_session(output) == kernel_says(*regions.logs)
    assert [each.id for each in records(regions.store, "inbox/orders")] == [each.id for each in output]
    counts = counted(regions.store, ">spark/delivery")
    assert counts[Kind.ACCEPTED] == counts[Kind.FORWARDED] == MESSAGES
    assert counts[Kind.DUPLICATE] == sum(map(len, regions.logs)) - MESSAGES
    # a second run finds nothing, a run that has lost its place finds everything and changes nothing
    assert regions.run(spark, regions.pipeline(to="inbox/orders")).rows == 0
    assert regions.run(spark, regions.pipeline(to="inbox/orders"), "elsewhere").rows == ended.rows
    assert records(regions.store, "spark/delivery") == output
    assert len(records(regions.store, "inbox/orders")) == MESSAGES


def exit_for_one(envelope: Envelope) -> Envelope:
    if envelope.id == "m4":
        sys.exit("no paper")
    return envelope


def test_what_waits_behind_a_gap_is_told_and_not_lost(spark: SparkSession, tmp_path: Path) -> None:
    """By the status and by the audit, until the gap is closed. A function that exits costs one message."""
    url = f"sqlite:///{tmp_path}/one.db"
    handler = "tests.spark.test_pipeline:exit_for_one"
    pipeline = Pipeline("gaps", (Input(url, "orders"),), url, order=Order(gap="wait"), handler=handler)
    with closing(open_store(url)) as store:

        def run(*numbers: int) -> tuple[dict[str, Wait], CellFigures]:
            envelopes = [Envelope(f"m{number}", session="s", index=number) for number in numbers]
            store.commit([Unit(tuple(Append("orders", each) for each in envelopes))])
            runner.run(spark, pipeline, store, runner.RunOptions(str(tmp_path / "place"), once=True))
            waiting = runner.status(store, pipeline, lambda url, stream: store.head(stream).offset).waiting
            found = audit(spark, [url], AuditOptions(deadline_s=0))
            return waiting, next(cell for cell in found.totals if cell.hop == "orders>spark/gaps")

        waiting, cell = run(1, 3, 4)
        assert waiting == {"s": Wait(2, 2)}
        assert (cell.sent, cell.accepted_unique, cell.lost, cell.in_flight) == (3, 1, 0, 2)
        waiting, cell = run(2)
        assert waiting == {}
        assert (cell.sent, cell.accepted_unique, cell.lost, cell.in_flight) == (4, 4, 0, 0)
        assert [each.id for each in records(store, "spark/gaps")] == ["m1", "m2", "m3"]
        [dead] = records(store, "dead/orders")
        assert (dead.id, dead.headers["semel-cause"]) == (
            "m4", "SystemExit: the handler called exit('no paper') for m4",
        )  # fmt: skip


def test_what_the_function_refuses_is_kept_with_its_cause(spark: SparkSession, regions: Regions) -> None:
    pipeline = regions.pipeline(name="picky", handler="tests.spark.test_pipeline:refuse_some")
    regions.run(spark, pipeline)
    output = records(regions.store, "spark/picky")
    kinds = {name: [each for each in output if each.type == name] for name in ("handled", "first", "second")}
    assert [len(found) for found in kinds.values()] == [MESSAGES * 7 // 10, MESSAGES // 10, MESSAGES // 10]
    dead = records(regions.store, f"dead/{EAST}") + records(regions.store, f"dead/{WEST}")
    assert len(dead) == MESSAGES // 10
    assert dead[0].headers["semel-cause"].endswith(f"order {int(dead[0].data)} has no address")
    counts = counted(regions.store, ">spark/picky")
    assert counts[Kind.ACCEPTED] == MESSAGES
    ends = {kind: counts[kind] for kind in (Kind.FORWARDED, Kind.HANDLED, Kind.DEAD_LETTERED)}
    assert ends == {
        Kind.FORWARDED: MESSAGES * 8 // 10,
        Kind.HANDLED: MESSAGES // 10,
        Kind.DEAD_LETTERED: MESSAGES // 10,
    }


def test_a_second_driver_is_refused(spark: SparkSession, regions: Regions) -> None:
    other = Holder(regions.store, runner.state_key("delivery"), job="running", owner="the other", lease_s=60.0)
    other.acquire()
    with pytest.raises(StoreBusy, match="the other is running the pipeline 'delivery'"):
        regions.run(spark, regions.pipeline())
    assert records(regions.store, "spark/delivery") == []


def test_a_driver_that_was_taken_for_dead_writes_nothing(spark: SparkSession, regions: Regions) -> None:
    """Its fence is outdated before its first batch lands."""
    pipeline = regions.pipeline()
    holder = Holder(regions.store, runner.state_key("delivery"), job="running", owner="zombie", lease_s=60.0)
    holder.acquire()
    zombie = (
        runner.build(spark, pipeline)
        .writeStream.format("semel")
        .options(**runner.sink_options(pipeline, holder.fence))
        .option("checkpointLocation", str(regions.folder / "place"))
        .trigger(availableNow=True)
    )
    holder.release()
    Holder(regions.store, runner.state_key("delivery"), job="running", owner="new").acquire()
    query = zombie.start()
    with pytest.raises(Exception, match="taken over"):
        query.awaitTermination()
    assert records(regions.store, "spark/delivery") == []
    assert isinstance(runner.explain(query.exception() or Exception(), "delivery"), StaleFence)


def test_a_run_that_goes_on_ends_when_it_is_told(spark: SparkSession, regions: Regions) -> None:
    pipeline = regions.pipeline(every_s=0.0)
    ended: list[runner.PipelineRun | SemelError] = []
    seen = threading.Event()

    def drive() -> None:
        options = runner.RunOptions(checkpoint=str(regions.folder / "place"), progress=lambda run: seen.set())
        try:
            ended.append(runner.run(spark, pipeline, regions.store, options))
        except SemelError as error:
            ended.append(error)
        finally:
            seen.set()

    thread = threading.Thread(target=drive)
    thread.start()
    assert seen.wait(scaled(120))
    assert [str(each) for each in ended] == []
    row = runner.ask_to_stop(regions.store, "delivery")
    assert row is not None
    assert runner.wait_for_end(regions.store, "delivery", row.fence, 60.0)
    thread.join(scaled(60))
    (run,) = ended
    assert isinstance(run, runner.PipelineRun), run
    assert run.state == "stopped"
    standing = runner.status(regions.store, pipeline, lambda url, stream: None)
    assert (standing.alive, standing.run) == (False, run)


def test_a_transform_that_breaks_says_so_and_loses_nothing(spark: SparkSession, regions: Regions) -> None:
    def broken(frame: object) -> object:
        return frame.selectExpr("*", "1 / (index - index) AS never")  # type: ignore[attr-defined]

    with pytest.raises(HandlerError, match=r"DIVIDE_BY_ZERO|Division by zero"):
        regions.run(spark, regions.pipeline(transform=broken))
    last = runner.last_run(regions.store, "delivery")
    assert last is not None
    assert last.state == "failed"
    regions.run(spark, regions.pipeline())
    assert by_session(records(regions.store, "spark/delivery")) == kernel_says(*regions.logs)


FILE = """
from semel.spark.delivery import delivery
from semel.spark.pipeline import Input

PASSING = ({passing})

def helper(data):
    return int(data) % 10 in PASSING

def choose(envelope):
    if not helper(envelope.data):
        raise ValueError("not now")
    return envelope

pipeline = delivery({inputs}, store={store!r}, handler=choose)
"""


def test_a_file_elsewhere_runs_with_its_helpers_and_a_mended_one_replays_its_dead_letters(
    spark: SparkSession, regions: Regions, tmp_path: Path
) -> None:
    inputs = ", ".join(f"Input({url!r}, {stream!r})" for url, stream in ((regions.east, EAST), (regions.west, WEST)))
    before = dict(spark.conf.getAll)
    for number, passing in enumerate(("0, 1, 2, 3, 4", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9")):
        file = tmp_path / f"folder{number}" / "chosen.py"
        file.parent.mkdir()
        file.write_text(FILE.format(passing=passing, inputs=inputs, store=regions.east))
        regions.run(spark, from_file(file), f"place{number}")
        assert dict(spark.conf.getAll) == before
        assert (
            '"spark.sql.streaming.stateStore.encodingFormat":"avro"'
            in (regions.folder / f"place{number}" / "offsets" / "0").read_text()
        )
    expected = kernel_says(*regions.logs)
    assert by_session(records(regions.store, "spark/delivery")).keys() == expected.keys()
    messages = sum(map(len, expected.values()))
    dead = len(records(regions.store, f"dead/{EAST}")) + len(records(regions.store, f"dead/{WEST}"))
    counts = counted(regions.store, ">spark/delivery")
    assert 0 < counts[Kind.DEAD_LETTERED] == counts[Kind.REPLAYED] == dead < messages
    assert counts[Kind.ACCEPTED] == counts[Kind.FORWARDED] == messages


def test_later_messages_come_in_the_next_run(spark: SparkSession, regions: Regions) -> None:
    regions.run(spark, regions.pipeline())
    late = Envelope(id="late", session="s0", index=MESSAGES // 20 + 1)
    regions.store.commit([Unit((Append(EAST, late),))])
    regions.run(spark, regions.pipeline())
    assert records(regions.store, "spark/delivery")[-1] == late


def test_rows_that_wait_for_a_gap_outlive_their_input(spark: SparkSession, tmp_path: Path) -> None:
    """They wait whole in Spark's state, so the stream that they came from may be trimmed."""
    url = f"sqlite:///{tmp_path}/semel.db"
    pipeline = delivery(Input(url, "hub/in"), store=url)
    options = runner.RunOptions(checkpoint=str(tmp_path / "place"), once=True)
    one, two, three = (Envelope(f"m{n}", session="s", index=n, data=b"%d" % n) for n in (1, 2, 3))
    store = open_store(url)
    try:
        for envelopes in ([one, three], [Envelope("other")]):
            store.commit([Unit(tuple(Append("hub/in", envelope) for envelope in envelopes))])
            runner.run(spark, pipeline, store, options)
        store.commit([Unit((Trim("hub/in", 99),))])
        while store.sweep(time.time_ns() // 1000).more:
            pass
        assert next(each.first for each in store.status().streams if each.name == "hub/in") == 3
        store.commit([Unit((Append("hub/in", two),))])
        runner.run(spark, pipeline, store, options)
        assert [each for each in records(store, "spark/delivery") if each.session == "s"] == [one, two, three]
    finally:
        store.close()


def test_a_replay_makes_the_same_messages_again(spark: SparkSession, regions: Regions) -> None:
    pipeline = regions.pipeline(handler="tests.spark.test_pipeline:refuse_some")
    regions.run(spark, pipeline)
    again = replay(pipeline, "again")
    regions.run(spark, again, "again")
    made, remade = (records(regions.store, stream) for stream in ("spark/delivery", "spark/again"))
    assert by_session(remade) == by_session(made)
    assert {each.id: each for each in remade} == {each.id: each for each in made}
    # a part of it, and once more from the start: what is there stays as it is
    part = replay(pipeline, "part", until=100)
    regions.run(spark, part, "part")
    assert 0 < len(records(regions.store, "spark/part")) < len(made)
    regions.run(spark, replay(pipeline, "part"), "part-again")
    assert by_session(records(regions.store, "spark/part")) == by_session(made)


def test_a_store_that_has_forgotten_batches_is_noticed(spark: SparkSession, regions: Regions, tmp_path: Path) -> None:
    """The output is put back to what it was before the first run; the checkpoint is not."""
    output = f"sqlite:///{tmp_path}/output.db"
    open_store(output).close()
    backup = (tmp_path / "output.db").read_bytes()
    pipeline = regions.pipeline(store=output)
    chosen = runner.RunOptions(checkpoint=str(tmp_path / "place"), once=True)
    for attempt in range(2):
        store = open_store(output)
        try:
            if not attempt:
                runner.run(spark, pipeline, store, chosen)
                continue
            regions.store.commit([Unit((Append(EAST, Envelope(id="late", session="s0", index=99)),))])
            with pytest.raises(StoreError, match=r"lacks the batches 0\.\.\d+"):
                runner.run(spark, pipeline, store, chosen)
            runner.run(spark, pipeline, store, replace(chosen, checkpoint=str(tmp_path / "new-place")))
            assert by_session(records(store, "spark/delivery")) == kernel_says(*regions.logs)
        finally:
            store.close()
            for path in tmp_path.glob("output.db*"):
                path.unlink()
            (tmp_path / "output.db").write_bytes(backup)
