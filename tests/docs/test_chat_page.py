"""The tutorial with the chat is done as a person would do it: its programs and its commands, in processes of their own.

Only the port is another, and they count to twelve instead of a hundred. That Microsoft's client survives kill -9, too,
is shown by tests/interop.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from semel.auth.keys import DEV_KEY
from semel.testing.limits import scaled

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "a-chat-that-loses-nothing.md").read_text()
PROGRAM = re.compile(r"Save\s+this\s+as\s+`(\w+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
BIN = Path(sys.executable).parent
ENOUGH = "all of them, each once, in order: True\n"
WAIT_S = 60.0


class Terminals:
    """What is started here is a command of the page, and ends with the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        text = f"Endpoint=http://127.0.0.1:{self.port};AccessKey={DEV_KEY};Version=1.0;"
        self._env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "SEMEL_CONNECTION_STRING": text}
        for name, code in PROGRAM.findall(PAGE):
            (folder / name).write_text(code)

    def begin(self, command: str) -> subprocess.Popen[str]:
        [whole] = [each for each in dict.fromkeys(COMMAND.findall(PAGE)) if each.startswith(command)]
        if whole == "semel serve --dev":
            whole += f" --port {self.port}"
        whole = whole.replace(" 100", " 12").replace("--dev --hub", "--hub").replace("chat --dev", "chat")
        begun = subprocess.Popen(
            ["bash", "-c", f"exec {whole}"], cwd=self.folder, env=self._env, text=True, stdout=subprocess.PIPE
        )
        self._stack.callback(_end, begun)
        return begun

    def serve(self) -> subprocess.Popen[str]:
        server = self.begin("semel serve")
        assert f"Semel serves http://127.0.0.1:{self.port}" in line_of(server)
        return server

    def listen(self) -> subprocess.Popen[str]:
        bob = self.begin("python listen.py")
        assert line_of(bob) == "listening\n"
        return bob

    def show(self, command: str) -> str:
        return self.begin(command).communicate(timeout=scaled(WAIT_S))[0]


def _end(begun: subprocess.Popen[str]) -> None:
    begun.kill()
    begun.communicate(timeout=scaled(WAIT_S))


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "it has ended"
    return line


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    while line_of(process) != f"{line}\n":
        pass


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    with ExitStack() as stack:
        yield Terminals(tmp_path, stack)


@pytest.mark.connected
@pytest.mark.interop
@pytest.mark.timeout(120)
def test_the_chat_loses_nothing(terminals: Terminals) -> None:
    assert "$ kill -9 %1\n" in PAGE
    server, tail = terminals.serve(), terminals.begin("semel pubsub tail")
    bob = terminals.listen()
    ann = terminals.begin("python say.py")
    wait_for(bob, "ann says 3")
    server.kill()
    server.communicate(timeout=scaled(WAIT_S))
    terminals.serve()
    assert ann.communicate(timeout=scaled(WAIT_S))[0] == "12 said\n"
    assert bob.communicate(timeout=scaled(WAIT_S))[0].endswith(f"ann says 12\n{ENOUGH}")

    bob = terminals.listen()
    carl = terminals.begin("python theirs.py")
    wait_for(bob, "carl says 3")
    late = terminals.begin("python listen.py")  # hears too little to end
    assert carl.communicate(timeout=scaled(WAIT_S))[0] == "12 said\n"
    assert bob.communicate(timeout=scaled(WAIT_S))[0].endswith(f"carl says 12\n{ENOUGH}")
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ  \d+  (ann|carl) to group friends: \d+\n", line_of(tail))

    assert line_of(late) == "listening\n"
    assert re.search(r"bob +connected +local +json\.reliable +friends", terminals.show("semel pubsub connections"))
    late.kill()
    while "waiting since" not in terminals.show("semel pubsub connections"):
        pass
