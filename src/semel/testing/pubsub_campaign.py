"""Clients of a real server over links that break, while the server is killed with -9.

    50 clients ══ byte proxies: reset, torn, half open, stalled, throttled ══ `semel serve`, one node or several

Each client is in two groups and publishes to all of them. In the end every member of a group must have every message of
the group once, each publisher's in order, and all members the same order. Messages are known by ids of the application.
The clients are `LeanClient`s, and a session that does not come back is a failure. The server's own ledger is held
beside it: so many publishes accepted, so many deliveries confirmed.

    python -m semel.testing.pubsub_campaign --messages 5000 --store postgres --nodes 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semel.errors import SemelError
from semel.kernel.ledger import START, Event, Kind
from semel.pubsub.keys import AccessKeys
from semel.pubsub.tokens import client_token
from semel.stores import open_store
from semel.testing.byte_faults import CUTS, ByteProxy, Fault
from semel.testing.lean_client import LeanClient
from semel.testing.postgres import PrivatePostgres
from semel.testing.serve_process import KEY, ServeProcess

Step = Callable[[int, int], None]

HUB = "campaign"
RECEIVERS = f"hub/{HUB}>sub"
CLIENTS = 50
GROUPS = 10
GROUPS_OF_A_CLIENT = 2
IN_FLIGHT = 20
CUTS_PER_MESSAGE = 0.003
SLOWDOWNS_PER_CUT = 0.25
SLOW_S = 0.5
MESSAGES_PER_KILL = 5_000
KILLS_MIN = 2
DEAD_S = 0.3
"""How long a node may stay dead before it is started again."""
UNHEARD_S = (0.05, 0.2)
"""For how long before its death nobody hears what a node says."""
WATCH_S = 0.01
STALL_S = 60.0
CONFIRM_S = 5.0
BATCH = 1000
ROLES = ("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup")
_CUTS = sorted(CUTS, key=lambda fault: fault.value)
_SLOWDOWNS = (Fault.STALL, Fault.THROTTLE)


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


# -- who takes part


class Member:
    """A client with its application: what it publishes, and what it got in each of its groups."""

    def __init__(self, number: int, groups: Iterable[int], quota: int, chance: random.Random) -> None:
        self.number = number
        self.received = {group: array("Q") for group in groups}
        self.published = Counter[int]()
        self.told = 0
        self.client: LeanClient
        self._plan = [chance.randrange(GROUPS) for _ in range(quota)]

    def hear(self, frame: dict[str, Any]) -> None:
        publisher, group, number = frame["data"]
        self.received[group].append(publisher << 32 | number)

    async def join(self) -> None:
        await self.client.opened()
        await asyncio.gather(*(self.client.ask(type="joinGroup", group=f"g{group}") for group in self.received))

    async def publish(self) -> None:
        """With so many in flight and no more: the next one goes when one is acknowledged."""
        window = asyncio.Semaphore(IN_FLIGHT)

        def told(_: asyncio.Future[None]) -> None:
            self.told += 1
            window.release()

        for group in self._plan:
            await window.acquire()
            self.published[group] += 1
            data = [self.number, group, self.published[group]]
            asked = self.client.ask(type="sendToGroup", group=f"g{group}", dataType="json", data=data)
            asked.add_done_callback(told)

    async def settle(self) -> None:
        """By the time that this is acknowledged, whatever was still on its way has come."""
        await self.client.ask(type="leaveGroup", group="none")


@dataclass(slots=True)
class Wrong:
    """Summed up over all members and their groups."""

    lost: int = 0
    doubled: int = 0
    disorder: int = 0
    unknown: int = 0
    orders: int = 0
    """Members who got a group in another order than the first of its members."""

    def count(self, got: Iterable[int], sent: dict[int, int]) -> None:
        """`sent` says how many each publisher has sent to the group."""
        seen: dict[int, set[int]] = {publisher: set() for publisher in sent}
        highest = Counter[int]()
        for code in got:
            publisher, number = code >> 32, code & 0xFFFFFFFF
            if not 0 < number <= sent.get(publisher, 0):
                self.unknown += 1
                continue
            self.doubled += number in seen[publisher]
            self.disorder += number < highest[publisher]
            seen[publisher].add(number)
            highest[publisher] = max(number, highest[publisher])
        self.lost += sum(count - len(seen[publisher]) for publisher, count in sent.items())


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
        self.kills = 0
        self.troubles: list[str] = []
        self._strikes = self._plan_strikes()
        self._kills_at = self._spread(max(KILLS_MIN, size // MESSAGES_PER_KILL))

    def _member(self, number: int) -> Member:
        groups = self.chance.sample(range(GROUPS), GROUPS_OF_A_CLIENT)
        quota = self.size // CLIENTS + (number < self.size % CLIENTS)
        return Member(number, groups, quota, random.Random(self.chance.getrandbits(32)))

    def _plan_strikes(self) -> list[tuple[int, Fault]]:
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
        return sum(member.told for member in self.members)

    async def run(self) -> None:
        clients: list[asyncio.Task[None]] = []
        try:
            ports = [await self._start(*pair) for pair in zip(self.nodes, self.proxies, strict=True)]
            for member in self.members:
                member.client = self._client(member, ports)
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

    def _client(self, member: Member, ports: list[int]) -> LeanClient:
        keys, user = AccessKeys(KEY), f"u{member.number}"
        urls = []
        for port in ports:
            path = f"127.0.0.1:{port}/client/hubs/{HUB}"
            token = client_token(keys, f"http://{path}", now=time.time(), user_id=user, roles=ROLES)
            urls.append(f"ws://{path}?access_token={token}")
        chance = random.Random(self.chance.getrandbits(32))
        return LeanClient(user, urls, member.hear, chance, plant=self.place.plant)

    async def _drive(self) -> None:
        await asyncio.gather(*(member.join() for member in self.members))
        publishing = asyncio.gather(*(member.publish() for member in self.members))
        try:
            await self._break_things()
            if await self._is_complete():
                await asyncio.gather(*(member.settle() for member in self.members))
                await self._until_confirmed()
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
            elif time.monotonic() - moved_at > self.place.stall_s:
                self.troubles.append(f"nothing was acknowledged for {self.place.stall_s:.0f} s")
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
        proxy.hold_answers(2 * UNHEARD_S[1])
        await asyncio.sleep(self.chance.uniform(*UNHEARD_S))
        await node.kill()
        proxy.drop_all()
        self.kills += 1
        await asyncio.sleep(self.chance.uniform(0, DEAD_S))
        await node.start()

    async def _is_complete(self) -> bool:
        """Whether everybody has as much as there is to have. More than that is looked for later."""
        wanted = [(got, self._sent_to(group)) for member in self.members for group, got in member.received.items()]
        counts = [(got, sum(sent.values())) for got, sent in wanted]
        missing, since = -1, time.monotonic()
        while (now_missing := sum(max(0, count - len(got)) for got, count in counts)) > 0:
            if now_missing != missing:
                missing, since = now_missing, time.monotonic()
            elif time.monotonic() - since > self.place.stall_s:
                self.troubles.append(f"{missing:,} deliveries did not come for {self.place.stall_s:.0f} s")
                return False
            await asyncio.sleep(WATCH_S)
        return True

    async def _until_confirmed(self) -> None:
        """The server writes acknowledgements down once a second."""
        until = time.monotonic() + CONFIRM_S
        while time.monotonic() < until:
            if (await asyncio.to_thread(self._ledger))["confirmed"] >= self.deliveries:
                return
            await asyncio.sleep(10 * WATCH_S)

    # -- counting

    @property
    def deliveries(self) -> int:
        return sum(len(got) for member in self.members for got in member.received.values())

    def _sent_to(self, group: int) -> dict[int, int]:
        return {member.number: member.published[group] for member in self.members if member.published[group]}

    def figures(self) -> dict[str, Any]:
        wrong, deliveries, ledger = self._wrong(), self.deliveries, self._ledger()
        struck = sum((proxy.struck for proxy in self.proxies), Counter[Fault]())
        clients = [asdict(member.client.counts) for member in self.members]
        of_clients = {name: sum(counts[name] for counts in clients) for name in clients[0]}
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
            "faults": {fault.value: struck[fault] for fault in Fault},
            "of_clients": of_clients,
            "ledger": ledger,
            "ledger_troubles": self._ledger_troubles(),
        }

    def _wrong(self) -> Wrong:
        wrong = Wrong()
        first: dict[int, array[int]] = {}
        for member in self.members:
            for group, got in member.received.items():
                wrong.count(got, self._sent_to(group))
                wrong.orders += got != first.setdefault(group, got)
        return wrong

    def _ledger(self) -> dict[str, int]:
        """What the server itself says: publishes that were accepted, and deliveries that clients have confirmed."""
        totals = Counter[Kind]()
        for event in self._events():
            if event.kind is Kind.ACCEPTED or event.hop == RECEIVERS:
                totals[event.kind] += event.n
        return {"accepted": totals[Kind.ACCEPTED], "confirmed": totals[Kind.CONFIRMED]}

    def _ledger_troubles(self) -> list[str]:
        """Of which clients it says something else than they do, and where it says something twice."""
        confirmed: dict[str | None, list[Event]] = {}
        for event in self._events():
            if event.kind is Kind.CONFIRMED and event.hop == RECEIVERS:
                confirmed.setdefault(event.peer, []).append(event)
        found = []
        for member in self.members:
            events, got = confirmed.pop(member.client.connection_id, []), sum(map(len, member.received.values()))
            if sum(event.n for event in events) != got:
                found.append(f"{member.client.name} got {got}, but confirmed {[_range(event) for event in events]}")
        return found + [f"{peer} is nobody, but confirmed {len(events)} ranges" for peer, events in confirmed.items()]

    def _events(self) -> Iterator[Event]:
        store = open_store(self.url, create=False)
        try:
            mark = START
            while entries := store.ledger(mark, BATCH):
                yield from (entry.event for entry in entries)
                mark = entries[-1].mark
        finally:
            store.close()


def _range(event: Event) -> str:
    return f"{event.n} of {event.first} to {event.last}"


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
    parser = argparse.ArgumentParser(prog="python -m semel.testing.pubsub_campaign", description="Break a real server.")
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
