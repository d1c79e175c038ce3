"""Work queues while somebody's transaction stays open.

How much slower they become is measured by `make soak PART=xmin`. Here the index entries are counted that the server
reads, dead ones included: it reads the same ones however busy the machine is.
"""

from __future__ import annotations

import itertools
from contextlib import closing

import pytest
from tests.campaigns.xmin_campaign import BATCH, Side, open_transaction

from semel.stores.postgres import PostgresStore

pytestmark = pytest.mark.connected

MESSAGES = 10_000
MEASURED = 100
ENTRIES_MAX = MESSAGES // 2
"""A claim that walks over all that has gone through reads twice as many, and more with every message."""


def entries_read(store: PostgresStore) -> int:
    """So many since the database was made."""
    writer = store._writer
    assert writer is not None
    with writer.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        writer.rollback()  # they are counted when a transaction ends
        cursor.execute("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes")
        [(count,)] = cursor.fetchall()
        writer.rollback()
    return int(count)


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
def test_a_claim_does_not_walk_over_all_that_an_open_transaction_keeps(postgres_url: str, keyed: bool) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        side = Side(store, keyed)
        looks = itertools.count()
        store._fronts = type(store._fronts)(lambda: next(looks) / 1000)  # each look at the clock is a millisecond
        with open_transaction(postgres_url):
            for _ in range(MESSAGES // BATCH):
                side.send(BATCH)
            before = entries_read(store)
            for _ in range(MEASURED):
                side.send(1)
            each = (entries_read(store) - before) / MEASURED
    assert each < ENTRIES_MAX
