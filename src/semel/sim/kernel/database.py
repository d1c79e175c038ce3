"""A store as a process of its own, or inside its only node: commits take time, and may fail in every way they can.

The store itself is the production memory store. What is made up here is the way to it and the moment of a power cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import SemelError, StoreBusy, StoreError, StoreFull, StoreRefused, StoreUnavailable
from semel.kernel.group import CommitGroup
from semel.kernel.ledger import Mark
from semel.kernel.ops import Append, Enqueue, Outcome, Unit
from semel.kernel.store import Record
from semel.sim.kernel.weather import KernelWorld
from semel.sim.process import is_news
from semel.sim.world import Drift
from semel.stores.memory import Frame, MemoryStore

if TYPE_CHECKING:
    from semel.sim.kernel.node import Node


class Disk:
    """A journal for the memory store. With `cut_next_sync` the power goes before the next sync reaches the disk: a
    crash must follow before anybody learns of the commit."""

    def __init__(self, world: KernelWorld) -> None:
        self._world = world
        self._frames: list[Frame] = []
        self._synced = 0
        self.cut_next_sync = False

    def __len__(self) -> int:
        return len(self._frames)

    def frames(self) -> Sequence[Frame]:
        return tuple(self._frames)

    def append(self, frame: Frame) -> None:
        self._frames.append(frame)

    def sync(self) -> None:
        if not self.cut_next_sync:
            self._synced = len(self._frames)

    def crash(self) -> None:
        """What was not synced survives up to some frame; the next one may be torn, and a torn frame ends the replay."""
        unsynced = len(self._frames) - self._synced
        if unsynced == 0:
            return
        kept = self._world.random.randint(0, unsynced)
        self._world.see("disk.unsynced-kept" if kept == unsynced else "disk.unsynced-lost")
        if kept < unsynced and self._world.random.random() < 0.5:
            self._world.see("disk.torn")
        self.truncate(self._synced + kept)

    def truncate(self, length: int) -> None:
        """Only the first frames are left: after a crash, or because a backup was put in place."""
        del self._frames[length:]
        self._synced = len(self._frames)


RESOLVE_AGAIN_S = 0.5


@dataclass(slots=True, eq=False)
class Request:
    """A group on its way. `answered` when its node knows, or never will."""

    marker: int
    node: Node
    life: int
    group: CommitGroup
    store_life: int
    answered: bool = False
    cancelled: bool = False


class Database:
    """`shared` databases outlive their nodes and have crashes of their own; others live and die with their node."""

    def __init__(self, world: KernelWorld, name: str, role: str, *, shared: bool, drift: Drift) -> None:
        self.name = name
        self.role = role
        self.shared = shared
        self.nodes: list[Node] = []
        self.archive: dict[int, Record] = {}
        self.disk = Disk(world)
        self.up = False
        self._world = world
        self._drift = drift
        self._life = 0
        self._markers = 0
        self._asked: dict[int, Request] = {}
        self._landed: dict[int, tuple[int, list[Outcome]]] = {}
        self.open()

    # -- life

    def open(self) -> None:
        """Replay the journal. What the disk kept is all there is."""
        self.store = MemoryStore(node=self.name, clock=self.micros, journal=self.disk, store_id=self.name)
        self.up = True

    def micros(self) -> int:
        return int(self._drift.local(self._world.now) * 1_000_000)

    def crash(self) -> None:
        """The power goes. Nodes that wait for an answer do not know what became of their commit."""
        if not self.up:
            return
        self.up = False
        self._life += 1
        self._world.see("store.crash")
        self.disk.crash()
        self._forget_lost()
        waiting, self._asked = list(self._asked.values()), {}
        for request in waiting:
            request.answered = request.cancelled = True
            self._leave_in_doubt(request)
        if self.shared:
            self._world.after(self._world.between((0.3, 3.0)), f"{self.name} opens", self._open_again)

    def _open_again(self) -> None:
        if not self.up:
            self.open()
            self.wake()

    def _forget_lost(self) -> None:
        self._landed = {marker: landed for marker, landed in self._landed.items() if landed[0] <= len(self.disk)}

    def restore(self, length: int) -> None:
        """Put a backup in place: the journal as it was at `length`, and then a new epoch."""
        self.disk.truncate(length)
        self._forget_lost()
        self.open()
        self.store.raise_epoch("restored from a backup")
        self.wake()

    # -- commits

    def commit(self, node: Node, group: CommitGroup) -> None:
        self._markers += 1
        request = Request(self._markers, node, node.life, group, self._life)
        self._asked[request.marker] = request
        fate = self._fate()
        if fate == "doubt-early":
            self._leave_in_doubt(request)
        self._after("commit", self._perform, request, fate)

    def commit_alone(self, unit: Unit) -> Outcome:
        """A transaction of somebody who is not a machine: at once, and nobody else is notified."""
        [outcome] = self.store.commit([unit])
        self.wake()
        return outcome

    def _fate(self) -> str:
        stores = self._world.weather.stores
        for fault, probability in (
            ("unavailable", stores.unavailable),
            ("doubt-early", stores.doubt / 3),
            ("doubt-lost", stores.doubt / 3),
            ("doubt-landed", stores.doubt / 3),
            ("cut-before", stores.strike / 3),
            ("cut-inside", stores.strike / 3),
            ("cut-after", stores.strike / 3),
        ):
            if self._world.strikes(f"commit.{fault}", probability):
                return fault
        return "lands"

    def _perform(self, request: Request, fate: str) -> None:
        if request.cancelled or request.store_life != self._life:
            return
        if not self.up or fate == "unavailable":
            self._answer(request, "failed", self._trouble())
        elif fate == "cut-before":
            self._cut_power()
        elif fate == "doubt-lost":
            request.cancelled = True
            self._leave_in_doubt(request)
        elif self._is_poisoned(request.group.units):
            self._world.see("commit.refused")
            self._answer(request, "refused", StoreRefused("this store does not take it today", fix="try tomorrow"))
        else:
            self._land(request, fate)

    def _land(self, request: Request, fate: str) -> None:
        self.disk.cut_next_sync = fate == "cut-inside"
        try:
            outcomes = self.store.commit(request.group.units)
        except StoreError as error:
            self._answer(request, "refused" if isinstance(error, StoreRefused) else "failed", error)
            return
        finally:
            self.disk.cut_next_sync = False
        self._landed[request.marker] = (len(self.disk), outcomes)
        self._world.clock.note(f"{self.name} has frame {len(self.disk)}")
        self._world.clock.detail(request.node.name, fate, request.group.members, outcomes)
        if fate in ("cut-inside", "cut-after"):
            self._cut_power()
            return
        if is_news(request.group.units, outcomes):
            self.wake()
        if fate == "doubt-landed":
            self._leave_in_doubt(request)
        elif not request.answered:
            self._answer(request, "committed", outcomes)

    def _cut_power(self) -> None:
        if self.shared:
            self.crash()
        else:
            self.nodes[0].crash()

    def _trouble(self) -> SemelError:
        kind = self._world.random.choice((StoreUnavailable, StoreBusy, StoreFull))
        return kind("the store cannot do it now", fix="try again")

    def _is_poisoned(self, units: list[Unit]) -> bool:
        return not self._world.is_clear and any(
            isinstance(op, Append | Enqueue) and op.envelope.subject == self.role for unit in units for op in unit.ops
        )

    def wake(self) -> None:
        """Somebody committed, or the store is back and nobody knows what was committed meanwhile."""
        for node in self.nodes:
            node.wake_soon()

    # -- answers

    def _answer(self, request: Request, report: str, answer: Any) -> None:
        self._after("answer", self._answer_now, request, report, answer)

    def _answer_now(self, request: Request, report: str, answer: Any) -> None:
        if request.answered:
            return
        request.answered = True
        self._asked.pop(request.marker, None)
        self._world.clock.detail(request.node.name, report, request.marker)
        request.node.complete(request.life, report, request.group, answer)

    def _leave_in_doubt(self, request: Request) -> None:
        request.answered = True
        self._asked.pop(request.marker, None)
        self._after("doubt", self._resolve, request)

    def _resolve(self, request: Request) -> None:
        """What the store says of a commit in doubt is final: if it has not happened by now, it never will."""
        node = request.node
        if node.life != request.life:
            return
        if self._world.strikes("commit.unresolved", self._world.weather.stores.unresolved):
            node.complete(request.life, "unknown", request.group, None)
        elif not self.up:
            self._world.after(RESOLVE_AGAIN_S, f"{self.name} doubt", self._resolve, request)
        else:
            landed = self._landed.get(request.marker)
            request.cancelled = True
            self._world.see("commit.resolved-landed" if landed else "commit.resolved-lost")
            node.complete(request.life, "resolved", request.group, landed[1] if landed else None)

    def _after(self, what: str, do: Callable[..., None], *args: Any) -> None:
        self._world.after(self._world.between(self._world.weather.stores.commit_s), f"{self.name} {what}", do, *args)

    # -- reads

    def ask(self, node: Node, question: Callable[[MemoryStore], Any], done: Callable[..., None]) -> None:
        """Read something; `done` gets the answer or an error, as it was when the store looked."""
        self._after_read("read", self._look, node, node.life, question, done)

    def _look(self, node: Node, life: int, question: Callable[[MemoryStore], Any], done: Callable[..., None]) -> None:
        answer: Any
        if not self.up or self._world.strikes("read.failed", self._world.weather.stores.unavailable):
            answer = self._trouble()
        else:
            try:
                answer = question(self.store)
            except SemelError as error:
                answer = error
        self._after_read("found", node.complete_load, life, done, answer)

    def _after_read(self, what: str, do: Callable[..., None], *args: Any) -> None:
        self._world.after(self._world.between(self._world.weather.stores.read_s), f"{self.name} {what}", do, *args)

    def archive_index(self) -> None:
        """Remember which record stood where, for checks after the rows are gone."""
        for entry in self.store.index(Mark(0, max(self.archive, default=0)), limit=10**9):
            self.archive[entry.mark.seq] = entry.record
