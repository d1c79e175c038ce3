"""`semel pipeline` without a JVM: which pipeline runs with what, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.cli.conftest import Semel

from semel.errors import HandlerError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Put, Unit
from semel.kernel.store import Store
from semel.runtime.host.lease_holder import Holder
from semel.spark import runner, session
from semel.spark.landing import died_stream
from semel.spark.pipeline import Pipeline
from semel.spark.waiting import Wait, Waits, waits_key
from semel.stores.open import open_store

CONFIG = """
[store]
url = "sqlite:///semel.db"

[spark]
master = "local[1]"
checkpoints = "places"

[[pipeline]]
name = "orders"
from = ["outbox/orders", {store = "sqlite:///west.db", stream = "queue/west/orders"}]
order = {gap = "skip", after_s = 5}
to = "inbox/orders"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "semel.toml").write_text(CONFIG)
    store = open_store("sqlite:///semel.db")
    store.commit([Unit((Append("outbox/orders", Envelope(id=f"m{n}")),)) for n in range(3)])
    store.close()
    return tmp_path


class Spark:
    """Stands for the session and the run."""

    def __init__(self) -> None:
        self.session: dict[str, Any] = {}
        self.pipeline: Pipeline | None = None
        self.options: runner.RunOptions | None = None
        self.error: Exception | None = None
        self.dies: tuple[str, ...] = ()

    def spark_session(self, **settings: Any) -> str:
        self.session = settings
        return "spark"

    def run(self, spark: str, pipeline: Pipeline, store: Store, options: runner.RunOptions) -> runner.PipelineRun:
        self.pipeline, self.options = pipeline, options
        for id in self.dies:
            store.commit([Unit((Append(died_stream(pipeline.name), Envelope(id), identity=id),))])
        if self.error is not None:
            raise self.error
        run = runner.PipelineRun(
            pipeline.name, "finished", "me", 1, options.checkpoint, 0, 0, batch=1, rows=3, rows_per_s=9.0
        )
        options.progress(run)
        return run


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    spark = Spark()
    monkeypatch.setattr(session, "spark_session", spark.spark_session)
    monkeypatch.setattr(session, "check_executors", lambda spark: None)
    monkeypatch.setattr(runner, "run", spark.run)
    return spark


def test_a_pipeline_of_the_configuration_runs(project: Path, spark: Spark, semel: Semel) -> None:
    done = semel("pipeline", "run", "orders", "--once", "--json")
    assert done.exit_code == 0
    assert done.result["state"] == "finished"
    assert spark.session["master"] == "local[1]"
    assert spark.options is not None
    assert spark.options.once
    assert spark.options.checkpoint == str(project / "places" / "orders")
    assert spark.pipeline is not None
    assert [each.store for each in spark.pipeline.inputs] == ["sqlite:///semel.db", "sqlite:///west.db"]
    assert spark.pipeline.order is not None
    assert (spark.pipeline.order.gap.then.value, spark.pipeline.order.gap.after_s) == ("skip", 5)
    assert spark.pipeline.to == "inbox/orders"


def test_people_are_told_how_it_ended(project: Path, spark: Spark, semel: Semel) -> None:
    done = semel("pipeline", "run", "orders", "--master", "local[2]", "--checkpoint", "elsewhere")
    assert done.exit_code == 0
    assert "orders: finished after 3 rows in 2 batches" in done.out
    assert spark.session["master"] == "local[2]"
    assert spark.options is not None
    assert spark.options.checkpoint == str(project / "elsewhere" / "orders")


def test_dead_letters_do_not_look_as_if_they_had_passed(project: Path, spark: Spark, semel: Semel) -> None:
    spark.dies = ("a", "b")
    done = semel("pipeline", "run", "orders")
    assert "2 dead letters, with the cause of each: dead/outbox/orders" in done.out
    spark.dies = ("c",)
    assert semel("pipeline", "run", "orders", "--json").result["dead"] == 1
    assert "3 dead letters" in semel("pipeline", "status", "orders").out
    spark.dies = ()
    assert "dead" not in semel("pipeline", "run", "orders").out


def test_a_mistake_in_a_file_is_told_with_its_own_remedy(project: Path, spark: Spark, semel: Semel) -> None:
    (project / "mine.py").write_text(
        "from semel.spark.pipeline import Input, Pipeline\n"
        "pipeline = Pipeline('mine', (Input('sqlite:///semel.db', 'a'),), 'sqlite:///semel.db', dedupe='wrong')\n"
    )
    done = semel("pipeline", "run", "mine.py")
    assert done.exit_code == 2
    assert "mine.py cannot be run: pipeline 'mine': there is no dedupe 'wrong'" in done.err
    assert done.err.count("fix:") == 1


def test_a_python_file_runs(project: Path, spark: Spark, semel: Semel) -> None:
    (project / "mine.py").write_text(
        "from semel.spark.pipeline import Input, Pipeline\n"
        "pipeline = Pipeline('mine', (Input('sqlite:///semel.db', 'outbox/orders'),), 'sqlite:///semel.db')\n"
    )
    assert semel("pipeline", "run", "mine.py").exit_code == 0
    assert spark.pipeline is not None
    assert spark.pipeline.name == "mine"


def test_an_unknown_name_names_the_known_ones(project: Path, spark: Spark, semel: Semel) -> None:
    done = semel("pipeline", "run", "order")
    assert done.exit_code == 2
    assert "no pipeline 'order'" in done.err
    assert "the pipelines are: orders" in done.err


def test_what_went_wrong_is_told(project: Path, spark: Spark, semel: Semel) -> None:
    spark.error = HandlerError("pipeline 'orders' failed", fix="fix it")
    done = semel("pipeline", "run", "orders")
    assert done.exit_code == 2
    assert "pipeline 'orders' failed" in done.err


def test_the_list_says_how_each_stands(project: Path, semel: Semel) -> None:
    shown = semel("pipeline", "list", "--json")
    assert shown.exit_code == 0
    (orders,) = shown.result
    assert (orders["name"], orders["state"], orders["output"]) == ("orders", "never run", "inbox/orders")
    assert orders["lag"] == {"outbox/orders": 3, "queue/west/orders": None}
    assert "never run" in semel("pipeline", "list").out


def test_the_list_makes_no_store(project: Path, semel: Semel) -> None:
    shown = semel("pipeline", "list", "--json", "--store", "sqlite:///none.db")
    assert shown.exit_code == 0
    (orders,) = shown.result
    assert (orders["state"], orders["landed"]) == ("never run", 0)
    assert orders["lag"] == {"outbox/orders": None, "queue/west/orders": None}
    assert not (project / "none.db").exists()


def test_a_store_that_cannot_be_read_is_no_pipeline_that_never_ran(project: Path, semel: Semel) -> None:
    shown = semel("pipeline", "list", "--store", "postgresql://127.0.0.1:1/none")
    assert shown.exit_code != 0
    assert "never run" not in shown.out


def test_an_input_that_is_not_there_yet_is_noted(project: Path, spark: Spark, semel: Semel) -> None:
    open_store("sqlite:///west.db").close()
    done = semel("pipeline", "run", "orders", "--once")
    assert done.exit_code == 0
    assert "there is no stream queue/west/orders in sqlite:///west.db yet" in done.err
    assert "outbox/orders" not in done.err


def test_a_misspelt_stream_is_warned_of(project: Path, spark: Spark, semel: Semel) -> None:
    (project / "semel.toml").write_text(CONFIG.replace('"outbox/orders"', '"outbox/order"'))
    warning = "warning: there is no stream outbox/order in sqlite:///semel.db yet; did you mean outbox/orders?"
    assert warning in semel("pipeline", "run", "orders", "--once").err
    assert warning in semel("pipeline", "status", "orders").out
    for command in (("run", "orders", "--once"), ("status", "orders")):
        assert semel("pipeline", *command, "--json").result["warnings"] == [warning]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--start", "noon", "--start: pipeline 'orders': it cannot start at 'noon'"),
        ("--as", "Orders 2", "--as: 'Orders 2' cannot be the name of a pipeline"),
        ("--wait", "soon", "--wait 'soon' is not a duration"),
    ],
)
def test_a_mistake_is_told_with_its_option(
    option: str, value: str, message: str, project: Path, spark: Spark, semel: Semel
) -> None:
    ran = semel("pipeline", "run", "orders", option, value)
    assert ran.exit_code == 2
    assert message in ran.err
    assert spark.pipeline is None


def test_an_empty_list_says_how_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, semel: Semel) -> None:
    monkeypatch.chdir(tmp_path)
    assert "add [[pipeline]]" in semel("pipeline", "list").out


class TestRunning:
    @pytest.fixture
    def holder(self, project: Path) -> Any:
        store = open_store("sqlite:///semel.db")
        holder = Holder(store, runner.state_key("orders"), job="running", owner="driver-1", lease_s=30.0)
        holder.acquire()
        yield holder
        store.close()

    def test_the_status_names_the_driver(self, holder: Holder, semel: Semel) -> None:
        assert "orders: running by driver-1" in semel("pipeline", "status", "orders").out

    def test_the_status_shows_what_waits_behind_a_gap(self, holder: Holder, semel: Semel) -> None:
        sessions = {"shop-1": Wait(4, 2), "shop-2": Wait(1, 1), **{f"s{n:02}": Wait(7, 1) for n in range(9)}}
        holder.commit(Put(waits_key("orders"), msgspec.json.encode(Waits("q", sessions))))
        shown = semel("pipeline", "status", "orders")
        assert (
            "  12 messages of 11 sessions waiting behind a gap:\n    session shop-1: 2 messages for index 4"
            in shown.out
        )
        assert "    and 1 more session\n" in shown.out
        found = semel("pipeline", "status", "orders", "--json").result["waiting"]
        assert found[0] == {"session": "shop-1", "index": 4, "rows": 2}

    def test_stopping_waits_for_its_end(self, holder: Holder, semel: Semel) -> None:
        done = semel("pipeline", "stop", "orders", "--wait", "0s")
        assert done.exit_code == 3
        assert "driver-1 has not ended orders within 0 s" in done.err
        holder.release()
        assert "orders is not running" in semel("pipeline", "stop", "orders").out

    def test_a_killed_one_is_told_from_one_that_ended(self, holder: Holder, project: Path, semel: Semel) -> None:
        run = runner.PipelineRun(
            "orders", "running", "driver-1", holder.fence, "/places/orders", 0, 0, batch=4, rows=500
        )
        holder.commit(Put(runner.state_key("orders"), msgspec.json.encode(run)))
        holder.release()
        shown = semel("pipeline", "status", "orders", "--json").result
        assert (shown["state"], shown["run"]["rows"]) == ("killed", 500)
