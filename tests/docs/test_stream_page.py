"""What the how-to about streams shows is run as it stands."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from semel.config import load_config
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Unit
from semel.stores.open import open_store
from semel.testing.limits import scaled

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "handle-a-stream.md").read_text()
[SHOP] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[TOML] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
DRAIN = "import shop; print(shop.app.drain(60)); shop.app.close()"


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=scaled(60), check=False,
        env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    with closing(open_store(f"sqlite:///{tmp_path}/semel.db")) as hub:
        for id, target in (("a", "g/orders"), ("b", "g/other"), ("c", "g/orders")):
            envelope = Envelope(id, f"connection-{id}", data=f'{{"id": "{id}"}}'.encode())
            hub.commit([Unit((Append("hub/chat", envelope, target=target),))])
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE placed (id text)")
    return tmp_path


def test_the_shop_takes_the_messages_of_the_group_once(folder: Path) -> None:
    assert run(folder, "-c", DRAIN) == "2\n"
    assert run(folder, "-c", DRAIN) == "0\n"
    with closing(sqlite3.connect(folder / "shop.db")) as db:
        assert db.execute("SELECT id FROM placed ORDER BY id").fetchall() == [("a",), ("c",)]


def test_the_commands_do_what_the_page_says(folder: Path) -> None:
    run(folder, "-c", DRAIN)
    show, again, end = [line.split()[1:] for line in COMMANDS if line.startswith("semel inbox follow")]
    assert "hub/chat" in run(folder, "-m", "semel", *show)
    assert "goes on after hub/chat@1:0" in run(folder, "-m", "semel", *again)
    assert run(folder, "-c", DRAIN) == "0\n", "they are duplicates"
    run(folder, "-m", "semel", *end)
    with closing(open_store(f"sqlite:///{folder}/semel.db")) as hub:
        assert not any(cursor.pins for cursor in hub.status().cursors)


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text(TOML)
    [endpoint] = load_config(folder=tmp_path).inbox.endpoint
    assert endpoint.options["follow"] == (
        {"stream": "hub/chat", "store": "sqlite:///semel.db", "group": "orders", "start": "earliest", "name": ""},
    )
    assert endpoint.options["log"] is True


def test_the_file_completes_an_application_and_wins_over_it(folder: Path) -> None:
    (folder / "semel.toml").write_text(TOML.replace('group = "orders"', 'group = "other"'))
    assert run(folder, "-c", DRAIN) == "1\n"
