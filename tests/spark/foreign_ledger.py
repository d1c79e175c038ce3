"""A ledger as another program would write it: from the words of docs/reference/ledger.md, without any code of Semel's.

Nothing may be imported from semel here: what this cannot know from the page is missing on the page.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

BEGIN = datetime(2026, 1, 31, 9, tzinfo=UTC)
SENT, RESENT, ACCEPTED, DUPLICATE, CONFIRMED, HANDLED, FORWARDED = 1, 2, 4, 5, 7, 20, 21

_AT = pa.timestamp("us", tz="UTC")
_LEDGER = {
    "seq": pa.int64(), "xid": pa.int64(), "at": _AT, "node": pa.string(), "pipeline": pa.string(), "hop": pa.string(),
    "kind": pa.int16(), "message": pa.string(), "delivery": pa.string(), "session": pa.string(), "idx": pa.int64(),
    "peer": pa.string(), "stream": pa.string(), "epoch": pa.int32(), "first": pa.int64(), "last": pa.int64(),
    "n": pa.int32(), "fold": pa.int64(), "attempt": pa.int32(), "cause": pa.string(), "trace": pa.string(),
}  # fmt: skip
_INDEX = {
    "stream": pa.string(), "epoch": pa.int32(), "offset": pa.int64(), "type": pa.string(), "message": pa.string(),
    "session": pa.string(), "idx": pa.int64(), "target": pa.string(), "at": _AT, "bytes": pa.int64(),
    "source": pa.string(), "subject": pa.string(), "terms": pa.string(),
}  # fmt: skip
_COLUMNS = {"ledger": _LEDGER, "index": _INDEX}


def fold(ids: Sequence[str]) -> int:
    number = 0
    for id in ids:
        number ^= xxhash.xxh64_intdigest(id.encode(), seed=42)
    return number - 2**64 if number >= 2**63 else number


class Ledger:
    """One store. A second passes with every row."""

    def __init__(self, folder: Path, store: str, begin: datetime = BEGIN) -> None:
        self.folder, self.store = folder, store
        self.at = begin
        self.rows: dict[str, list[dict[str, Any]]] = {"ledger": [], "index": []}

    def tell(
        self, kind: int, hop: str, message: str, session: str | None = None, idx: int | None = None, *, pipeline: str
    ) -> None:
        self._add("ledger", hop=hop, kind=kind, pipeline=pipeline, message=message, session=session or message, idx=idx)

    def tell_range(
        self, kind: int, hop: str, stream: str, first: int, ids: Sequence[str], *, pipeline: str, folds: bool = True
    ) -> None:
        of = {"stream": stream, "epoch": 1, "first": first, "last": first + len(ids) - 1}
        folded = fold(ids) if folds else None
        self._add("ledger", hop=hop, kind=kind, pipeline=pipeline, n=len(ids), fold=folded, **of)

    def record(
        self, stream: str, offset: int, message: str, session: str | None = None, idx: int | None = None
    ) -> None:
        of = {"message": message, "session": session or message, "idx": idx, "target": "", "bytes": 0}
        self._add("index", stream=stream, epoch=1, offset=offset, type="message", **of)

    def _add(self, dataset: str, **values: Any) -> None:
        self.at += timedelta(seconds=1)
        usual = {"node": "foreign", "peer": "", "n": 1, "attempt": 1} if dataset == "ledger" else {}
        number = {"seq": len(self.rows[dataset]) + 1} if dataset == "ledger" else {}
        self.rows[dataset].append({**usual, **number, "at": self.at, **values})

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "semel-export-id").write_text("a-folder-of-mine\n")
        for dataset, rows in self.rows.items():
            numbered = list(enumerate(rows, 1))
            for day, of_day in groupby(numbered, lambda each: each[1]["at"].strftime("%Y-%m-%d")):
                self._write(dataset, day, list(of_day))

    def _write(self, dataset: str, day: str, numbered: list[tuple[int, dict[str, Any]]]) -> None:
        top = self.folder / "raw" / dataset / "v1"
        begin, end, rows = numbered[0][0], numbered[-1][0], [row for _, row in numbered]
        first, last = f"0.{begin}", f"0.{end}"
        name = f"day={day}/seg-{self.store}-1-{begin}-{end}"
        metadata = {
            "semel.dataset": f"{dataset}/v1", "semel.store": self.store, "semel.epoch": "1",
            "semel.range": f"{first}..{last}", "semel.day": day,
        }  # fmt: skip
        table = pa.Table.from_pylist(rows, pa.schema(list(_COLUMNS[dataset].items()), metadata=metadata))
        file = top / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
        content = file.read_bytes()
        entry = {
            "path": f"{name}.parquet", "store": self.store, "epoch": 1, "first": first, "last": last, "min": first,
            "max": last, "day": day, "rows": len(rows), "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }  # fmt: skip
        _put(top / "_epochs" / f"{self.store}-1.json", {"store": self.store, "epoch": 1, "after": "0.0"})
        _put(top / "_manifest" / f"{name}.json", entry)


def _put(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n")
