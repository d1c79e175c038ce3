"""What the doctor says about a PostgreSQL, by what that says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.cli.doctor import ServerFacts, check_durability, check_standbys, check_url
from semel.stores.postgres_connection import DEFAULTS

SAFE = {
    "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "synchronous_standby_names": '"pg-1"',
    "data_checksums": "on", "wal_log_hints": "off",
}  # fmt: skip
HIGH_AVAILABILITY = (Path(__file__).parents[3] / "docs" / "how-to" / "high-availability.md").read_text()


def server(*standbys: str | None, is_standby: bool = False, **settings: str) -> ServerFacts:
    return ServerFacts(SAFE | settings, is_standby, standbys)


def states(found: ServerFacts) -> dict[str, str]:
    return {check.name: check.state for check in [check_durability(found), *check_standbys(found)]}


def test_a_primary_with_a_synchronous_standby_is_well() -> None:
    assert set(states(server("async", "sync")).values()) == {"ok"}
    assert set(states(server("quorum", "quorum", synchronous_commit="remote_apply")).values()) == {"ok"}


@pytest.mark.parametrize(
    ("settings", "detail"),
    [
        ({"fsync": "off"}, "fsync off"),
        ({"full_page_writes": "off"}, "full_page_writes off"),
        ({"fsync": "off", "full_page_writes": "off"}, "fsync and full_page_writes off"),
    ],
)
def test_a_server_that_does_not_wait_for_its_disk_is_not_well(settings: dict[str, str], detail: str) -> None:
    check = check_durability(server("sync", **settings))
    assert (check.state, check.exit_code) == ("bad", 2)
    assert check.detail.startswith(detail)


@pytest.mark.parametrize(
    ("standbys", "names", "state", "detail"),
    [
        ([], "", "note", "none: what is acknowledged is as safe as the disk of this one server"),
        (["async"], "", "missing", "1 standby, none of them synchronous"),
        ([], "*", "bad", "synchronous_standby_names is '*', but no such standby is connected"),
        (["async", "potential"], '"pg-9"', "bad", "synchronous_standby_names is '\"pg-9\"', but no such standby"),
        ([None, None], "*", "note", "2 standbys; this user may not see whether one is synchronous"),
        (["sync", "potential"], "*", "ok", "2 standbys: sync, potential"),
    ],
)
def test_standbys(standbys: list[str | None], names: str, state: str, detail: str) -> None:
    check = check_standbys(server(*standbys, synchronous_standby_names=names))[0]
    assert check.state == state
    assert check.detail.startswith(detail)


def test_pg_rewind_needs_checksums_or_hints_where_there_is_anything_to_rewind() -> None:
    state = states(server("sync", data_checksums="off"))["pg_rewind"]
    assert state == "missing"
    assert f"| pg_rewind | {state}, when neither" in HIGH_AVAILABILITY
    assert states(server("sync", data_checksums="off", wal_log_hints="on"))["pg_rewind"] == "ok"
    assert "pg_rewind" not in states(server(synchronous_standby_names="", data_checksums="off"))


def test_sessions_survive_a_failover_where_the_history_may_be_read() -> None:
    assert states(ServerFacts(SAFE, standbys=["sync"], reads_history=False))["history of timelines"] == "missing"
    assert states(server("sync"))["history of timelines"] == "ok"
    assert "history of timelines" not in states(server("async", synchronous_standby_names=""))


@pytest.mark.parametrize("setting", ["off", "local", "remote_write"])
def test_transactions_of_the_user_are_as_durable_as_the_server_says(setting: str) -> None:
    assert states(server("sync", synchronous_commit=setting))["synchronous_commit"] == "note"


def test_a_standby_knows_nothing_of_standbys() -> None:
    assert states(server(is_standby=True)) == {"PostgreSQL disk": "ok", "PostgreSQL standbys": "note"}


@pytest.mark.parametrize(
    ("given", "state", "fix"),
    [
        ({}, "bad", "add target_session_attrs=read-write to it"),
        ({"target_session_attrs": "any"}, "bad", "add target_session_attrs=read-write to it"),
        ({"target_session_attrs": "primary"}, "note", "add connect_timeout=3 and tcp_user_timeout=10000 to it"),
        (
            {"target_session_attrs": "read-write", "connect_timeout": "3"},
            "note",
            "add tcp_user_timeout=10000 to it",
        ),
        ({"target_session_attrs": "read-write", "connect_timeout": "3", "tcp_user_timeout": "10000"}, "ok", ""),
    ],
)
def test_a_url_with_several_hosts(given: dict[str, Any], state: str, fix: str) -> None:
    [check] = check_url(SLOW | {"host": "a,b,c"} | given)
    assert (check.state, check.fix) == (state, fix)


SLOW = DEFAULTS | {"connect_timeout": 10, "tcp_user_timeout": 30_000}


def test_a_url_with_one_host_is_somebody_elses_care() -> None:
    assert check_url(SLOW | {"host": "db.example"}) == []
    assert check_url(SLOW) == []
