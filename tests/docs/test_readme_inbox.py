"""The README's first ten minutes with the inbox are run: by the commands, from a real NATS and over HTTP."""

from __future__ import annotations

import asyncio
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.tools.brokers import JetStream, NatsServer, free_port, shared_nats

from semel.kernel.ledger import START, Kind
from semel.stores import open_store
from semel.testing.limits import scaled, wait_until
from semel.testing.serve_process import ServeProcess

pytestmark = pytest.mark.connected
README = (Path(__file__).parents[2] / "README.md").read_text()
PART = README.partition("### Ten minutes with the inbox\n")[2].partition("\n## ")[0]
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", PART, re.DOTALL))
SEMEL = (sys.executable, "-m", "semel")


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with shared_nats() as server:
        yield server


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(BLOCKS["py"])
    return tmp_path


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def charges(folder: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(folder / "shop.db")) as db:
        try:
            return db.execute("SELECT order_id, cents FROM charge ORDER BY order_id").fetchall()
        except sqlite3.OperationalError:
            return []  # the handler makes its table


def charged(folder: Path, number: int) -> None:
    wait_until(lambda: len(charges(folder)) >= number, f"{number} charges")


def duplicates(folder: Path) -> int:
    with closing(open_store(f"sqlite:///{folder}/shop.db", create=False)) as store:
        return sum(entry.event.kind is Kind.DUPLICATE for entry in store.ledger(START, 100))


def commands() -> list[tuple[str, str]]:
    """Each with what it prints."""
    return re.findall(r"^\$ (.*)\n((?:[^$\n].*\n)*)", BLOCKS["console"], re.MULTILINE)


def test_an_order_that_is_put_in_twice_is_charged_once(shop: Path) -> None:
    *sends, (last, _) = commands()
    assert len(sends) == 2
    for command, printed in sends:
        assert run(shop, *SEMEL, *shlex.split(command)[1:]) == printed
    worker = subprocess.Popen([*SEMEL, *shlex.split(last)[1:]], cwd=shop, stdout=subprocess.DEVNULL)
    try:
        charged(shop, 1)
    finally:
        worker.terminate()
        worker.wait(scaled(60))
    assert charges(shop) == [("order-7", 1999)]


async def test_orders_from_a_broker_and_over_http_are_charged_once(shop: Path, nats_server: NatsServer) -> None:
    settings = BLOCKS["toml"]
    assert "nats://127.0.0.1:4222" in settings
    port = free_port()
    # the tokens of the page are for the port that the server has by itself
    own = settings.replace("nats://127.0.0.1:4222", nats_server.url) + f"\n[server]\nport = {port}\n"
    (shop / "semel.toml").write_text(own)
    async with JetStream(nats_server.port) as stream:
        await stream.add_stream(name="ORDERS", subjects=["order.placed"], duplicate_window=0.1, max_age=3600)
        for _ in range(2):
            await publish(stream)
    server = ServeProcess(f"sqlite:///{shop}/semel.db", shop / "serve.log")
    server.port = port
    # the page's server has its keys in a file
    server.settings.pop("SEMEL_ACCESS_KEY")
    await server.start()
    worker = await asyncio.create_subprocess_exec(*SEMEL, "inbox", "run", "shop:app", cwd=shop)
    try:
        for _ in range(2):
            assert await asyncio.to_thread(post, shop, server.port) == 202
        await asyncio.to_thread(charged, shop, 2)
        await asyncio.to_thread(wait_until, lambda: duplicates(shop) == 2, "the copy of each")
    finally:
        worker.terminate()
        await worker.wait()
        await server.stop()
    assert charges(shop) == [("order-8", 500), ("order-9", 300)]


async def publish(stream: Any) -> None:
    """Until the broker takes it: it drops copies itself, for a tenth of a second here."""
    body, id = b'{"id": "order-9", "cents": 300}', {"Nats-Msg-Id": "order-9"}
    while (await stream.publish("order.placed", body, headers=id)).duplicate:
        pass


def post(folder: Path, port: int) -> int:
    """What the page's shell does, with this Python's `semel` and the port of this server, and without curl."""
    make, *curl = BLOCKS["sh"].replace("\\\n", " ").splitlines()
    token = run(folder, *SEMEL, *shlex.split(make.partition("$(semel ")[2].rstrip(")"))).strip()
    program, url, *options = shlex.split(" ".join(curl))
    assert (program, url.partition("/v1")[0]) == ("curl", "http://127.0.0.1:8080")
    given = list(zip(options[::2], options[1::2], strict=True))
    headers = dict(value.split(": ", 1) for name, value in given if name == "-H")
    headers["Authorization"] = headers["Authorization"].replace("$TOKEN", token)
    [body] = [value for name, value in given if name == "-d"]
    return httpx.post(url.replace("8080", str(port)), content=body, headers=headers, timeout=scaled(30)).status_code
