"""Real faults on real processes. `make chaos` runs every round once; `python -m tests.campaigns.chaos ROUND...` some.

Each round starts processes of its own, hurts them, and then counts: what was said to be safe must be there, once.
Everything is on this machine, bounded in time, and only processes that the round started are ended.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.campaigns.kernel_campaigns import read_ids, unit_of
from tests.tools.paths import child_environment

from semel import demo
from semel.errors import EXIT_CLAIM_FALSE, EXIT_HOLDS, EXIT_USAGE, SemelError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Applied, Claim, Claimed, Enqueue, Finish, Unit, WorkState
from semel.kernel.store import Store
from semel.stores import open_store
from semel.testing.limits import scaled

LEASE_S = 0.3
ROWS = 20
ZOMBIE_STOPS = 3
QUEUE = "inbox/chaos"
EFFECTS = "hub/effects"


def bad_link(seed: int) -> dict[str, Any]:
    """Sender and receiver over a link in random weather, killed again and again."""
    chance = random.Random(seed)
    options = demo.DemoOptions(
        messages=1000,
        seed=seed,
        loss=chance.uniform(0.0, 0.3),
        doubling=chance.uniform(0.0, 0.3),
        delay=chance.uniform(0.0, 0.3),
        cuts=chance.uniform(0.0, 0.01),
        kills=chance.randint(2, 8),
    )
    result = demo.run(options, Console(quiet=True))
    return {**result.as_dict(), "holds": result.holds}


def database_dies(seed: int) -> dict[str, Any]:
    """PostgreSQL is shut down without warning while a process commits, and started again. Five times."""
    from semel.testing.postgres import PrivatePostgres

    with PrivatePostgres(durable=True) as server, server.new_database() as url:
        open_store(url).close()
        with _child("write_stubbornly", url) as writer:
            for _ in range(5):
                _read_twenty(writer)
                server.stop()
                server.start()
            _read_twenty(writer)
            acked = writer.acked | _end(writer, signal.SIGKILL)
        return _compare(url, acked)


def zombie(seed: int) -> dict[str, Any]:
    """A worker is stopped beyond its lease, again and again, and goes on when another has its row."""
    with _store_url() as url:
        store = open_store(url)
        with _child("work_when_asked", url) as worker:
            stale = sum(_stop_until_replaced(store, url, worker, stop) for stop in range(ZOMBIE_STOPS))
            _end_input(worker)
            while _open_rows(store):
                _wait(store, LEASE_S)
            _end(worker, signal.SIGTERM)
        effects = read_ids(store, EFFECTS)
        store.close()
    once = len(effects) == len(set(effects)) == ROWS * ZOMBIE_STOPS
    holds = once and stale == ZOMBIE_STOPS
    return {"rows": ROWS * ZOMBIE_STOPS, "effects": len(effects), "refused_as_stale": stale, "holds": holds}


def _stop_until_replaced(store: Store, url: str, worker: Child, stop: int) -> bool:
    """Stop it while it holds a row, let another take the row over, and hear whether it was refused afterwards.

    The other one is only there while it is stopped: it would leave it no row to hold.
    """
    ids = [f"row-{stop}-{number}" for number in range(ROWS)]
    store.commit([Unit((Enqueue(QUEUE, id, Envelope(id=id), key=id[-1]),)) for id in ids])
    _, identity, fence = _read_line(worker).split()
    worker.process.send_signal(signal.SIGSTOP)
    with _child("work", url, "steady"):
        while (row := store.work(QUEUE, identity)) is not None and row.fence == int(fence):
            _wait(store, LEASE_S / 10)
        worker.process.send_signal(signal.SIGCONT)
        _write_line(worker)
        return _read_line(worker) == f"stale {identity} {fence}"


def full_disk(seed: int) -> dict[str, Any]:
    """The file may not grow any further in the middle of the work. What was safe stays safe, and work goes on later."""
    with _store_url() as url:
        open_store(url).close()
        with _child("write_until_full", url) as writer:
            writer.process.wait(scaled(60))
            acked = _end(writer, signal.SIGKILL) | writer.acked
        found = _compare(url, acked)
        store = open_store(url)
        [outcome] = store.commit([unit_of("after")])
        store.close()
        return {**found, "holds": found["holds"] and isinstance(outcome, Applied) and found["acked"] > 0}


ROUNDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "bad-link": bad_link,
    "database-dies": database_dies,
    "zombie": zombie,
    "full-disk": full_disk,
}


# -- what the children do


def write_stubbornly(url: str) -> None:
    """Commits message after message; one that fails is committed again under the same id until it is there."""
    number = 0
    store: Store | None = None
    while True:
        try:
            store = store or open_store(url)
            store.commit([unit_of(f"message-{number}")])
        except SemelError:
            continue
        print(f"message-{number}", flush=True)
        number += 1


def write_until_full(url: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * 2**20, resource.RLIM_INFINITY))
    store = open_store(url)
    number = 0
    while True:
        try:
            store.commit([unit_of(f"message-{number}", b"x" * 5000)])
        except SemelError:
            return
        print(f"message-{number}", flush=True)
        number += 1


def work(url: str, owner: str, before_finish: Callable[[], object] = lambda: None) -> None:
    """Claims, says so, and finishes with the effect in the same commit. Says when it was refused."""
    store = open_store(url, node=owner)
    while True:
        [claimed] = store.commit([Unit((Claim(QUEUE, owner, lease_s=LEASE_S),))])
        result = claimed.results[0]
        assert isinstance(result, Claimed)
        for row in result.rows:
            print(f"claimed {row.identity} {row.fence}", flush=True)
            before_finish()
            effect = Append(EFFECTS, Envelope(id=row.identity))
            finish = Finish(QUEUE, row.identity, WorkState.DONE, fence=row.fence)
            [outcome] = store.commit([Unit((finish, effect))])
            if not isinstance(outcome, Applied):
                print(f"stale {row.identity} {row.fence}", flush=True)
        if not result.rows:
            _wait(store, LEASE_S / 10)


def work_when_asked(url: str) -> None:
    """Holds each row until a line comes in, or until there will be no more lines."""
    work(url, "zombie", sys.stdin.readline)


# -- the rest


class Child:
    """A process of this round, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.acked: set[str] = set()


@contextmanager
def _child(function: str, *arguments: str) -> Iterator[Child]:
    call = f"from tests.campaigns import chaos; chaos.{function}(*{arguments!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", call], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
    )
    try:
        yield Child(process)
    finally:
        process.kill()
        process.communicate()


def _read_line(child: Child) -> str:
    assert child.process.stdout is not None
    line = child.process.stdout.readline().strip()
    child.acked.add(line)
    return line


def _write_line(child: Child) -> None:
    assert child.process.stdin is not None
    child.process.stdin.write("\n")
    child.process.stdin.flush()


def _end_input(child: Child) -> None:
    assert child.process.stdin is not None
    child.process.stdin.close()
    child.process.stdin = None  # or `communicate` would flush it


def _read_twenty(child: Child) -> None:
    for _ in range(20):
        _read_line(child)


def _end(child: Child, how: signal.Signals) -> set[str]:
    """Everything that it still said before its end. A line cut short was never said."""
    child.process.send_signal(how)
    rest, _ = child.process.communicate(timeout=scaled(60))
    return {line.strip() for line in rest.splitlines(keepends=True) if line.endswith("\n")}


def _compare(url: str, acked: set[str]) -> dict[str, Any]:
    store = open_store(url)
    stored = read_ids(store)
    store.close()
    lost, doubled = len(acked - set(stored)), len(stored) - len(set(stored))
    return {
        "acked": len(acked),
        "stored": len(stored),
        "lost": lost,
        "doubled": doubled,
        "holds": not (lost or doubled),
    }


def _open_rows(store: Store) -> int:
    states = store.status().work.get(QUEUE, {})
    return sum(count for state, count in states.items() if state != "done")


def _wait(store: Store, seconds: float) -> None:
    """Let time pass in other processes: nobody ever writes to this stream."""
    store.tail("hub/never", timeout_s=seconds)


@contextmanager
def _store_url() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="semel-chaos-") as folder:
        yield f"sqlite:///{Path(folder).resolve()}/semel.db"


def main(arguments: list[str]) -> int:
    console = Console(stderr=True)
    if unknown := set(arguments) - set(ROUNDS):
        console.print(f"there is no round {', '.join(sorted(unknown))}; rounds are: {', '.join(ROUNDS)}")
        return EXIT_USAGE
    seed = int(os.environ.get("SEED", "1"))
    holds = True
    for name in arguments or ROUNDS:
        begin = time.monotonic()
        found = ROUNDS[name](seed)
        holds = holds and found["holds"]
        verdict = "holds" if found["holds"] else f"FAILS: {json.dumps(found)}"
        console.print(f"{name}: {verdict} ({time.monotonic() - begin:.1f} s)")
    return EXIT_HOLDS if holds else EXIT_CLAIM_FALSE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
