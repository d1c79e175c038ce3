"""`semel inbox …` with an application in a file."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cli.conftest import Ran, Semel

from semel.cli import inbox_processes
from semel.cli.inbox import load_app
from semel.cli.inbox_processes import restart_wait, run_processes, said_of
from semel.errors import EXIT_USAGE
from semel.kernel.envelope import Envelope

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
        {"queue": "inbox/orders", "paused": False, "counts": {"ready": 1}, "breaker": "", "blocked": 0},
        {"queue": "outbox/shop", "paused": False, "counts": {}, "breaker": "", "blocked": 0},
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
    assert "dead letter" not in ran.error["fix"], "nothing was stored"
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
    assert shop("dead-letters", "list", "shop:app", "orders").result == {"dead_letters": [], "total": 0}


def test_a_letter_is_named_by_the_id_of_its_message_too(shop: Semel) -> None:
    app = load_app("shop:app")
    event = Envelope("7", source="/web shop", type="Order", data=b'{"id": "7"}')
    app.receive("orders", [event])
    app.receive("orders", [Envelope("with space", type="Order", data=b'{"id": "8"}')])
    app.drain()
    app.close()
    listed = shop("dead-letters", "list", "shop:app", "orders").result["dead_letters"]
    assert [each["identity"] for each in listed] == ["/web%20shop 7", " with space"]
    for id in ("7", "with space"):
        assert shop("dead-letters", "show", "shop:app", "orders", id).result["message"] == id
    app.receive("orders", [Envelope("7", source="/other", type="Order", data=b'{"id": "7"}')])
    app.drain()
    app.close()
    several = shop("dead-letters", "discard", "shop:app", "orders", "7").error
    assert several["message"] == "2 dead letters at 'orders' have the id '7'"
    assert "'/other 7'" in several["fix"]
    assert shop("dead-letters", "discard", "shop:app", "orders", "/other 7").exit_code == 0


def fail_many(count: int) -> None:
    app = load_app("shop:app")
    app.receive("orders", [Envelope(f"{number}", type="Order", data=b'{"id": "7"}') for number in range(count)])
    app.receive("orders", [Envelope("unknown", type="Unheard")])
    app.drain()
    app.close()


def test_many_are_replayed_or_discarded_at_once(shop: Semel) -> None:
    fail_many(3)
    assert shop("dead-letters", "replay", "shop:app", "orders", "--cause", "no such customer").result == {
        "replayed": ["0", "1", "2"], "count": 3,
    }  # fmt: skip
    assert shop("dead-letters", "discard", "shop:app", "orders", "--all").result["discarded"] == ["unknown"]
    assert shop("status", "shop:app").result["queues"][0]["counts"] == {"ready": 3}


def test_many_are_never_moved_by_accident(shop: Semel) -> None:
    fail_many(1)
    for args in ((), ("0", "--all"), ("--all", "--cause", "x")):
        ran = shop("dead-letters", "discard", "shop:app", "orders", *args)
        assert "--all" in ran.error["fix"]
    assert shop("dead-letters", "list", "shop:app", "orders").result["total"] == 2


def test_a_list_says_when_it_is_not_all(shop: Semel, semel: Semel) -> None:
    fail_many(2)
    listed = shop("dead-letters", "list", "shop:app", "orders", "--limit", "2").result
    assert (len(listed["dead_letters"]), listed["total"]) == (2, 3)
    printed = semel("inbox", "dead-letters", "list", "shop:app", "orders", "--limit", "2").out
    assert "the oldest 2 of 3" in printed
    assert "dead" in printed
    assert "the oldest" not in semel("inbox", "dead-letters", "list", "shop:app", "orders").out


def test_what_waits_behind_a_dead_letter_is_counted(shop: Semel, semel: Semel) -> None:
    app = load_app("shop:app")
    for id, key in (("1", "ada"), ("2", "ada"), ("3", "ada"), ("4", "bob")):
        app.send(app.endpoints["orders"].functions[0].__annotations__["order"](id), to="orders", id=id, key=key)
    app.drain()
    app.close()
    [orders, _] = shop("status", "shop:app").result["queues"]
    assert (orders["counts"]["dead"], orders["blocked"]) == (2, 2)
    assert "2 behind a dead letter" in semel("inbox", "status", "shop:app").out


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("a b", "SyntaxError"),
    ],
)
def test_what_a_module_raises_is_the_modules(shop: Semel, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "shop.py").write_text(f"import os\n{text}\n")
    ran = shop("status", "shop:app")
    assert ran.exit_code == EXIT_USAGE
    assert ran.error["message"].startswith(f"module 'shop' cannot be imported: {said}")
    assert "correct it: " in ran.error["fix"]


def test_what_semel_refuses_in_a_module_is_told_as_it_is(shop: Semel, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text('from semel import App\napp = App("memory:", identity="name")')
    assert shop("status", "shop:app").error["message"] == "identity is 'name'"


def test_a_module_that_misses_another_says_which(shop: Semel, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import unheard_of")
    assert "unheard_of" in shop("status", "shop:app").error["message"]


@pytest.mark.parametrize("processes", ["1", "4"])
def test_what_cannot_work_is_refused_before_anything_runs(
    shop: Semel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    monkeypatch.setattr(inbox_processes, "run_processes", lambda *_: pytest.fail("nothing is started"))
    (tmp_path / "shop.py").write_text(f"{SHOP}\n@orders.on(Order)\ndef again(order: Order): ...\n")
    ran = shop("run", "shop:app", "--processes", processes)
    assert "two handlers for 'Order'" in ran.error["message"]


# -- running


def test_what_runs_is_said_at_the_start(shop: Semel, semel: Semel, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "shop.py").write_text(f'{SHOP}\napp.every("@daily", Order("d"), to="endpoint:orders", name="report")\n')
    monkeypatch.setattr("semel.runtime.inbox.service.run_until_signalled", lambda app: None)
    told = semel("inbox", "run", "shop:app").err
    assert "shop on sqlite:///shop.db" in told
    assert "orders (durable, 1 at a time): Order" in told
    assert "every @daily: report to endpoint:orders" in told


def test_a_process_that_dies_soon_is_started_again_later_and_later() -> None:
    waits, wait = [], 0.0
    for _ in range(9):
        wait = restart_wait(0.1, wait)
        waits.append(wait)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert restart_wait(3600, 30) == 0


def test_how_a_process_ended_is_said_in_words() -> None:
    assert [said_of(code) for code in (0, 70, -9, -63)] == [
        "ended with code 0", "ended with code 70", "was killed by SIGKILL", "was killed by signal 63",
    ]  # fmt: skip


def test_restarts_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(inbox_processes, "WAIT_S_MIN", 0.01)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    try:
        run_processes([sys.executable, "-c", "raise SystemExit(7)"], 1, say)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert [each.partition(" ended ")[2] for each in said] == [
        "with code 7: another starts in 0.01 s", "with code 7: another starts in 0.02 s",
    ]  # fmt: skip


def test_metrics_for_other_machines_are_asked_for_twice(shop: Semel) -> None:
    ran = shop("run", "shop:app", "--metrics", "0.0.0.0:9464")
    assert ran.exit_code == EXIT_USAGE
    assert "--open-metrics" in ran.out


def test_open_metrics_without_metrics_is_a_mistake(shop: Semel) -> None:
    ran = shop("run", "shop:app", "--open-metrics")
    assert ran.exit_code == EXIT_USAGE
    assert "--metrics" in ran.out


def test_processes_need_as_many_ports(shop: Semel) -> None:
    ran = shop("run", "shop:app", "--metrics", "65534", "--processes", "4")
    assert ran.exit_code == EXIT_USAGE
    assert "65537" in ran.out


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
