"""kill -9 at every named point of a store: nothing that was confirmed is lost, and nothing happens twice."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.campaigns import crash_child
from tests.campaigns.crash import live_through, repeat
from tests.campaigns.crash_child import Say, Todo, die_at, live

from semel.kernel.store import Store
from semel.stores.memory import Frame, MemoryStore
from semel.stores.open import open_store
from semel.stores.points import POINTS, on_reach

pytestmark = pytest.mark.contract

STORE_POINTS = (
    "commit.begin",
    "commit.applied",
    "commit.committed",
    "sweep.deleted",
    "blob.chunk",
    "migrate.step",
    "epoch.raised",
)
IN_EVERY_PHASE = (1, 3, 9, 20, 13)
"""While producing, while producing again, while storing bodies, and twice while working."""

DEATHS = {
    "commit.begin": IN_EVERY_PHASE,
    "commit.applied": IN_EVERY_PHASE,
    "commit.committed": IN_EVERY_PHASE,
    "sweep.deleted": (1, 3),
    "blob.chunk": (1, 2, 2),
    "migrate.step": (1, 1),
    "epoch.raised": (1, 1),
}


def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/semel.db"


@pytest.mark.parametrize("point", STORE_POINTS)
def test_sqlite_survives_kill_9(tmp_path: Path, point: str) -> None:
    url = sqlite_url(tmp_path)
    report = live_through(url, point, DEATHS[point])
    assert report.deaths == len(DEATHS[point])
    store = open_store(url)
    report.check(store)
    store.close()


@pytest.mark.parametrize("point", STORE_POINTS)
def test_postgres_survives_kill_9(postgres_url: str, point: str) -> None:
    report = live_through(postgres_url, point, DEATHS[point])
    assert report.deaths == len(DEATHS[point])
    store = open_store(postgres_url)
    report.check(store)
    store.close()


class Killed(BaseException):
    """Stands for kill -9: nothing of the process is left but what its journal has synced."""


@dataclass
class Disk:
    """A journal whose unsynced frames are lost in a crash, or torn in the middle. It may die while it syncs."""

    tears: bool = False
    synced: list[bytes] = field(default_factory=list)
    unsynced: list[bytes] = field(default_factory=list)
    syncs_left: int = -1

    def frames(self) -> list[Frame]:
        """Up to the first frame that does not read: never confirmed, it is cut off, and writing goes on there."""
        frames = list(self._whole())
        del self.synced[len(frames) :]
        return frames

    def _whole(self) -> Iterator[Frame]:
        for data in self.synced:
            try:
                yield pickle.loads(data)
            except (pickle.UnpicklingError, EOFError):
                return

    def append(self, frame: Frame) -> None:
        self.unsynced.append(pickle.dumps(frame))

    def sync(self) -> None:
        self.syncs_left -= 1
        if self.syncs_left == 0:
            raise Killed
        self.synced += self.unsynced
        self.unsynced = []

    def crash(self) -> None:
        """What a power cut leaves: the synced frames, perhaps a piece of the next, and nothing readable after it."""
        if self.tears and self.unsynced:
            self.synced.append(self.unsynced[0][: len(self.unsynced[0]) // 2])
        self.unsynced = []
        self.syncs_left = -1


def live_on(disk: Disk, todo: Todo, point: str, count: int) -> tuple[list[str], bool]:
    """The same life as the child process lives, in this one, on a simulated disk."""
    lines: list[str] = []

    def die() -> None:
        raise Killed

    if point == "sync":
        disk.syncs_left = count
    else:
        die_at(point, count, die)
    try:
        live(MemoryStore(journal=disk), todo, lambda *words: lines.append(" ".join(map(str, words))))
    except Killed:
        disk.crash()
        return lines, True
    finally:
        on_reach(None)
    return lines, False


@pytest.mark.parametrize("tears", [False, True], ids=["lost", "torn"])
@pytest.mark.parametrize("point", [*(point for point in STORE_POINTS if point != "migrate.step"), "sync"])
def test_the_memory_store_survives_on_a_disk_that_loses_and_tears(point: str, tears: bool) -> None:
    disk = Disk(tears)
    deaths = DEATHS.get(point, IN_EVERY_PHASE)
    report = repeat(lambda todo, point, count: live_on(disk, todo, point, count), point, deaths)
    assert report.deaths == len(deaths)
    report.check(MemoryStore(journal=disk))


def test_a_confirm_before_its_commit_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same life with the oldest mistake in it: these tests can fail."""
    produce = crash_child._produce

    def confirm_first(store: Store, ids: list[str], say: Say) -> None:
        head = store.head(crash_child.STREAM).offset
        for offset, id in enumerate(ids, start=head + 1):
            say("acked", id, offset)
        produce(store, ids, lambda *words: None)

    monkeypatch.setattr(crash_child, "_produce", confirm_first)
    disk = Disk()
    report = repeat(lambda todo, point, count: live_on(disk, todo, point, count), "commit.applied", IN_EVERY_PHASE)
    with pytest.raises(AssertionError):
        report.check(MemoryStore(journal=disk))


def test_every_point_is_covered_by_a_crash_test() -> None:
    """Points of the stores are covered here. The others must be named by the crash tests of those who reach them."""
    assert set(DEATHS) == set(STORE_POINTS)
    elsewhere = set(POINTS) - set(STORE_POINTS)
    named: set[str] = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        if path != Path(__file__):
            named |= _literals(path)
    uncovered = {point for point in elsewhere if point not in named and point.split(".")[0] + "." not in named}
    assert uncovered == set()


def _literals(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
