"""`semel inbox …` with an application in a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.cli.conftest import Ran, Semel

from semel.cli import inbox as module
from semel.cli.inbox import load_app
from semel.errors import EXIT_USAGE

SHOP = """
from dataclasses import dataclass
from semel import App, on

app = App("sqlite:///shop.db", name="shop")
app.errors(on(Exception).dead_letter())
orders = app.endpoint("orders")

@dataclass
class Order:
    id: str

@orders.on(Order)
def handle(order: Order):
    raise ValueError("no such customer")
"""


@pytest.fixture
def shop(semel: Semel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Semel]:
    """Each test has a module of its own under the same name."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)

    def call(*args: str) -> Ran:
        return semel("inbox", *args, "--json")

    yield call
    sys.modules.pop("shop", None)


def fail(shop: Semel) -> None:
    """A dead letter."""
    shop("send", "shop:app", "orders", "Order", '{"id": "7"}', "--id", "order-7")
    app = load_app("shop:app")
    app.drain()
    app.close()


def test_a_message_is_sent_once(shop: Semel) -> None:
    answers = [shop("send", "shop:app", "orders", "Order", '{"id": "7"}', "--id", "order-7") for _ in range(2)]
    assert [each.result for each in answers] == [
        {"id": "order-7", "verdict": "stored"},
        {"id": "order-7", "verdict": "duplicate"},
    ]
    assert shop("status", "shop:app").result["queues"] == [
        {"queue": "inbox/orders", "paused": False, "counts": {"ready": 1}, "breaker": ""},
        {"queue": "outbox/shop", "paused": False, "counts": {}, "breaker": ""},
    ]


def test_a_message_is_read_from_stdin_and_gets_an_id(shop: Semel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"id": "7"}')))
    assert len(shop("send", "shop:app", "orders", "Order", "-").result["id"]) == 36


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("orders", "Unheard", "{}"), "no handler at 'orders' knows messages of type 'Unheard'"),
        (("orders", "Order", "{"), "is not a Order"),
        (("orders", "Order", '{"id": "7"}', "--id", ""), "id is empty"),
        (("nowhere", "Order", "{}"), "there is no endpoint 'nowhere'"),
    ],
)
def test_what_nobody_can_handle_is_not_sent(shop: Semel, args: tuple[str, ...], message: str) -> None:
    ran = shop("send", "shop:app", *args)
    assert ran.exit_code != 0
    assert message in ran.error["message"]
    assert ran.error["fix"]
    assert shop("status", "shop:app").result["queues"][0]["counts"] == {}


def test_an_endpoint_is_paused_and_resumed(shop: Semel) -> None:
    assert shop("pause", "shop:app", "orders").result == {"endpoint": "orders", "paused": True}
    assert shop("status", "shop:app").result["queues"][0]["paused"]
    assert shop("resume", "shop:app", "orders").result == {"endpoint": "orders", "paused": False}
    assert not shop("status", "shop:app").result["queues"][0]["paused"]
    assert shop("pause", "shop:app", "nowhere").exit_code != 0


def test_dead_letters_are_listed_shown_and_replayed(shop: Semel) -> None:
    fail(shop)
    [letter] = shop("dead-letters", "list", "shop:app", "orders").result["dead_letters"]
    assert (letter["identity"], letter["cause"]) == ("order-7", "ValueError: no such customer")
    shown = shop("dead-letters", "show", "shop:app", "orders", "order-7").result
    assert [each["kind"] for each in shown.pop("history")] == ["accepted", "dead_lettered"]
    assert shown == letter
    assert shop("dead-letters", "replay", "shop:app", "orders", "order-7").result == {"replayed": "order-7"}
    assert shop("status", "shop:app").result["queues"][0]["counts"] == {"ready": 1}


def test_dead_letters_are_discarded_once(shop: Semel) -> None:
    fail(shop)
    assert shop("dead-letters", "discard", "shop:app", "orders", "order-7").result == {"discarded": "order-7"}
    again = shop("dead-letters", "discard", "shop:app", "orders", "order-7")
    assert "it is no dead letter" in again.error["message"]
    assert shop("dead-letters", "list", "shop:app", "orders").result == {"dead_letters": []}


def test_they_are_printed_for_people(shop: Semel, semel: Semel) -> None:
    fail(shop)
    assert "no such customer" in semel("inbox", "dead-letters", "list", "shop:app", "orders").out
    shown = semel("inbox", "dead-letters", "show", "shop:app", "orders", "order-7").out
    assert "order-7 (Order), 1 attempts: ValueError: no such customer" in shown
    assert "dead_lettered" in shown
    assert "inbox/orders" in semel("inbox", "status", "shop:app").out


def test_the_tables_are_created_or_printed(shop: Semel, tmp_path: Path) -> None:
    assert "CREATE TABLE semel_work" in shop("init", "shop:app", "--sql").result["sql"]
    assert not (tmp_path / "shop.db").exists()
    assert shop("init", "shop:app").result["schema"] >= 1
    assert (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("shop", "'shop' names no application", "shop:app"),
        ("nowhere:app", "there is no module 'nowhere'", "in the folder of the module"),
        ("shop:orders", "shop has no application 'orders'", "name one of: app"),
    ],
)
def test_an_application_that_is_not_there(shop: Semel, name: str, message: str, fix: str) -> None:
    ran = shop("status", name)
    assert ran.exit_code == EXIT_USAGE
    assert ran.error["message"] == message
    assert fix in ran.error["fix"]


def test_a_module_that_misses_another_says_which(shop: Semel, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import unheard_of")
    assert "unheard_of" in shop("status", "shop:app").error["message"]


@pytest.mark.parametrize("processes", ["1", "4"])
def test_what_cannot_work_is_refused_before_anything_runs(
    shop: Semel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    monkeypatch.setattr(module, "_run_processes", lambda *_: pytest.fail("nothing is started"))
    (tmp_path / "shop.py").write_text(f"{SHOP}\n@orders.on(Order)\ndef again(order: Order): ...\n")
    ran = shop("run", "shop:app", "--processes", processes)
    assert "two handlers for 'Order'" in ran.error["message"]


def test_what_is_followed_is_shown_and_an_endpoint_changes_hands(shop: Semel, tmp_path: Path) -> None:
    assert shop("follow", "shop:app").result == {"follows": []}
    assert shop("follow", "shop:app", "orders", "inbox/orders").exit_code == EXIT_USAGE, "it is not said what to do"
    assert shop("follow", "shop:app", "orders", "inbox/orders", "--from", "middle").exit_code == EXIT_USAGE
    assert shop("follow", "shop:app", "orders", "elsewhere", "--end").exit_code == EXIT_USAGE
    moved = shop("follow", "shop:app", "orders", "inbox/orders", "--from", "earliest").result
    assert moved == {"endpoint": "orders", "source": "inbox/orders", "at": "inbox/orders@1:0"}
    [row] = shop("follow", "shop:app").result["follows"]
    assert (row["stream"], row["lag"], row["stopped"]) == ("inbox/orders", 0, "")
    assert shop("follow", "shop:app", "orders", "inbox/orders", "--end").result == {"ended": "inbox/orders"}
    assert shop("adopt", "shop:app", "orders").result == {"endpoint": "orders", "owner": "shop", "before": None}
