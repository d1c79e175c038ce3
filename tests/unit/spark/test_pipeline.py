"""What a pipeline may be, and what it says when it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from semel.errors import ConfigError, InputError
from semel.kernel.dedup import GapPolicy, OnGap
from semel.spark.delivery import delivery
from semel.spark.handlers import BatchHandler
from semel.spark.pipeline import Input, Order, Pipeline, from_file, replay, send_files_along, sink_options
from semel.testing.limits import scaled

STORE = "sqlite:///semel.db"
ORDERS = Input(STORE, "outbox/orders")
WEST = Input("sqlite:///west.db", "queue/west/orders")


def make(**settings: Any) -> Pipeline:
    return Pipeline(**{"name": "orders", "inputs": (ORDERS,), "store": STORE, **settings})


def test_it_names_its_output_and_its_hops() -> None:
    pipeline = make(name="orders.eu-1_a~")
    assert pipeline.output == "spark/orders.eu-1_a~"
    assert pipeline.hops == ("outbox/orders>spark/orders.eu-1_a~",)


@pytest.mark.parametrize("name", ["", "Orders", "a/b", "a b", "orders\n", "x" * 129])
def test_a_name_is_one_that_the_configuration_would_take(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a pipeline"):
        make(name=name)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"inputs": ()}, "reads from nowhere"),
        ({"inputs": (ORDERS, ORDERS)}, "same stream twice"),
        ({"dedupe": "hash"}, "no dedupe 'hash'"),
        ({"start": "yesterday"}, "cannot start at 'yesterday'"),
        ({"start": "available", "order": Order()}, "order and starts at 'available'"),
        ({"start": "7", "order": Order()}, "begins with index 1 of each session"),
        ({"max_rows_per_batch": 0}, "too small"),
        ({"to": "hub/a", "path": "lake"}, "two places: to and path"),
        ({"path": "lake", "inputs": (ORDERS, WEST)}, "would be there twice"),
        ({"table": "orders"}, "belong together"),
        ({"key": "id"}, "belong together"),
        ({"inputs": (Input(STORE, "spark/orders"),)}, "its own output spark/orders"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        make(**settings)
    assert refused.value.message.startswith("pipeline 'orders': ")
    assert refused.value.fix


def test_copies_in_several_inputs_of_a_folder_need_something_that_tells_them_apart() -> None:
    assert make(path="lake", inputs=(ORDERS, WEST), order=Order()).path == "lake"
    assert make(path="lake", inputs=(ORDERS, WEST), dedupe="index").path == "lake"
    assert make(path="lake").path == "lake"


def test_a_replay_of_an_ordered_pipeline_begins_where_its_sessions_begin() -> None:
    ordered = make(order=Order())
    assert replay(ordered, "again", until=9).start == "earliest"
    with pytest.raises(ConfigError, match="order and starts at '5'") as refused:
        replay(ordered, "again", start="5", until=9)
    assert "earliest" in refused.value.fix
    assert replay(make(), "again", start="5").start == "5"


def test_names_follow_the_grammar_of_streams() -> None:
    with pytest.raises(InputError, match="stream name"):
        Input(STORE, "Outbox/orders")
    with pytest.raises(InputError, match="stream name"):
        make(to="hub/Chat")


def test_a_stored_log_cannot_be_asked_again() -> None:
    with pytest.raises(ConfigError, match="cannot ask a sender again"):
        Order(GapPolicy(OnGap.ASK))
    with pytest.raises(ConfigError, match="buffer"):
        Order(buffer=0)


def test_an_order_takes_a_word_for_its_gaps() -> None:
    assert Order(gap="skip") == Order(GapPolicy(OnGap.SKIP, 60.0))
    assert Order(gap="wait") == Order()
    with pytest.raises(ConfigError, match="cannot ask a sender again"):
        Order(gap="ask")  # type: ignore[arg-type]
    for wrong in ("jump", {"then": "skip"}, 3):
        with pytest.raises(ConfigError, match="is no way to treat a gap") as caught:
            Order(gap=wrong)  # type: ignore[arg-type]
        assert 'gap="skip"' in caught.value.fix


def test_the_sink_learns_what_it_needs_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = f"sqlite:///{tmp_path}/semel.db"
    assert sink_options(make(to="hub/chat"), fence=7) == {
        "store": place,
        "pipeline": "orders",
        "to": "hub/chat",
        "fence": "7",
    }
    assert sink_options(make()) == {"store": place, "pipeline": "orders"}
    again = replay(make(), "again")
    assert sink_options(again) == {"store": place, "pipeline": "again", "idsAs": "orders"}


def test_the_delivery_pipeline_merges_in_order() -> None:
    pipeline = delivery(ORDERS, WEST, store=STORE, to="inbox/orders")
    assert pipeline.inputs == (ORDERS, WEST)
    assert pipeline.order == Order()
    assert pipeline.name == "delivery"


class TestFile:
    @pytest.fixture(autouse=True)
    def leave_the_path_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "path", list(sys.path))

    def write(self, folder: Path, text: str) -> Path:
        path = folder / "made_pipeline.py"
        path.write_text(text)
        return path

    @pytest.mark.parametrize("form", ["pipeline = {}", "def pipeline():\n    return {}"])
    def test_it_is_a_value_or_a_function(self, tmp_path: Path, form: str) -> None:
        value = "Pipeline('made', (Input('memory:', 'outbox/a'),), 'memory:')"
        path = self.write(tmp_path, "from semel.spark.pipeline import Input, Pipeline\n" + form.format(value))
        assert from_file(path).name == "made"

    @pytest.mark.parametrize(
        ("text", "problem"), [("x = 1", "defines no pipeline"), ("1 / 0", "ZeroDivisionError: division by zero")]
    )
    def test_what_is_wrong_with_it_is_said(self, tmp_path: Path, text: str, problem: str) -> None:
        with pytest.raises(ConfigError, match=problem):
            from_file(self.write(tmp_path, text))

    def elsewhere(self, pipeline: Pipeline, data: bytes, folder: Path) -> list[str]:
        """What the handler makes of a message in a process that knows nothing of the file."""
        send_files_along()
        assert pipeline.handler is not None
        (folder / "task").write_bytes(cloudpickle.dumps(BatchHandler(pipeline.handler, "made")))
        task = (
            "import pickle, sys\n"
            "from semel.kernel.envelope import Envelope\n"
            "from semel.spark.rows import Row, batch_of, rows_of\n"
            "handling = pickle.loads(open(sys.argv[1], 'rb').read())\n"
            f"[out] = handling([batch_of([Row(Envelope('m', data={data!r}))])])\n"
            "print([row.cause or row.envelope.data for row in rows_of(out)][0])\n"
        )
        ran = subprocess.run(
            [sys.executable, "-P", "-c", task, str(folder / "task")],
            cwd="/", capture_output=True, text=True, timeout=scaled(60), check=True,
        )  # fmt: skip
        return ran.stdout.split()

    @pytest.mark.parametrize("handler", ["turn", "'made_pipeline:turn'"])
    def test_its_functions_travel_with_all_that_they_use(self, tmp_path: Path, handler: str) -> None:
        sign = uuid.uuid4().hex
        made = []
        for number in (1, 2):
            folder = tmp_path / f"folder{number}"
            folder.mkdir()
            (folder / f"beside_{sign}.py").write_text("def doubled(data):\n    return data * 2\n")
            text = (
                "from msgspec.structs import replace\n"
                "from semel.spark.pipeline import Input, Pipeline\n"
                f"from beside_{sign} import doubled\n"
                f"PREFIX = b'{number}-'\n"
                "def helper(data):\n    return PREFIX + doubled(data)\n"
                "def turn(envelope):\n    return replace(envelope, data=helper(envelope.data))\n"
                f"pipeline = Pipeline('made', (Input('memory:', 'outbox/a'),), 'memory:', handler={handler})\n"
            )
            made.append(from_file(self.write(folder, text)))
        assert [self.elsewhere(pipeline, b"x", tmp_path) for pipeline in made] == [["b'1-xx'"], ["b'2-xx'"]]

    def test_it_takes_no_name_of_another_module(self, tmp_path: Path) -> None:
        path = tmp_path / "json.py"
        path.write_text(
            "from semel.spark.pipeline import Input, Pipeline\n"
            "pipeline = Pipeline('made', (Input('memory:', 'outbox/a'),), 'memory:', handler='json:dumps')\n"
        )
        assert from_file(path).handler == "json:dumps"
        assert sys.modules["json"] is json

    def test_one_that_fails_leaves_no_module_behind(self, tmp_path: Path) -> None:
        before = set(sys.modules)
        with pytest.raises(ConfigError, match="cannot be run"):
            from_file(self.write(tmp_path, "1 / 0"))
        assert set(sys.modules) == before

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no file"):
            from_file(tmp_path / "none.py")
