"""Ledgers of which the truth is known: what was lost, doubled and put out of order was planted, id by id.

They are written the way that real ones are, by commits to a store, and exported from there. Two stores: `edge` sends,
`hub` receives and keeps what came in a stream, which a worker reads. Four hops in two pipelines:

    app>hub/in      sent and confirmed one by one, accepted in ranges
    hub/in>worker   the records of the stream are what was sent, accepted and ended one by one
    north>desk, south>desk   two ways to one receiver
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind, fold_ids
from semel.kernel.ops import Append, Fresh, Log, Op, Unit
from semel.kernel.position import Position
from semel.runtime.export.exporter import DATASETS, ExportOptions, export
from semel.stores.sqlite import SqliteStore

BEGIN_US = 1_767_225_600_000_000
"""2026-01-01 in UTC."""
SECOND_US = 1_000_000
IN, OUT = "app>hub/in", "hub/in>worker"
NORTH, SOUTH = "north>desk", "south>desk"
STREAM = "hub/in"
CHAT, DESK = "chat", "desk"
FATES = ("lost", "doubled", "disorder", "phantoms", "given_up", "in_flight", "unbalanced")


@dataclass
class Truth:
    """The ids of what was planted on each hop, and how many messages were sent there."""

    planted: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    sent: dict[str, set[str]] = field(default_factory=dict)

    def plant(self, hop: str, fate: str, message: str) -> None:
        self.of(hop, fate).add(message)

    def of(self, hop: str, fate: str) -> set[str]:
        assert fate in FATES
        return self.planted.setdefault(hop, {}).setdefault(fate, set())

    def send(self, hop: str, message: str) -> None:
        self.sent.setdefault(hop, set()).add(message)


@dataclass(frozen=True, slots=True)
class Letter:
    id: str
    session: str
    index: int

    @property
    def envelope(self) -> Envelope:
        return Envelope(id=self.id, session=self.session, index=self.index, type="letter")


class Book:
    """A store whose clock is set by hand."""

    def __init__(self, path: Path, node: str) -> None:
        self.now = BEGIN_US
        self.url = f"sqlite:///{path.absolute()}"
        self.store = SqliteStore(self.url, node=node, clock=lambda: self.now)

    def log(self, kind: Kind, hop: str, letter: Letter, pipeline: str = CHAT, attempt: int = 1) -> None:
        event = Event(
            kind, hop, pipeline, letter.id, session=letter.session, idx=letter.index, attempt=attempt
        )  # fmt: skip
        self.commit(Log(event))

    def accept(self, letters: Sequence[Letter]) -> list[Position]:
        """One commit, so one range. No identity: a letter that is there twice is accepted twice."""
        template = Event(Kind.ACCEPTED, IN, CHAT)
        results = self.commit(*(Append(STREAM, letter.envelope, on_fresh=template) for letter in letters))
        return [result.position for result in results if isinstance(result, Fresh)]

    def confirm(self, letters: Sequence[Letter], places: Sequence[Position], peer: str = "") -> None:
        first, last = places[0], places[-1]
        fold = fold_ids(letter.id for letter in letters)
        event = Event(
            Kind.CONFIRMED, IN, CHAT, peer=peer, stream=STREAM, epoch=first.epoch, first=first.offset,
            last=last.offset, n=len(letters), fold=fold,
        )  # fmt: skip
        self.commit(Log(event))

    def commit(self, *ops: Op) -> tuple[object, ...]:
        outcome = self.store.commit([Unit(ops)])[0]
        return tuple(getattr(outcome, "results", ()))

    def export(self, folder: Path, segment_rows: int = 500) -> None:
        for dataset in DATASETS:
            export(self.store, folder, dataset, ExportOptions(segment_rows=segment_rows))


@dataclass
class Scene:
    """The two stores, their folder, and what was planted. `end_us` is the time of the last event."""

    edge: Book
    hub: Book
    folder: Path
    truth: Truth
    end_us: int = BEGIN_US

    def export(self, segment_rows: int = 500) -> None:
        self.edge.export(self.folder, segment_rows)
        self.hub.export(self.folder, segment_rows)

    def at(self, time: int) -> None:
        self.edge.now = self.hub.now = time
        self.end_us = max(self.end_us, time)


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """An empty scene."""
    folder.mkdir(parents=True, exist_ok=True)
    edge, hub = Book(folder / "edge.db", "edge"), Book(folder / "hub.db", "hub")
    try:
        yield Scene(edge, hub, folder / "lake", Truth())
    finally:
        edge.store.close()
        hub.store.close()


def plant(scene: Scene, seed: int, *, sessions: int = 6, each: int = 12, step_us: int = 20_000) -> None:
    """Fill a scene with traffic and with everything that can go wrong, at random places."""
    rng = random.Random(seed)
    _Traffic(scene, rng, sessions, each, step_us).run()


class _Traffic:
    def __init__(self, scene: Scene, rng: random.Random, sessions: int, each: int, step_us: int) -> None:
        self.scene, self.truth, self.rng = scene, scene.truth, rng
        self.step_us = step_us
        self.time = scene.end_us
        salt = rng.randrange(10**6)
        self.letters = {
            f"{'vip' if at % 3 == 0 else 'std'}-{salt}-{at}": [
                Letter(f"m-{salt}-{at}-{index}", f"{'vip' if at % 3 == 0 else 'std'}-{salt}-{at}", index)
                for index in range(1, each + 1)
            ]
            for at in range(sessions)
        }

    def tick(self) -> None:
        self.time += self.step_us
        self.scene.at(self.time)

    def run(self) -> None:
        arrived = [self._into_hub(letters) for letters in self.letters.values()]
        for letters in arrived:
            self._to_worker(letters)
        for letters in self.letters.values():
            self._over_two_ways(letters)
        self.time += 120 * SECOND_US
        self._under_way()

    # -- app>hub/in

    def _into_hub(self, letters: Sequence[Letter]) -> list[Letter]:
        """What the hub has in its stream afterwards, each letter once."""
        fates = [
            self.rng.choices(("fine", "lost", "doubled", "given_up", "resent"), (12, 1, 1, 1, 2))[0] for _ in letters
        ]
        for letter, fate in zip(letters, fates, strict=True):
            self.tick()
            self.truth.send(IN, letter.id)
            self.scene.edge.log(Kind.SENT, IN, letter)
            if fate in ("resent", "lost"):
                self.tick()
                self.scene.edge.log(Kind.RESENT, IN, letter, attempt=2)
        coming = [letter for letter, fate in zip(letters, fates, strict=True) if fate not in ("lost", "given_up")]
        self._swap(coming, IN)
        self._take(coming, {letter.id for letter, fate in zip(letters, fates, strict=True) if fate == "doubled"})
        for letter, fate in zip(letters, fates, strict=True):
            self._end(letter, fate)
        return coming

    def _swap(self, letters: list[Letter], hop: str) -> None:
        """Sometimes the second of two neighbours comes first. Out of order is what comes after a later one."""
        if len(letters) > 3 and self.rng.random() < 0.5:
            at = self.rng.randrange(len(letters) - 1)
            letters[at], letters[at + 1] = letters[at + 1], letters[at]
        highest = 0
        for letter in letters:
            if letter.index < highest:
                self.truth.plant(hop, "disorder", letter.id)
            highest = max(highest, letter.index)

    def _take(self, letters: list[Letter], doubled: set[str]) -> None:
        """In commits of several, some letters a second time in a later one, and one that nobody sent."""
        hub = self.scene.hub
        left = list(letters)
        while left:
            size = self.rng.randint(1, 20)
            some, left = left[:size], left[size:]
            self.tick()
            places = hub.accept(some)
            hub.confirm(some, places)
        for letter in letters:
            self.tick()
            if letter.id in doubled:
                hub.accept([letter])
                self.truth.plant(IN, "doubled", letter.id)
            elif self.rng.random() < 0.2:
                hub.log(Kind.DUPLICATE, IN, letter, attempt=2)
        if self.rng.random() < 0.5:
            last = letters[-1] if letters else Letter("", f"stray-{self.rng.randrange(10**9)}", 0)
            stray = Letter(f"stray-{self.rng.randrange(10**9)}", last.session, last.index + 100)
            hub.accept([stray])
            self.truth.plant(IN, "phantoms", stray.id)
            letters.append(stray)

    def _end(self, letter: Letter, fate: str) -> None:
        self.tick()
        if fate == "lost":
            self.truth.plant(IN, "lost", letter.id)
            if self.rng.random() < 0.3:
                self.scene.edge.log(Kind.CONFIRMED, IN, letter)
                self.truth.plant(IN, "unbalanced", letter.id)
        elif fate == "given_up":
            self.scene.edge.log(Kind.EXPIRED, IN, letter)
            self.truth.plant(IN, "given_up", letter.id)

    # -- hub/in>worker

    def _to_worker(self, letters: list[Letter]) -> None:
        self.truth.sent.setdefault(OUT, set()).update(letter.id for letter in letters)
        coming = []
        for letter in letters:
            if self.rng.random() < 0.1:
                self.truth.plant(OUT, "lost", letter.id)
            else:
                coming.append(letter)
        self._swap(coming, OUT)
        for letter in coming:
            self.tick()
            self.scene.edge.log(Kind.ACCEPTED, OUT, letter)
            self._handled(letter)

    def _handled(self, letter: Letter) -> None:
        fate = self.rng.choices(("handled", "open", "replayed", "twice", "doubled"), (12, 2, 1, 1, 1))[0]
        edge = self.scene.edge
        kinds = {
            "handled": [Kind.HANDLED],
            "open": [],
            "replayed": [Kind.DEAD_LETTERED, Kind.REPLAYED, Kind.HANDLED],
            "twice": [Kind.HANDLED, Kind.HANDLED],
            "doubled": [Kind.ACCEPTED, Kind.HANDLED, Kind.HANDLED],
        }[fate]
        for kind in kinds:
            self.tick()
            edge.log(kind, OUT, letter)
        if fate == "twice":
            self.truth.plant(OUT, "unbalanced", letter.id)
        if fate == "doubled":
            self.truth.plant(OUT, "doubled", letter.id)

    # -- two ways to one receiver

    def _over_two_ways(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            for hop in (NORTH, SOUTH):
                self.tick()
                self.truth.send(hop, letter.id)
                self.scene.edge.log(Kind.SENT, hop, letter, DESK)
            first, second = self.rng.sample((NORTH, SOUTH), 2)
            fate = self.rng.choices(("both", "one", "twice", "none", "denied"), (10, 3, 1, 1, 1))[0]
            self._arrive(letter, first, second, fate)

    def _arrive(self, letter: Letter, first: str, second: str, fate: str) -> None:
        """`denied`: called a duplicate, though nobody has it."""
        hub = self.scene.hub
        self.tick()
        if fate in ("none", "denied"):
            if fate == "denied":
                hub.log(Kind.DUPLICATE, first, letter, DESK)
            self.truth.plant(first, "lost", letter.id)
            self.truth.plant(second, "lost", letter.id)
            return
        hub.log(Kind.ACCEPTED, first, letter, DESK)
        self.tick()
        if fate == "both":
            hub.log(Kind.DUPLICATE, second, letter, DESK)
        elif fate == "twice":
            hub.log(Kind.ACCEPTED, second, letter, DESK)
            self.truth.plant(second, "doubled", letter.id)
        else:
            self.truth.plant(second, "lost", letter.id)

    # -- still on the way

    def _under_way(self) -> None:
        for session, letters in self.letters.items():
            letter = Letter(f"late-{session}", session, letters[-1].index + 1000)
            self.tick()
            self.truth.send(IN, letter.id)
            self.scene.edge.log(Kind.SENT, IN, letter)
            self.truth.plant(IN, "in_flight", letter.id)
