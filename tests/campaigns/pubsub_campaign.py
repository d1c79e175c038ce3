"""Clients of a real server over links that break, while the server is killed with -9.

    50 clients ══ byte proxies: reset, torn, half open, stalled, throttled ══ `semel serve`, one node or several

What must be is said in `hub_books`. The clients are `LeanClient`s, and a session that does not come back is a failure.
The server's own ledger is held beside it: so many publishes accepted, so many deliveries confirmed.

    python -m tests.campaigns.pubsub_campaign --messages 5000 --store postgres --nodes 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.hub_books import GROUPS, GROUPS_OF_A_CLIENT, WATCH_S, Books, Member, open_client
from tests.tools.held_proxy import drop_all, hold_answers

from semel.errors import SemelError
from semel.testing.byte_faults import CUTS, ByteFault, ByteProxy
from semel.testing.limits import scaled
from semel.testing.postgres import PrivatePostgres
from semel.testing.serve_process import ServeProcess

Step = Callable[[int, int], None]

CLIENTS = 50
CUTS_PER_MESSAGE = 0.003
SLOWDOWNS_PER_CUT = 0.25
SLOW_S = 0.5
MESSAGES_PER_KILL = 5_000
KILLS_MIN = 2
DEAD_S = 0.3
"""How long a node may stay dead before it is started again."""
UNHEARD_S = (0.05, 0.2)
"""For how long before its death nobody hears what a node says."""
STALL_S = 60.0
_CUTS = sorted(CUTS, key=lambda fault: fault.value)
_SLOWDOWNS = (ByteFault.STALL, ByteFault.THROTTLE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where it runs. `plant` is a mistake of the clients, to see whether it is found; `stall_s` is how long nothing may
    happen before it is given up."""

    store: str = "sqlite"
    nodes: int = 1
    plant: str | None = None
    stall_s: float = STALL_S


ONE_NODE = Place()
TWO_NODES = Place("postgres", 2)


def pubsub(size: int, seed: int, step: Step) -> dict[str, Any]:
    return run(ONE_NODE, size, seed, step)


def pubsub_nodes(size: int, seed: int, step: Step) -> dict[str, Any]:
    return run(TWO_NODES, size, seed, step)


def run(place: Place, size: int, seed: int, step: Step) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="semel-pubsub-") as name, _store(place, Path(name)) as url:
        campaign = Campaign(place, url, size, seed, Path(name).resolve(), step)
        asyncio.run(campaign.run())
        return campaign.figures()


@contextmanager
def _store(place: Place, folder: Path) -> Iterator[str]:
    if place.store == "sqlite":
        yield f"sqlite:///{folder.resolve()}/semel.db"
        return
    with ExitStack() as stack:
        yield stack.enter_context(stack.enter_context(PrivatePostgres()).new_database())


# -- the run


class Campaign:
    def __init__(self, place: Place, url: str, size: int, seed: int, folder: Path, step: Step) -> None:
        self.place, self.url, self.size, self.step = place, url, size, step
        self.chance = random.Random(seed)
        self.nodes = [
            ServeProcess(url, folder / f"node-{number}.log", node=f"node-{number}") for number in range(place.nodes)
        ]
        self.proxies = [ByteProxy(("127.0.0.1", 0), seed=self.chance.getrandbits(32)) for _ in self.nodes]
        self.members = [self._member(number) for number in range(CLIENTS)]
        self.books = Books(self.members, url)
        self.kills = 0
        self.troubles: list[str] = []
        self._strikes = self._plan_strikes()
        self._kills_at = self._spread(max(KILLS_MIN, size // MESSAGES_PER_KILL))

    def _member(self, number: int) -> Member:
        groups = self.chance.sample(range(GROUPS), GROUPS_OF_A_CLIENT)
        quota = self.size // CLIENTS + (number < self.size % CLIENTS)
        choice = random.Random(self.chance.getrandbits(32))
        return Member(number, groups, [choice.randrange(GROUPS) for _ in range(quota)])

    def _plan_strikes(self) -> list[tuple[int, ByteFault]]:
        cuts = round(self.size * CUTS_PER_MESSAGE)
        slowdowns = round(cuts * SLOWDOWNS_PER_CUT)
        planned = [(at, self.chance.choice(_CUTS)) for at in self._spread(cuts)]
        planned += [(at, self.chance.choice(_SLOWDOWNS)) for at in self._spread(slowdowns)]
        return sorted(planned, key=lambda strike: strike[0])

    def _spread(self, count: int) -> list[int]:
        """One at a random moment of each stretch of the run, by messages that were acknowledged."""
        return [int(self.size * (number + self.chance.random()) / count) for number in range(count)]

    @property
    def told(self) -> int:
        return self.books.told

    async def run(self) -> None:
        clients: list[asyncio.Task[None]] = []
        try:
            ports = [await self._start(*pair) for pair in zip(self.nodes, self.proxies, strict=True)]
            for member in self.members:
                open_client(member, ports, random.Random(self.chance.getrandbits(32)), self.place.plant)
                clients.append(asyncio.create_task(member.client.run()))
            try:
                async with asyncio.TaskGroup() as group:
                    for client in clients:
                        group.create_task(_end_with(client))
                    await self._drive()
                    for client in clients:
                        client.cancel()
            except* SemelError as troubles:
                self.troubles += [str(trouble) for trouble in _each(troubles)]
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            for proxy in self.proxies:
                await proxy.close()
            for node in self.nodes:
                await node.kill()

    async def _start(self, node: ServeProcess, proxy: ByteProxy) -> int:
        await node.start()
        proxy.target = ("127.0.0.1", node.port)
        return await proxy.start()

    async def _drive(self) -> None:
        await asyncio.gather(*(member.join() for member in self.members))
        publishing = asyncio.gather(*(member.publish() for member in self.members))
        try:
            await self._break_things()
            if missing := await self.books.missing(stall_s := scaled(self.place.stall_s)):
                self.troubles.append(f"{missing:,} deliveries did not come for {stall_s:.0f} s")
                return
            await asyncio.gather(*(member.settle() for member in self.members))
            await self.books.until_confirmed()
            for node in self.nodes:
                await node.stop()
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)

    async def _break_things(self) -> None:
        """Everything that is planned, each when it is due; with the last messages whatever is left."""
        moved, moved_at = -1, time.monotonic()
        while self._strikes or self._kills_at or self.told < self.size:
            told = self.told
            self.step(told, self.size)
            is_late = told == self.size
            if self._kills_at and (is_late or told >= self._kills_at[0]):
                self._kills_at.pop(0)
                await self._kill()
                moved_at = time.monotonic()  # a slow start is not a standstill
            if self._strikes and (is_late or told >= self._strikes[0][0]):
                self._strike()
            if told != moved:
                moved, moved_at = told, time.monotonic()
            elif time.monotonic() - moved_at > (stall_s := scaled(self.place.stall_s)):
                self.troubles.append(f"nothing was acknowledged for {stall_s:.0f} s")
                return
            await asyncio.sleep(self.chance.uniform(0, 2 * WATCH_S))
        self.step(self.told, self.size)

    def _strike(self) -> None:
        """Not while most are looking for their server anyway."""
        links = [len(proxy.links) for proxy in self.proxies]
        if sum(links) > CLIENTS // 2:
            [proxy] = self.chance.choices(self.proxies, links)
            proxy.strike(self._strikes.pop(0)[1], for_s=SLOW_S)

    async def _kill(self) -> None:
        """What the server has said shortly before is lost with it: publishes that it took, and nobody heard so."""
        at = self.kills % len(self.nodes)
        node, proxy = self.nodes[at], self.proxies[at]
        if not node.is_running:
            raise node.trouble("ended by itself")
        hold_answers(proxy, 2 * UNHEARD_S[1])
        await asyncio.sleep(self.chance.uniform(*UNHEARD_S))
        await node.kill()
        drop_all(proxy)
        self.kills += 1
        await asyncio.sleep(self.chance.uniform(0, DEAD_S))
        await node.start()

    # -- counting

    def figures(self) -> dict[str, Any]:
        wrong, deliveries, ledger = self.books.wrong(), self.books.deliveries, self.books.ledger()
        struck = sum((proxy.struck for proxy in self.proxies), Counter[ByteFault]())
        of_clients = self.books.of_clients()
        return {
            "holds": not any(asdict(wrong).values())
            and not of_clients["backwards"]
            and not self.troubles
            and self.told == self.size == ledger["accepted"]
            and deliveries == ledger["confirmed"],
            "store": self.place.store,
            "nodes": self.place.nodes,
            "plant": self.place.plant,
            "clients": CLIENTS,
            "told": self.told,
            "deliveries": deliveries,
            **asdict(wrong),
            "troubles": self.troubles,
            "kills": self.kills,
            "cuts": sum(struck[fault] for fault in CUTS),
            "faults": {fault.value: struck[fault] for fault in ByteFault},
            "of_clients": of_clients,
            "ledger": ledger,
            "ledger_troubles": self.books.ledger_troubles(),
        }


async def _end_with(client: asyncio.Task[None]) -> None:
    """Fails when the client does, and ends when it is no longer needed."""
    await asyncio.wait([client])
    if not client.cancelled() and (error := client.exception()) is not None:
        raise error


def _each(group: BaseExceptionGroup[SemelError]) -> Iterator[SemelError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each(error)
        else:
            yield error


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.pubsub_campaign", description="Break a real server."
    )
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--nodes", type=int, default=1, help="more than one need --store postgres")
    parser.add_argument("--plant", choices=("new-ack-ids", "no-recovery"))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.nodes > 1 and options.store == "sqlite":
        parser.error("nodes share PostgreSQL: give --store postgres")
    place = Place(options.store, options.nodes, options.plant)
    figures = run(place, options.messages, options.seed, lambda done, total: None)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
