"""A run of pytest with our plugin goes the same way however it is started, and ends what its tests leave behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tools.leftovers import RUN, SHARED, TEST
from tests.tools.paths import child_environment

from semel.testing import limits

SLEEP = "import time, sys; print('here', flush=True); time.sleep(600)"

HEADER = f"""
import os, signal, subprocess, sys, time
from contextlib import contextmanager
import pytest
from tests.tools.renewing import sharing

pytest_plugins = ["tests.tools.anywhere"]

def begin(*, session=True):
    process = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], stdout=subprocess.PIPE, start_new_session=session)
    process.stdout.readline()
    with open("started", "a") as file:
        file.write(f"{{process.pid}}\\n")
    return process

def is_running(pid):
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
"""


def run(folder: Path, tests: str, *options: str, factor: int = 1, **how: object) -> subprocess.Popen[str]:
    (folder / "conftest.py").write_text(HEADER)
    (folder / "test_it.py").write_text("from conftest import *\n" + tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in child_environment().items() if name not in (RUN, SHARED, TEST)}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", *options],
        cwd=folder, env=environment | {limits.VARIABLE: str(factor)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, **how,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def outcome(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=limits.scaled(120))
    return said


def started(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "started").read_text().splitlines()]


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def ignore_signals() -> None:
    """As a shell without job control does for what it starts in the background, and nohup."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def test_what_is_compiled_is_kept_for_the_many_processes_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    tests = """
def test_a_child():
    with open("imported.py", "w") as file:
        file.write("answer = 42")
    subprocess.run([sys.executable, "-c", "import imported"], check=True)
"""
    assert "1 passed" in outcome(run(tmp_path, tests, "-n", "1"))
    kept = {path.name.partition(".")[0] for path in (tmp_path / "__pycache__").iterdir()}
    assert {"imported", "test_it"} <= kept


def test_in_the_background_children_hear_ctrl_c_and_the_run_outlives_its_terminal(tmp_path: Path) -> None:
    tests = """
def test_ctrl_c():
    child = begin()
    child.send_signal(signal.SIGINT)
    assert child.wait(60 * {factor}) == -signal.SIGINT

def test_dispositions():
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.check_output([sys.executable, "-c", program]) == b"True\\n"
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
"""
    tests = tests.replace("{factor}", str(limits.factor()))
    said = outcome(run(tmp_path, tests, preexec_fn=ignore_signals))
    assert "2 passed" in said, said


def test_what_a_test_starts_ends_with_it_and_what_tests_share_with_the_run(tmp_path: Path) -> None:
    tests = """
@pytest.fixture(scope="module")
def shared():
    return begin()

@pytest.fixture
def own():
    return begin()

def test_starts(shared, own):
    assert own.poll() is None

def test_starts_more(shared):
    begin()
    raise KeyError("a failure")

def test_looks(shared):
    pids = [int(line) for line in open("started")]
    assert shared.pid == pids[0] and shared.poll() is None
    assert not [pid for pid in pids[1:] if is_running(pid)]
"""
    said = outcome(run(tmp_path, tests))
    assert "1 failed, 2 passed" in said, said
    assert len(started(tmp_path)) == 3
    assert all(map(is_gone, started(tmp_path)))


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "a worker"])
def test_what_a_killed_run_has_started_ends_too(workers: tuple[str, ...], tmp_path: Path) -> None:
    process = run(tmp_path, "def test_it():\n    begin()\n    begin().wait()\n", *workers)
    with process:
        limits.wait_until(lambda: (tmp_path / "started").exists() and len(started(tmp_path)) == 2, "the children")
        process.kill()
    for pid in started(tmp_path):
        limits.wait_until(lambda pid=pid: is_gone(pid), "its end")  # type: ignore[misc]


def test_what_a_test_breaks_at_its_limit_is_new_for_the_next(tmp_path: Path) -> None:
    """It waits for something shared, and in its cleaning up it would wait for it once more. What is shared is started
    within its limit too."""
    tests = """
class Server:
    def __init__(self): self.process = begin()
    def ask(self): self.process.stdout.read()
    def is_well(self): return self.process.poll() is None
    def cut_off(self): self.process.kill()
    def renew(self): self.process.wait(); self.process = begin()

@pytest.fixture(scope="module")
def server():
    with sharing(Server()) as made:
        yield made

@pytest.mark.timeout({limit})
def test_hangs(server):
    try:
        server.ask()
    finally:
        server.ask()

def test_goes_on(server):
    assert server.is_well()
    server.process.kill()
    server.process.wait()
    assert False, "the server is broken"

def test_goes_on_again(server):
    assert server.is_well()
""".replace("{limit}", str(limits.scaled(5)))
    said = outcome(run(tmp_path, tests))
    assert "2 failed, 1 passed" in said, said
    assert "Timeout" in said
    assert len(started(tmp_path)) == 3


def test_a_slow_machine_is_given_longer(tmp_path: Path) -> None:
    said = outcome(run(tmp_path, "@pytest.mark.timeout(0.1)\ndef test_it():\n    time.sleep(0.5)\n", factor=100))
    assert "1 passed" in said, said


def test_the_tracker_of_multiprocessing_outlives_the_test_that_needs_it_first(tmp_path: Path) -> None:
    """Python starts it once for all tests, and warns when it is gone."""
    tests = """
@pytest.mark.filterwarnings("error:resource_tracker")
@pytest.mark.parametrize("turn", [1, 2])
def test_it(turn):
    import multiprocessing

    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    begin()
"""
    said = outcome(run(tmp_path, tests))
    assert "2 passed" in said, said
