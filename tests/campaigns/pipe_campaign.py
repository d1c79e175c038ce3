"""Paths of real processes over links that lose, double and delay 30 % each, with kill -9 of each process in turn.

    pipes      A ══ bad link ══ B                         both durable: nothing lost, nothing doubled, in order
    cascade    A ── bad link ── P2 ── bad link ── B       P2 has no memory but its own, and B's handler fails at times

The count at the end holds two writers against each other: what the application at A was told is stored, and the
effects that the handler at B has left. What the ledgers say of the pipes and of the delivery stands beside it.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.campaigns.pipe_child import EFFECTS, SESSIONS, message, size_of
from tests.tools.paths import child_environment

from semel.demo.children import Child
from semel.errors import PeerUnavailable
from semel.kernel.ledger import START, Event, Kind
from semel.kernel.store import Record, Records, Store
from semel.pipes.language.notation import parse_path
from semel.pipes.plan.figures import Measured, PathFigures, measure, records_by_place
from semel.pipes.workers.build import Built, build
from semel.stores import open_store
from semel.testing.faults import FaultProxy, FrameFaults
from semel.testing.limits import scaled

Step = Callable[[int, int], None]

WEATHER = FrameFaults(loss=0.3, doubling=0.3, delay=0.3, delay_s=0.03)
MESSAGES_PER_KILL = 500
KILLS_MIN = 4
WATCH_S = 0.02
STALL_S = 60.0
BATCH = 1000


@dataclass(frozen=True, slots=True)
class Campaign:
    """`failures`: how often the handler at the end fails."""

    name: str
    path: str
    failures: float = 0.0


PIPES = Campaign("pipes", "A -[retries=inf,window=900,timeout=100ms,dedup=strict,durable=yes]-> B")
CASCADE = Campaign(
    "cascade",
    # the second window holds all that the first lets through, or a late message could wait behind those waiting for it
    "A{durable=yes} -[retries=inf,window=512,timeout=100ms,dedup=id,confirm=cascade]-> P2"
    " -[retries=inf,window=1024,timeout=100ms,dedup=session,confirm=processing]-> B{durable=yes}",
    failures=0.1,
)


def pipes(size: int, seed: int, step: Step) -> dict[str, Any]:
    return run(PIPES, size, seed, step)


def cascade(size: int, seed: int, step: Step) -> dict[str, Any]:
    return run(CASCADE, size, seed, step)


def run(campaign: Campaign, size: int, seed: int, step: Step, plant: str | None = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="semel-pipes-") as folder:
        show = _Run(campaign, size, seed, step, Path(folder).resolve(), plant)
        asyncio.run(show.run())
        return show.figures()


@dataclass(slots=True)
class _Heard:
    """What the children have said. It drives the kills and the end of the run; the figures come from the stores."""

    told: set[tuple[int, int]] = field(default_factory=set)
    effects: int = 0
    behind: int | None = None
    done: bool = False
    changed_at: float = field(default_factory=time.monotonic)

    def hear(self, said: dict[str, Any]) -> None:
        before = (len(self.told), self.effects, self.behind, self.done)
        self.told.update((session, index) for session, index in said.get("told", ()))
        self.effects = max(self.effects, said.get("effects", 0))
        self.behind = said.get("behind", self.behind)
        self.done = self.done or "done" in said
        if before != (len(self.told), self.effects, self.behind, self.done):
            self.changed_at = time.monotonic()

    def next_indexes(self) -> list[int]:
        """The first message of each session that is not confirmed to the application."""
        last = Counter[int]()
        for session, index in self.told:
            last[session] = max(last[session], index)
        return [last[session] + 1 for session in range(SESSIONS)]


class _Run:
    def __init__(
        self, campaign: Campaign, size: int, seed: int, step: Step, folder: Path, plant: str | None
    ) -> None:  # fmt: skip
        self.campaign = campaign
        self.size = size
        self.step = step
        self.folder = folder
        self.plant = plant
        self.built = build(parse_path(campaign.path, campaign.name))
        self.roles = [worker.config.name for worker in self.built.workers]
        self.chance = random.Random(seed)
        self.kill_at = self._plan_kills()
        self.kills = Counter[str]()
        self.heard = _Heard()
        self.children: dict[str, Child] = {}
        self.secret = secrets.token_hex(16)
        self.proxies = {
            role: FaultProxy(("127.0.0.1", 0), WEATHER, seed=self.chance.getrandbits(32)) for role in self.roles[1:]
        }
        self.ports: dict[str, int] = {}

    def _plan_kills(self) -> list[int]:
        """One kill at a random moment of each stretch of the run."""
        kills = max(KILLS_MIN, self.size // MESSAGES_PER_KILL)
        return [int(self.size * (number + self.chance.random()) / kills) for number in range(kills)]

    async def run(self) -> None:
        try:
            for role in reversed(self.roles):
                if role in self.proxies:
                    self.ports[role] = await self.proxies[role].start()
                await self._start(role)
            await self._watch()
            for role in self.roles:
                await self.children[role].stop()
        finally:
            for child in self.children.values():
                await child.kill()
            for proxy in self.proxies.values():
                await proxy.close()

    async def _start(self, role: str) -> None:
        """Each dials the next one through a bad link."""
        after = self.roles[self.roles.index(role) + 1 :]
        config = {
            "role": role,
            "name": self.campaign.name,
            "path": self.campaign.path,
            "store": self._url(role),
            "secret": self.secret,
            "dial": (after[0], self.ports[after[0]]) if after else None,
            "messages": self.size,
            "next": self.heard.next_indexes(),
            "failures": self.campaign.failures,
            "seed": self.chance.getrandbits(32),
            "plant": self.plant,
        }
        log = self.folder / f"{role}.log"
        child = await Child.start(
            role, "tests.campaigns.pipe_child", config, log, self.heard.hear, environment=child_environment()
        )
        self.children[role] = child
        said = await child.ready()
        self.heard.changed_at = time.monotonic()  # a slow start is not a standstill
        if role in self.proxies:
            self.proxies[role].target = ("127.0.0.1", said["port"])

    def _url(self, role: str) -> str:
        return f"sqlite:///{self.folder / role}.db"

    async def _watch(self) -> None:
        heard = self.heard
        while self.kill_at or not (heard.done and heard.behind == 0):
            if self.kill_at and (heard.done or heard.effects >= self.kill_at[0]):
                self.kill_at.pop(0)
                await self._kill(self.roles[-1 - sum(self.kills.values()) % len(self.roles)])
            self._check()
            self.step(min(heard.effects, self.size), self.size)
            await asyncio.sleep(self.chance.uniform(0, 2 * WATCH_S))
        self.step(self.size, self.size)

    async def _kill(self, role: str) -> None:
        await self.children[role].kill()
        self.kills[role] += 1
        if role == self.built.first:
            self.heard.done = False
        if role == self.built.last:
            self.heard.behind = None
        await self._start(role)

    def _check(self) -> None:
        for child in self.children.values():
            if not child.is_running:
                raise child.trouble(f"ended by itself with code {child.process.returncode}")
        stall_s = scaled(STALL_S)
        if time.monotonic() - self.heard.changed_at > stall_s:
            tails = "\n".join(child.trouble("is running").message for child in self.children.values())
            raise PeerUnavailable(
                f"nothing has moved for {stall_s:.0f} s: {len(self.heard.told):,} of {self.size:,} told, "
                f"{self.heard.effects:,} effects, {self.heard.behind} behind\n{tails}",
                fix="run it again with the same seed and look at where each process stands",
            )

    # -- counting

    def figures(self) -> dict[str, Any]:
        stores = {role: open_store(self._url(role), create=False) for role in self.roles}
        try:
            told = [message(session, index).id for session, index in self.heard.told]
            effects = list(_records(stores[self.built.last], EFFECTS))
            events = [event for store in stores.values() for event in _events(store)]
            found = measure(self.built, events, records_by_place(_all_records(self.built, stores)))
        finally:
            for store in stores.values():
                store.close()
        return self._summed_up(told, effects, events, found)

    def _summed_up(
        self, told: Sequence[str], effects: Sequence[Record], events: Sequence[Event], found: PathFigures
    ) -> dict[str, Any]:
        copies = Counter(record.envelope.id for record in effects)
        offered = {message(s, i).id for s in range(SESSIONS) for i in range(1, size_of(s, self.size) + 1)}
        wrong = {
            "lost": len(set(told) - set(copies)),
            "doubled": copies.total() - len(copies),
            "disorder": _disorder(effects),
            "unknown": len(set(copies) - offered),
        }
        ledger = [found.delivery, *(found.pipes[hop] for hop in self._exact_pipes())]
        holds = not any(wrong.values()) and len(told) == self.size and all(_is_exactly_once(each) for each in ledger)
        kinds = Counter[Kind]()
        for event in events:
            kinds[event.kind] += event.n
        return {
            "holds": holds,
            "path": self.campaign.path,
            "plant": self.plant,
            "told": len(told),
            "effects": len(effects),
            **wrong,
            "kills": dict(self.kills),
            "resent_at_least": kinds[Kind.RESENT],
            "duplicates_turned_away": kinds[Kind.DUPLICATE],
            "handled_at_second_attempt_or_later": sum(
                event.n for event in events if event.kind is Kind.HANDLED and event.attempt > 1
            ),
            "ledger": {
                "pipe": {hop: _plain(measured) for hop, measured in found.pipes.items()},
                "delivery": _plain(found.delivery),
            },
            "links": {f"to {role}": asdict(proxy.counts) for role, proxy in self.proxies.items()},
        }

    def _exact_pipes(self) -> Iterable[str]:
        """A volatile worker's meters die with it, so only pipes that end at a durable one can be held to the number."""
        workers = {worker.config.name: worker for worker in self.built.workers}
        for sender, receiver in self.built.routes:
            if workers[sender].durable and workers[receiver].durable:
                yield f"{sender}>{receiver}"


def _records(store: Store, stream: str) -> Iterator[Record]:
    after = None
    while isinstance(found := store.read(stream, after, BATCH), Records) and found.records:
        yield from found.records
        after = found.records[-1].position


def _all_records(built: Built, stores: dict[str, Store]) -> Iterator[Record]:
    for worker in built.workers:
        if worker.durable:
            yield from _records(stores[worker.config.name], worker.config.stream)


def _events(store: Store) -> Iterator[Event]:
    mark = START
    while entries := store.ledger(mark, BATCH):
        yield from (entry.event for entry in entries)
        mark = entries[-1].mark


def _disorder(effects: Iterable[Record]) -> int:
    """Effects that come after one with a higher index of the same session."""
    highest = Counter[str]()
    late = 0
    for record in effects:
        session, index = record.envelope.session or "", record.envelope.index or 0
        late += index < highest[session]
        highest[session] = max(index, highest[session])
    return late


def _is_exactly_once(measured: Measured) -> bool:
    counts = measured.counts
    return measured.exact and not measured.gaps and counts.sent == counts.unique == counts.received


def _plain(measured: Measured) -> dict[str, Any]:
    """Without ids there are numbers but no rates: a volatile worker counts again what it takes over after a crash."""
    counts = measured.counts
    if not measured.exact:
        return {"sent": counts.sent, "received": counts.received, "exact": False}
    return {
        "sent": counts.sent,
        "unique": counts.unique,
        "received": counts.received,
        "R": counts.reliability,
        "UR": counts.uniqueness,
        "exact": True,
    }
