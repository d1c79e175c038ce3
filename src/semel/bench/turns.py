"""`semel bench turns`: how long a commit waits for the write lock of a SQLite file that handlers keep busy.

Each handler is a process that holds the lock for 20 ms, back to back. Beside them one store commits now and then, with
and without the queue for the lock. A server publishes beside them too, on a file of its own, as the inbox is never in
the server's: what is left to share is the disk. And one store alone: which share of a commit the queue takes where
nobody waits, by the processor's time, since its microseconds are lost in the noise of the disk.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semel.bench.pubsub_load import GOODBYE, masked, open_clients
from semel.bench.pubsub_sides import GROUP, SemelServer
from semel.errors import PeerUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Enqueue, Unit
from semel.stores.sqlite import SqliteStore
from semel.stores.sqlite_turns import LOOK_S

HOLD_MS = 20.0
P99_WANTED_MS = 150.0
PUBLISH_P99_WANTED_MS = 50.0
PUBLISH_WAIT_S = 60.0
ALONE_WANTED = 0.02
ALONE_TURNS = 20
ALONE_COMMITS = 50
ALONE_LOOKS = 1000
QUEUE = "bench/turns"
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class TurnsBenchOptions:
    handlers: tuple[int, ...] = (1, 4)
    hold_ms: float = HOLD_MS
    seconds: float = 10.0
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, slots=True)
class LockWaits:
    """How long commits wait for the write lock beside so many handlers, in milliseconds."""

    handlers: int
    in_turn: bool
    commits: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    handled_per_s: float

    @property
    def holds(self) -> bool:
        return not self.in_turn or self.p99_ms < P99_WANTED_MS


@dataclass(frozen=True, slots=True)
class PublishWaits:
    """How long a publish waits for its ack, in milliseconds, beside so many handlers on another file."""

    handlers: int
    publishes: int
    p50_ms: float
    p99_ms: float
    longest_ms: float

    @property
    def holds(self) -> bool:
        return self.p99_ms < PUBLISH_P99_WANTED_MS


@dataclass(frozen=True, slots=True)
class TurnsResult:
    """`commit_us` is what a commit of a store that is alone takes of the processor; `queue_us` is the queue's part."""

    hold_ms: float
    commit_us: float
    queue_us: float
    lines: tuple[LockWaits, ...]
    publishes: tuple[PublishWaits, ...]

    @property
    def share(self) -> float:
        return self.queue_us / self.commit_us

    @property
    def holds(self) -> bool:
        waits: list[LockWaits | PublishWaits] = [*self.lines, *self.publishes]
        return self.share < ALONE_WANTED and all(each.holds for each in waits)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "holds": self.holds}


def run(options: TurnsBenchOptions, console: Console) -> TurnsResult:
    cases = [(count, in_turn) for count in options.handlers for in_turn in (False, True)]
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=options.folder) as name, ExitStack() as stack:
        progress = stack.enter_context(Progress(console=console, transient=True))
        folder = Path(name).resolve()
        alone = _measure_alone(folder)
        lines = [_measure(folder, options, *case) for case in progress.track(cases, description="measuring")]
        publishes = [
            _measure_publishes(folder, options, count)
            for count in progress.track(options.handlers, description="publishing")
        ]
    return TurnsResult(options.hold_ms, *alone, tuple(lines), tuple(publishes))


def table(result: TurnsResult) -> Table:
    view = Table(
        title=f"sqlite: commits beside handlers that hold the write lock for {result.hold_ms:g} ms, back to back",
        caption=f"alone: {result.queue_us:.1f} of {result.commit_us:,.0f} µs for the queue ({result.share:.1%})",
    )
    for name in ("handlers", "queue", "commits", "wait p50", "wait p99", "longest", "handled/s"):
        view.add_column(name, justify="right")
    for line in result.lines:
        view.add_row(
            str(line.handlers),
            "yes" if line.in_turn else "no",
            str(line.commits),
            f"{line.p50_ms:,.1f} ms",
            f"{line.p99_ms:,.1f} ms",
            f"{line.longest_ms:,.1f} ms",
            f"{line.handled_per_s:,.1f}",
        )
    for each in result.publishes:
        view.add_row(
            str(each.handlers),
            "a server's publishes",
            str(each.publishes),
            f"{each.p50_ms:,.1f} ms",
            f"{each.p99_ms:,.1f} ms",
            f"{each.longest_ms:,.1f} ms",
            "",
        )
    return view


def _enqueue(who: str, number: int) -> Enqueue:
    id = f"{who}-{number}"
    return Enqueue(f"{QUEUE}/{who}", id, Envelope(id=id, data=b"x" * 500))


def _measure(folder: Path, options: TurnsBenchOptions, handlers: int, in_turn: bool) -> LockWaits:
    url = f"sqlite:///{folder}/{handlers}-{in_turn}.db"
    with closing(SqliteStore(url, in_turn=in_turn)) as store, _handlers(store, handlers, options.hold_ms, in_turn):
        before = _commits(store)
        waits = _commit_for(store, options.seconds, options.hold_ms)
        handled = _commits(store) - before - len(waits)
    return LockWaits(
        handlers=handlers,
        in_turn=in_turn,
        commits=len(waits),
        p50_ms=waits[len(waits) // 2],
        p99_ms=waits[int(0.99 * len(waits))],
        longest_ms=waits[-1],
        handled_per_s=handled / options.seconds,
    )


def _commit_for(store: SqliteStore, seconds: float, hold_ms: float) -> list[float]:
    """The waits, in order of length. Pauses of any length, so that commits come at any moment of a handler."""
    waits: list[float] = []
    until = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < until:
        store.commit([Unit((_enqueue("beside", len(waits)),))])
        waits.append(1000 * (time.perf_counter() - begin))
        time.sleep(random.uniform(0, hold_ms / 1000))
    return sorted(waits)


def _measure_publishes(folder: Path, options: TurnsBenchOptions, handlers: int) -> PublishWaits:
    with ExitStack() as stack:
        inbox = stack.enter_context(closing(SqliteStore(f"sqlite:///{folder}/inbox-{handlers}.db")))
        stack.enter_context(_handlers(inbox, handlers, options.hold_ms, in_turn=True))
        server = stack.enter_context(SemelServer(f"sqlite:///{folder}/server-{handlers}.db", folder))
        server.await_hub()
        waits = _publish_for(server, options.seconds, options.hold_ms)
    return PublishWaits(handlers, len(waits), waits[len(waits) // 2], waits[int(0.99 * len(waits))], waits[-1])


def _publish_for(server: SemelServer, seconds: float, hold_ms: float) -> list[float]:
    """One publish at a time, each waited for until its ack is here; in order of length."""
    waits: list[float] = []
    [(sock, _)] = open_clients(server.port, server.path(), 1)
    with sock:
        sock.setblocking(True)
        sock.settimeout(PUBLISH_WAIT_S)
        until = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < until:
            number = len(waits) + 1
            text = f'{{"type":"sendToGroup","group":"{GROUP}","ackId":{number},"dataType":"text","data":"x"}}'
            sock.sendall(masked(text.encode()))
            received = b""
            while b'"ackId":%d,' % number not in received:
                data = sock.recv(65536)
                if not data:
                    raise PeerUnavailable("the server has closed the connection", fix="see what it printed above")
                received += data
            waits.append(1000 * (time.perf_counter() - begin))
            time.sleep(random.uniform(0, hold_ms / 1000))
        sock.send(GOODBYE)
    return sorted(waits)


@contextmanager
def _handlers(store: SqliteStore, count: int, hold_ms: float, in_turn: bool) -> Iterator[None]:
    """Processes that handle until the end, all of them at work already."""
    pipes = [SPAWN.Pipe() for _ in range(count)]
    processes = [
        SPAWN.Process(target=handle, args=(store.url, hold_ms / 1000, in_turn, f"handler-{number}", pipe), daemon=True)
        for number, (_, pipe) in enumerate(pipes)
    ]
    for process, (_, theirs) in zip(processes, pipes, strict=True):
        process.start()
        theirs.close()
    try:
        for ours, _ in pipes:
            ours.recv()
        yield
    finally:
        for process, (ours, _) in zip(processes, pipes, strict=True):
            ours.close()
            process.join()


def handle(url: str, hold_s: float, in_turn: bool, name: str, parent: Connection) -> None:
    """What a handler of the user does, until the other end of the pipe is closed."""
    store = SqliteStore(url, in_turn=in_turn, busy_s=120)
    with closing(store), closing(sqlite3.connect(store.path)) as connection:
        for number in itertools.count():
            store.bind(connection).apply([_enqueue(name, number)])
            time.sleep(hold_s)
            connection.commit()
            if number == 0:
                parent.send("begun")
            if parent.poll():
                return


def _commits(store: SqliteStore) -> int:
    with closing(sqlite3.connect(store.path)) as connection:
        [(count,)] = connection.execute("SELECT commits FROM semel_store")
    return int(count)


def _measure_alone(folder: Path) -> tuple[float, float]:
    """What a commit takes, and the queue. The best of many turns: what others take away does not count."""
    with closing(SqliteStore(f"sqlite:///{folder}/alone.db")) as store:
        turns = [(_commit_alone(store, turn), _look_alone(store, turn)) for turn in range(ALONE_TURNS)]
    commits, looks = zip(*turns, strict=True)
    return min(commits), min(looks)


def _commit_alone(store: SqliteStore, turn: int) -> float:
    begin = time.thread_time_ns()
    for number in range(ALONE_COMMITS):
        store.commit([Unit((_enqueue(f"alone-{turn}", number),))])
    return (time.thread_time_ns() - begin) / ALONE_COMMITS / 1000


def _look_alone(store: SqliteStore, turn: int) -> float:
    """As if commits were so far apart that each looks into the file again."""
    now = time.monotonic() + turn * ALONE_LOOKS * 2 * LOOK_S
    begin = time.thread_time_ns()
    for number in range(ALONE_LOOKS):
        with store._turns.waiting() as waiting:
            waiting.is_ours(now + number * 2 * LOOK_S)
    return (time.thread_time_ns() - begin) / ALONE_LOOKS / 1000
