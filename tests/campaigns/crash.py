"""Kill a real process with -9 at a named point, start it again, and hold the store to what the process was told.

    report = live_through("sqlite:///semel.db", "commit.applied", deaths=(1, 3, 5))
    report.check(open_store("sqlite:///semel.db"))

The process (`crash_child`) tells line by line what the store has confirmed. Whatever it did not tell is sent again by
the next one, under the same ids. In the end everything that was confirmed is there, once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.campaigns.crash_child import BODIES, BODY, EFFECTS, HOP, STREAM, Todo, append_once
from tests.tools.paths import child_environment

from semel.kernel.ledger import START, Entry, balance
from semel.kernel.ops import Applied, Duplicate, Unit
from semel.kernel.position import Position
from semel.kernel.store import Records, Store, Trimmed
from semel.testing.limits import scaled

MESSAGES, BODY_COUNT = 24, 2
LIFE_S = 60.0

Live = Callable[[Todo, str, int], tuple[list[str], bool]]
"""Lives once, dying at the `count`-th reach of a point; answers the lines that were told, and whether it died."""


@dataclass
class Report:
    """What the lives told before they ended."""

    point: str
    deaths: int = 0
    acked: dict[str, int] = field(default_factory=dict)
    bodies: set[str] = field(default_factory=set)
    handled: list[str] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    is_done: bool = False

    def todo(self) -> Todo:
        messages = [id for id in _ids(MESSAGES) if id not in self.acked]
        bodies = [f"b{n}" for n in range(BODY_COUNT) if f"b{n}" not in self.bodies]
        return Todo(MESSAGES, messages, bodies)

    def hear(self, line: str) -> None:
        match line.split():
            case ["acked", id, offset]:
                assert id not in self.acked, f"{id} was confirmed and yet sent again"
                self.acked[id] = int(offset)
            case ["body", id]:
                self.bodies.add(id)
            case ["claimed", _, fence]:
                self.fences.append(int(fence))
            case ["handled", id]:
                self.handled.append(id)
            case ["epoch", number]:
                self.epochs.append(int(number))
            case ["done"]:
                self.is_done = True

    def check(self, store: Store) -> None:
        """Nothing confirmed is lost, nothing is there twice, and the ledger agrees."""
        self._check_records(store)
        self._check_work(store)
        for n in range(BODY_COUNT):
            [record] = [record for record in _read(store, BODIES).records if record.envelope.id == f"b{n}"]
            assert record.envelope.blob is not None
            assert b"".join(store.body(record.envelope.blob.name)) == BODY
        assert store.epoch == 2
        assert self.epochs in ([], [2]), "a killed process may not have told of it, but it happened once"

    def _check_records(self, store: Store) -> None:
        assert sorted(self.acked) == _ids(MESSAGES)
        assert sorted(self.acked.values()) == list(range(1, MESSAGES + 1)), "offsets are dense"
        for id, offset in self.acked.items():
            [outcome] = store.commit([Unit((append_once(id),))])
            assert outcome == Applied((Duplicate(Position(STREAM, store.epoch, offset)),))
        kept = MESSAGES // 2
        trimmed = store.read(STREAM)
        assert isinstance(trimmed, Trimmed)
        assert trimmed.first.offset == kept + 1
        after = Position(STREAM, store.epoch, kept)
        by_offset = {offset: id for id, offset in self.acked.items()}
        left = [(record.position.offset, record.envelope.id) for record in _read(store, STREAM, after).records]
        assert left == [(offset, by_offset[offset]) for offset in range(kept + 1, MESSAGES + 1)]

    def _check_work(self, store: Store) -> None:
        effects = Counter(record.envelope.id for record in _read(store, EFFECTS).records)
        assert effects == Counter(_ids(MESSAGES)), "each effect once"
        assert not Counter(self.handled) - effects, "what was told to be handled is there"
        claims = [fence for at, fence in enumerate(self.fences) if at == 0 or fence != self.fences[at - 1]]
        assert claims == sorted(set(claims)), "fences grow and are never used again"
        events = [entry.event for entry in _ledger(store) if entry.event.hop == HOP]
        result = balance(events, open_count=0)
        assert (result.accepted, result.ended) == (MESSAGES, MESSAGES)


def live_through(url: str, point: str, deaths: Sequence[int]) -> Report:
    """Let a process live in the store at `url`, die at each of the given reaches of the point, and live to the end."""
    return repeat(lambda todo, point, count: _live_once(url, todo, point, count), point, deaths)


def repeat(live: Live, point: str, deaths: Sequence[int]) -> Report:
    """Live once per death, and once more without dying. A point that is reached less often than that kills less."""
    report = Report(point)
    for count in (*deaths, 0):
        lines, died = live(report.todo(), point, count)
        for line in lines:
            report.hear(line)
        report.deaths += died
    assert report.is_done
    return report


def _live_once(url: str, todo: Todo, point: str, count: int) -> tuple[list[str], bool]:
    command = [sys.executable, "-m", "tests.campaigns.crash_child", url, point, str(count)]
    child = subprocess.run(
        command, input=todo.as_json(), capture_output=True, text=True, timeout=scaled(LIFE_S), env=child_environment()
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr
    return child.stdout.splitlines(), child.returncode != 0


def _ids(count: int) -> list[str]:
    return sorted(f"{'m' * (1 + n % 3)}{n}" for n in range(count))


def _read(store: Store, stream: str, after: Position | None = None) -> Records:
    found = store.read(stream, after)
    assert isinstance(found, Records)
    return found


def _ledger(store: Store) -> list[Entry]:
    """All entries, once the last one written is visible: a store may show them a moment after their commit."""
    count = store.status().ledger_entries
    while len(found := store.ledger(START, limit=10_000)) < count:
        pass
    return found


__all__ = ["Live", "Report", "live_through", "repeat"]
