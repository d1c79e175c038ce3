"""ARCHITECTURE.md names files and functions: they exist, and every folder of the package is in it."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import CodeType, FrameType

import pytest
import websockets.asyncio.client as websocket
from websockets.typing import Subprotocol

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.pubsub.protocol.client_tokens import client_token
from semel.runtime.server.part import ServerSettings
from semel.runtime.server.pubsub import PubSub, PubSubSettings
from semel.runtime.server.server import serving
from semel.stores.open import open_store
from semel.testing.limits import scaled

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "semel"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()

FUNCTIONS = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)))
FILES = sorted(set(re.findall(r"`([\w/]+\.py)[:`]", PAGE)))


def defined(file: Path) -> set[str]:
    """Functions and classes of a module, and the methods of its classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, kinds):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, kinds)}
    return names


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_named_is_there(file: str) -> None:
    assert (SOURCE / file).is_file() or (ROOT / file).is_file()


@pytest.mark.parametrize(("file", "name"), FUNCTIONS)
def test_a_function_that_is_named_is_there(file: str, name: str) -> None:
    assert name in defined(SOURCE / file)


def test_the_paths_and_the_ten_questions_name_functions() -> None:
    for title in ("The path of a publish", "The path of a pipe message", "The path of a Spark batch"):
        rows = [line for line in section(title) if line.startswith("|") and not line.startswith(("|---", "| step"))]
        assert len(rows) >= 8, title
        assert [row for row in rows if not re.search(r"\.py:\w", row)] == []
    questions = [line for line in section("Ten questions of a newcomer") if line.startswith("|") and "?" in line]
    assert len(questions) == 10
    assert [line for line in questions if ".py" not in line] == []


# -- the path of a publish is that of a publish

ASKED_ON_THE_WAY = {
    "pubsub/protocol/names.py", "pubsub/hub/node_lease.py", "kernel/envelope.py", "kernel/numbers.py",
    "kernel/ledger.py", "kernel/text.py", "pubsub/hub/session_rows.py",
    "pubsub/hub/roster.py", "pubsub/hub/backlog.py", "pubsub/hub/ack_flush.py", "pubsub/hub/catchup.py",
    "pubsub/hub/orders.py", "runtime/host/hosting.py", "runtime/host/outages.py", "runtime/server/listener.py",
    "websocket.py", "pubsub/protocol/permissions.py",
}  # fmt: skip
"""Values, counts, and parts that are asked whether there is anything to do: the message does not pass through them."""

TIMED = {"next_deadline", "on_timer", "run", "_sweep"}


class Follower:
    """Notes the files whose functions are called while `is_on`, on this thread and on those that begin meanwhile. What
    is called because of the time is not noted."""

    def __init__(self) -> None:
        self.is_on, self.files = False, set[str]()

    def __enter__(self) -> Follower:
        threading.setprofile(self._on_call)
        sys.setprofile(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def _on_call(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_on and event == "call":
            codes = [code for code in _stack(frame) if code.co_filename.startswith(str(SOURCE))]
            if frame.f_code in codes and not TIMED & {code.co_name for code in codes}:
                self.files.add(str(Path(frame.f_code.co_filename).relative_to(SOURCE)))


def _stack(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


async def files_of_a_publish(folder: Path) -> set[str]:
    keys, roles = AccessKeys(DEV_KEY), ["webpubsub.joinLeaveGroup.g", "webpubsub.sendToGroup.g"]
    parts, limit_s = [partial(PubSub, settings=PubSubSettings())], scaled(10.0)
    with Follower() as follower, closing(open_store(f"sqlite:///{folder}/semel.db")) as store:
        async with serving(store, ServerSettings(keys, port=0), parts) as server:
            address = f"{server.endpoint}/client/hubs/chat"
            token = client_token(keys, address, now=time.time(), roles=roles)
            url = f"{address.replace('http', 'ws', 1)}?access_token={token}"
            protocol = Subprotocol("json.reliable.webpubsub.azure.v1")
            async with websocket.connect(url, subprotocols=[protocol], proxy=None) as socket:

                async def ask(answers: int, **request: object) -> None:
                    await socket.send(json.dumps(request))
                    for _ in range(answers):
                        await asyncio.wait_for(socket.recv(), limit_s)

                await asyncio.wait_for(socket.recv(), limit_s)
                await ask(1, type="joinGroup", group="g", ackId=1)
                follower.is_on = True
                await ask(2, type="sendToGroup", group="g", ackId=2, dataType="text", data="x")
                follower.is_on = False
    return follower.files


async def test_the_page_names_every_file_that_a_publish_passes(tmp_path: Path) -> None:
    passed = await files_of_a_publish(tmp_path)
    within = {file for file in passed if not file.startswith("stores/")} - ASKED_ON_THE_WAY
    named = set(re.findall(r"`([\w/]+\.py):", "\n".join(section("The path of a publish"))))
    assert {file for file in named if not file.startswith("stores/")} == within
    assert len([file for file in named if file.startswith("pubsub/hub/")]) == 9
    assert len(named) == 18


def section(title: str) -> list[str]:
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0].splitlines()


def test_the_tree_has_every_folder_and_no_other() -> None:
    cells = [line.split("|")[1] for line in section("The tree") if line.startswith("| `")]
    named = {place.rstrip("/") for cell in cells for place in re.findall(r"`([^`]+)`", cell)}
    folders = {file.parent for file in SOURCE.rglob("*.py") if file.name != "__init__.py"} - {SOURCE}

    parts = [folder.relative_to(SOURCE).parts for folder in folders]
    within = [{"/".join(part[:depth]) for depth in range(1, len(part) + 1)} for part in parts]
    assert ["/".join(part) for part, places in zip(parts, within, strict=True) if not places & named] == []
    assert [place for place in sorted(named) if not (SOURCE / place).is_dir()] == []
