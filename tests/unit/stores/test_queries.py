from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


def words_in(engine: str) -> Iterator[str]:
    """All texts in the engine's code, as patterns: what an f-string fills in may be anything."""
    for path in FOLDER.glob(f"{engine}*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.escape(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                yield "".join("[a-z_]+" if part is None else re.escape(str(part)) for part in parts)


def asked_for(engine: str) -> Iterator[str]:
    """The names in Q["name"]."""
    for path in FOLDER.glob(f"{engine}*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Subscript(value=ast.Name(id="Q"), slice=ast.Constant(value=str() as name)):
                    yield name


def test_every_query_is_used(file: str) -> None:
    patterns = [re.compile(word) for word in set(words_in(file.removesuffix(".sql"))) if word != "[a-z_]+"]
    unused = [name for name in load_queries(file) if not any(pattern.fullmatch(name) for pattern in patterns)]
    assert unused == []


def test_every_query_that_is_asked_for_exists(file: str) -> None:
    assert set(asked_for(file.removesuffix(".sql"))) - set(load_queries(file)) == set()


@pytest.mark.parametrize("engine", sorted(path.name for path in (FOLDER / "migrations").iterdir() if path.is_dir()))
def test_migrations_are_numbered_without_a_gap(engine: str) -> None:
    steps = load_migrations(engine)
    assert [number for number, _ in steps] == list(range(1, len(steps) + 1))
    assert all(sql.strip() for _, sql in steps)
