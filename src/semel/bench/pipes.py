"""`semel bench pipes`: a windowed resend pipe between two processes, beside a bare stream of the same frames.

For each backlog (1x, 10x, 100x messages waiting when the connection opens) and in turns, so that a noisy machine hurts
all alike:

* bytes: finished frames of the same size, written and read one by one: what asyncio and the loopback can do at all;
* frames: each message encoded into its frame, and decoded at the other end: the limit of anything that speaks;
* pipe: numbered, kept until confirmed, deduplicated, confirmed; state in memory;
* durable: the same with both ends on SQLite at full durability, each message handled in a commit.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path as Folder
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semel.errors import PeerUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.hop import HopMessage
from semel.kernel.ops import Append, Unit
from semel.kernel.store import Store
from semel.pipes.language.options import DedupBy, Options
from semel.pipes.language.path import Hop, Path, Point
from semel.pipes.workers.build import Built, build
from semel.runtime.host.loop import run as run_loop
from semel.runtime.host.performer import Performer
from semel.runtime.pipes.node import PipeNode
from semel.runtime.transports.frames import HEADER_BYTES, decode, encode
from semel.runtime.transports.tcp import TcpTransport
from semel.stores import open_store

HOST = "127.0.0.1"
LEFT, RIGHT = "left", "right"
SCALES = (1, 10, 100)
ROUNDS = 5
RATIO_WANTED = 0.3
KEEPS_WANTED = 0.7
"""How much of the rate at the smallest backlog must be left at the largest."""
ANSWER_S = 300.0
STORE_BATCH = 1000


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """`messages` is the 1x of the backlog."""

    messages: int = 2000
    body_bytes: int = 100
    window: int = 1000
    scales: tuple[int, ...] = SCALES
    rounds: int = ROUNDS
    folder: Folder = field(default_factory=Folder.cwd)


@dataclass(frozen=True, slots=True)
class Line:
    """Messages per second at one backlog."""

    backlog: int
    bytes_per_s: float
    frames_per_s: float
    pipe_per_s: float
    durable_per_s: float

    @property
    def ratio(self) -> float:
        return self.pipe_per_s / self.frames_per_s

    @property
    def ratio_to_bytes(self) -> float:
        return self.pipe_per_s / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class PipesResult:
    body_bytes: int
    window: int
    lines: tuple[Line, ...]

    @property
    def pipe_keeps(self) -> float:
        """The rate at the largest backlog as a share of the rate at the smallest."""
        return self.lines[-1].pipe_per_s / self.lines[0].pipe_per_s

    @property
    def durable_keeps(self) -> float:
        return self.lines[-1].durable_per_s / self.lines[0].durable_per_s

    @property
    def holds(self) -> bool:
        keeps = min(self.pipe_keeps, self.durable_keeps) >= KEEPS_WANTED
        return keeps and all(line.ratio >= RATIO_WANTED for line in self.lines)

    def as_dict(self) -> dict[str, Any]:
        lines = [
            {**asdict(line), "ratio": line.ratio, "ratio_to_bytes": line.ratio_to_bytes} for line in self.lines
        ]  # fmt: skip
        shares = {"pipe_keeps": self.pipe_keeps, "durable_keeps": self.durable_keeps}
        return {**asdict(self), "lines": lines, **shares, "holds": self.holds}


def run(options: BenchOptions, console: Console) -> PipesResult:
    """Measure, showing progress on `console`. Every figure is the median of its rounds: a bare stream has moments at
    twice its usual rate, and the best of a few rounds would hold one side's luck against the other."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(options.scales) * options.rounds * len(SIDES))
        lines = [_line(options, scale, lambda: progress.advance(task)) for scale in options.scales]
    return PipesResult(options.body_bytes, options.window, tuple(lines))


def table(result: PipesResult) -> Table:
    view = Table(title=f"pipes over loopback TCP: {result.body_bytes} byte bodies, window {result.window}")
    for name in ("backlog", "bytes/s", "frames/s", "pipe/s", "of frames", "of bytes", "durable/s"):
        view.add_column(name, justify="right")
    for line in result.lines:
        rates = (line.bytes_per_s, line.frames_per_s, line.pipe_per_s)
        view.add_row(
            f"{line.backlog:,}", *(f"{rate:,.0f}" for rate in rates), f"{line.ratio:.2f}", f"{line.ratio_to_bytes:.2f}",
            f"{line.durable_per_s:,.0f}",
        )  # fmt: skip
    view.caption = f"the largest backlog keeps {result.pipe_keeps:.0%} of the rate, durable {result.durable_keeps:.0%}"
    return view


def _line(options: BenchOptions, scale: int, step: Callable[[], None]) -> Line:
    count = options.messages * scale
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(options.rounds):
        for side in SIDES:
            rates[side].append(count / measure(side, count, options))
            step()
    return Line(count, *(median(rates[side]) for side in SIDES))


# -- two processes and a clock that both share


def measure(side: str, count: int, options: BenchOptions) -> float:
    """Seconds from the moment the sender may begin until the receiver has the last message."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=options.folder) as folder:
        task = (side, count, replace(options, folder=Folder(folder).resolve()))
        left, right = context.Pipe(), context.Pipe()
        processes = [
            context.Process(target=_child, args=(role, end[1], *task), daemon=True)
            for role, end in ((RIGHT, right), (LEFT, left))
        ]
        for process in processes:
            process.start()
        try:
            left[0].send(_answer_from(right[0], processes[0]))
            begin, end = _answer_from(left[0], processes[1]), _answer_from(right[0], processes[0])
        finally:
            for end_ in (left[0], right[0]):
                end_.close()
            for process in processes:
                process.join(10)
                process.kill()
    return float(end - begin)


def _answer_from(end: Connection, process: Any) -> Any:
    if not end.poll(ANSWER_S):
        raise PeerUnavailable(f"the bench process {process.pid} does not answer", fix="run it on a machine at rest")
    try:
        return end.recv()
    except EOFError:
        raise PeerUnavailable("a bench process has ended", fix="see what it printed above") from None


def _child(role: str, parent: Connection, side: str, count: int, options: BenchOptions) -> None:
    run_loop(SIDES[side][role == RIGHT](parent, count, options))


async def _until_closed(parent: Connection) -> None:
    """The parent closes its end when it has received enough."""
    try:
        await asyncio.to_thread(parent.recv)
    except EOFError:
        return


def _envelope(number: int, options: BenchOptions) -> Envelope:
    return Envelope(f"message-{number:09d}", data=b"x" * options.body_bytes)


# -- a bare stream


async def _write_bytes(parent: Connection, count: int, options: BenchOptions) -> None:
    frame = encode(HopMessage("bench/1", _envelope(1, options), 1))
    await _write(parent, count, lambda number: frame)


async def _write_frames(parent: Connection, count: int, options: BenchOptions) -> None:
    envelopes = [_envelope(number, options) for number in range(count)]
    await _write(parent, count, lambda number: encode(HopMessage(f"bench/{number}", envelopes[number], number + 1)))


async def _write(parent: Connection, count: int, frame: Callable[[int], bytes]) -> None:
    _, writer = await asyncio.open_connection(HOST, parent.recv())
    parent.send(time.monotonic())
    for number in range(count):
        writer.write(frame(number))
        await writer.drain()
    await _until_closed(parent)
    writer.close()


async def _read_bytes(parent: Connection, count: int, options: BenchOptions) -> None:
    await _read(parent, count, lambda payload: None)


async def _read_frames(parent: Connection, count: int, options: BenchOptions) -> None:
    await _read(parent, count, decode)


async def _read(parent: Connection, count: int, take: Callable[[bytes], Any]) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(count):
            size = int.from_bytes(await reader.readexactly(HEADER_BYTES), "big")
            take(await reader.readexactly(size))
        parent.send(time.monotonic())
        writer.close()

    server = await asyncio.start_server(speak, HOST, 0)
    parent.send(server.sockets[0].getsockname()[1])
    await _until_closed(parent)
    server.close()


# -- a pipe


def _built(options: BenchOptions, durable: bool, backlog: int) -> Built:
    hop = Options(retries=math.inf, window=options.window, timeout=30.0, dedup=DedupBy.ID, durable=durable)
    built = build(Path((Point("A"), Hop(hop), Point("B")), "bench"))
    workers = []
    for worker in built.workers:
        outlets = tuple(replace(outlet, queue_max=backlog + options.window) for outlet in worker.config.outlets)
        workers.append(replace(worker, config=replace(worker.config, outlets=outlets)))
    return replace(built, workers=tuple(workers))


def _open(options: BenchOptions, role: str, durable: bool) -> Store:
    return open_store(f"sqlite:///{options.folder}/{role}.db" if durable else "memory:")


async def _send(parent: Connection, count: int, options: BenchOptions, durable: bool) -> None:
    built = _built(options, durable, count)
    envelopes = [_envelope(number, options) for number in range(count)]
    with closing(_open(options, LEFT, durable)) as store:
        if durable:
            _fill(store, built.worker("A").config.stream, envelopes)
        async with Performer(store) as performer:
            tcp = TcpTransport(LEFT, insecure=True)
            node = PipeNode(LEFT, performer, tcp)
            await node.deploy(built, here={"A"}, nodes={"B": RIGHT})
            if not durable:
                await node.offer_all("A", envelopes)
            port = await asyncio.to_thread(parent.recv)
            parent.send(time.monotonic())
            tcp.dial(RIGHT, HOST, port)
            await _until_closed(parent)


def _fill(store: Store, stream: str, envelopes: list[Envelope]) -> None:
    for first in range(0, len(envelopes), STORE_BATCH):
        batch = envelopes[first : first + STORE_BATCH]
        store.commit([Unit(tuple(Append(stream, envelope, identity=envelope.id) for envelope in batch))])


async def _receive(parent: Connection, count: int, options: BenchOptions, durable: bool) -> None:
    handled = 0

    def handle(item: Any) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            parent.send(time.monotonic())

    with closing(_open(options, RIGHT, durable)) as store:
        async with Performer(store) as performer:
            tcp = TcpTransport(RIGHT, insecure=True)
            node = PipeNode(RIGHT, performer, tcp)
            built = _built(options, durable, count)
            await node.deploy(built, here={"B"}, nodes={"A": LEFT}, handler=handle, inline=True)
            parent.send(await tcp.listen(HOST))
            await _until_closed(parent)


Role = Callable[[Connection, int, BenchOptions], Coroutine[Any, Any, None]]


SIDES: dict[str, tuple[Role, Role]] = {
    "bytes": (_write_bytes, _read_bytes),
    "frames": (_write_frames, _read_frames),
    "pipe": (partial(_send, durable=False), partial(_receive, durable=False)),
    "durable": (partial(_send, durable=True), partial(_receive, durable=True)),
}
"""The left and the right process of each measurement."""
