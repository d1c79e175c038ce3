"""ARCHITECTURE.md names files and functions: they exist, and every folder of the package is in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

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
