"""The purity rule, as ruff enforces it: pure folders do without the world, the others may use it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUFF = Path(sys.executable).with_name("ruff")
PURE = ["kernel", "calculus", "pubsub", "ebxml", "inbox", "pipes", "geo"]
IMPURE = ["stores", "runtime", "sim", "testing", "cli", "spark", "dashboard"]
BANNED: dict[str, dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"][
    "flake8-tidy-imports"
]["banned-api"]

MODULES = [
    "asyncio",
    "concurrent.futures",
    "multiprocessing",
    "psycopg",
    "pyarrow",
    "random",
    "secrets",
    "select",
    "selectors",
    "semel.cli",
    "semel.dashboard",
    "semel.runtime",
    "semel.sim",
    "semel.spark",
    "semel.stores",
    "semel.testing",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "threading",
    "time",
]
CALLS = {
    "datetime.date.today": "from datetime import date\n\nprint(date.today())\n",
    "datetime.datetime.now": "import datetime as dt\n\nprint(dt.datetime.now(dt.UTC))\n",
    "datetime.datetime.today": "from datetime import datetime\n\nprint(datetime.today())\n",
    "datetime.datetime.utcnow": "from datetime import datetime as clock\n\nprint(clock.utcnow())\n",
    "os.urandom": "from os import urandom\n\nprint(urandom(8))\n",
    "uuid.uuid1": "import uuid\n\nprint(uuid.uuid1())\n",
    "uuid.uuid4": "from uuid import uuid4\n\nprint(uuid4())\n",
    "uuid.uuid7": "import uuid\n\nprint(uuid.uuid7())\n",
}


def complaints(code: str, filename: str, rule: str = "TID251") -> list[str]:
    """What ``rule``, by default the purity rule, says about ``code`` if it stood in ``filename``."""
    done = subprocess.run(
        [RUFF, "check", "--output-format=json", "--no-cache", f"--stdin-filename={filename}", "-"],
        input=code,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return [finding["message"] for finding in json.loads(done.stdout) if finding["code"] == rule]


def import_of(module: str) -> str:
    return f"import {module} as borrowed\n\nprint(borrowed)\n"


def sample(banned: str) -> str:
    return CALLS[banned] if banned in CALLS else import_of(banned)


def test_every_ban_is_tried_here() -> None:
    assert sorted(BANNED) == sorted([*MODULES, *CALLS])


@pytest.mark.parametrize("banned", sorted([*MODULES, *CALLS]))
def test_the_ban_teaches_in_a_pure_folder_and_is_lifted_in_stores(banned: str) -> None:
    said = complaints(sample(banned), "src/semel/kernel/sample.py")
    assert any(BANNED[banned]["msg"] in message for message in said)
    assert complaints(sample(banned), "src/semel/stores/sample.py") == []


@pytest.mark.parametrize("folder", PURE)
def test_the_ban_holds_in_every_pure_folder(folder: str) -> None:
    assert complaints(import_of("time"), f"src/semel/{folder}/sample.py")
    assert complaints(import_of("time"), f"src/semel/{folder}/deeper/still/sample.py")


@pytest.mark.parametrize("folder", [*(f"src/semel/{name}" for name in IMPURE), "tests/unit", "bench", "scripts"])
def test_the_ban_is_lifted_where_the_world_begins(folder: str) -> None:
    assert complaints(import_of("time"), f"{folder}/sample.py") == []
    assert complaints(import_of("time"), f"{folder}/deeper/sample.py") == []


@pytest.mark.parametrize("place", ["src/semel/sample.py", "src/semel/brand_new/sample.py"])
def test_a_new_place_starts_out_pure(place: str) -> None:
    assert complaints(import_of("time"), place)


@pytest.mark.parametrize(
    "code",
    [
        "from time import monotonic\n\nprint(monotonic())\n",
        "import time\n\nprint(time.monotonic())\n",
        "from concurrent import futures\n\nprint(futures)\n",
        "from semel import stores\n\nprint(stores)\n",
        "from semel.stores.sqlite import SqliteStore\n\nprint(SqliteStore)\n",
        "def late() -> float:\n    import time\n\n    return time.time()\n",
    ],
)
def test_other_spellings_are_seen_too(code: str) -> None:
    assert complaints(code, "src/semel/kernel/sample.py")


def test_a_relative_import_is_no_way_around() -> None:
    code = "from ..stores import sqlite\n\nprint(sqlite)\n"
    assert complaints(code, "src/semel/kernel/sample.py", rule="TID252")


@pytest.mark.parametrize(
    "code",
    [
        "from datetime import datetime\n\nprint(datetime.fromtimestamp(0))\n",
        "import uuid\n\nprint(uuid.uuid5(uuid.NAMESPACE_URL, 'semel'))\n",
        "from semel.kernel import anything\n\nprint(anything)\n",
    ],
)
def test_what_depends_only_on_its_arguments_is_fine(code: str) -> None:
    assert complaints(code, "src/semel/kernel/sample.py") == []


def test_no_pure_file_switches_the_rule_off() -> None:
    # A bare noqa comment switches off every rule, this one included.
    escape = re.compile(r"#\s*(ruff:\s*)?noqa(?!\s*:)|#\s*(ruff:\s*)?noqa\s*:.*TID251")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in PURE
        for path in sorted((ROOT / "src" / "semel" / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if escape.search(line)
    ]
    assert found == []
