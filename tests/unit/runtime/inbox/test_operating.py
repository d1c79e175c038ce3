"""What operators ask for: counts, pauses, dead letters and their history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from semel import App, on
from semel.errors import InputError, StoreBusy
from semel.inbox.failure import FailureRule
from semel.kernel.ops import Finish, WorkState
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.inbox import operating
from semel.runtime.inbox.operating import letter_history, paused_endpoints, queue_status, schema_sql, set_paused
from semel.stores.memory import MemoryStore


@dataclass
class Order:
    id: str


def make(rule: FailureRule) -> App:
    app = App(MemoryStore(), name="shop")

    @app.endpoint("orders", errors=[rule]).on(Order)
    def handle(order: Order) -> None:
        raise ValueError("no such customer")

    app.send(Order("a"), to="orders", id="a")
    app.drain()
    return app


@pytest.fixture
def app() -> App:
    return make(on(ValueError).dead_letter())


def test_a_dead_letter_has_its_cause_its_body_and_its_history(app: App) -> None:
    [letter] = app.dead_letters("orders")
    assert letter.as_dict() == {
        "identity": "a", "message": "a", "type": "Order", "attempts": 1, "cause": "ValueError: no such customer",
        "state": "dead", "body": '{"id":"a"}',
    }  # fmt: skip
    found, history = letter_history(app, "orders", "a")
    assert found == letter
    assert [(each["kind"], each["cause"]) for each in history] == [
        ("accepted", None),
        ("dead_lettered", "ValueError: no such customer"),
    ]


def test_what_is_parked_is_listed_replayed_and_discarded_as_well() -> None:
    app = make(on(ValueError).park())
    assert [letter.state for letter in app.dead_letters("orders")] == ["parked"]
    app.replay("orders", "a")
    assert app.drain() == 1
    app.discard("orders", "a")
    assert app.dead_letters("orders") == []
    # it had not ended when it was put aside: as a replay it would be in the books once more than it was accepted
    kinds = [entry.event.kind.name for entry in app.store.history("a")]
    assert kinds == ["ACCEPTED", "SUSPENDED", "RESUMED", "SUSPENDED", "DISCARDED"]


def test_what_is_discarded_was_taken_up_again_first(app: App) -> None:
    """The ledger has an end for each message: one that has ended does not end again."""
    app.discard("orders", "a")
    kinds = [entry.event.kind.name for entry in app.store.history("a")]
    assert kinds == ["ACCEPTED", "DEAD_LETTERED", "REPLAYED", "DISCARDED"]
    with pytest.raises(InputError, match="'a' at 'orders' is done: it is no dead letter"):
        app.discard("orders", "a")


@pytest.mark.parametrize("move", [App.replay, App.discard])
@pytest.mark.parametrize("is_handled", [True, False], ids=["handled", "replayed"])
def test_a_letter_that_somebody_else_has_moved_meanwhile_is_not_moved_again(
    app: App, monkeypatch: pytest.MonkeyPatch, move: Callable[[App, str, str], None], is_handled: bool
) -> None:
    """Handled, it has no body any more; only replayed, the ledger would have it once too often."""
    [row] = app.store.work_rows("inbox/orders", (WorkState.DEAD,))
    app.replay("orders", "a")
    if is_handled:
        commit_unit(app.store, (Finish("inbox/orders", "a", WorkState.DONE),))
    monkeypatch.setattr(operating, "_letter", lambda *_: row)
    before = [entry.event.kind for entry in app.store.history("a")]
    with pytest.raises(StoreBusy, match="somebody else has just moved 'a'"):
        move(app, "orders", "a")
    found = app.store.work("inbox/orders", "a")
    assert found is not None
    assert found.state is (WorkState.DONE if is_handled else WorkState.READY)
    assert [entry.event.kind for entry in app.store.history("a")] == before


def test_the_status_has_a_line_for_each_queue(app: App) -> None:
    set_paused(app, "orders", True)
    assert [each.as_dict() for each in queue_status(app)] == [
        {"queue": "inbox/orders", "paused": True, "counts": {"dead": 1}, "breaker": "", "blocked": 0},
        {"queue": "outbox/shop", "paused": False, "counts": {}, "breaker": "", "blocked": 0},
    ]


def test_a_pause_is_of_one_application_and_one_endpoint(app: App) -> None:
    other = App(app.store, name="other")
    app.endpoint("bills")
    set_paused(app, "orders", True)
    assert (paused_endpoints(app), paused_endpoints(other)) == ({"orders"}, set())
    set_paused(app, "orders", False)
    assert paused_endpoints(app) == set()
    with pytest.raises(InputError, match="there is no endpoint 'nowhere'"):
        set_paused(app, "nowhere", True)


@pytest.mark.parametrize("url", ["sqlite:///shop.db", "postgresql://host/shop"])
def test_the_statements_are_printed_without_opening_anything(url: str) -> None:
    assert "CREATE TABLE semel_work" in schema_sql(App(url, name="shop"))
