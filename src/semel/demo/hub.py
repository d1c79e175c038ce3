"""The demo's other part: clients of a hub, ours and Microsoft's, whose connections are cut while the server is killed.

clients process     ┐
                    ├ link that is cut → `semel serve`, killed with -9, own SQLite file
Microsoft's client  ┘

Every client publishes to one group and receives all of it. The children report what is surely published and what
they received; what was published is compared with what each of them received.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from semel.auth.keys import AccessKeys
from semel.demo.children import Child
from semel.demo.options import HUB, HUB_GROUP, DemoOptions
from semel.demo.proof import is_possible
from semel.demo.story import Story, note
from semel.errors import PeerUnavailable
from semel.pubsub.protocol.client_tokens import client_token
from semel.runtime.export.exporter import DATASETS, export
from semel.stores import open_store
from semel.testing import limits
from semel.testing.byte_faults import ByteFault, ByteProxy
from semel.testing.serve_process import KEY, ServeProcess

OURS = ("anna", "boris", "chloe")
MICROSOFT = "microsoft"
WHO = {"clients": "our clients", MICROSOFT: "Microsoft's client"}
ROLES = (f"webpubsub.joinLeaveGroup.{HUB_GROUP}", f"webpubsub.sendToGroup.{HUB_GROUP}")
EACH_MAX = 100
"""How many messages each of our clients publishes at most. Microsoft's, which waits a second after each cut, half."""
CUT_S = 0.25
WATCH_S = 0.02
TOKEN_S = 6 * 3600.0
RECOVERY_S = 90.0
"""How long the server keeps the session of a client that is silent."""


def has_microsoft() -> bool:
    """Its client is no part of Semel's own needs: where it is not installed, the demo goes without."""
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec("azure.messaging.webpubsubclient") is not None
    return False


@dataclass(slots=True)
class ClientReports:
    """What the children have reported: which messages are surely published, and what each client received, with its
    sequenceId."""

    published: list[str] = field(default_factory=list)
    by_client: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    changed_at: float = field(default_factory=time.monotonic)

    def receive(self, report: dict[str, Any]) -> None:
        self.published += report.get("published", ())
        for client, received in report.get("received", {}).items():
            self.by_client.setdefault(client, []).extend((sequence_id, id) for sequence_id, id in received)
        if "done" in report:
            self.done.add(report["done"])
        self.changed_at = time.monotonic()


@dataclass(frozen=True, slots=True)
class HubFigures:
    """`due` is what all clients had to receive. `lost` was published and did not come to one of them, `doubled`
    came again, `disorder` after a later one of the same publisher, `unknown` was never published."""

    clients: int
    with_microsoft: bool
    published: int
    due: int
    heard: int
    lost: int
    doubled: int
    disorder: int
    unknown: int
    cuts: int
    kills: int

    @property
    def holds(self) -> bool:
        return self.published > 0 and not (self.lost or self.doubled or self.disorder or self.unknown)


def count(clients: Sequence[str], reports: ClientReports, cuts: int, kills: int) -> HubFigures:
    published = set(reports.published)
    by_client = {client: _in_order(client, reports.by_client.get(client, [])) for client in clients}
    copies = {client: Counter(ids) for client, ids in by_client.items()}
    return HubFigures(
        clients=len(clients),
        with_microsoft=MICROSOFT in clients,
        published=len(published),
        due=len(published) * len(clients),
        heard=sum(map(len, by_client.values())),
        lost=sum(len(published - set(ids)) for ids in by_client.values()),
        doubled=sum(number - 1 for found in copies.values() for number in found.values()),
        disorder=sum(_disorder(ids) for ids in by_client.values()),
        unknown=sum(len(set(ids) - published) for ids in by_client.values()),
        cuts=cuts,
        kills=kills,
    )


def _in_order(client: str, received: list[tuple[int, str]]) -> list[str]:
    """Microsoft's client calls back in a thread for each message, so only their numbers tell how they came."""
    return [id for _, id in (sorted(received) if client == MICROSOFT else received)]


def _disorder(ids: Sequence[str]) -> int:
    """Ids are `<publisher>-<number>`."""
    highest: dict[str, int] = {}
    late = 0
    for id in ids:
        publisher, _, number = id.rpartition("-")
        late += int(number) < highest.get(publisher, 0)
        highest[publisher] = max(int(number), highest.get(publisher, 0))
    return late


class HubShow:
    def __init__(self, options: DemoOptions, folder: Path) -> None:
        self.options, self.folder = options, folder
        recovery = {"SEMEL_PUBSUB__RECOVERY_S": f"{limits.scaled(RECOVERY_S):.0f}"}
        self.server = ServeProcess(self._url("hub"), folder / "serve.log", settings=recovery)
        self.proxy = ByteProxy(("127.0.0.1", 0), seed=options.seed)
        self.reports = ClientReports()
        self.children: list[Child] = []
        self.clients = (*OURS, *([MICROSOFT] if has_microsoft() else []))
        self.kills = 0

    async def run(self, progress: Progress) -> HubFigures:
        if MICROSOFT not in self.clients:
            note(progress.console, "without Microsoft's own client, which needs azure-messaging-webpubsubclient")
        total = sum(map(self._messages_of, self.clients))
        story = Story(progress, "starting the pub/sub server", total * len(self.clients))
        notes = asyncio.create_task(story.print_notes())
        try:
            async with self._processes(story):
                await self._watch(story, progress.console, total)
                story.now("ending the clients and the server")
                for child in self.children:
                    await child.stop()
                await self.server.stop()
            story.now("all delivered")
        finally:
            notes.cancel()
        return count(self.clients, self.reports, sum(self.proxy.struck.values()), self.kills)

    @property
    def stores(self) -> tuple[str, ...]:
        """What an audit has to look at."""
        names = ["hub", "clients", *([MICROSOFT] if MICROSOFT in self.clients else [])]
        return tuple(map(self._url, names))

    def _url(self, name: str) -> str:
        return f"sqlite:///{self.folder / name}.db"

    # -- processes

    @asynccontextmanager
    async def _processes(self, story: Story) -> AsyncIterator[None]:
        try:
            if self.options.audit and is_possible():
                await asyncio.to_thread(self._keep_all)
            await self.server.start()
            self.proxy.target = ("127.0.0.1", self.server.port)
            await self.proxy.start()
            await self._start_children(story)
            yield
        finally:
            for child in self.children:
                await child.kill()
            await self.server.kill()
            await self.proxy.close()

    def _keep_all(self) -> None:
        """A hub gives up what nobody needs any more, and an audit wants it all: what is to be exported stays."""
        store = open_store(self._url("hub"))
        try:
            for dataset in DATASETS:
                export(store, self.folder / "lake", dataset)
        finally:
            store.close()

    async def _start_children(self, story: Story) -> None:
        roles = {"clients": OURS, MICROSOFT: (MICROSOFT,)} if MICROSOFT in self.clients else {"clients": OURS}
        for role, names in roles.items():
            config = {
                "store": self._url(role), "urls": {name: self._client_url(name) for name in names},
                "messages": self._messages_of(names[0]), "go": str(self.folder / "go"),
            }  # fmt: skip
            module = "semel.demo.hub_clients" if role == "clients" else "semel.demo.hub_microsoft"
            log = self.folder / f"{role}.log"
            self.children.append(await Child.start(role, module, config, log, self.reports.receive))
        for child in self.children:
            story.now(f"waiting for {WHO[child.role]} to join")
            await child.ready()
        # whoever has joined receives everything: so nobody begins before all have
        (self.folder / "go").touch()
        self.reports.changed_at = time.monotonic()

    def _messages_of(self, client: str) -> int:
        each = max(1, min(EACH_MAX, self.options.messages // 10))
        return -(-each // 2) if client == MICROSOFT else each

    def _client_url(self, name: str) -> str:
        path = f"127.0.0.1:{self.proxy.port}/client/hubs/{HUB}"
        token = client_token(
            AccessKeys(KEY), f"http://{path}", now=time.time(), lifetime_s=TOKEN_S, user_id=name, roles=ROLES
        )
        return f"ws://{path}?access_token={token}"

    # -- watching

    async def _watch(self, story: Story, console: Console, total: int) -> None:
        cut_at = time.monotonic() + CUT_S
        while not self._is_done():
            if self.kills < self.options.kills and len(self.reports.published) >= self._next_kill(total):
                await self._kill(story, console)
            if self.options.cuts and time.monotonic() >= cut_at:
                self.proxy.strike(self.proxy.chance.choice((ByteFault.RESET, ByteFault.TORN, ByteFault.END)))
                cut_at = time.monotonic() + CUT_S
            self._check()
            story.now(self._doing(), sum(map(len, self.reports.by_client.values())))
            await asyncio.sleep(WATCH_S)

    def _next_kill(self, total: int) -> int:
        return total * (self.kills + 1) // (self.options.kills + 1)

    def _doing(self) -> str:
        """Microsoft's client is the last as a rule: it waits after each cut."""
        if len(self.reports.done) == len(self.clients):
            return "all published, waiting until everybody has received it"
        if len(self.reports.done) == len(self.clients) - 1 and MICROSOFT in self.clients:
            return "delivered, Microsoft's client is still publishing"
        return "delivered"

    def _is_done(self) -> bool:
        """Everybody has published, and has received as much as there is. Who receives too much is found by the
        count."""
        if len(self.reports.done) < len(self.clients) or self.kills < self.options.kills:
            return False
        return all(
            len(self.reports.by_client.get(client, ())) >= len(self.reports.published) for client in self.clients
        )

    async def _kill(self, story: Story, console: Console) -> None:
        pid = self.server.pid
        await self.server.kill()
        self.kills += 1
        published = len(self.reports.published)
        story.now("starting the pub/sub server again")
        console.print(
            f"kill -9 of the pub/sub server, process {pid}, at {published:,} published, and a new one",
            style="yellow",
            highlight=False,
        )
        await self.server.start()
        self.reports.changed_at = time.monotonic()

    def _check(self) -> None:
        for child in self.children:
            if not child.is_running:
                raise child.trouble(f"ended by itself with code {child.process.returncode}")
        if not self.server.is_running:
            raise self.server.trouble("ended by itself")
        stall_s = limits.scaled(self.options.stall_s)
        if time.monotonic() - self.reports.changed_at > stall_s:
            published = len(self.reports.published)
            received = ", ".join(f"{name} {len(self.reports.by_client.get(name, ())):,}" for name in self.clients)
            raise PeerUnavailable(
                f"nothing has moved for {stall_s:.0f} s: {published:,} published; received by {received}",
                fix="run with --keep and look at the logs in the folder",
            )
