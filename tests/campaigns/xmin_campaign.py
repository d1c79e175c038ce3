"""Work queues on PostgreSQL while somebody's transaction stays open.

PostgreSQL keeps every version of a row that an open transaction might want to see. Whatever is claimed and finished
meanwhile stays in the indexes as dead entries, and a claim must not walk over all of them each time. Messages go
through two databases in large batches, one with such a transaction and one without. Then both are measured with one
message at a time, by the processor time of this process and of the server's: other load on the machine does not count.

    python -m tests.campaigns.xmin_campaign 40000
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from semel.kernel.envelope import Envelope
from semel.kernel.ops import Applied, Claim, Claimed, Enqueue, Finish, Op, Result, Unit, WorkState
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_fronts import Fronts
from semel.testing.postgres import PrivatePostgres

Step = Callable[[int, int], None]

QUEUE = "inbox/orders"
BATCH = 200
MEASURED = 1000
TURNS = 20
MESSAGES_OF_A_KEY = 10
BODY = b"x" * 200
ALLOWED = 0.8


@dataclass(slots=True)
class Side:
    """One database, and the messages that go through it. Each claims, as a worker does, what it has just enqueued."""

    store: PostgresStore
    keyed: bool
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        """How often claims look from the beginning goes by time; here by that of the processor, like all the rest."""
        self.send(1)
        self.store._fronts = Fronts(self._used)

    def cost(self, count: int) -> float:
        """Seconds of processor time for so many messages, one by one."""
        begin = self._used()
        for _ in range(count):
            self.send(1)
        return self._used() - begin

    def _used(self) -> float:
        server = Path(f"/proc/{self.store._writer_pid}/schedstat").read_text().split()[0]
        return time.thread_time() + int(server) / 1e9

    def send(self, count: int) -> None:
        numbers = [next(self._numbers) for _ in range(count)]
        self._commit(*(self._message(number) for number in numbers))
        while count:
            [claimed] = self._commit(Claim(QUEUE, "worker", limit=count))
            assert isinstance(claimed, Claimed)
            assert claimed.rows, "what was enqueued is there to be claimed"
            self._commit(*(Finish(QUEUE, row.identity, WorkState.DONE, fence=row.fence) for row in claimed.rows))
            count -= len(claimed.rows)

    def _message(self, number: int) -> Enqueue:
        key = f"order {number // MESSAGES_OF_A_KEY}" if self.keyed else None
        return Enqueue(QUEUE, f"m{number}", Envelope(id=f"m{number}", data=BODY), key=key)

    def _commit(self, *ops: Op) -> tuple[Result, ...]:
        [outcome] = self.store.commit([Unit(ops)])
        assert isinstance(outcome, Applied), outcome
        return outcome.results


def xmin(size: int, seed: int, step: Step) -> dict[str, Any]:
    """Half of them without keys, half of them with keys."""
    with PrivatePostgres() as server:
        plain = compare(server, size // 2, lambda done: step(done, size), keyed=False)
        keyed = compare(server, size // 2, lambda done: step(size // 2 + done, size), keyed=True)
    return {"plain": plain, "keyed": keyed, "holds": min(plain["share"], keyed["share"]) >= ALLOWED}


def compare(server: PrivatePostgres, messages: int, step: Callable[[int], None], *, keyed: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        urls = [stack.enter_context(server.new_database()) for _ in range(2)]
        held, free = (Side(stack.enter_context(closing(PostgresStore(url))), keyed) for url in urls)
        stack.enter_context(open_transaction(urls[0]))
        first = measure(held, free)
        for done in range(0, messages, BATCH):
            held.send(BATCH)
            free.send(BATCH)
            step(done)
        for url in urls:
            vacuum(url)
        last = measure(held, free)
    return {"messages": messages, "at_first": first, "at_last": last, "share": last["share"]}


def measure(held: Side, free: Side) -> dict[str, float]:
    """In turns, for the caches' sake."""
    each = MEASURED // TURNS
    costs = [(held.cost(each), free.cost(each)) for _ in range(TURNS)]
    with_it, without = sum(cost for cost, _ in costs), sum(cost for _, cost in costs)
    return {
        "ms": round(1000 * with_it / MEASURED, 3),
        "ms_without": round(1000 * without / MEASURED, 3),
        "share": round(without / with_it, 3),
    }


def vacuum(url: str) -> None:
    """As the server does by itself from time to time: it learns that the tables have few living rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


@contextmanager
def open_transaction(url: str) -> Iterator[None]:
    """Somebody who looks once and does not let go."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM semel_work")
        yield
        connection.rollback()


if __name__ == "__main__":
    print(json.dumps(xmin(int(sys.argv[1]), 1, lambda done, total: None), indent=2))
