"""An application that is defined and used in one process, and used again in a child that was forked from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.tools.paths import child_environment

from semel.testing.limits import scaled

pytestmark = pytest.mark.connected

# a program of its own: pytest has threads, and a fork of it would have the locks that they hold
PROGRAM = """
import os, sqlite3, sys, traceback
from dataclasses import dataclass
import psycopg
from semel import App, open_store
from semel.errors import ConfigError

url = sys.argv[1]
app = App(url, name="shop")
given = App(open_store(url), name="given")
Kind = sqlite3.Connection if url.startswith("sqlite") else psycopg.Connection

@dataclass
class Order:
    id: str

@app.endpoint("orders").on(Order)
def handle(order: Order, db: Kind) -> None:
    db.execute("INSERT INTO effect VALUES ('" + order.id + "')")

def connect():
    return sqlite3.connect(url[10:], timeout=30) if url.startswith("sqlite") else psycopg.connect(url)

def work(who):
    db = connect()
    for number in range(40):
        db.execute("INSERT INTO effect VALUES ('" + f"{who}-first-{number}" + "')")
        assert app.first(db, "calls", f"{who}-{number}")
        db.commit()
    db.close()
    for number in range(20):
        app.send(Order(f"{who}-{number}"), to="orders", id=f"{who}-order-{number}")
    app.drain(60)

def check():
    db = connect()
    ids = [id for (id,) in db.execute("SELECT id FROM effect").fetchall()]
    return len(ids), len(set(ids))

db = connect()
db.execute("CREATE TABLE effect (id text)")
db.commit()
db.close()
work("before")
assert given.store
child = os.fork()
if child == 0:
    try:
        work("child")
        try:
            given.store
        except ConfigError:
            os._exit(0)
        os._exit(2)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
work("parent")
assert os.waitpid(child, 0)[1] == 0, "the child failed"
work("after")
print(*check())
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_parent_and_child_use_an_application_that_was_used_before_the_fork(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, url], env=child_environment(), capture_output=True, text=True,
        timeout=scaled(30), check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["240", "240"], "each message of each process took effect once"
