"""The life of a follower's process that ends by kill -9 at a named point: see `inbox_child`, which this is like.

    python -m tests.campaigns.follow_child URL SOURCE STREAM

reads one life per line, a point and how often it is passed before the process dies there, and answers how it ended.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from dataclasses import dataclass
from typing import Any

import psycopg

from semel import App, on
from semel.inbox.following import FollowedStream
from semel.runtime.inbox import following
from semel.stores.points import on_reach
from semel.testing.limits import scaled

LEASE_S = 0.4
KEEP_S = 0.001
"""Nobody remembers an id: only the cursor keeps a record from being taken twice."""
BATCH = 3


@dataclass
class Order:
    id: str


def make_app(url: str, source: str, stream: str, *, lease_s: float) -> App:
    """It pins after every commit, so that there is something to die after."""
    following.PIN_S = 0.0
    is_sqlite = url.startswith("sqlite:")
    app = App(url, name="shop", keep_s=KEEP_S)
    app.errors(on(Exception).retry([0] * 50).dead_letter())  # many workers die on the way
    insert = f"INSERT INTO effect VALUES ({'?' if is_sqlite else '%s'})"

    def write(order: Order, db: Any) -> None:
        db.execute(insert, (order.id,))

    write.__annotations__["db"] = sqlite3.Connection if is_sqlite else psycopg.Connection
    app.endpoint("orders", lease_s=lease_s).on(Order)(write)
    if stream != "inbox/orders":
        own = None if source == url else source
        app.follows.append(FollowedStream("orders", stream, own, batch=BATCH))
    return app


def live(url: str, source: str, stream: str, point: str, count: int, lease_s: float) -> None:
    left = count

    def reached(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    app = make_app(url, source, stream, lease_s=lease_s)
    assert app.handlers
    on_reach(reached)
    app.drain(scaled(60))
    on_reach(None)
    app.close()


def main() -> None:
    url, source, stream = sys.argv[1:4]
    for line in sys.stdin:
        point, count = line.split()
        lease_s = scaled(LEASE_S)
        child = os.fork()
        if child == 0:
            live(url, source, stream, point, int(count), lease_s)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
