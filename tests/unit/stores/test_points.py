from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import semel
from semel.stores.points import POINTS, on_reach, reach

SOURCES = Path(semel.__file__).parent


@pytest.fixture
def reached() -> Iterator[list[str]]:
    names: list[str] = []
    on_reach(names.append)
    yield names
    on_reach(None)


def test_a_point_is_heard_only_while_somebody_listens(reached: list[str]) -> None:
    reach("commit.begin")
    on_reach(None)
    reach("commit.applied")
    assert reached == ["commit.begin"]


def points_in_the_code() -> set[str]:
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
                [argument] = node.args
                assert isinstance(argument, ast.Constant), f"{path}: a point is named where it is reached"
                found.add(argument.value)
    return found


def test_every_point_is_reached_somewhere_and_every_reached_one_is_listed() -> None:
    assert points_in_the_code() == set(POINTS)


def test_every_point_says_what_has_happened() -> None:
    assert all(POINTS.values())
