"""Joining a store: what somebody is to others who is not known to them yet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from tests.integration.postgres_stores import DEADLINE_S, execute, members, wait_until

from semel.errors import StoreUnavailable
from semel.kernel.ops import Applied, Put, Unit
from semel.stores import postgres_members
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_gate import Gate
from semel.testing.limits import scaled

pytestmark = pytest.mark.connected


@pytest.fixture
def url(postgres_url: str) -> str:
    """A store with one member, who is on another machine and silent."""
    PostgresStore(postgres_url).close()
    later = time.time_ns() // 1000 + 3600 * 1_000_000
    execute(postgres_url, "UPDATE semel_store SET members = 1")
    execute(postgres_url, "INSERT INTO semel_member VALUES ('old', 'n', '', 1, 1, 0, %s, 1)", later)
    return postgres_url


@contextmanager
def one_thread(url: str) -> Iterator[ThreadPoolExecutor]:
    """Whatever it waits for, it comes back at the end."""
    with ThreadPoolExecutor(1) as threads:
        try:
            yield threads
        finally:
            execute(url, "DELETE FROM semel_member WHERE member = 'old'")


def test_whoever_waits_to_be_known_is_in_the_way_for_a_few_seconds_only(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers for nothing yet. If it dies, its successor waits for it a little; if it gives up, not at all."""
    monkeypatch.setattr(postgres_members, "BEAT_S", 0.05)
    gate = Gate(url, "waits")

    def leases() -> list[Any]:
        return execute(url, "SELECT renewed, until - renewed FROM semel_member WHERE node = 'waits'")

    with one_thread(url) as threads:
        opening = threads.submit(gate.open)
        wait_until(lambda: bool(leases()))
        [(begun, lease)] = leases()
        assert lease == postgres_members.WAITING_LEASE_S * 1_000_000
        wait_until(lambda: leases() > [(begun, lease)])
        assert not opening.done(), "it is renewed while it waits"
        gate.membership.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            opening.result(scaled(DEADLINE_S))
    assert leases() == []


def test_whoever_waited_too_long_to_be_known_registers_again(url: str) -> None:
    """As after a pause of the process: others have gone on without it."""
    with one_thread(url) as threads:
        opening = threads.submit(PostgresStore, url)
        wait_until(lambda: members(url) == 2)
        execute(url, "DELETE FROM semel_member WHERE member <> 'old'")
        wait_until(lambda: members(url) == 2)
        execute(url, "UPDATE semel_member SET seen = 99 WHERE member = 'old'")
        with closing(opening.result(scaled(DEADLINE_S))) as store:
            [outcome] = store.commit([Unit((Put("k", b"v"),))])
            assert isinstance(outcome, Applied)
            [(lease,)] = execute(url, "SELECT until - renewed FROM semel_member WHERE member <> 'old'")
            assert lease == postgres_members.LEASE_S * 1_000_000
