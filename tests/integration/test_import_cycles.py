from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "import-cycles"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("import_cycles", str(SCRIPT))
    spec = importlib.util.spec_from_loader("import_cycles", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def ring(*names: str) -> dict[str, set[str]]:
    return {name: {names[at - 1]} for at, name in enumerate(names)}


def write(folder: Path, **files: str) -> Path:
    (folder / "pack" / "inner").mkdir(parents=True)
    for name, text in {"__init__": "", "inner.__init__": "", **files}.items():
        (folder / "pack" / f"{name.replace('.', '/')}.py").write_text(text)
    return folder


def test_our_own_modules_are_in_no_knot(script: ModuleType) -> None:
    assert list(script.problems(script.import_graph(SCRIPT.parents[1] / "src"))) == []


def test_every_way_to_import_counts(script: ModuleType, tmp_path: Path) -> None:
    source = write(
        tmp_path,
        a="import pack.b\nimport os",
        b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.inner.c import C",
        **{"inner.c": "def f():\n    from .. import d\n    from . import g", "inner.g": "from pack import NAME"},
        d="from .a import A",
    )
    graph = script.import_graph(source, "pack")

    assert graph["pack.a"] == {"pack.b"}
    assert graph["pack.b"] == {"pack.inner.c"}
    assert graph["pack.inner.c"] == {"pack", "pack.d", "pack.inner", "pack.inner.g"}
    assert graph["pack.inner.g"] == {"pack"}
    assert script.cycles(graph) == [["pack.a", "pack.b", "pack.d", "pack.inner.c"]]


def test_a_circle_of_three_is_allowed_and_one_of_four_is_shown(script: ModuleType) -> None:
    assert list(script.problems(ring("a", "b", "c"))) == []

    [problem] = script.problems({**ring("a", "b", "c", "d"), "e": {"a"}})
    assert problem.startswith("4 modules import each other in a circle: a, b, c, d\n  for one: a -> d -> c -> b -> a\n")
    assert "as an argument" in problem
