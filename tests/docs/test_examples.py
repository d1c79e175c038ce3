"""Every example runs as a person would run it, and prints what its text promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from semel.testing.limits import scaled

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED = {
    "append_once.py": ["attempt 1: Fresh", "attempt 2: Duplicate", "stored: hub/orders@1:1"],
    "delivery_pipeline.py": ["queue/east/orders: 355 records", "queue/west/orders: 363 records"],
    "path_over_tcp.py": ["bills: ['bill-order-1', 'bill-order-2', 'bill-order-3']"],
    "worker.py": ["calls of the handler: 2", "reservations: ['reserved-order-7']", "the row: DONE"],
}


def test_every_example_is_expected_to_print_something():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name, tmp_path):
    url = f"sqlite:///{tmp_path}/orders.db"
    found = subprocess.run(
        [sys.executable, str(EXAMPLES / name), url], capture_output=True, text=True, timeout=scaled(60), check=True
    )
    for line in EXPECTED[name]:
        assert line in found.stdout
