"""`from semel.spark import …`: everything that is promised is there, and asking for it is what loads pyspark."""

from __future__ import annotations

import subprocess
import sys

import pytest

import semel.spark


def test_the_names_are_sorted_and_listed() -> None:
    assert semel.spark.__all__ == sorted(semel.spark.__all__)
    assert dir(semel.spark) == semel.spark.__all__


@pytest.mark.parametrize("name", semel.spark.__all__)
def test_every_name_is_there(name: str) -> None:
    assert callable(getattr(semel.spark, name))


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Twice'"):
        _ = semel.spark.Twice


def test_pyspark_is_not_loaded_before_a_session_is_started() -> None:
    program = "import sys, semel.spark; semel.spark.spark_session; print('pyspark' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
