"""The pages of the tutorial are run from top to bottom, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
ELSEWHERE = {"a-pipeline-and-its-audit", "a-chat-that-loses-nothing"}
"""The first needs a JVM, and tests/spark runs it. The second has several processes: test_chat_page.py."""
PAGES = [page for page in sorted(TUTORIAL.glob("*.md")) if page.stem not in ELSEWHERE]
BLOCK = re.compile(r"```python\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall(page.read_text())
    assert blocks, "a tutorial without code teaches nothing"
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page.name, "exec"), names)
        assert printed.getvalue() == expected


def test_readme_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (code, _), _ = BLOCK.findall(readme)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    store = names["store"]
    assert len(store.read("hub/orders").records) == 1
    store.close()
