from __future__ import annotations

from semel.words import plural


def test_one_is_one_and_everything_else_is_many() -> None:
    assert [plural(count, "row") for count in (0, 1, 2_000)] == ["0 rows", "1 row", "2,000 rows"]
    assert [plural(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]
