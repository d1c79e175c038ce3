"""The how-to about receiving over HTTP is run: a real server, a worker, a sender, a hub, and a program of one's own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from semel import WebPubSubClient
from semel.auth.keys import AccessKeys
from semel.auth.tokens import service_token
from semel.config import load_config
from semel.pubsub.protocol.client_tokens import client_token
from semel.testing.limits import scaled, wait_until
from semel.testing.serve_process import KEY, ServeProcess

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "receive-over-http.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SHELL = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
SHOP, SEND, SITE = PYTHON
APP, BARE, HANDLER = TOML
SEMEL = (sys.executable, "-m", "semel")


def run(folder: Path, *command: str, **settings: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=scaled(60), check=True, env=os.environ | settings
    )
    return done.stdout


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("shop.py", SHOP), ("send.py", SEND), ("site.py", SITE)):
        (tmp_path / name).write_text(text)
    return tmp_path


@asynccontextmanager
async def serving_page(folder: Path) -> AsyncIterator[ServeProcess]:
    server = ServeProcess(f"sqlite:///{folder}/semel.db", folder / "serve.log")
    server.port = free_port()  # the page's own: the hub's handler is at the same address
    (folder / "semel.toml").write_text(f"{APP}\n{HANDLER}".replace("8080", str(server.port)))
    assert "semel inbox run shop:app" in SHELL[0]
    await server.start()
    worker = await asyncio.create_subprocess_exec(*SEMEL, "inbox", "run", "shop:app", cwd=folder)
    try:
        yield server
    finally:
        worker.terminate()
        await worker.wait()
        await server.stop()


def charges(folder: Path) -> list[tuple[str, int]]:
    db = sqlite3.connect(folder / "shop.db")
    try:
        return db.execute("SELECT number, cents FROM charge ORDER BY rowid").fetchall()
    except sqlite3.OperationalError:
        return []  # nothing was handled yet
    finally:
        db.close()


async def test_what_is_sent_is_charged_once_by_whichever_way_it_comes(folder: Path) -> None:
    async with serving_page(folder) as server:
        address = f"http://127.0.0.1:{server.port}"
        make = [*SEMEL, *SHELL[1].split()[1:], "--endpoint", address]
        token = (await asyncio.to_thread(run, folder, *make, SEMEL_ACCESS_KEY=KEY)).strip()
        for _ in range(2):
            send = (sys.executable, "send.py", f"{address}/v1/inbox/orders", token, "o-1")
            assert await asyncio.to_thread(run, folder, *send) == "202\n"
        url = f"{address}/client/hubs/shop"
        for _ in range(2):  # two sessions, as after 1008
            access = client_token(AccessKeys(KEY), url, now=time.time())
            async with WebPubSubClient(f"{url.replace('http', 'ws', 1)}?access_token={access}") as client:
                async with asyncio.timeout(scaled(60)):
                    assert await client.send_event("order", {"order": "order-7", "cents": 300}, id="order-7")
        done = [("o-1", 1250), ("order-7", 300)]
        await asyncio.to_thread(wait_until, lambda: len(charges(folder)) >= 2, "both charges")
    assert sorted(charges(folder)) == done
    told = json.loads(run(folder, *SEMEL, *SHELL[2].split()[1:], "--last", "100", "--json"))
    steps = [(each["store"], each["hop"], each["kind"]) for each in told["result"]["entries"]]
    assert steps[0] == ("sqlite:///semel.db", "client>hub/shop/events", "accepted")
    assert steps.count(("sqlite:///shop.db", "inbox/orders>handler", "handled")) == 1
    assert steps.count(("sqlite:///shop.db", "inbox/orders>handler", "duplicate")) == 1


def module(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`site` is a module of Python's own, so it is loaded by its path."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    spec = importlib.util.spec_from_file_location(f"page_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_program_of_one_s_own_has_the_endpoints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = module(folder, "site", monkeypatch)
    url = "http://site.example/inbox/orders"

    async def send() -> int:
        token = service_token(AccessKeys(site.KEY), url, now=time.time())
        event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "order.placed", "data": {"order": "o-1"}}
        headers = {"authorization": f"Bearer {token}", "content-type": "application/cloudevents+json"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(site.site)) as http:
            return (await http.post(url, json=event, headers=headers)).status_code

    assert asyncio.run(send()) == 202
    stored = site.app.store.work("inbox/orders", "/s o-1")
    assert stored is not None, "source, and the field that the endpoint names"
    site.app.close()
    monkeypatch.delitem(sys.modules, "shop")


@pytest.mark.parametrize("text", TOML)
def test_what_stands_in_the_configuration_is_understood(tmp_path: Path, text: str) -> None:
    assert tomllib.loads(text)
    (tmp_path / "semel.toml").write_text(text)
    load_config(tmp_path / "semel.toml")
