"""Real processes with `semel inbox run` on one file: whatever kills them, every message takes effect once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.inbox_shop import Order

from semel import App
from semel.kernel.ops import WorkState
from semel.kernel.store import Records
from semel.testing import limits

pytestmark = pytest.mark.connected

MESSAGES = 200
KILLS = 5

SHOP = '''
import os, sqlite3, time
from dataclasses import dataclass
from pathlib import Path
from semel import App, Outbox, on

app = App("sqlite:///shop.db", name="shop")
app.errors(on(Exception).retry([0] * 50).dead_letter())
orders = app.endpoint("orders", lease_s=1.0, buffer_low=5)

@dataclass
class Order:
    id: str
    customer: str

@dataclass
class Receipt:
    id: str

@orders.on(Order, key=lambda order: order.customer)
def handle(order: Order, db: sqlite3.Connection, outbox: Outbox):
    """It waits while a file is there: the first before its write, all others between their write and their commit."""
    if order.id == "000":
        wait_for("hold-first", order)
    db.execute("INSERT INTO effect VALUES (?, ?)", (order.id, os.getpid()))
    outbox.publish(Receipt(order.id), to="stream:receipts")
    wait_for("hold", order)

def wait_for(name, order):
    if is_held(name, order):
        Path("held.new").write_text(f"{os.getpid()} {order.id}")
        Path("held.new").rename("held")
    while is_held(name, order):
        time.sleep(0.005)

def is_held(name, order):
    """The file has the first id that is to wait."""
    try:
        return order.id >= Path(name).read_text()
    except FileNotFoundError:
        return False
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def app(folder: Path) -> Iterator[App]:
    """The same application as the processes have, to put messages in and to look."""
    app = App(f"sqlite:///{folder}/shop.db", name="shop")
    app.endpoint("orders").on(Order, key=lambda order: order.customer)(_never)
    assert app.store
    with closing(connect(folder)) as db, db:
        db.execute("CREATE TABLE effect (id text, pid integer)")
    yield app
    app.close()


def _never(order: Order) -> None:
    raise AssertionError("this process only looks")


def connect(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "shop.db", timeout=limits.scaled(30))


@pytest.fixture
def processes(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """All that a test has started, ended with it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for name in ("hold", "hold-first"):
        (folder / name).unlink(missing_ok=True)
    for process in started:
        process.terminate()  # a parent ends its children
        process.wait()


def start(folder: Path, processes: list[subprocess.Popen[bytes]], *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "semel", "inbox", "run", "shop:app", *more]
    with open(folder / "log", "ab") as log:
        processes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
    return processes[-1]


def send(app: App, count: int = MESSAGES) -> None:
    for number in range(count):
        app.send(Order(f"{number:03}", f"customer {number % 7}"), to="orders", id=f"{number:03}")


def effects(folder: Path) -> list[tuple[str, int]]:
    with closing(connect(folder)) as db:
        return db.execute("SELECT id, pid FROM effect ORDER BY rowid").fetchall()


def hold(folder: Path, id: str) -> None:
    """Let every message from this id on wait between its write and its commit."""
    (folder / "hold.new").write_text(id)
    (folder / "hold.new").rename(folder / "hold")


def held(folder: Path, id: str) -> tuple[int, str]:
    """Who has written an effect and not committed it, and of which message, of those from this id on."""
    place = folder / "held"
    limits.wait_until(lambda: place.exists() and place.read_text().split()[1] >= id, "a handler in the middle")
    pid, found = place.read_text().split()
    return int(pid), found


def is_over(app: App) -> bool:
    return not app.store.work_counts() and not app.store.due("outbox/shop")


def check_once(app: App, folder: Path, count: int = MESSAGES) -> None:
    """One effect, one mark and one receipt for each message, and nothing left."""
    expected = {f"{number:03}": 1 for number in range(count)}
    assert Counter(id for id, _ in effects(folder)) == expected
    states = {id: row.state if (row := app.store.work("inbox/orders", id)) else None for id in expected}
    assert set(states.values()) == {WorkState.DONE}
    found = app.store.read("receipts", limit=2 * count)
    assert isinstance(found, Records)
    assert Counter(record.envelope.data for record in found.records) == {
        f'{{"id":"{id}"}}'.encode(): 1 for id in expected
    }
    for customer in range(7):
        mine = [id for id, _ in effects(folder) if int(id) % 7 == customer]
        assert mine == sorted(mine), "in order among those of a key"


@pytest.mark.slow(15)
def test_processes_that_are_killed_lose_nothing_and_double_nothing(
    app: App, folder: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Each time one is killed between its write and its commit; another takes its place."""
    send(app)
    hold(folder, "000")
    start(folder, processes)
    start(folder, processes)
    for kill in range(KILLS):
        pid, id = held(folder, f"{kill * 40:03}")
        os.kill(pid, signal.SIGKILL)
        next(process for process in processes if process.pid == pid).wait()
        assert id not in [each for each, _ in effects(folder)], "what was not committed is not there"
        start(folder, processes)
        hold(folder, f"{kill * 40 + 40:03}")
    (folder / "hold").unlink()
    limits.wait_until(lambda: is_over(app), "the end of the work")
    check_once(app, folder)


@pytest.mark.slow(4)
def test_a_process_that_is_asked_to_end_finishes_what_it_has_begun(
    app: App, folder: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    send(app, 20)
    hold(folder, "005")
    process = start(folder, processes)
    _, id = held(folder, "005")
    process.send_signal(signal.SIGTERM)
    (folder / "hold").unlink()
    assert process.wait(limits.scaled(30)) == 0
    assert (id, process.pid) in effects(folder)
    rows = app.store.work_rows("inbox/orders", set(WorkState) - {WorkState.DONE})
    assert {(row.state, row.attempts) for row in rows} <= {(WorkState.READY, 0)}, "what was not begun is given back"
    assert len(rows) + len(effects(folder)) == 20
    start(folder, processes)
    limits.wait_until(lambda: is_over(app), "the end of the work")
    check_once(app, folder, 20)


DEADLY = """
import os, sqlite3, time
from dataclasses import dataclass
from semel import App

app = App("sqlite:///shop.db", name="shop")
orders = app.endpoint("orders", lease_s=1.0, parallel=4)

@dataclass
class Order:
    id: str
    customer: str

@orders.on(Order, key=lambda order: order.customer)
def handle(order: Order, db: sqlite3.Connection):
    time.sleep(0.01)
    if order.id in ("004", "012"):
        os._exit(1)
    db.execute("INSERT INTO effect VALUES (?, ?)", (order.id, os.getpid()))
"""


@pytest.mark.slow(20)
def test_of_many_that_a_process_had_only_those_that_killed_it_are_given_up(
    app: App, folder: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Each has a key of its own, which a letter that is given up would block."""
    (folder / "shop.py").write_text(DEADLY)
    for number in range(24):
        app.send(Order(f"{number:03}", f"customer {number}"), to="orders", id=f"{number:03}")
    start(folder, processes, "--processes", "2")
    limits.wait_until(lambda: not app.store.work_counts() or _only_dead(app), "the end of the work")
    letters = {letter.message: letter.cause for letter in app.dead_letters("orders")}
    assert set(letters) == {"004", "012"}
    assert all("its worker died" in (cause or "") for cause in letters.values())
    assert Counter(id for id, _ in effects(folder)) == {
        f"{number:03}": 1 for number in range(24) if number not in (4, 12)
    }


def _only_dead(app: App) -> bool:
    return {state for counts in app.store.work_counts().values() for state in counts} == {WorkState.DEAD}


@pytest.mark.slow(6)
def test_processes_share_the_work_and_end_together(
    app: App, folder: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """While one is held in its handler, another handles what is not of that key."""
    send(app, 40)
    (folder / "hold-first").write_text("000")
    parent = start(folder, processes, "--processes", "2")
    first, id = held(folder, "000")
    assert id == "000"
    limits.wait_until(lambda: any(pid != first for _, pid in effects(folder)), "the other process")
    (folder / "hold-first").unlink()
    limits.wait_until(lambda: is_over(app), "the end of the work")
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(limits.scaled(30)) == 0
    assert not any(Path(f"/proc/{pid}").exists() for _, pid in effects(folder))
    check_once(app, folder, 40)
