"""One worker of a path as a process of its own, for the pipe campaigns. The parent kills it whenever it likes.

The first worker's application hands over messages and says which of them are stored. The last worker's handler writes
each message to a stream of effects, in the commit that says that it was handled.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Any

from semel.demo.children import REPORT_S, main, open_transport, pause, say
from semel.demo.receiver import planted
from semel.errors import HandlerError
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Receiver
from semel.kernel.ops import Append, Op, WorkRow
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Record, Store
from semel.pipes.language.notation import parse_path
from semel.pipes.workers.build import Built, WorkerPlan, build
from semel.pipes.workers.durable import DurableStage
from semel.runtime.host.hosting import Factory, Handler
from semel.runtime.host.performer import Performer
from semel.runtime.pipes.node import PipeNode
from semel.runtime.transports.tcp import TcpTransport
from semel.stores import open_store

EFFECTS = "effects"
SESSIONS = 64
BACKLOG_MAX = 1_000
"""How many stored messages may wait unconfirmed: the application goes on during the whole run."""
METERS_S = 0.1
HANDLER_RETRY = RetryPolicy(interval_s=0.005)


def message(session: int, index: int) -> Envelope:
    """The same numbers are the same message, also after a restart."""
    return Envelope(
        id=f"message-{session}-{index}", session=f"session-{session}", index=index, data=b"%d of %d" % (index, session)
    )


def size_of(session: int, messages: int) -> int:
    """How many of the messages belong to a session."""
    return len(range(session, messages, SESSIONS))


class Application:
    """Hands messages over, those of one session one after the other. It is told of each when it is stored."""

    def __init__(self, node: PipeNode, worker: str, ended: asyncio.Event) -> None:
        self.node = node
        self.worker = worker
        self.ended = ended
        self.told: list[tuple[int, int]] = []
        self.backlog = 0

    async def serve(self, session: int, first: int, last: int) -> None:
        for index in range(first, last + 1):
            while self.backlog > BACKLOG_MAX and not self.ended.is_set():
                await pause(self.ended, REPORT_S)
            if self.ended.is_set():
                return
            await self.node.offer(self.worker, message(session, index))
            self.told.append((session, index))

    async def report(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await pause(stop, REPORT_S)
            self.backlog = await _behind(self.node, self.worker)
            told, self.told = self.told, []
            if told:
                say(told=told)


async def first_worker(node: PipeNode, built: Built, config: dict[str, Any], ended: asyncio.Event) -> None:
    application, stop = Application(node, built.first, ended), asyncio.Event()
    report = asyncio.create_task(application.report(stop))
    async with asyncio.TaskGroup() as group:
        for session, first in enumerate(config["next"]):
            group.create_task(application.serve(session, first, size_of(session, config["messages"])))
    stop.set()
    await report
    drained = asyncio.create_task(node.drained(built.first))
    end = asyncio.create_task(ended.wait())
    await asyncio.wait((drained, end), return_when=asyncio.FIRST_COMPLETED)
    if drained.done():
        drained.result()
        say(told=application.told, done=True)
    drained.cancel()
    await end


async def last_worker(node: PipeNode, built: Built, ended: asyncio.Event) -> None:
    store = node.performer.store
    while not ended.is_set():
        head = await asyncio.to_thread(store.head, EFFECTS)
        say(effects=head.offset, behind=await _behind(node, built.last))
        await pause(ended, REPORT_S)


async def _behind(node: PipeNode, worker: str) -> int:
    """How many stored messages have not yet been confirmed onward, or handled."""
    machine = node.performer.machine(worker)
    if not isinstance(machine, DurableStage):
        return BACKLOG_MAX  # it starts again
    head = await asyncio.to_thread(node.performer.store.head, machine.config.stream)
    return head.offset - machine.passed


def handler_of(failures: float, seed: int) -> Handler:
    """Writes an effect, without asking whether it is there already: that is for the path to see to."""
    chance = random.Random(seed)

    def handle(item: WorkRow | Record) -> Iterable[Op]:
        if chance.random() < failures:
            raise HandlerError("this is one of the planned failures", fix="try again")
        return [Append(EFFECTS, item.envelope)]

    return handle


class PlantedNode(PipeNode):
    """Its durable workers receive with a known mistake."""

    plant = ""

    def factory(self, worker: WorkerPlan) -> Factory:
        def build_planted(store: Store) -> DurableStage:
            stage = DurableStage(worker.config, store)
            assert isinstance(stage._in.machine, Receiver)
            stage._in.machine = planted(self.plant, stage._in.machine.config)
            return stage

        return build_planted if worker.durable else super().factory(worker)


async def work(config: dict[str, Any], ended: asyncio.Event) -> None:
    role = config["role"]
    logging.getLogger("semel.runtime.host.performer").setLevel(logging.ERROR)  # planned failures of the handler
    built = build(parse_path(config["path"], config["name"]), report_s=METERS_S)
    store = open_store(config["store"], node=role)
    try:
        async with Performer(store) as performer:
            tcp = open_transport(role, config["secret"])
            node = _node(role, performer, tcp, config["plant"] if role == built.last else None)
            others = {worker.config.name: worker.config.name for worker in built.workers}
            await node.deploy(
                built,
                here={role},
                nodes=others,
                handler=handler_of(config["failures"], config["seed"]),
                inline=True,
                retry=HANDLER_RETRY,
            )
            if config["dial"] is not None:
                peer, port = config["dial"]
                tcp.dial(peer, "127.0.0.1", port)
            say(ready=True, port=await tcp.listen())
            if role == built.first:
                await first_worker(node, built, config, ended)
            elif role == built.last:
                await last_worker(node, built, ended)
            else:
                await ended.wait()
    finally:
        store.close()


def _node(name: str, performer: Performer, tcp: TcpTransport, plant: str | None) -> PipeNode:
    """Each message travels in a frame of its own, so the link decides over each by itself."""
    if plant is None:
        return PipeNode(name, performer, tcp, parcel_bodies=1)
    node = PlantedNode(name, performer, tcp, parcel_bodies=1)
    node.plant = plant
    return node


if __name__ == "__main__":
    main(work)
