from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.stores.sidecar import Marks, Sidecar

MARKS = Marks("f" * 32, commits=7, head=2**53 - 1, fence=2**40)


@pytest.fixture
def sidecar(tmp_path: Path) -> Sidecar:
    return Sidecar(tmp_path / "semel.db-semel")


def test_no_note_yet(sidecar: Sidecar) -> None:
    assert sidecar.read() is None


def test_the_last_note_counts(sidecar: Sidecar) -> None:
    sidecar.write(Marks("f" * 32, 1, 1, 1))
    sidecar.write(MARKS)
    assert sidecar.read() == MARKS
    sidecar.close()
    assert Sidecar(sidecar.path).read() == MARKS


@given(st.integers(0, 67), st.integers(1, 255))
def test_a_note_that_was_damaged_is_none(tmp_path_factory: pytest.TempPathFactory, at: int, change: int) -> None:
    sidecar = Sidecar(tmp_path_factory.mktemp("sidecar") / "x")
    sidecar.write(MARKS)
    sidecar.close()
    data = bytearray(sidecar.path.read_bytes())
    data[at] ^= change
    sidecar.path.write_bytes(data)
    assert sidecar.read() is None


@pytest.mark.parametrize("size", [0, 1, 40, 67])
def test_a_note_that_was_cut_short_is_none(sidecar: Sidecar, size: int) -> None:
    sidecar.write(MARKS)
    sidecar.path.write_bytes(sidecar.path.read_bytes()[:size])
    assert sidecar.read() is None


def test_closing_twice_is_harmless(sidecar: Sidecar) -> None:
    sidecar.write(MARKS)
    sidecar.close()
    sidecar.close()
