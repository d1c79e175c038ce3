"""What the soak runs: each campaign answers with figures, and with whether its claim held."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.tools.paths import child_environment

from semel import demo as demonstration
from semel import sim
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Event, Kind
from semel.kernel.ops import Append, Trim, Unit
from semel.kernel.store import Records, Store
from semel.stores import open_store
from semel.stores.sqlite import SqliteStore

Step = Callable[[int, int], None]

STREAM = "hub/soak"
HOP = "client>hub/soak"
GROUP = 100
KILL_S = (0.02, 0.25)
KEEP_ROWS = 5_000


def simulate(size: int, seed: int, step: Step) -> dict[str, Any]:
    done = 0

    def count(_: object) -> None:
        nonlocal done
        done += 1
        step(done, size)

    reports = sim.sweep(range(seed, seed + size), progress=count)
    return {
        "holds": reports.holds,
        "failed": [report.command for report in reports.failed],
        "figures": reports.figures,
        "seen": reports.seen,
    }


def demo(size: int, seed: int, step: Step) -> dict[str, Any]:
    options = demonstration.DemoOptions(messages=size, seed=seed, timeout_s=3600)
    result = demonstration.run(options, Console(quiet=True))
    step(size, size)
    return result.as_dict() | {"holds": result.holds}


def kill(size: int, seed: int, step: Step) -> dict[str, Any]:
    """A writer says which ids are safe; it is killed at random moments; in the end all of them are there, once."""
    chance = random.Random(seed)
    acked: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="semel-soak-") as folder:
        url = f"sqlite:///{Path(folder).resolve()}/semel.db"
        open_store(url).close()
        for number in range(size):
            acked |= _write_until_killed(url, first=max(0, len(acked) - GROUP), wait_s=chance.uniform(*KILL_S))
            step(number + 1, size)
        store = open_store(url)
        stored = read_ids(store)
        epoch, accepted = store.epoch, _accepted(store)
        store.close()
    return {
        "kills": size,
        "acked": len(acked),
        "stored": len(stored),
        "lost": len(acked - set(stored)),
        "doubled": len(stored) - len(set(stored)),
        "accepted_in_ledger": accepted,
        "epoch": epoch,
        "holds": acked <= set(stored) and len(stored) == len(set(stored)) == accepted and epoch == 1,
    }


def _write_until_killed(url: str, first: int, wait_s: float) -> set[str]:
    """Runs `write_forever` from message `first` on, so that the last ones before the kill are sent again."""
    command = [
        sys.executable,
        "-c",
        f"from tests.campaigns.kernel_campaigns import write_forever; write_forever({url!r}, {first})",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        time.sleep(wait_s)
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    return {line.strip() for line in lines if line.endswith("\n")}


def write_forever(url: str, first: int) -> None:
    """Commits message after message and prints the ids that are safe. Only a signal ends it."""
    store = open_store(url)
    number = first
    while True:
        ids = [f"message-{n}" for n in range(number, number + GROUP)]
        store.commit([unit_of(id) for id in ids])
        sys.stdout.write("".join(f"{id}\n" for id in ids))
        sys.stdout.flush()
        number += GROUP


def unit_of(id: str, body: bytes = b"body") -> Unit:
    accepted, duplicate = Event(Kind.ACCEPTED, HOP), Event(Kind.DUPLICATE, HOP)
    return Unit((Append(STREAM, Envelope(id=id, data=body), identity=id, on_fresh=accepted, on_duplicate=duplicate),))


def read_ids(store: Store, stream: str = STREAM) -> list[str]:
    ids: list[str] = []
    after = None
    while isinstance(found := store.read(stream, after, 10_000), Records) and found.records:
        ids += [record.envelope.id for record in found.records]
        after = found.records[-1].position
    return ids


def _accepted(store: Store) -> int:
    total, mark = 0, START
    while entries := store.ledger(mark, 10_000):
        total += sum(entry.event.n for entry in entries if entry.event.kind is Kind.ACCEPTED)
        mark = entries[-1].mark
    return total


def retention(size: int, seed: int, step: Step) -> dict[str, Any]:
    """Append without pause and keep only the newest rows: the sweep must remove as fast as messages come."""
    with tempfile.TemporaryDirectory(prefix="semel-soak-") as folder:
        store = SqliteStore(f"sqlite:///{Path(folder).resolve()}/semel.db", identity_keep_s=0.0)
        slowest = max(_fill_and_sweep(store, 0, size // 2, step, size))
        bytes_at_half = store.status().bytes
        slowest = max(slowest, *_fill_and_sweep(store, size // 2, size, step, size))
        status = store.status()
        store.close()
    [stream] = [info for info in status.streams if info.name == STREAM]
    rows = stream.head - stream.first + 1
    return {
        "rows_left": rows,
        "bytes_at_half": bytes_at_half,
        "bytes_at_end": status.bytes,
        "slowest_commit_ms": round(1000 * slowest, 1),
        "holds": rows <= 2 * KEEP_ROWS and status.bytes <= 1.5 * bytes_at_half + 8 * 2**20,
    }


def _fill_and_sweep(store: SqliteStore, first: int, last: int, step: Step, size: int) -> list[float]:
    """How long each commit took, with a sweep after every tenth."""
    seconds = []
    for number in range(first, last, GROUP):
        begin = time.monotonic()
        store.commit([unit_of(f"message-{n}", b"x" * 500) for n in range(number, number + GROUP)])
        seconds.append(time.monotonic() - begin)
        if number // GROUP % 10 == 9:
            _keep_newest(store, number + GROUP)
        step(number + GROUP, size)
    return seconds


def _keep_newest(store: SqliteStore, head: int) -> None:
    store.commit([Unit((Trim(STREAM, max(1, head - KEEP_ROWS)),))])
    while store.sweep(time.time_ns() // 1000, limit=1000).more:
        pass
