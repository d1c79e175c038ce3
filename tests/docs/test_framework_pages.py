"""The how-tos about frameworks: their programs are run with the real packages, and stand on their pages as they are."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from semel.testing.limits import scaled, wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "frameworks"
PAGES = {
    "with-fastapi.md": "fastapi_shop.py",
    "with-django.md": "django_shop.py",
    "with-flask.md": "flask_shop.py",
    "with-celery.md": "celery_shop.py",
    "with-sqlalchemy.md": "sqlalchemy_shop.py",
    "with-aws-lambda.md": "lambda_shop.py",
    "with-pytest.md": "pytest_shop.py",
}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_shows_its_program_as_it_is(page: str) -> None:
    text = (ROOT / "docs" / "how-to" / page).read_text()
    [shown] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert shown == (PROGRAMS / PAGES[page]).read_text()
    assert f"how-to/{page}" in (ROOT / "mkdocs.yml").read_text()


def test_every_program_has_a_page() -> None:
    assert {path.name for path in PROGRAMS.glob("*.py")} == set(PAGES.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in PROGRAMS.glob("*.py"):
        shutil.copy(path, tmp_path)
    return tmp_path


def run(folder: Path, *command: str) -> str:
    """In a process of its own: a framework is set up for a whole process."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(folder: Path, table: str = "charge") -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "shop.db")) as db:
        return db.execute(f"SELECT * FROM {table}").fetchall()


# -- FastAPI

FASTAPI = """
import time
from fastapi.testclient import TestClient
from fastapi_shop import web

order, key = {"id": "order-7", "cents": 1999}, {"Idempotency-Key": "request-1"}
with TestClient(web) as client:
    print([client.post("/orders", json=order, headers=key).json()["is_new"] for _ in range(3)])
    print(client.post("/orders", json=order).status_code, client.get("/orders/none").status_code)
    until = time.monotonic() + 30
    while not (charges := client.get("/orders/order-7").json()["charges"]) and time.monotonic() < until:
        time.sleep(0.05)
    print(charges)
with TestClient(web) as client:  # started again
    print(client.post("/orders", json=order, headers=key).json()["is_new"])
"""


def test_fastapi(folder: Path) -> None:
    assert run(folder, "-c", FASTAPI).splitlines() == ["[True, False, False]", "422 404", "[1999]", "False"]
    assert rows(folder) == [("order-7", 1999)]


# -- Flask and Django: the handlers run in `semel inbox run`

FLASK = """
from flask_shop import web
client, order = web.test_client(), {"id": "order-7", "cents": 1999}
for _ in range(2):
    answer = client.post("/orders", json=order, headers={"Idempotency-Key": "request-1"})
    print(answer.status_code, answer.get_json()["is_new"])
"""
DJANGO = """
import django_shop
from django.test import Client
for _ in range(2):
    answer = Client().post(
        "/orders", '{"id": "order-7", "cents": 1999}', "application/json", headers={"Idempotency-Key": "request-1"}
    )
    print(answer.status_code, answer.json()["is_new"])
"""


@pytest.mark.parametrize(("name", "program"), [("flask_shop", FLASK), ("django_shop", DJANGO)])
def test_a_request_and_a_process_that_handles(folder: Path, name: str, program: str) -> None:
    run(folder, "-m", "semel", "inbox", "init", f"{name}:shop")
    assert run(folder, "-c", program).splitlines() == ["202 True", "202 False"]
    assert rows(folder, "orders") == [("order-7", 1999)]
    with started(folder, "-m", "semel", "inbox", "run", f"{name}:shop"):
        wait_until(lambda: rows(folder), "the charge")
    assert rows(folder) == [("order-7", 1999)]


class started:
    """A process while the block lasts; it ends well when it is asked to."""

    def __init__(self, folder: Path, *command: str) -> None:
        env = {**os.environ, "C_FORCE_ROOT": "1"}
        self._log = (folder / "process.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=env, stdout=self._log, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.process

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(scaled(20))
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._log.seek(0)
        text = self._log.read()
        self._log.close()
        assert code == 0, text


# -- Celery

SEND = """
from celery_shop import charge
for _ in range(3):
    charge.delay("order-7", 1999)
charge.delay("order-8", 500)
"""


def test_celery(folder: Path) -> None:
    """A caller that sends a task three times, and a transport that delivers all of them again."""
    run(folder, "-c", SEND)
    copies = {path: path.read_bytes() for path in (folder / "queue").glob("*.msg")}
    with started(folder, "-m", "celery", "-A", "celery_shop", "worker", "--pool", "solo", "--without-mingle"):
        wait_until(lambda: len(rows(folder, "delivery")) == 4, "all deliveries")
        for path, body in copies.items():
            path.write_bytes(body)
        wait_until(lambda: len(rows(folder, "delivery")) == 8, "all of them again")
    assert sorted(rows(folder)) == [("order-7", 1999), ("order-8", 500)]


# -- SQLAlchemy, Lambda, pytest


def test_sqlalchemy(folder: Path) -> None:
    found = run(folder, "sqlalchemy_shop.py").splitlines()
    assert found == ["placed: [True, False, False]", "charged: [('order-7', 1999)]"]


LAMBDA = """
import json, lambda_shop
def record(message_id, body):
    return {"messageId": message_id, "body": body, "attributes": {}, "eventSource": "aws:sqs"}
good, other = json.dumps({"id": "order-7", "cents": 1999}), json.dumps({"id": "order-8", "cents": 500})
event = {"Records": [record("m1", good), record("m2", "not json"), record("m3", good), record("m4", other)]}
print(lambda_shop.handler(event, None))
print(lambda_shop.handler({"Records": [record("m5", good)]}, None))
"""


def test_aws_lambda(folder: Path) -> None:
    found = run(folder, "-c", LAMBDA).splitlines()
    assert found[1:] == ["{'batchItemFailures': [{'itemIdentifier': 'm2'}]}", "{'batchItemFailures': []}"]
    assert rows(folder) == [("order-7", 1999), ("order-8", 500)]


def test_pytest(folder: Path) -> None:
    found = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "pytest_shop.py")
    assert "3 passed" in found
    assert not (folder / "shop.db").exists(), "tests leave the real database alone"


# -- telemetry


def test_the_page_about_watching_prints_what_it_says(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "watch-an-inbox.md").read_text()
    [(program, printed)] = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```\n", text, re.DOTALL)
    (tmp_path / "watched.py").write_text(program)
    assert run(tmp_path, "watched.py") == printed
