"""In which order the hosts of a PostgreSQL URL are tried, and whose connections are cut."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from semel.errors import StoreUnavailable
from semel.stores import postgres_lines
from semel.stores.postgres_connection import add_defaults, read_url
from semel.stores.postgres_lines import Lines, read_hosts, write_hosts


class Line:
    def __init__(self, host: str, port: int = 5432) -> None:
        self.place = (host, "", port)
        self.term = 0
        self.waits_since: float | None = None
        self.is_cut = False

    def hang_up(self) -> None:
        self.is_cut = True


class Network:
    """`usable` are the hosts that take connections. Notes in which order they were tried."""

    def __init__(self) -> None:
        self.usable = {"b"}
        self.tried: list[str] = []

    def connect(self, url: str, lock_s: float, *, hosts: Mapping[str, str] | None) -> Line:
        assert hosts is not None
        self.tried.append(hosts["host"].replace(",", ""))
        for host in hosts["host"].split(","):
            if host in self.usable:
                return Line(host)
        raise StoreUnavailable("nobody is there", fix="")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network()
    monkeypatch.setattr(postgres_lines, "connect", network.connect)
    return network


@pytest.fixture
def lines(network: Network) -> Lines:
    return Lines("postgresql://a,b,c/semel")


def test_the_host_that_was_usable_last_is_tried_first(network: Network, lines: Lines) -> None:
    lines.connect()
    lines.connect()
    network.usable = {"c"}
    lines.connect()
    lines.connect()
    assert network.tried == ["abc", "bac", "bac", "cba"]


def test_when_none_is_usable_the_one_that_was_goes_last_once(network: Network, lines: Lines) -> None:
    lines.connect()
    network.usable = set()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            lines.connect()
    network.usable = {"b"}
    lines.connect()
    lines.connect()
    assert network.tried == ["abc", "bac", "acb", "acb", "acb", "bac"]


def test_a_silent_host_goes_last_and_all_connections_to_it_are_cut(network: Network, lines: Lines) -> None:
    silent: Any = lines.connect()
    beside: Any = lines.connect()
    network.usable = {"c"}
    elsewhere: Any = lines.connect()
    lines.hang_up(silent)
    lines.connect()
    assert (silent.is_cut, beside.is_cut, elsewhere.is_cut) == (True, True, False)
    assert network.tried[-1] == "cab"


def test_a_host_that_answers_and_cannot_be_used_goes_behind_the_others_but_before_silent_ones(
    network: Network, lines: Lines
) -> None:
    silent: Any = lines.connect()
    network.usable = {"a"}
    unusable: Any = lines.connect()
    lines.hang_up(silent)
    lines.put_last(unusable, is_silent=False)
    network.usable = {"a", "c"}
    lines.connect()
    assert network.tried[-1] == "cab"


def test_connections_of_an_earlier_term_are_cut(network: Network, lines: Lines) -> None:
    old: Any = lines.connect()
    new: Any = lines.connect()
    unchecked: Any = lines.connect()
    new.term, unchecked.term = 1, -1
    lines.hang_up_before(1)
    assert (old.is_cut, new.is_cut, unchecked.is_cut) == (True, False, False)


def test_connections_that_have_waited_for_too_long_are_cut(network: Network, lines: Lines) -> None:
    idle: Any = lines.connect()
    asking: Any = lines.connect()
    waiting: Any = lines.connect()
    now = time.monotonic()
    asking.waits_since, waiting.waits_since = now, now - 3600.0
    lines.hang_up_waiting(600.0)
    assert (idle.is_cut, asking.is_cut, waiting.is_cut) == (False, False, True)


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("postgresql://a:1,b:2/semel", {"host": "a,b", "port": "1,2"}),
        ("postgresql:///semel?host=a,b&port=1", {"host": "a,b", "port": "1,1"}),
        ("postgresql:///semel?host=a,b", {"host": "a,b"}),
        ("postgresql:///semel?hostaddr=::1,::2", {"hostaddr": "::1,::2"}),
        ("postgresql:///semel?host=a,b&hostaddr=::1,::2", {"host": "a,b", "hostaddr": "::1,::2"}),
        ("postgresql:///semel?host=a,b&port=1,2,3", {}),
    ],
)
def test_hosts_keep_their_addresses_and_ports(url: str, written: dict[str, str]) -> None:
    assert write_hosts(read_hosts(read_url(url))) == written


@pytest.mark.parametrize(
    ("url", "connect_s"),
    [
        ("postgresql://a/semel", 10),
        ("postgresql://a,b/semel", 3),
        ("postgresql:///semel?hostaddr=::1,::2", 3),
        ("postgresql://a,b/semel?connect_timeout=7", 7),
    ],
)
def test_one_of_several_hosts_is_waited_for_less(url: str, connect_s: int) -> None:
    assert int(add_defaults(read_url(url))["connect_timeout"]) == connect_s
