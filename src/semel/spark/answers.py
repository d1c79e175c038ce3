"""Which inputs of a pipeline have been answered for: what a batch has to know before it lands.

Only those who hold the state `sink/<pipeline>` write the streams that are looked at here. So what was found stands for
as long as nobody else has landed a batch, and then the commit is refused and this is asked again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from semel.kernel.store import Store
from semel.spark.landing import Inputs, died_stream, output_stream, questions, receipts_stream
from semel.spark.rows import Row


def answered(store: Store, pipeline: str, rows: Sequence[Row], *, elsewhere: bool = False) -> Inputs:
    """Those of the rows' inputs that the pipeline has answered for: see `questions`. A stream that holds nothing is not
    asked."""
    kept, receipts, died = output_stream(pipeline), receipts_stream(pipeline), died_stream(pipeline)
    used = {stream for stream in (kept, receipts, died) if store.head(stream).offset > 0}
    if not used:
        return Inputs()
    asked = questions(rows, elsewhere=elsewhere)

    def known(stream: str, ids: Collection[str]) -> set[str]:
        return set(store.known(stream, list(ids))) if ids and stream in used else set()

    return Inputs(known(kept, asked.kept), known(receipts, asked.receipts), known(died, asked.dead))
