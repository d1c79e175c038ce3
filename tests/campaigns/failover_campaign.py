"""Clients of a real server while the primary of its PostgreSQL dies, again and again.

    50 clients ══ two nodes of `semel serve` ══ three PostgreSQL under Patroni, replicated synchronously

Each time the primary is killed with -9, by turns alone and together with its Patroni, as when its host dies. A standby
is promoted, the dead one comes back as a standby, and it goes on. Everybody must keep their session: nothing lost,
doubled or out of order, nobody told 1008, and the epoch as it was. What must be is said in `hub_books`. A session has
resumed when something that its client published after the kill is acknowledged, and something that anybody published
after the kill has come to it.

While there is no primary the server refuses what is published. Clients have many messages in flight, and send them
again in order.

Then replication is made asynchronous and the primary dies with commits that no standby has. Those were acknowledged and
are gone: now the epoch must rise and everybody must hear 1008, every time.

    python -m tests.campaigns.failover_campaign --kills 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from tests.campaigns import hub_books
from tests.campaigns.hub_books import GROUPS, GROUPS_OF_A_CLIENT, WATCH_S, Books, open_client
from tests.campaigns.patroni_cluster import PatroniCluster

from semel.cli.doctor import check_postgres
from semel.errors import PeerUnavailable, SemelError, SessionGone
from semel.testing.limits import factor, scaled
from semel.testing.serve_process import SEMEL, ServeProcess

Step = Callable[[int, int], None]

CLIENTS = 50
NODES = 2
PAUSE_S = (0.3, 0.7)
"""How long a client waits before it publishes again: a hundred messages a second from all of them."""
CALM_S = (1.0, 3.0)
"""How long all is well between two kills."""
STALL_S = 90.0
"""How long nothing may come back before it is given up. Longer than any limit: how late something is, is measured."""
BEHIND = 30
"""How many messages the standby lacks that is promoted behind the head."""
FULL = 20
LIMITS_S = {"postgres": 10.0, "host": 30.0}
"""Within how many seconds every session has to resume. Judged in a full run only: others may run beside anything."""
PATIENT = """
import sys
from semel.stores import postgres_members, postgres_switch
factor = float(sys.argv.pop(1))
postgres_switch.DECIDE_S *= factor
postgres_members.SILENT_S = min(factor * postgres_members.SILENT_S, postgres_members.SILENT_S_MAX)
from semel.cli.main import main
main()
"""
"""A node that gives the others and the database as much longer as the machine is slower. One that vouches too late
costs the epoch, and with it every session."""


@dataclass(frozen=True, slots=True)
class Death:
    """One kill of the primary, and after how many seconds each session had resumed."""

    kind: str
    primary: str
    resumed_s: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {"kind": self.kind, "primary": self.primary, "resumed": len(self.resumed_s)}
        if times := sorted(self.resumed_s):
            named = {"first_s": times[0], "median_s": median(times), "last_s": times[-1]}
            found |= {name: round(value, 2) for name, value in named.items()}
        return found


class Member(hub_books.Member):
    """One that goes on until it is told to stop, and knows when it was back after a kill."""

    def __init__(self, number: int, groups: list[int], chance: random.Random) -> None:
        self._chance = chance
        self._is_over = asyncio.Event()
        super().__init__(number, groups, self._choose())
        self.gone = asyncio.Event()
        """Its session is over."""
        self.resumed_at: float | None = None
        self._floors: dict[tuple[int, int], int] = {}
        self._has_published = self._has_heard = False

    def _choose(self) -> Iterator[int]:
        while not self._is_over.is_set():
            yield self._chance.randrange(GROUPS)

    def stop(self) -> None:
        self._is_over.set()

    def await_resumption(self, floors: dict[tuple[int, int], int]) -> None:
        """`floors` say how much everybody has published to each group so far."""
        self._floors, self.resumed_at = floors, None
        self._has_published = self._has_heard = False

    async def publish_to(self, group: int) -> asyncio.Future[None]:
        await asyncio.sleep(self._chance.uniform(*PAUSE_S))
        asked = await super().publish_to(group)
        number = self.published[group]
        asked.add_done_callback(lambda _: self._note(published=self._is_new(self.number, group, number)))
        return asked

    async def publish_one(self) -> None:
        """Until it is acknowledged."""
        await (await self.publish_to(0))

    def hear(self, frame: dict[str, Any]) -> None:
        super().hear(frame)
        publisher, group, number = frame["data"]
        self._note(heard=self._is_new(publisher, group, number))

    def _is_new(self, publisher: int, group: int, number: int) -> bool:
        return number > self._floors.get((publisher, group), 0)

    def _note(self, *, published: bool = False, heard: bool = False) -> None:
        self._has_published |= published
        self._has_heard |= heard
        if self.resumed_at is None and self._has_published and self._has_heard:
            self.resumed_at = time.monotonic()


def failover(size: int, seed: int, step: Step) -> dict[str, Any]:
    """So many kills, at least one of each kind, and a quarter as many with an asynchronous standby."""
    return run(max(2, size), max(1, size // 4), seed, step)


def run(kills: int, behind: int, seed: int, step: Step) -> dict[str, Any]:
    """A short run is in a hurry: Patroni looks every second, and all is well between two kills for less time."""
    loop_wait = 1 if kills < FULL else 2
    with tempfile.TemporaryDirectory(prefix="semel-failover-") as name, PatroniCluster(loop_wait=loop_wait) as cluster:
        campaign = Campaign(cluster, kills, behind, seed, Path(name).resolve(), step)
        asyncio.run(campaign.run())
        return campaign.figures


class Campaign:
    def __init__(self, cluster: PatroniCluster, kills: int, behind: int, seed: int, folder: Path, step: Step) -> None:
        self.cluster, self.kills, self.behind, self.step = cluster, kills, behind, step
        self.chance = random.Random(seed)
        # a full run shows that sessions resume within their limits, with the server as it is
        semel = (sys.executable, "-c", PATIENT, str(factor())) if kills < FULL else SEMEL
        self.nodes = [
            ServeProcess(cluster.url, folder / f"node-{at}.log", node=f"node-{at}", semel=semel) for at in range(NODES)
        ]
        self.members = [self._member(number) for number in range(CLIENTS)]
        self.books = Books(self.members, cluster.url)
        self.deaths: list[Death] = []
        self.rises: list[dict[str, Any]] = []
        self.troubles: list[str] = []
        self.figures: dict[str, Any] = {}
        self.doctor: dict[str, str] = {}

    def _member(self, number: int) -> Member:
        groups = self.chance.sample(range(GROUPS), GROUPS_OF_A_CLIENT)
        return Member(number, groups, random.Random(self.chance.getrandbits(32)))

    async def run(self) -> None:
        clients: list[asyncio.Task[None]] = []
        try:
            for node in self.nodes:
                await node.start()
            for member in self.members:
                self._open(member)
                clients.append(asyncio.create_task(self._attend(member)))
            before = await asyncio.to_thread(self._epoch)
            self.doctor = await asyncio.to_thread(self._ask_doctor)
            await self._kill_and_watch()
            await self._end_well()
            self.figures = await asyncio.to_thread(self._figures, before)
            if not self.troubles and not self._gone:
                await self._promote_behind()
            self.figures |= self._verdict()
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            for node in self.nodes:
                await node.kill()

    async def _attend(self, member: Member) -> None:
        try:
            await member.client.run()
        except SessionGone:
            member.gone.set()
        except SemelError as error:
            member.gone.set()
            self.troubles.append(str(error))

    @property
    def _gone(self) -> int:
        return sum(member.gone.is_set() for member in self.members)

    # -- kills that nobody should notice

    async def _kill_and_watch(self) -> None:
        await asyncio.gather(*(member.join() for member in self.members))
        publishing = asyncio.gather(*(member.publish() for member in self.members))
        try:
            while len(self.deaths) < self.kills and not self.troubles and not self._gone:
                await asyncio.to_thread(self._wait)
                await asyncio.sleep(self.chance.uniform(*CALM_S) / (3 if self.kills < FULL else 1))
                await self._kill("host" if len(self.deaths) % 2 else "postgres")
                self.step(len(self.deaths), self.kills + self.behind)
        finally:
            for member in self.members:
                member.stop()
            await asyncio.wait([publishing], timeout=0 if self.troubles or self._gone else scaled(STALL_S))
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)

    def _wait(self) -> None:
        """Until it may happen again. In a full run the one that died last is back by then; a short one goes on as soon
        as another could be promoted."""
        if self.kills < FULL:
            self.cluster.wait_until_ready()
        else:
            self.cluster.wait_until_whole()

    async def _kill(self, kind: str) -> None:
        primary = await asyncio.to_thread(self.cluster.primary)
        death = Death(kind, primary.name)
        killed_at = time.monotonic()
        kill = self.cluster.kill_host if kind == "host" else self.cluster.kill_postgres
        await asyncio.to_thread(kill, primary)
        floors = {(member.number, group): count for member in self.members for group, count in member.published.items()}
        for member in self.members:
            member.await_resumption(floors)
        await self._until_resumed(killed_at)
        death.resumed_s.extend(
            member.resumed_at - killed_at for member in self.members if member.resumed_at is not None
        )
        self.deaths.append(death)
        if not primary.is_alive:
            await asyncio.to_thread(self.cluster.revive, primary)

    async def _until_resumed(self, killed_at: float) -> None:
        while any(member.resumed_at is None and not member.gone.is_set() for member in self.members):
            for node in self.nodes:
                if not node.is_running:
                    self.troubles.append(str(node.trouble("ended by itself")))
                    return
            if (passed := time.monotonic() - killed_at) > scaled(STALL_S):
                missing = [member.client.name for member in self.members if member.resumed_at is None]
                self.troubles.append(f"{', '.join(missing)} did not resume within {passed:.0f} s")
                return
            await asyncio.sleep(WATCH_S)

    async def _end_well(self) -> None:
        if self.troubles or self._gone:
            return
        if missing := await self.books.missing(scaled(STALL_S)):
            self.troubles.append(f"{missing:,} deliveries did not come")
            return
        try:
            async with asyncio.timeout(scaled(STALL_S)):
                await asyncio.gather(*(member.settle() for member in self.members))
        except TimeoutError:
            self.troubles.append("clients were not answered")
        await self.books.until_confirmed()

    # -- kills that everybody must notice

    async def _promote_behind(self) -> None:
        """Everybody publishes what no standby has. Then they are promoted, and everybody has to hear that."""
        await asyncio.to_thread(self.cluster.change, synchronous_mode=False, synchronous_mode_strict=False)
        for _ in range(self.behind):
            # a member that came back only after its primary has stopped sending would get everything from a new sender
            await asyncio.to_thread(self.cluster.wait_until_whole)
            await self._promote_once()
            self.step(len(self.deaths) + len(self.rises), self.kills + self.behind)

    async def _promote_once(self) -> None:
        before = await asyncio.to_thread(self._epoch)
        primary = await asyncio.to_thread(self.cluster.primary)
        senders = await asyncio.to_thread(self.cluster.stop_sending, primary)
        if not senders:
            raise PeerUnavailable("the primary has no standby", fix="see the logs of the cluster")
        crowd = [self._newcomer(number) for number in range(BEHIND)]
        clients = [asyncio.create_task(self._attend(member)) for member in crowd]
        try:
            async with asyncio.timeout(scaled(STALL_S)):
                await asyncio.gather(*(member.join() for member in crowd))
                await asyncio.gather(*(member.publish_one() for member in crowd))
                await asyncio.to_thread(self.cluster.kill_postgres, primary)
                killed_at = time.monotonic()
                await asyncio.gather(*(member.gone.wait() for member in crowd))
        except TimeoutError:
            self.troubles.append(
                f"{sum(not member.gone.is_set() for member in crowd)} were not told that messages are lost"
            )
            return
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        told_s = time.monotonic() - killed_at
        after = await asyncio.to_thread(self._epoch)
        self.rises.append({"before": before, "after": after, "told": len(crowd), "last_s": round(told_s, 2)})

    def _newcomer(self, number: int) -> Member:
        member = Member(CLIENTS + number, [0], random.Random(self.chance.getrandbits(32)))
        self._open(member)
        return member

    def _open(self, member: Member) -> None:
        chance = random.Random(self.chance.getrandbits(32))
        open_client(member, [node.port for node in self.nodes], chance, in_order=True)

    def _ask_doctor(self) -> dict[str, str]:
        """What `semel doctor` says of the cluster while all is well."""
        return {check.name: check.state for check in check_postgres(self.cluster.url)}

    def _epoch(self) -> int:
        """As it is written, without a store: whoever opens one may be the one who raises it."""
        until = time.monotonic() + scaled(STALL_S)
        while True:
            try:
                with psycopg.connect(self.cluster.url) as connection:
                    [(epoch,)] = connection.execute("SELECT epoch FROM semel_store").fetchall()
                    return int(epoch)
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(WATCH_S)

    # -- counting

    def _figures(self, epoch_before: int) -> dict[str, Any]:
        wrong, ledger = self.books.wrong(), self.books.ledger()
        return {
            "postgres": len(self.cluster.members),
            "nodes": NODES,
            "clients": CLIENTS,
            "kills": len(self.deaths),
            "told": self.books.told,
            "deliveries": self.books.deliveries,
            **asdict(wrong),
            "sessions_lost": self._gone,
            "doctor": self.doctor,
            "epoch_before": epoch_before,
            "epoch_after": self._epoch(),
            "last_s": {kind: self._last_s(kind) for kind in LIMITS_S},
            "deaths": [death.figures() for death in self.deaths],
            "of_clients": self.books.of_clients(),
            "ledger": ledger,
            "ledger_troubles": self.books.ledger_troubles(),
        }  # fmt: skip

    def _last_s(self, kind: str) -> float:
        return round(max((at for each in self.deaths if each.kind == kind for at in each.resumed_s), default=0.0), 2)

    def _verdict(self) -> dict[str, Any]:
        found = self.figures
        nothing_wrong = not any(found[name] for name in ("lost", "doubled", "disorder", "unknown", "orders"))
        is_quick = len(self.deaths) < FULL or all(found["last_s"][kind] <= limit for kind, limit in LIMITS_S.items())
        holds = (
            nothing_wrong
            and not self.troubles
            and set(found["doctor"].values()) == {"ok"}
            and not found["sessions_lost"]
            and not found["of_clients"]["backwards"]
            and found["epoch_before"] == found["epoch_after"]
            and found["told"] == found["ledger"]["accepted"]
            and found["deliveries"] == found["ledger"]["confirmed"]
            and len(self.deaths) == self.kills
            and len(self.rises) == self.behind
            and all(rise["after"] > rise["before"] for rise in self.rises)
        )
        return {"holds": holds and is_quick, "troubles": self.troubles, "promoted_behind": self.rises}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.failover_campaign", description="Kill the primary of a real server's database."
    )
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--behind", type=int, default=1, help="kills with a standby that lacks something")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = run(options.kills, options.behind, options.seed, lambda done, total: None)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
