"""`semel inbox run` as others see it: its figures, and its log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import httpx
import msgspec
import pytest

from semel.testing.limits import scaled, wait_until

SHOP = """
import sqlite3
from semel import App, on

app = App("sqlite:///shop.db", name="shop")
orders = app.endpoint("orders", errors=[on(ValueError).dead_letter()])

@orders.on("order")
def place(order: dict, db: sqlite3.Connection) -> None:
    if order["id"] == "bad":
        raise ValueError("no such customer")
"""
SEND = """
from shop import app
for id in ("1", "2", "bad"):
    app.send({"id": id, "card": "4111"}, to="orders", type="order", id=f"order-{id}")
app.close()
"""


class Running:
    """A process, with the lines of its log as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._new: SimpleQueue[str] = SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._new.put(line)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(scaled(30))
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        assert code == 0

    def until(self, pattern: str) -> re.Match[str]:
        while True:
            line = self._new.get(timeout=scaled(30))
            self.lines.append(line)
            if (found := re.search(pattern, line)) is not None:
                return found


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", "inbox", "run", "shop:app", *options],
        cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    ran = Running(process)
    try:
        yield ran
    finally:
        ran.end()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def send(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", SEND], cwd=folder, check=True, timeout=scaled(60))


def test_a_running_application_serves_its_figures_and_logs_json(shop: Path) -> None:
    with running(shop, "--metrics", "0", "--log-format", "json") as ran:
        url = ran.until(r"http://127\.0\.0\.1:\d+/metrics").group()
        send(shop)
        handled = 'semel_inbox_handled_total{app="shop",endpoint="orders"} 2.0'
        wait_until(lambda: handled in httpx.get(url).text, "two are handled")
        ran.until("order-bad")
        text = httpx.get(url).text
    assert 'semel_inbox_dead_lettered_total{app="shop",endpoint="orders"} 1.0' in text
    assert 'semel_inbox_rows{app="shop",queue="inbox/orders",state="dead"} 1.0' in text
    assert "process_resident_memory_bytes" in text
    lines = [msgspec.json.decode(line) for line in ran.lines]
    [failed] = [line for line in lines if line.get("message_id") == "order-bad"]
    assert failed["endpoint"] == "orders"
    assert failed["error"] == "ValueError"
    assert failed["cause"] == "no such customer"
    assert "4111" not in str(lines)


def test_each_process_of_a_group_has_figures_of_its_own(shop: Path) -> None:
    with running(shop, "--metrics", "0", "--processes", "2") as ran:
        urls = {ran.until(r"http://127\.0\.0\.1:\d+/metrics").group() for _ in range(2)}
        texts = [httpx.get(url).text for url in urls]
    assert len(urls) == 2
    assert all("semel_inbox_stored_total" in text for text in texts)


def test_nothing_is_served_unless_it_is_asked_for(shop: Path) -> None:
    send(shop)
    with running(shop) as ran:
        ran.until("order-bad")
    assert not [line for line in ran.lines if "http://" in line]
