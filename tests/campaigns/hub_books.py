"""What a hub's clients have sent and got, held against what must be and against the server's own ledger.

Each member is in some groups and publishes to all of them. Every member of a group must have every message of the group
once, each publisher's in order, and all members the same order. Messages are known by ids of the application.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.campaigns.lean_client import LeanClient

from semel.auth.keys import AccessKeys
from semel.kernel.ledger import START, Event, Kind
from semel.pubsub.protocol.client_tokens import client_token
from semel.stores import open_store
from semel.testing.limits import scaled
from semel.testing.serve_process import KEY

HUB = "campaign"
RECEIVERS = f"hub/{HUB}>sub"
ROLES = ("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup")
GROUPS = 10
GROUPS_OF_A_CLIENT = 2
IN_FLIGHT = 20
BATCH = 1000
WATCH_S = 0.01
CONFIRM_S = 5.0


class Member:
    """A client with its application: what it publishes, and what it got in each of its groups."""

    def __init__(self, number: int, groups: Iterable[int], plan: Iterable[int]) -> None:
        """`plan` are the groups that it publishes to, one after the other."""
        self.number = number
        self.received = {group: array("Q") for group in groups}
        self.published = Counter[int]()
        self.told = 0
        self.client: LeanClient
        self._plan = plan
        self._window = asyncio.Semaphore(IN_FLIGHT)

    def hear(self, frame: dict[str, Any]) -> None:
        publisher, group, number = frame["data"]
        self.received[group].append(publisher << 32 | number)

    async def join(self) -> None:
        await self.client.opened()
        await asyncio.gather(*(self.client.ask(type="joinGroup", group=f"g{group}") for group in self.received))

    async def publish(self) -> None:
        """Everything that is planned."""
        for group in self._plan:
            await self.publish_to(group)

    async def publish_to(self, group: int) -> asyncio.Future[None]:
        """When there is room for it: so many are in flight and no more."""
        await self._window.acquire()
        self.published[group] += 1
        data = [self.number, group, self.published[group]]
        asked = self.client.ask(type="sendToGroup", group=f"g{group}", dataType="json", data=data)
        asked.add_done_callback(self._tell)
        return asked

    def _tell(self, asked: asyncio.Future[None]) -> None:
        self.told += not asked.cancelled()
        self._window.release()

    async def settle(self) -> None:
        """By the time that this is acknowledged, whatever was still on its way has come."""
        await self.client.ask(type="leaveGroup", group="none")


def open_client(
    member: Member, ports: Sequence[int], chance: random.Random, plant: str | None = None, *, in_order: bool = False
) -> None:
    """Give it a client that knows all these ports of this machine. `in_order`: the hub lets nothing overtake a message
    that was not taken."""
    keys, user = AccessKeys(KEY), f"u{member.number}"
    urls = []
    for port in ports:
        path = f"127.0.0.1:{port}/client/hubs/{HUB}"
        token = client_token(keys, f"http://{path}", now=time.time(), user_id=user, roles=ROLES)
        urls.append(f"ws://{path}?access_token={token}{'&semel_in_order=true' * in_order}")
    member.client = LeanClient(user, urls, member.hear, chance, plant=plant)


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


class Books:
    """The books of all members, and of the store at `url` that their server uses."""

    def __init__(self, members: Sequence[Member], url: str) -> None:
        self.members, self.url = members, url

    @property
    def told(self) -> int:
        return sum(member.told for member in self.members)

    @property
    def deliveries(self) -> int:
        return sum(len(got) for member in self.members for got in member.received.values())

    def sent_to(self, group: int) -> dict[int, int]:
        return {member.number: member.published[group] for member in self.members if member.published[group]}

    async def missing(self, stall_s: float) -> int:
        """Waits until everybody has as much as there is to have, or nothing has come for `stall_s`. Returns how much is
        missing then. What is too much is looked for later."""
        wanted = [(got, self.sent_to(group)) for member in self.members for group, got in member.received.items()]
        counts = [(got, sum(sent.values())) for got, sent in wanted]
        missing, since = -1, time.monotonic()
        while (now_missing := sum(max(0, count - len(got)) for got, count in counts)) > 0:
            if now_missing != missing:
                missing, since = now_missing, time.monotonic()
            elif time.monotonic() - since > stall_s:
                return missing
            await asyncio.sleep(WATCH_S)
        return 0

    async def until_confirmed(self) -> None:
        """The server writes acknowledgements down once a second."""
        until = time.monotonic() + scaled(CONFIRM_S)
        while time.monotonic() < until:
            if (await asyncio.to_thread(self.ledger))["confirmed"] >= self.deliveries:
                return
            await asyncio.sleep(10 * WATCH_S)

    def wrong(self) -> Wrong:
        wrong = Wrong()
        first: dict[int, array[int]] = {}
        for member in self.members:
            for group, got in member.received.items():
                wrong.count(got, self.sent_to(group))
                wrong.orders += got != first.setdefault(group, got)
        return wrong

    def of_clients(self) -> dict[str, int]:
        counts = [asdict(member.client.counts) for member in self.members]
        return {name: sum(each[name] for each in counts) for name in counts[0]}

    def ledger(self) -> dict[str, int]:
        """What the server itself says: publishes that were accepted, and deliveries that clients have confirmed."""
        totals = Counter[Kind]()
        for event in self._events():
            if event.kind is Kind.ACCEPTED or event.hop == RECEIVERS:
                totals[event.kind] += event.n
        return {"accepted": totals[Kind.ACCEPTED], "confirmed": totals[Kind.CONFIRMED]}

    def ledger_troubles(self) -> list[str]:
        """Which clients it contradicts, and where it says something twice."""
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
