"""A real server whose store disappears, fills up, is locked, fails, freezes or goes away, and what it says of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import psycopg
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from semel.auth.keys import AccessKeys
from semel.auth.tokens import service_token
from semel.errors import EXIT_IN_DOUBT
from semel.pubsub.protocol.client_tokens import client_token
from semel.runtime.host import store_watch
from semel.runtime.server.part import ServerSettings
from semel.runtime.server.pubsub import PubSub
from semel.runtime.server.server import serving as serve
from semel.stores.sqlite import SqliteStore
from semel.testing.limits import scaled
from semel.testing.postgres import PrivatePostgres

KEY = "k" * 44
KEYS = AccessKeys(KEY)
HANG_S = 120
"""Only for what hangs: how fast the machine is does not matter here."""
VERSION = "2024-12-01"
SLOW_S = scaled(store_watch.SLOW_S)
"""A commit that takes as long is an outage, with lines of its own in the log. On a slow machine it must not be one."""
SERVE = """
import sys
from semel.runtime.host import store_watch
store_watch.SLOW_S = float(sys.argv.pop(1))
from semel.cli.main import main
main()
"""


class Server:
    """`semel serve` in a process of its own. Its log is a file."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self._log = folder / "log"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
        # with a limit on the size of files Python would not notice that it kept only half of what it compiled
        environ |= {"SEMEL_ACCESS_KEY": KEY, "PYTHONDONTWRITEBYTECODE": "1"}
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(SLOW_S), "serve", "--json", "--port", "0", "--store", store],
                stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environ,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.told = json.loads(self.process.stdout.readline())
        self.endpoint = self.told["result"]["endpoint"] if self.told["ok"] else ""
        self.http = httpx.Client(base_url=self.endpoint, timeout=scaled(HANG_S))

    def end(self) -> None:
        self.http.close()
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, float]:
        """The exit code, and how long it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(scaled(HANG_S)), time.monotonic() - began

    @property
    def log(self) -> str:
        return self._log.read_text()

    def lines(self, part: str) -> list[str]:
        return [line for line in self.log.splitlines() if part in line]

    def ask(self, path: str, method: str = "GET", hub: str = "chat", text: str = "") -> httpx.Response:
        token = service_token(KEYS, f"{self.endpoint}{path}", now=time.time())
        headers = {"authorization": f"Bearer {token}", "content-type": "text/plain"}
        return self.http.request(method, path, params={"api-version": VERSION}, headers=headers, content=text)

    def publish(self, text: str = "hello", hub: str = "chat") -> int:
        return self.ask(f"/api/hubs/{hub}/:send", "POST", text=text).status_code

    def look(self, path: str) -> tuple[int, str]:
        found = self.http.get(path)
        return found.status_code, found.text

    def until(self, path: str, status: int) -> str:
        """What it says when it comes to answer so."""
        for _ in _patiently():
            found = self.look(path)
            if found[0] == status:
                return found[1]
        raise AssertionError

    def knock(self, hub: str) -> InvalidStatus:
        """A WebSocket that is not let in."""
        address = f"{self.endpoint}/client/hubs/{hub}"
        token = client_token(KEYS, address, now=time.time())
        url = f"{address.replace('http', 'ws', 1)}?access_token={token}"
        with pytest.raises(InvalidStatus) as caught, connect(url, open_timeout=scaled(HANG_S), proxy=None):
            pass
        return caught.value


def _patiently() -> Iterator[None]:
    until = time.monotonic() + scaled(HANG_S)
    while time.monotonic() < until:
        yield
        time.sleep(0.02)
    pytest.fail(f"nothing came of it in {scaled(HANG_S):.0f} s")


@contextmanager
def serving(folder: Path, store: str = "") -> Iterator[Server]:
    server = Server(folder, store or f"sqlite:///{folder}/semel.db")
    try:
        yield server
    finally:
        server.end()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as server:
        assert server.publish() == 202
        assert server.look("/readyz") == (200, "ready\n")
        yield server


# -- SQLite


def test_a_deleted_file_is_told_of_and_nothing_is_acknowledged_into_it(server: Server, tmp_path: Path) -> None:
    (tmp_path / "semel.db").unlink()
    assert [server.publish() for _ in range(5)] == [503] * 5
    # a restart would not help: the next process finds no store, and this one may have the only copy open
    for path, expected in (("/readyz", 503), ("/healthz", 200)):
        status, words = server.look(path)
        assert status == expected
        assert "removed or replaced" in words
        assert "restart" in words
        assert str(tmp_path) not in words
    assert server.knock("chat").response.status_code == 503
    assert server.knock("another").response.status_code == 503
    code, took_s = server.stop()
    assert (code, took_s < scaled(10.0)) == (3, True)
    assert len(server.lines("WARNING the store is in trouble")) == 1
    assert "Traceback" not in server.log

    with serving(tmp_path) as again:
        assert again.told["error"]["code"] == "store-gone"
        assert "semel.db-semel" in again.told["error"]["fix"]
        assert again.process.wait(scaled(HANG_S)) == 3
    assert not (tmp_path / "semel.db").exists()


def test_a_deleted_log_is_noticed_though_nobody_writes_and_a_restart_goes_on(server: Server, tmp_path: Path) -> None:
    (tmp_path / "semel.db-wal").unlink()
    for _ in _patiently():
        if server.lines("the store is in trouble"):
            break
    status, words = server.look("/healthz")
    assert (status, words.startswith("alive, but the store's files were removed or replaced")) == (200, True)
    assert server.publish() == 503
    assert server.stop()[0] == 3
    assert [line for line in server.log.splitlines() if "WARNING the store is in trouble" not in line] == []
    with serving(tmp_path) as again:
        assert again.publish() == 202


def test_an_io_error_is_told_of_until_a_restart(server: Server, tmp_path: Path) -> None:
    """A limit on the size of files makes the write itself fail, as a broken disk does."""
    size = (tmp_path / "semel.db-wal").stat().st_size
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, size))
    while server.publish("x" * 100_000) == 202:
        pass
    for path in ("/readyz", "/healthz"):
        status, words = server.look(path)
        assert status == 503
        assert "I/O error" in words
    assert server.publish() == 503
    assert server.stop()[0] == 3
    assert len(server.lines("the store is in trouble: an I/O error struck")) == 1
    assert len(server.lines("in doubt for good: 1 commit: hub/chat")) == 1
    assert len(server.log.splitlines()) == 2
    with serving(tmp_path) as again:
        assert again.publish() == 202


def test_a_lock_that_is_held_for_seconds_is_told_of_until_it_is_let_go(server: Server, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "semel.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        publishing = threading.Thread(target=server.publish)
        publishing.start()
        words = server.until("/readyz", 503)
        assert "another program holds the lock" in words
        assert server.look("/healthz") == (200, f"alive, but {words}")
        other.execute("ROLLBACK")
    publishing.join(scaled(HANG_S))
    assert server.until("/readyz", 200) == "ready\n"
    assert server.publish() == 202
    assert len(server.lines("the store is in trouble: ")) == 1
    assert "is locked by another process" in server.lines("the store is in trouble: ")[0]
    assert len(server.lines("the store is well again, after ")) == 1
    assert server.stop()[0] == 0


async def test_a_full_disk_is_told_of_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit on pages gives the same error as a disk without space, and can be raised."""
    monkeypatch.setattr(store_watch, "SLOW_S", SLOW_S)
    store = SqliteStore(f"sqlite:///{tmp_path}/semel.db")
    with closing(store):
        settings = ServerSettings(KEYS, port=0)
        async with serve(store, settings, [PubSub]) as at, httpx.AsyncClient(base_url=at.endpoint) as http:

            async def publish(size: int) -> int:
                path = "/api/hubs/chat/:send"
                token = service_token(KEYS, f"{at.endpoint}{path}", now=time.time())
                headers = {"authorization": f"Bearer {token}", "content-type": "text/plain"}
                query = {"api-version": VERSION}
                return (await http.post(path, params=query, headers=headers, content="x" * size)).status_code

            assert await publish(10) == 202
            [(pages,)] = store._writer.execute("PRAGMA page_count").fetchall()
            store._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
            assert await publish(100_000) == 503
            ready = await http.get("/readyz")
            assert (ready.status_code, "no space left" in ready.text) == (503, True)
            health = await http.get("/healthz")
            assert (health.status_code, health.text) == (200, f"alive, but {ready.text}")
            store._writer.execute(f"PRAGMA max_page_count = {pages + 1000}")
            async with asyncio.timeout(scaled(HANG_S)):
                while True:
                    if (await http.get("/readyz")).status_code == 200:
                        break
            assert await publish(100_000) == 202
    begun, over = caplog.messages
    assert begun.startswith("the store is in trouble: no space left for ")
    assert over.startswith("the store is well again, after ")


# -- PostgreSQL


@pytest.fixture
def database() -> Iterator[PrivatePostgres]:
    """A server that may be stopped and frozen."""
    with PrivatePostgres() as postgres:
        yield postgres


@contextmanager
def stopped(database: PrivatePostgres) -> Iterator[None]:
    database.stop()
    try:
        yield
    finally:
        database.start()


def test_a_database_that_is_down_is_503_for_everybody_and_two_lines(tmp_path: Path, database: PrivatePostgres) -> None:
    with serving(tmp_path, database.url) as server:
        assert server.publish(hub="open") == 202
        with stopped(database):
            for hub in ("open", "unopened"):
                for _ in range(3):
                    found = server.ask(f"/api/hubs/{hub}/:send", "POST", text="hello")
                    assert found.status_code == 503
                    assert found.headers["retry-after"]
            for _ in range(3):
                refused = server.knock("unopened").response
                assert refused.status_code == 503
                assert refused.headers["retry-after"]
            for path in ("unopened/connections", "unopened/groups", "unopened/messages", "open/messages"):
                found = server.ask(f"/v1/pubsub/hubs/{path}")
                assert found.status_code == 503
                assert found.headers["retry-after"]
            assert server.ask("/v1/pubsub/hubs").status_code == 200
            status, words = server.look("/healthz")
            assert (status, words.startswith("alive, but the store does not answer")) == (200, True)
            assert server.look("/readyz")[0] == 503
            assert len(server.lines("the store is in trouble: ")) == 1
        server.until("/readyz", 200)
        assert server.publish(hub="open") == 202
        assert server.publish(hub="unopened") == 202
        assert len(server.lines("the store is in trouble: ")) == 1
        assert len(server.lines("the store is well again, after ")) == 1
        assert "Traceback" not in server.log
        assert [line for line in server.log.splitlines() if "the store is" not in line] == []
        assert server.stop()[0] == 0


def test_a_database_in_recovery_is_told_of_until_it_is_promoted(tmp_path: Path, database: PrivatePostgres) -> None:
    signal_file = database.folder / "data" / "standby.signal"
    with serving(tmp_path, database.url) as server:
        assert server.publish() == 202
        database.stop()
        signal_file.touch()
        database.start()
        for _ in _patiently():
            status, words = server.look("/readyz")
            if status == 503 and "in recovery" in words:
                # while it starts it may not answer for a moment, and that is said too
                status, words = server.look("/healthz")
                assert (status, words.startswith("alive, but ")) == (200, True)
                if "in recovery" in words:
                    break
        with psycopg.connect(database.url, autocommit=True) as admin:
            admin.execute("SELECT pg_promote()")
        server.until("/readyz", 200)
        assert server.publish() == 202


def _processes(database: PrivatePostgres) -> list[int]:
    first = int((database.folder / "data" / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return [first, *map(int, children)]


@contextmanager
def frozen(database: PrivatePostgres) -> Iterator[None]:
    """Every process of it: nobody refuses anything, and nobody answers."""
    pids = _processes(database)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _publish_in_vain(server: Server) -> None:
    with suppress(httpx.HTTPError):
        server.publish()


def test_a_server_whose_database_is_frozen_ends_in_time_and_says_what_is_in_doubt(
    tmp_path: Path, database: PrivatePostgres
) -> None:
    with serving(tmp_path, database.url) as server:
        assert server.publish() == 202
        with frozen(database):
            asking = threading.Thread(target=_publish_in_vain, args=(server,))
            asking.start()
            assert "does not answer" in server.until("/readyz", 503)
            status, words = server.look("/healthz")
            assert (status, words.startswith("alive, but the store ")) == (200, True)
            for _ in _patiently():
                # a read may find it out before the commit does
                if server.lines("the store is in trouble: "):
                    break
            code, took_s = server.stop()
            asking.join(scaled(HANG_S))
        assert code == EXIT_IN_DOUBT
        assert took_s < scaled(10.0)
        [line] = server.lines("in doubt: ")[:1]
        assert re.search(r"in doubt: \d+ commits?: hub/chat \S+", line)
