"""The how-to of the client is run from top to bottom against a real server, and prints what it says."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.interop.served import Served, shared_server

from semel import ClientOptions
from semel.testing.limits import scaled

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)
GROUPS = ("orders", "tasks", "news", "answers", "room")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with shared_server(tmp_path) as server:
        yield server


@pytest.mark.connected
def test_the_how_to_runs(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    roles = [f"webpubsub.{right}.{group}" for group in GROUPS for right in ("joinLeaveGroup", "sendToGroup")]
    names: dict[str, object] = {"url": served.url("ann", roles)}
    blocks = BLOCK.findall((DOCS / "how-to" / "use-the-client.md").read_text())
    assert len(blocks) > 5
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "use-the-client.md", "exec"), names)
        assert printed.getvalue() == expected


@pytest.mark.connected
async def test_the_code_of_the_readme_talks(served: Served) -> None:
    _, (code, _) = BLOCK.findall((DOCS.parent / "README.md").read_text())
    names: dict[str, Any] = {}
    heard: asyncio.Queue[str] = asyncio.Queue()
    names["print"] = lambda data: heard.put_nowait(str(data))
    exec(compile(code, "README.md", "exec"), names)
    talk = asyncio.create_task(names["talk"](served.url()))
    assert await asyncio.wait_for(heard.get(), scaled(30)) == str({"text": "hello"})
    talk.cancel()
    await asyncio.wait([talk])


def test_the_reference_names_every_option() -> None:
    page = (DOCS / "reference" / "client.md").read_text()
    options = page[page.index("## `ClientOptions`") : page.index("## Security")]
    named = set(re.findall(r"`(\w+)`", options))
    assert {field.name for field in fields(ClientOptions)} <= named
