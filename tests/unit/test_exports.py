"""`from semel import …`: everything that is promised is there, and asking for it is what loads it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import semel


def test_the_names_are_sorted_and_listed() -> None:
    assert semel.__all__ == sorted(semel.__all__)
    assert dir(semel) == semel.__all__


@pytest.mark.parametrize("name", semel.__all__)
def test_every_name_is_there(name: str) -> None:
    names: dict[str, object] = {}
    exec(f"from semel import {name}", names)
    assert names[name] is getattr(semel, name)


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Twice'"):
        _ = semel.Twice


def test_the_runtime_is_loaded_when_it_is_asked_for() -> None:
    program = (
        "import sys, semel; before = 'asyncio' in sys.modules; semel.Performer; print(before, 'asyncio' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False True\n"
