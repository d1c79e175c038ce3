"""Docstrings say what something is or does. One that begins with "Of" leaves out the very word that it is about."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Those of modules, classes and functions, and the strings that describe what stands above them."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def test_no_docstring_begins_with_of() -> None:
    files = [file for folder in ("src", "tests", "examples") for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        for line, text in docstrings(file)
        if text.split(maxsplit=1)[:1] == ["Of"]
    ]
    assert found == []
