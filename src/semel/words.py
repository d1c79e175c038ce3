"""Words for people, the same in every command and report."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """A number with its word: "1 row", "2 rows", "3 batches"."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
