"""The campaign against the data pipeline: two regional logs become one, while everything on the way breaks.

The logs hold copies of the same messages: each misses some that the other has, holds some twice, and has them out of
order. Tasks fail. The driver is killed with -9 in the middle of a batch, and between the commit of the sink and the
commit of Spark. The newest commit of the checkpoint is deleted, as if the driver had died before writing it. The whole
checkpoint is deleted, so that a new query begins from nothing. In the end the output must hold every message once, and
those of a session in order.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tools.paths import child_environment

from semel.bench.regions import EAST, NAME, WEST, fill, regional_logs
from semel.errors import PeerUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.store import Records, Store
from semel.stores.open import open_store

READ_ROWS = 5_000
ATTEMPTS = 60
RUN_S = 1_800.0
TAIL = 2_000

Step = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each thing breaks before the pipeline is left to finish."""

    kills: int = 3
    kills_after_landing: int = 2
    commits_deleted: int = 2
    checkpoints_deleted: int = 1
    failing: float = 0.3
    batches: int = 20
    """So many batches make a run from the start to the end, at most."""


FEW = Faults(kills=1, kills_after_landing=1, commits_deleted=1, checkpoints_deleted=1, batches=6)
"""For a campaign that must be over soon: every kind of fault once."""
FEWER = Faults(kills=1, kills_after_landing=0, commits_deleted=1, checkpoints_deleted=0, batches=4)
"""For a second place, where a start takes longer."""
MANY_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where the campaign runs: the stores of the two regions, and the master. The output goes to the first store."""

    east: str
    west: str
    master: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


class Campaign:
    """Drives the pipeline through its faults and counts what came out."""

    def __init__(self, place: Place, folder: Path, rows: int, seed: int, faults: Faults) -> None:
        self.place = place
        self.folder = folder
        self.seed = seed
        self.faults = faults
        self.chance = random.Random(seed)
        self.checkpoint = folder / "checkpoint"
        self.log = folder / "driver.log"
        self.rows = rows
        self.done = dict.fromkeys(("kills", "kills_after_landing", "commits_deleted", "checkpoints_deleted"), 0)

    def run(self, step: Step = lambda done, total: None) -> dict[str, Any]:
        east, west, messages = regional_logs(self.rows // 2, self.seed)
        fill(self.place.east, EAST, east)
        fill(self.place.west, WEST, west)
        store = open_store(self.place.east)
        try:
            wanted = sum(getattr(self.faults, name) for name in self.done)
            for count, fault in enumerate(self._faults()):
                step(count * messages // (wanted + 1), messages)
                fault(store)
            self._finish()
            step(messages, messages)
            return {**self._count(store, messages), **self.done, "rows": len(east) + len(west)}
        finally:
            store.close()

    def _faults(self) -> list[Callable[[Store], None]]:
        """In an order that the seed decides. A commit is deleted after a kill in a batch, when there is one, and the
        checkpoint is lost in the second half, when there is something to lose."""
        kill, delete = self._kill_in_a_batch, self._delete_a_commit
        turns: list[tuple[Callable[[Store], None], ...]] = []
        turns += [(kill, delete)] * self.faults.commits_deleted
        turns += [(kill,)] * (self.faults.kills - self.faults.commits_deleted)
        turns += [(self._kill_after_landing,)] * self.faults.kills_after_landing
        self.chance.shuffle(turns)
        for _ in range(self.faults.checkpoints_deleted):
            turns.insert(self.chance.randint((len(turns) + 1) // 2, len(turns)), (self._delete_the_checkpoint,))
        return [fault for turn in turns for fault in turn]

    # -- faults

    def _kill_in_a_batch(self, store: Store) -> None:
        """Somewhere in the batch after the next one that lands."""
        with self._driver() as driver:
            self._until_landed(store, driver)
            time.sleep(self.chance.random() * 0.5)
            _kill(driver)
        self.done["kills"] += 1

    def _kill_after_landing(self, store: Store) -> None:
        """As soon as the sink has committed: Spark has mostly not written its own commit by then."""
        for _ in range(ATTEMPTS):
            with self._driver() as driver:
                self._until_landed(store, driver)
                _kill(driver)
            if self._landed(store) > self._newest("commits"):
                self.done["kills_after_landing"] += 1
                return
            if driver.returncode == 0:
                # nothing was left to do: take a step back, which is the same moment reached by another way
                self._delete_a_commit(store)
        raise PeerUnavailable("no kill fell between the two commits", fix="run it again with another seed")

    def _delete_a_commit(self, store: Store) -> None:
        newest = self._newest("commits")
        if newest < 0:
            self._kill_in_a_batch(store)
            newest = self._newest("commits")
        for path in (self.checkpoint / "commits").glob(f"*{newest}*"):
            path.unlink()
        self.done["commits_deleted"] += 1

    def _delete_the_checkpoint(self, store: Store) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.done["checkpoints_deleted"] += 1

    # -- the driver

    @contextmanager
    def _driver(self) -> Iterator[subprocess.Popen[bytes]]:
        orders = {
            "inputs": [[self.place.east, EAST], [self.place.west, WEST]],
            "store": self.place.east,
            "name": NAME,
            "failing": self.faults.failing,
            "seed": self.chance.randrange(2**31),
            "rows_per_batch": max(1_000, self.rows // 2 // self.faults.batches),
            "master": self.place.master,
            "memory": "2g",
            "settings": self.place.settings,
            "checkpoint": str(self.checkpoint),
            "wait_s": 60.0,
        }
        with self.log.open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.campaigns.spark_child", json.dumps(orders)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=child_environment(),
            )  # fmt: skip
        try:
            yield driver
        finally:
            _kill(driver)

    def _until_landed(self, store: Store, driver: subprocess.Popen[bytes]) -> None:
        """Until the sink has committed one more batch, or the driver has ended by itself."""
        before, until = store.head(f"spark/{NAME}").offset, time.monotonic() + RUN_S
        while store.head(f"spark/{NAME}").offset == before and driver.poll() is None:
            if time.monotonic() > until:
                raise self._trouble("landed nothing")
            time.sleep(0.002)
        if driver.poll():
            raise self._trouble(f"ended with code {driver.returncode}")

    def _finish(self) -> None:
        with self._driver() as driver:
            try:
                code = driver.wait(RUN_S)
            except subprocess.TimeoutExpired:
                raise self._trouble("did not come to an end") from None
        if code:
            raise self._trouble(f"ended with code {code}")

    def _trouble(self, what: str) -> PeerUnavailable:
        tail = self.log.read_text(errors="replace")[-TAIL:]
        return PeerUnavailable(f"the driver {what}; it said last:\n{tail}", fix="fix what it complains about")

    def _newest(self, name: str) -> int:
        found = [int(path.name) for path in (self.checkpoint / name).glob("*") if path.name.isdigit()]
        return max(found, default=-1)

    def _landed(self, store: Store) -> int:
        from semel.spark.landing import read_state, state_key

        return read_state(state_key(NAME), store.state(state_key(NAME))).batch

    # -- counting

    def _count(self, store: Store, messages: int) -> dict[str, Any]:
        seen: set[str] = set()
        last: dict[str, int] = {}
        doubled = disorder = altered = 0
        for envelope in _records(store, f"spark/{NAME}"):
            doubled += envelope.id in seen
            seen.add(envelope.id)
            session, index = envelope.session or "", envelope.index or 0
            disorder += index != last.get(session, 0) + 1
            last[session] = index
            altered += envelope.data[::-1] != envelope.id[1:].encode()
        lost = messages - len(seen)
        return {
            "messages": messages,
            "lost": lost,
            "doubled": doubled,
            "disorder": disorder,
            "altered": altered,
            "holds": not (lost or doubled or disorder or altered),
        }


def _records(store: Store, stream: str) -> Iterator[Envelope]:
    after = None
    while True:
        found = store.read(stream, after, READ_ROWS)
        assert isinstance(found, Records)
        if not found.records:
            return
        yield from (record.envelope for record in found.records)
        after = found.records[-1].position


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """The driver and its JVM, which are one group."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


# -- the soak


def spark(size: int, seed: int, step: Step) -> dict[str, Any]:
    """SQLite with Spark on this machine, then PostgreSQL with a cluster of its own."""
    from tests.tools.spark_cluster import SparkCluster

    from semel.testing.postgres import PrivatePostgres

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-spark-")))
        east, west = (f"sqlite:///{folder}/{name}.db" for name in ("east", "west"))
        local = _in(folder / "local", Place(east, west), size, seed, FEW, lambda done, total: step(done, 2 * total))
        server = stack.enter_context(PrivatePostgres())
        cluster = stack.enter_context(SparkCluster(workers=2))
        east, west = (stack.enter_context(server.new_database()) for _ in range(2))
        place = Place(east, west, cluster.url)
        remote = _in(
            folder / "cluster", place, size, seed + 1, FEWER, lambda done, total: step(total + done, 2 * total)
        )
    return {"sqlite_local": local, "postgres_cluster": remote, "holds": local["holds"] and remote["holds"]}


def _in(folder: Path, place: Place, rows: int, seed: int, few: Faults, step: Step) -> dict[str, Any]:
    folder.mkdir()
    return Campaign(place, folder, rows, seed, Faults() if rows >= MANY_ROWS else few).run(step)
