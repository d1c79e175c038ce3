"""`semel bench inbox`: messages stored and handled a second, beside the same statements by hand and beside peers.

One PostgreSQL, one database and one process for each side; what is compared runs in turns, and every figure is the
median of the rounds, by the clock and by the processor: of the process, and of the server where it can be read.

Parts, of which any may be asked for:

* postgres: Semel, raw SQL and the peers, with one commit for each message and with 20 handlers that share one;
* sqlite: Semel beside raw sqlite3;
* sweep: whether what is done is moved out of the way as quickly as it is handled;
* identities: the same with many identities remembered, for ids in the order of time and for random ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semel.bench.inbox_meter import Took, postmaster_of
from semel.bench.pubsub import Goal
from semel.errors import PeerUnavailable

PARTS = ("postgres", "sqlite", "sweep", "identities")
RAW, SEMEL = "raw SQL", "Semel"
ONE_COMMIT = "effect and mark in one commit"
AT_LEAST_ONCE = "at least once"
GUARANTEES = {
    RAW: "effect and mark in one commit; no order, no retries, nothing recovered",
    SEMEL: f"{ONE_COMMIT}; order by key; duplicates known by id",
    "procrastinate": AT_LEAST_ONCE,
    "pgqueuer": AT_LEAST_ONCE,
    "dbos": f"{ONE_COMMIT}, by workflow id",
    "python-cqrs": f"{ONE_COMMIT}; duplicates known by id",
}
PEERS = {"procrastinate": "procrastinate", "pgqueuer": "pgqueuer", "dbos": "dbos", "python-cqrs": "cqrs"}
"""Name and module."""
OF_RAW_WANTED = 0.6
SHARED_WANTED = 0.5
OF_PEER_WANTED = 3.0
SLOWER_WANTED = {"ordered": 1.1, "random": 1.5}
SHARE = 20


@dataclass(frozen=True, slots=True)
class InboxBenchOptions:
    """`messages` of each measurement; `identities` that are remembered in the part of that name."""

    parts: tuple[str, ...] = PARTS[:3]
    rounds: int = 5
    messages: int = 2000
    workers: tuple[int, ...] = (1, 4, 16)
    body_bytes: int = 200
    identities: int = 2_000_000
    peers: bool = True
    url: str | None = None
    folder: Path = field(default_factory=Path.cwd)

    def quick(self) -> InboxBenchOptions:
        """To see that it works. Its figures mean little."""
        return replace(self, rounds=1, messages=60, workers=self.workers[:1], identities=1000)


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: to store, or to handle with so many workers and so many messages to a commit."""

    engine: str
    do: str
    workers: int = 1
    share: int = 1
    ids: str = "ordered"

    @property
    def name(self) -> str:
        if self.do != "handle":
            return self.do
        return f"handle, {self.workers} worker{'s'[: self.workers > 1]}" + (
            f", {self.share} to a commit" if self.share > 1 else ""
        )


@dataclass(frozen=True, slots=True)
class InboxFigure:
    """Milliseconds for a message, by the median of the rounds."""

    engine: str
    what: str
    side: str
    guarantee: str
    wall_ms: float
    client_ms: float
    server_ms: float | None

    @property
    def per_s(self) -> float:
        return 1000 / self.wall_ms

    @property
    def processor_ms(self) -> float:
        return self.client_ms + (self.server_ms or 0.0)


@dataclass(frozen=True, slots=True)
class InboxResult:
    """`absent` are peers that are not installed, or failed, and why."""

    messages: int
    rounds: int
    body_bytes: int
    figures: tuple[InboxFigure, ...] = ()
    goals: tuple[Goal, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def misses(self) -> list[str]:
        return [
            f"{goal.name}: {goal.value:.3g}, and not {'at most' if goal.is_limit else 'at least'} {goal.wanted:.3g}"
            for goal in self.goals
            if not goal.holds
        ]

    @property
    def holds(self) -> bool:
        return not self.misses

    def as_dict(self) -> dict[str, Any]:
        figures = [{**asdict(each), "per_s": each.per_s, "processor_ms": each.processor_ms} for each in self.figures]
        goals = [{**asdict(goal), "holds": goal.holds} for goal in self.goals]
        return {**asdict(self), "figures": figures, "goals": goals, "misses": self.misses, "holds": self.holds}


# -- the sides, each in a process


class SideProcess:
    """Does what it is asked, one thing at a time. Its errors and what its libraries print are in a file."""

    def __init__(self, module: str, name: str, url: str, postmaster: int | None, body_bytes: int, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", f"semel.bench.{module}", name, url, str(postmaster or 0), str(body_bytes)]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def ask(self, do: str, **what: Any) -> Took:
        assert self._process.stdin is not None, "its pipes are ours"
        assert self._process.stdout is not None, "its pipes are ours"
        try:
            print(json.dumps({"do": do, **what}), file=self._process.stdin, flush=True)
            answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "it ended"}')
        except BrokenPipeError:
            answer = {"error": "it ended"}
        if "error" in answer:
            raise PeerUnavailable(
                f"{answer['error']}\n{self._log.read_text()[-2000:]}",
                fix="what it printed is above; semel bench inbox --no-peers runs without peers",
            )
        return Took(**answer)

    def close(self) -> None:
        self._process.communicate()


Sides = dict[str, SideProcess]


def run(options: InboxBenchOptions, console: Console) -> InboxResult:
    """Measure, showing progress on `console`. Temporary data is removed."""
    bench = _InboxBench(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-bench-", dir=options.folder)))
        progress = stack.enter_context(Progress(console=console, transient=True))
        task = progress.add_task("measuring", total=None)
        bench.measure(folder.resolve(), lambda: progress.advance(task))
    return bench.result()


class _InboxBench:
    def __init__(self, options: InboxBenchOptions) -> None:
        self._options = options
        self._figures: list[InboxFigure] = []
        self._goals: list[Goal] = []
        self._absent: list[str] = []

    def result(self) -> InboxResult:
        options = self._options
        return InboxResult(
            options.messages,
            options.rounds,
            options.body_bytes,
            tuple(self._figures),
            tuple(self._goals),
            tuple(self._absent),
        )

    def measure(self, folder: Path, step: Callable[[], None]) -> None:
        parts = self._options.parts
        with self._server(folder) as server:
            if "postgres" in parts:
                self._measure_postgres(server, step)
            if "sweep" in parts:
                self._measure_sweep(server, step)
            if "identities" in parts:
                self._measure_identities(server, step)
        if "sqlite" in parts:
            self._measure_sqlite(folder, step)

    @contextmanager
    def _server(self, folder: Path) -> Iterator[_Server | None]:
        if not {"postgres", "sweep", "identities"} & {*self._options.parts}:
            yield None
            return
        from semel.testing.postgres import PrivatePostgres

        with ExitStack() as stack:
            url = self._options.url
            if url is None:
                url = stack.enter_context(PrivatePostgres(durable=True)).url
            yield _Server(url, self._options.body_bytes, folder, stack)

    # -- parts

    def _measure_postgres(self, server: _Server | None, step: Callable[[], None]) -> None:
        assert server is not None, "this part has a server"
        own = {RAW: server.side("inbox_own", "raw"), SEMEL: server.side("inbox_own", "semel")}
        peers = self._peers(server) if self._options.peers else {}
        cases = [Case("postgres", "store"), *(Case("postgres", "handle", count) for count in self._options.workers)]
        for case in cases:
            self._judge(case, self._in_turns(case, {**own, **peers}, step))
        for count in self._options.workers:
            case = Case("postgres", "handle", count, SHARE)
            self._judge(case, self._in_turns(case, own, step))
        for side in (*own.values(), *peers.values()):
            side.close()

    def _peers(self, server: _Server) -> Sides:
        sides: Sides = {}
        for name, module in PEERS.items():
            if find_spec(module) is None:
                self._absent.append(f"{name}: not installed")
            else:
                sides[name] = server.side("inbox_peers", name)
        return sides

    def _measure_sqlite(self, folder: Path, step: Callable[[], None]) -> None:
        sides = {
            name: SideProcess(
                "inbox_own",
                side,
                f"sqlite:///{folder}/{side}.db",
                None,
                self._options.body_bytes,
                folder / f"{side}.log",
            )
            for name, side in ((RAW, "raw"), (SEMEL, "semel"))
        }
        counts = self._options.workers
        cases = [Case("sqlite", "store"), *(Case("sqlite", "handle", count) for count in counts)]
        for case in (*cases, Case("sqlite", "handle", counts[0], SHARE)):
            self._judge(case, self._in_turns(case, sides, step), is_goal=False)
        for side in sides.values():
            side.close()

    def _measure_sweep(self, server: _Server | None, step: Callable[[], None]) -> None:
        assert server is not None, "this part has a server"
        side = {SEMEL: server.side("inbox_own", "semel")}
        workers = max(self._options.workers)
        handled = self._in_turns(Case("postgres", "handle", workers), side, step)[SEMEL]
        swept = self._in_turns(Case("postgres", "sweep", workers), side, step)[SEMEL]
        side[SEMEL].close()
        self._figures.append(swept)
        self._goals.append(Goal("rows swept, of those handled, by the clock", handled.wall_ms / swept.wall_ms, 1.0))

    def _measure_identities(self, server: _Server | None, step: Callable[[], None]) -> None:
        """Two databases, one with few identities and one with many, in turns."""
        assert server is not None, "this part has a server"
        count, names = self._options.identities, ("few", "many")
        for ids, wanted in SLOWER_WANTED.items():
            sides = {name: server.side("inbox_own", "semel") for name in names}
            sides["many"].ask("fill", messages=count, ids=ids)
            step()
            case = Case("postgres", "both", max(self._options.workers), ids=ids)
            found = self._in_turns(case, sides, step)
            for name, figure in found.items():
                amount = f"{count:,} identities" if name == "many" else "few identities"
                self._figures.append(replace(figure, what=f"store and handle, {ids} ids, {amount}", side=SEMEL))
            ratio = found["many"].processor_ms / found["few"].processor_ms
            self._goals.append(Goal(f"{ids} ids at {count:,} identities, processor", ratio, wanted, is_limit=True))
            for side in sides.values():
                side.close()

    # -- rounds

    def _in_turns(self, case: Case, sides: Sides, step: Callable[[], None]) -> dict[str, InboxFigure]:
        """One round is not counted: all begin with warm code. A peer that fails is left out, and said so."""
        took: dict[str, list[Took]] = {name: [] for name in sides}
        for turn in range(self._options.rounds + 1):
            for name in [name for name in sides if name in took]:
                try:
                    found = self._ask(sides[name], case)
                except PeerUnavailable as error:
                    if name not in PEERS:
                        raise
                    self._absent.append(f"{name}: {case.name}: {error.message.splitlines()[0]}")
                    del took[name]
                    continue
                if turn:
                    took[name].append(found)
                step()
        return {name: _figure(case, name, found) for name, found in took.items()}

    def _ask(self, side: SideProcess, case: Case) -> Took:
        what: dict[str, Any] = {"messages": self._options.messages}
        if case.do in ("store", "both"):
            what["ids"] = case.ids
        if case.do != "store":
            what["workers"] = case.workers
        if case.share > 1:
            what["share"] = case.share
        return side.ask(case.do, **what)

    def _judge(self, case: Case, found: Mapping[str, InboxFigure], *, is_goal: bool = True) -> None:
        self._figures += found.values()
        if case.do == "handle" and is_goal:
            self._goals += goals_of(case, found)


@dataclass(frozen=True, slots=True)
class _Server:
    url: str
    body_bytes: int
    folder: Path
    stack: ExitStack

    def side(self, module: str, name: str) -> SideProcess:
        """With a database of its own."""
        import psycopg

        from semel.testing.postgres import new_database

        url = self.stack.enter_context(new_database(self.url))
        with psycopg.connect(url) as connection:
            postmaster = postmaster_of(connection.info.backend_pid)
        return SideProcess(module, name, url, postmaster, self.body_bytes, self.folder / f"{name}.log")


def _figure(case: Case, name: str, found: Sequence[Took]) -> InboxFigure:
    def each(seconds: Callable[[Took], float]) -> float:
        return median(1000 * seconds(took) / took.messages for took in found)

    has_server = all(took.server_s is not None for took in found)
    return InboxFigure(
        case.engine,
        case.name,
        name,
        GUARANTEES.get(name, ""),
        each(lambda took: took.wall_s),
        each(lambda took: took.client_s),
        each(lambda took: took.server_s or 0.0) if has_server else None,
    )


def goals_of(case: Case, found: Mapping[str, InboxFigure]) -> list[Goal]:
    """What was promised of a case, by the processor and by the clock."""
    wanted = SHARED_WANTED if case.share > 1 else OF_RAW_WANTED
    semel, raw = found[SEMEL], found[RAW]
    goals = [
        Goal(f"{case.name}: of raw SQL, processor", raw.processor_ms / semel.processor_ms, wanted),
        Goal(f"{case.name}: of raw SQL, clock", raw.wall_ms / semel.wall_ms, wanted),
    ]
    as_much = [each for name, each in found.items() if name in PEERS and ONE_COMMIT in GUARANTEES[name]]
    if as_much:
        best = min(as_much, key=lambda each: each.wall_ms)
        goals.append(Goal(f"{case.name}: of {best.side}, clock", best.wall_ms / semel.wall_ms, OF_PEER_WANTED))
        best = min(as_much, key=lambda each: each.processor_ms)
        ratio = best.processor_ms / semel.processor_ms
        goals.append(Goal(f"{case.name}: of {best.side}, processor", ratio, OF_PEER_WANTED))
    return goals


def tables(result: InboxResult) -> list[Table]:
    """The result for people."""
    figures = Table(title=f"inbox: {result.messages:,} messages of {result.body_bytes} bytes, {result.rounds} rounds")
    for name in ("store", "what", "side", "guarantee"):
        figures.add_column(name)
    for name in ("messages/s", "clock", "client", "server"):
        figures.add_column(name, justify="right")
    for each in result.figures:
        server = "" if each.server_ms is None else f"{each.server_ms:.2f} ms"
        rates = f"{each.per_s:,.0f}", f"{each.wall_ms:.2f} ms", f"{each.client_ms:.2f} ms", server
        figures.add_row(each.engine, each.what, each.side, each.guarantee, *rates)
    if result.absent:
        figures.caption = "not measured: " + "; ".join(result.absent)
    goals = Table(title="what was promised")
    for name in ("goal", "figure", "wanted", "holds"):
        goals.add_column(name, justify="left" if name == "goal" else "right")
    for goal in result.goals:
        wanted = f"{'at most' if goal.is_limit else 'at least'} {goal.wanted:g}"
        goals.add_row(goal.name, f"{goal.value:.2f}", wanted, "yes" if goal.holds else "no")
    return [table for table in (figures, goals) if table.row_count]
