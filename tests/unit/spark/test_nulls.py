"""What crossed from Spark with flags becomes NULL again. That Spark itself sets the flags is in tests/spark."""

from __future__ import annotations

import pyarrow as pa

from semel.spark.nulls import emptied

MAPS = pa.array([[("a", "b")], [], []], pa.map_(pa.string(), pa.string()))
LISTS = pa.array([[1], [], [2, None]], pa.list_(pa.int64()))


def test_flagged_rows_become_null_and_the_flags_go() -> None:
    table = pa.table(
        {
            "id": ["1", "2", "3"], "headers": MAPS, "numbers": LISTS,
            "semel_null_headers": [False, True, False], "semel_null_numbers": [False, True, False],
        }
    )  # fmt: skip
    found = emptied(table)
    assert found.column_names == ["id", "headers", "numbers"]
    assert found["headers"].to_pylist() == [[("a", "b")], None, []]
    assert found["numbers"].to_pylist() == [[1], None, [2, None]]
    assert found.schema.types == [pa.string(), MAPS.type, LISTS.type]


def test_rows_without_flags_stay_as_they_are() -> None:
    table = pa.table({"headers": MAPS})
    assert emptied(table) is table
