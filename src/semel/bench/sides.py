"""The two sides of a comparison: a store under measurement and, beside it, the same tables for raw batches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Self

from semel.bench.raw import Raw, RawSqlite
from semel.kernel.store import Store
from semel.stores import open_store


class Bench:
    """`stored` is how many rows each side holds; `folder` is on the disk that is measured."""

    def __init__(self, store: Store, raw: Raw, folder: Path) -> None:
        self.store = store
        self.raw = raw
        self.folder = folder
        self.stored = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()
        self.store.close()


class SqliteBench(Bench):
    """Two files in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="semel-bench-", dir=folder)
        path = Path(self._temporary.name).resolve()
        super().__init__(open_store(f"sqlite:///{path}/semel.db"), RawSqlite(f"sqlite:///{path}/raw.db"), path)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._temporary.cleanup()
