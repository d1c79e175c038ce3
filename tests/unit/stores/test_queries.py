from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import semel.stores
from semel.stores.queries import load_migrations, load_queries

FOLDER = Path(semel.stores.__file__).parent
SQL_FILES = sorted(path.name for path in FOLDER.glob("*.sql"))


@pytest.fixture(params=SQL_FILES)
def file(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_there_are_queries() -> None:
    assert "sqlite.sql" in SQL_FILES


def test_every_query_has_a_name_of_its_own(file: str) -> None:
    text = (FOLDER / file).read_text()
    names = re.findall(r"^-- name: (.*)$", text, re.MULTILINE)
    assert len(names) == len(set(names)) == len(load_queries(file))


def test_no_query_is_empty(file: str) -> None:
    assert all(sql.strip() for sql in load_queries(file).values())


def test_every_query_is_used_and_every_used_one_exists(file: str) -> None:
    """A name is used as Q["name"], or handed on as text to a helper that looks it up."""
    engine = file.removesuffix(".sql")
    words: set[str] = set()
    asked: set[str] = set()
    for path in FOLDER.glob(f"{engine}*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Name)
                and node.value.id == "Q"
                and isinstance(node.slice, ast.Constant)
            ):
                asked.add(str(node.slice.value))
    queries = set(load_queries(file))
    assert queries - words == set()
    assert asked - queries == set()


@pytest.mark.parametrize("engine", sorted(path.name for path in (FOLDER / "migrations").iterdir() if path.is_dir()))
def test_migrations_are_numbered_without_a_gap(engine: str) -> None:
    steps = load_migrations(engine)
    assert [number for number, _ in steps] == list(range(1, len(steps) + 1))
    assert all(sql.strip() for _, sql in steps)
