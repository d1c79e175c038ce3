"""A public class name stands in one module: who reads `Refused` need not ask which."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "semel"

SHARED: dict[str, str] = {}
"""Names that may stand in several modules, each with the reason."""


def test_a_public_class_name_stands_in_one_module() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(file.relative_to(SOURCE)))

    several = {name: files for name, files in modules.items() if len(files) > 1}
    assert several.keys() == SHARED.keys(), (
        f"{ {name: files for name, files in several.items() if name not in SHARED} }: "
        "call the newer one after what it is in its own part, or give the reason in SHARED"
    )
