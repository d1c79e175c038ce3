"""What a pipeline may be, and what it says when it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.errors import ConfigError, InputError
from semel.kernel.dedup import GapPolicy, OnGap
from semel.spark.delivery import delivery
from semel.spark.pipeline import Input, Order, Pipeline, from_file, replay, sink_options

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

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no file"):
            from_file(tmp_path / "none.py")
