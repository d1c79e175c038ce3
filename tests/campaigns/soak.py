"""Long kernel_campaigns. `make soak PART=sim` runs one in full and writes its result to `docs/evidence/`.

The tests run each of them at a twentieth of its size, so that a campaign cannot rot between two full runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tests.campaigns import (
    bounded_campaign,
    failover_campaign,
    inbox_campaign,
    kernel_campaigns,
    pipe_campaign,
    pubsub_campaign,
    spark_campaign,
    xmin_campaign,
)
from tests.campaigns.evidence import commit, write_evidence

from semel.errors import EXIT_CLAIM_FALSE, EXIT_HOLDS, EXIT_USAGE

TWENTIETH = 1 / 20
SEED = 1

Step = Callable[[int, int], None]
"""Called with how much is done and how much there is."""


@dataclass(frozen=True, slots=True)
class Part:
    """`run(size, seed, step)` answers figures, among them `holds`."""

    size: int
    unit: str
    about: str
    run: Callable[[int, int, Step], dict[str, Any]]


PARTS: dict[str, Part] = {
    "sim": Part(20_000, "seeds", "the simulated world in as many kinds of weather", kernel_campaigns.simulate),
    "kill": Part(
        400, "kills", "a real process killed at a random moment while it commits to SQLite", kernel_campaigns.kill
    ),
    "demo": Part(40_000, "messages", "two processes, a bad link, kill -9 of both", kernel_campaigns.demo),
    "pipes": Part(100_000, "messages", "a durable pipe over a link that loses 30 %, kill -9", pipe_campaign.pipes),
    "cascade": Part(100_000, "messages", "the same through a volatile stage, and failures", pipe_campaign.cascade),
    "pubsub": Part(
        100_000, "messages", "50 clients of a hub on links that break, kill -9 of the server", pubsub_campaign.pubsub
    ),
    "pubsub-nodes": Part(100_000, "messages", "the same with two nodes on PostgreSQL", pubsub_campaign.pubsub_nodes),
    "failover": Part(
        20, "kills", "50 clients, and the primary of three PostgreSQL under Patroni dies", failover_campaign.failover
    ),
    "inbox": Part(
        100_000, "messages", "4 processes listen to brokers, kill -9 of them and of the brokers", inbox_campaign.inbox
    ),
    "pubsub-bounded": Part(
        600, "seconds", "full load, 10,000 idle sessions and one that never acknowledges", bounded_campaign.bounded
    ),
    "spark": Part(
        2_000_000, "rows", "two regions merged by Spark; tasks, drivers and checkpoints lost", spark_campaign.spark
    ),
    "retention": Part(
        400_000, "messages", "append and sweep at full rate: the store stays small", kernel_campaigns.retention
    ),
    "xmin": Part(1_600_000, "messages", "work queues on PostgreSQL while a transaction stays open", xmin_campaign.xmin),
}


def main(arguments: list[str]) -> int:
    console = Console(stderr=True)
    if len(arguments) != 1 or arguments[0] not in PARTS:
        for name, part in PARTS.items():
            console.print(f"  make soak PART={name:10} {part.size:,} {part.unit}: {part.about}")
        return EXIT_USAGE
    name = arguments[0]
    figures = run(name, 1.0, console)
    path = write_evidence(name, figures)
    console.print(f"{name}: {'holds' if figures['holds'] else 'FAILS'}; written to {path}")
    return EXIT_HOLDS if figures["holds"] else EXIT_CLAIM_FALSE


def run(name: str, scale: float, console: Console, seed: int = SEED) -> dict[str, Any]:
    """One campaign at a share of its full size."""
    part = PARTS[name]
    size = max(1, round(part.size * scale))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    begin, at = time.monotonic(), commit()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=size)
        figures = part.run(size, seed, lambda done, total: progress.update(task, completed=done, total=total))
    return {"part": name, "size": size, "unit": part.unit, "seed": seed, **figures,
            "seconds": round(time.monotonic() - begin, 1), "commit": at}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
