"""Microsoft's own tests of their Python SDKs, run against a server of ours.

They are in the source packages of the versions that we have locked, and nowhere here: they are fetched once, as the
lock says, and unpacked into a temporary folder. A pytest in a process of its own runs them, with `suite_stubs` in place
of what they need of Microsoft's repository.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from tests.interop.fetched import fetched
from tests.interop.served import KEY, Served
from tests.tools.paths import ROOT

from semel.testing.limits import VARIABLE, factor, scaled

LOCK = ROOT / "requirements" / "test.txt"
STUBS = Path(__file__).parent / "suite_stubs"
PLUGINS = ("asyncio", "timeout", "xdist", "any_machine")
TEST_S = 60.0
INI = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers =
    live_test_only: needs a server
"""


@dataclass(frozen=True)
class Suite:
    package: str
    not_here: Mapping[str, str]
    """The tests that are left out, as file::name, and why."""
    passing: int
    """How many there are at least, beside them."""
    processes: int
    """How many share the work. It pays where the tests sleep, if they are not in each other's way."""


@dataclass(frozen=True)
class Outcome:
    passed: int
    others: list[str]
    """Those that failed or were skipped."""
    output: str


def unpacked(package: str, folder: Path) -> Path:
    """The folder with the tests of this package."""
    locked = locked_lines(package, LOCK.read_text())
    [archive] = fetched(f"interop-{package}", locked.encode(), lambda into: fetch(package, locked, into)).glob("*.gz")
    with tarfile.open(archive) as found:
        members = [each for each in found.getmembers() if each.name.split("/")[1:2] == ["tests"]]
        # before 3.11.4 there is no filter; what comes here is what the lock has the hash of
        found.extractall(folder, members, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [tests] = folder.glob("*/tests")
    return tests


def locked_lines(package: str, lock: str) -> str:
    """Version and hashes of one package, as pip reads them."""
    found = re.search(rf"^{re.escape(package)}==(.*\\\n)*.*\n", lock, re.MULTILINE)
    assert found is not None, f"{package} is not in {LOCK.name}"
    return found[0]


def fetch(package: str, locked: str, folder: Path) -> None:
    """By pip, which knows the index that is used here, and compares the hash."""
    (folder / "locked.txt").write_text(locked)
    # scripts/setup makes environments without pip where Python has none to give
    python = sys.executable if find_spec("pip") else getattr(sys, "_base_executable", sys.executable)
    command = [
        python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-binary", package, "--require-hashes", "--dest", ".", "--requirement", "locked.txt",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"Microsoft's tests are in the source package of {package}, and pip could not fetch it. This needs a network,"
        f" once.\n{done.stderr}"
    )


def run(suite: Suite, served: Served, folder: Path) -> Outcome:
    tests = unpacked(suite.package, folder)
    for name in suite.not_here:
        file, _, test = name.partition("::")
        assert f"def {test.rpartition('::')[2]}(" in (tests / file).read_text(), f"{name} is not there any more"
    ini, report = folder / "pytest.ini", folder / "report.xml"
    ini.write_text(INI)
    command = [
        sys.executable, "-m", "pytest", "-c", ini, "--rootdir", tests, f"--junitxml={report}", "-p", "no:cacheprovider",
        *(part for name in PLUGINS for part in ("-p", name)), "-ra", "--durations=10",
        f"--timeout={scaled(TEST_S)}", f"--numprocesses={suite.processes}", "--maxschedchunk=1",
        *(f"--deselect={name}" for name in suite.not_here), ".",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=tests, env=_environment(served), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert report.exists(), done.stdout
    return _outcome(report, done.stdout)


def _environment(served: Served) -> dict[str, str]:
    """Nothing of the pytest that runs this, except by which words its processes are found again."""
    connection = f"Endpoint={served.endpoint};AccessKey={KEY};Version=1.0;"
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_XDIST", "PYTEST_ADDOPTS"))
    }
    return ours | {
        "PYTHONPATH": str(STUBS),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        VARIABLE: str(factor()),
        "WEBPUBSUB_ENDPOINT": served.endpoint,
        "WEBPUBSUB_REVERSE_PROXY_ENDPOINT": served.endpoint,
        "WEBPUBSUB_ACCESS_KEY": KEY,
        "WEBPUBSUB_CONNECTION_STRING": connection,
        "WEBPUBSUBCLIENT_CONNECTION_STRING": connection,
    }


def _outcome(report: Path, output: str) -> Outcome:
    cases = list(ElementTree.parse(report).iter("testcase"))
    others = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if any(each.tag in ("failure", "error", "skipped") for each in case)
    ]
    return Outcome(len(cases) - len(others), others, output)
