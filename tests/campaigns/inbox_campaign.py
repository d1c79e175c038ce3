"""Four processes of an application listen to a broker; they and the broker are killed with -9, again and again.

    16 keys ══ NATS JetStream or RabbitMQ, a fifth of it twice ══ 4 processes ══ SQLite or PostgreSQL

What the application does stands in `inbox_soak_child`, what must be in `inbox_books`. Every broker that is installed is
run with both stores.

    python -m tests.campaigns.inbox_campaign --messages 2000 --broker nats --store postgres
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.inbox_books import InboxBooks, id_of
from tests.campaigns.inbox_brokers import SoakBroker, make_broker
from tests.campaigns.inbox_soak_child import BULK, ORDERS, PLANTS, ShopConfig
from tests.tools.brokers import BrokerProcess, NatsServer, RabbitServer, has_rabbitmq
from tests.tools.paths import child_environment

from semel.errors import PeerUnavailable, SemelError
from semel.testing.limits import scaled
from semel.testing.postgres import PrivatePostgres
from semel.testing.serve_process import KEY, ServeProcess

Step = Callable[[int, int], None]

PROCESSES = 4
KEYS = {ORDERS: 4, BULK: 12}
DUPLICATES = 0.2
LATER_MAX = 50
"""A second copy comes at once, or after so many of its key at most."""
MESSAGES_PER_KILL = 500
MESSAGES_PER_BROKER_KILL = 6_000
LEASE_S = 1.0
WATCH_S = 0.05
AHEAD = 250
"""So many orders the broker has before they are charged, at most: whoever is killed, others are at work."""
AHEAD_S = 1.0
"""For this long, that is: what was lost by a mistake that is to be found is not waited for."""
STALL_S = 60.0
AGAIN_S = 0.05
TAIL = 3_000


@dataclass(frozen=True, slots=True)
class Place:
    broker: str
    store: str

    def __str__(self) -> str:
        return f"{self.broker}-{self.store}"

    @property
    def hub(self) -> str:
        return f"{self.broker}_{self.store}"


NATS = (Place("nats", "sqlite"), Place("nats", "postgres"))
RABBITMQ = (Place("rabbitmq", "sqlite"), Place("rabbitmq", "postgres"))
SERVERS: dict[str, type[BrokerProcess]] = {"nats": NatsServer, "rabbitmq": RabbitServer}


def inbox(size: int, seed: int, step: Step) -> dict[str, Any]:
    return run((*NATS, *(RABBITMQ if has_rabbitmq() else ())), size, seed, step)


def run(
    places: Sequence[Place], size: int, seed: int, step: Step, plant: str | None = None, kills: int | None = None
) -> dict[str, Any]:
    """The messages and the kills are divided among the places."""
    if kills is None:
        kills = max(1, size // MESSAGES_PER_KILL)
    with tempfile.TemporaryDirectory(prefix="semel-inbox-") as name:
        campaign = Campaign(places, size, kills, seed, step, Path(name).resolve(), plant)
        return asyncio.run(campaign.run())


def shares(total: int, count: int) -> list[int]:
    return [total // count + (at < total % count) for at in range(count)]


# -- the campaign


class Campaign:
    """All places, one after the other."""

    def __init__(
        self,
        places: Sequence[Place],
        size: int,
        kills: int,
        seed: int,
        step: Step,
        folder: Path,
        plant: str | None,
    ) -> None:
        self.places, self.size, self.kills = places, size, kills
        self.step, self.folder, self.plant = step, folder, plant
        self.chance = random.Random(seed)
        self.server = ServeProcess(f"sqlite:///{folder}/hub.db", folder / "hub.log")
        self.forks = _Forks(folder / "shop.log")

    async def run(self) -> dict[str, Any]:
        with ExitStack() as stack:
            starting = {
                name: asyncio.create_task(self._brokers(name, stack))
                for name in sorted({place.broker for place in self.places})
            }
            postgres = asyncio.create_task(asyncio.to_thread(self._postgres, stack))
            try:
                await self.forks.open()
                await self.server.start()
                return await self._run_all(starting, postgres)
            finally:
                await asyncio.gather(*starting.values(), postgres, return_exceptions=True)
                await self.server.kill()
                await self.forks.close()

    async def _brokers(self, name: str, stack: ExitStack) -> dict[Place, SoakBroker]:
        """With all that its runs need: RabbitMQ that is killed forgets a queue that it was told of a moment ago."""
        server = await asyncio.to_thread(self._broker, name, stack)
        found = {
            place: make_broker(server, str(place), self.plant) for place in self.places if place.broker == name
        }  # fmt: skip
        for broker in found.values():
            await broker.set_up()
            await broker.close()
        return found

    def _broker(self, name: str, stack: ExitStack) -> BrokerProcess:
        folder = self.folder / name
        folder.mkdir()
        server = SERVERS[name](folder)
        stack.callback(server.kill)
        return server

    def _postgres(self, stack: ExitStack) -> PrivatePostgres | None:
        if all(place.store == "sqlite" for place in self.places):
            return None
        return stack.enter_context(PrivatePostgres())

    async def _run_all(
        self, starting: dict[str, asyncio.Task[dict[Place, SoakBroker]]], postgres: asyncio.Task[PrivatePostgres | None]
    ) -> dict[str, Any]:
        sizes = shares(self.size, len(self.places))
        kills = shares(self.kills, len(self.places))
        broker_kills = self._broker_kills()
        found: dict[str, dict[str, Any]] = {}
        for at, place in enumerate(self.places):
            broker = (await starting[place.broker])[place]
            with _store(place, self.folder, await postgres) as url:
                one = _Run(self, place, broker, url, sizes[at], sum(sizes[:at]), kills[at], broker_kills[at])
                begin = time.monotonic()
                figures = await one.run()
                found[str(place)] = {**figures, "seconds": round(time.monotonic() - begin, 1)}
        return self._summed_up(found)

    def _broker_kills(self) -> list[int]:
        """Each broker dies at least once, in one of its runs."""
        counts = Counter[Place]()
        for broker in dict.fromkeys(place.broker for place in self.places):
            mine = [place for place in self.places if place.broker == broker]
            size = self.size * len(mine) // len(self.places)
            self.chance.shuffle(mine)
            counts.update(mine[at % len(mine)] for at in range(max(1, size // MESSAGES_PER_BROKER_KILL)))
        return [counts[place] for place in self.places]

    def _summed_up(self, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
        def total(name: str) -> int:
            return sum(figures[name] for figures in found.values())

        added = ("put", "charges", "lost", "doubled", "disorder", "unknown", "copies_in_the_queue", "dead",
                 "duplicates_turned_away", "kills", "broker_kills")  # fmt: skip
        return {
            "holds": all(figures["holds"] for figures in found.values()),
            "plant": self.plant,
            "processes": PROCESSES,
            **{name: total(name) for name in added},
            "places": found,
        }


@contextmanager
def _store(place: Place, folder: Path, postgres: PrivatePostgres | None) -> Iterator[str]:
    if place.store == "sqlite":
        yield f"sqlite:///{folder}/{place}.db"
        return
    assert postgres is not None
    with postgres.new_database() as url:
        yield url


# -- one broker with one store


class _Run:
    def __init__(
        self,
        campaign: Campaign,
        place: Place,
        broker: SoakBroker,
        url: str,
        size: int,
        before: int,
        kills: int,
        broker_kills: int,
    ) -> None:
        self.place, self.broker, self.size = place, broker, size
        self.chance = random.Random(campaign.chance.getrandbits(32))
        self.kills = self.broker_kills = self.put = self.duplicates = self.put_again = 0
        self.charged, self._charged_at = 0, time.monotonic()
        self.troubles: list[str] = []
        hub_url = campaign.server.store
        keys = {f"{endpoint}{at}": endpoint for endpoint, count in KEYS.items() for at in range(count)}
        self.endpoints = keys
        quotas = dict(zip(keys, shares(size, len(keys)), strict=True))
        ordered = {key for key, endpoint in keys.items() if endpoint == ORDERS}
        self.books = InboxBooks(url, place.hub, hub_url, quotas, ordered)
        config = ShopConfig(
            url, broker.kind, broker.url, broker.listens, broker.to_inbox, broker.to_queue, place.hub,
            f"Endpoint=http://127.0.0.1:{campaign.server.port};AccessKey={KEY};Version=1.0;", hub_url,
            scaled(LEASE_S), campaign.plant,
        )  # fmt: skip
        self.shop = _Shop(campaign.forks, config)
        self._strikes = self._planned(kills, self._kill_one) + self._planned(broker_kills, self._kill_broker)
        self._strikes.sort(key=lambda strike: strike[0])
        self._step = lambda done: campaign.step(before + min(done, size), campaign.size)

    def _planned(self, count: int, strike: Callable[[], Any]) -> list[tuple[int, Callable[[], Any]]]:
        """One at a random moment of each stretch of the run."""
        return [(int(self.size * (at + self.chance.random()) / count), strike) for at in range(count)]

    async def run(self) -> dict[str, Any]:
        await asyncio.to_thread(self.books.open)
        publishing = asyncio.gather(*(self._publish(key) for key in self.books.quotas))
        try:
            for _ in range(PROCESSES):
                await self.shop.start()
            await self._strike_until_done(publishing)
            await self._settle()
            self.books.queue = await self.broker.in_queue()
        except SemelError as error:
            self.troubles.append(str(error))
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            await self.shop.close()
            await self.broker.close()
        try:
            return self._figures(await asyncio.to_thread(self.books.figures))
        finally:
            self.books.close()

    # -- orders

    async def _publish(self, key: str) -> None:
        """All orders of a key in order, and some of them a second time."""
        chance, again = random.Random(self.chance.getrandbits(32)), dict[int, list[int]]()
        quota = self.books.quotas[key]
        for number in range(1, quota + 1):
            while self._is_ahead():  # noqa: ASYNC110 - who charges is another process
                await asyncio.sleep(WATCH_S)
            await self._put(key, number)
            if chance.random() < DUPLICATES:
                at = number + chance.choice((0, chance.randint(1, LATER_MAX)))
                again.setdefault(min(at, quota), []).append(number)
            for late in again.pop(number, ()):
                await self._put(key, late)
                self.duplicates += 1
        assert not again

    def _is_ahead(self) -> bool:
        is_much = self.put - self.duplicates - self.charged >= min(AHEAD, self.size // 4)
        return is_much and time.monotonic() - self._charged_at < scaled(AHEAD_S)

    async def _put(self, key: str, number: int) -> None:
        """Until the broker has it. One that did not answer may have it already, and gets it again."""
        body = json.dumps({"id": id_of(key, number), "key": key, "number": number}).encode()
        while True:
            try:
                await self.broker.put(self.endpoints[key], id_of(key, number), body)
                self.put += 1
                return
            except Exception:
                self.put_again += 1
                await asyncio.sleep(AGAIN_S)

    # -- kills

    async def _strike_until_done(self, publishing: asyncio.Future[Any]) -> None:
        """Everything that is planned, each when it is due; in the end whatever is left."""
        look = _Standstill("nothing was charged")
        while True:
            await self._look()
            is_over = publishing.done() and not await self._open()
            if self._strikes and (is_over or self.charged >= self._strikes[0][0]):
                await self._strikes.pop(0)[1]()
                look.moved()  # a broker that starts slowly is no standstill
            elif is_over:
                return publishing.result()
            look.see((self.charged, self.put))
            await self.shop.check()
            await asyncio.sleep(self.chance.uniform(0, 2 * WATCH_S))

    async def _look(self) -> None:
        charged = await asyncio.to_thread(self.books.charged)
        if charged != self.charged:
            self.charged, self._charged_at = charged, time.monotonic()
        self._step(charged)

    async def _open(self) -> int:
        """What the broker or the application still has to do, as far as can be seen while others are at work."""
        try:
            waiting = await self.broker.waiting()
        except Exception:  # of either client library: a broker that has just come back may not answer yet
            return 1
        return waiting + await asyncio.to_thread(self.books.left)

    async def _kill_one(self) -> None:
        await self.shop.kill(self.chance.choice(self.shop.pids))
        await self.shop.start()
        self.kills += 1

    async def _kill_broker(self) -> None:
        await self.broker.kill()
        self.broker_kills += 1

    async def _settle(self) -> None:
        """Only when nobody is at work can be seen whether nothing is left; else it goes on."""
        look = _Standstill("the rest was not done")
        while True:
            await self.shop.stop()
            if not await self._open():
                return
            await self.shop.start()
            while await self._open():
                look.see(await asyncio.to_thread(self.books.charged))
                await asyncio.sleep(WATCH_S)

    # -- counting

    def _figures(self, counted: dict[str, Any]) -> dict[str, Any]:
        return {
            **counted,
            "holds": counted["holds"] and not self.troubles and counted["charges"] == self.size,
            "orders": self.size,
            "put": self.put,
            "put_twice": self.duplicates,
            "put_again_without_an_answer": self.put_again,
            "kills": self.kills,
            "broker_kills": self.broker_kills,
            "troubles": self.troubles,
        }


class _Standstill:
    """Raises when nothing has changed for too long."""

    def __init__(self, what: str) -> None:
        self._what, self._seen = what, None
        self.moved()

    def moved(self) -> None:
        self._at = time.monotonic()

    def see(self, state: Any) -> None:
        if state != self._seen:
            self._seen = state
            self.moved()
        elif time.monotonic() - self._at > (stall_s := scaled(STALL_S)):
            raise PeerUnavailable(f"{self._what} for {stall_s:.0f} s", fix="look at the log of the processes")


class _Forks:
    """`inbox_soak_child`, which forks the processes of the application and kills them."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: Process | None = None

    async def open(self) -> None:
        with self.log.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.campaigns.inbox_soak_child", stdin=PIPE, stdout=PIPE, stderr=errors,
                cwd=self.log.parent, env=child_environment(), start_new_session=True,
            )  # fmt: skip

    async def close(self) -> None:
        """Whoever is left is killed."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()

    async def ask(self, **what: Any) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        line = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(scaled(STALL_S)):
                line = await self._process.stdout.readline()
        if not line:
            raise self.trouble("does not do what it is told")
        return json.loads(line)

    def trouble(self, what: str) -> PeerUnavailable:
        tail = self.log.read_text(errors="replace")[-TAIL:]
        return PeerUnavailable(f"a process {what}; the last that was said:\n{tail}", fix="see what it complains about")


class _Shop:
    """The processes of the application in one run."""

    def __init__(self, forks: _Forks, config: ShopConfig) -> None:
        self.config = config
        self.pids: list[int] = []
        self._forks = forks

    async def start(self) -> None:
        self.pids.append(await self._forks.ask(start=asdict(self.config)))

    async def kill(self, pid: int) -> None:
        self.pids.remove(pid)
        await self._forks.ask(kill=pid)

    async def stop(self) -> None:
        """In order, all of them."""
        while self.pids:
            code = await self._forks.ask(stop=self.pids.pop())
            if code not in (0, -signal.SIGTERM):  # one that has just begun does not know the signal yet
                raise self._forks.trouble(f"ended with code {code}")

    async def check(self) -> None:
        if ended := await self._forks.ask(ended=True):
            self.pids = [pid for pid in self.pids if pid not in ended]
            raise self._forks.trouble(f"{ended} ended by itself")

    async def close(self) -> None:
        """Whoever is left is killed."""
        while self.pids:
            await self.kill(self.pids[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.inbox_campaign", description="Kill a shop.")
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--broker", choices=sorted(SERVERS), action="append")
    parser.add_argument("--store", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--plant", choices=PLANTS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    brokers = options.broker or ["nats", *(["rabbitmq"] if has_rabbitmq() else [])]
    places = [Place(broker, store) for broker in brokers for store in options.store or ("sqlite", "postgres")]
    figures = run(places, options.messages, options.seed, lambda done, total: None, options.plant)
    print(json.dumps(figures, indent=2))
    sys.exit(not figures["holds"])


if __name__ == "__main__":
    main()
