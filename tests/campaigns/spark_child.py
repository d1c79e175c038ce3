"""The driver of a pipeline as a process of its own, so that a test can kill it. Its orders are JSON, as an argument.

It runs the delivery pipeline over two regional logs, with tasks that fail at their first attempt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from semel.errors import SemelError
from semel.kernel.envelope import Envelope
from semel.spark.delivery import delivery
from semel.spark.pipeline import Input
from semel.spark.runner import RunOptions, run
from semel.spark.session import spark_session
from semel.stores.open import open_store


def handled(envelope: Envelope) -> Envelope:
    """The user's function of the campaign: every message passes, with its body turned round."""
    return Envelope(
        id=envelope.id, session=envelope.session, index=envelope.index, data=envelope.data[::-1], type="handled"
    )


def fail_at_first(share: float, seed: int) -> Any:
    """A transform after which some tasks fail at their first attempt and succeed at the next one."""

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        import random

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        chance = random.Random(f"{seed}/{context.stageId()}/{context.partitionId()}").random()
        for count, batch in enumerate(batches):
            yield batch
            if count == 0 and context.attemptNumber() == 0 and chance < share:
                raise RuntimeError("this task was told to fail at its first attempt")

    return lambda frame: frame.mapInArrow(failing, frame.schema)


def main(orders: dict[str, Any]) -> None:
    pipeline = delivery(
        *(Input(store, stream) for store, stream in orders["inputs"]),
        store=orders["store"],
        name=orders["name"],
        handler="tests.campaigns.spark_child:handled",
        transform=fail_at_first(orders["failing"], orders["seed"]),
        max_rows_per_batch=orders["rows_per_batch"],
        lease_s=2.0,
    )
    spark = spark_session(
        app=orders["name"], master=orders["master"], memory=orders["memory"], fast=True, settings=orders["settings"]
    )
    store = open_store(orders["store"])
    try:
        ended = run(
            spark, pipeline, store, RunOptions(checkpoint=orders["checkpoint"], once=True, wait_s=orders["wait_s"])
        )
        print(json.dumps({"state": ended.state, "rows": ended.rows}), flush=True)
    finally:
        store.close()


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except SemelError as error:
        sys.exit(f"{type(error).__name__}: {error}")
