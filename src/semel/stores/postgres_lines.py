"""The connections of one store: which of several hosts is tried first, and how those to a silent one are cut.

A host that is switched off, or frozen, does not refuse a connection: it lets it wait. So the one that was usable last
is tried first, and one that has fallen silent last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from semel.errors import StoreUnavailable
from semel.stores.postgres_connection import LOCK_S, PostgresConnection, connect, read_url


@dataclass(frozen=True, slots=True)
class ServerHost:
    """One of the hosts of a URL, as it is written there."""

    host: str
    hostaddr: str
    port: str

    def is_of(self, session: PostgresConnection) -> bool:
        host, _, port = session.place
        return (self.host or self.hostaddr) == host and self.port in ("", str(port))


class Lines:
    """Connects to the hosts of `url`, and knows the connections that are open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._open: WeakSet[PostgresConnection] = WeakSet()
        self._hosts = read_hosts(read_url(url))
        self._usable: ServerHost | None = None
        self._silent: set[ServerHost | None] = set()

    def connect(self, lock_s: float = LOCK_S) -> PostgresConnection:
        hosts = self._hosts
        try:
            session = connect(self._url, lock_s, hosts=write_hosts(hosts) if len(hosts) > 1 else None)
        except StoreUnavailable:
            self._suspect(hosts)
            raise
        with self._lock:
            self._open.add(session)
            self._hosts = tuple(sorted(self._hosts, key=lambda host: not host.is_of(session)))
            self._usable = next(iter(self._hosts), None)
            self._silent.discard(self._usable)
        return session

    def hang_up(self, silent: PostgresConnection) -> None:
        """Cut all connections to the server of this one. Whoever waits for an answer connects again."""
        self.put_last(silent, is_silent=True)
        for each in self._sessions():
            if each.place == silent.place:
                each.hang_up()

    def hang_up_waiting(self, longer_s: float) -> None:
        """Cut those that have waited for an answer for so long."""
        until = time.monotonic() - longer_s
        for each in self._sessions():
            if (since := each.waits_since) is not None and since < until:
                each.hang_up()

    def hang_up_before(self, term: int) -> None:
        """Cut those that were admitted in an earlier term."""
        for each in self._sessions():
            if 0 <= each.term < term:
                each.hang_up()

    def put_last(self, session: PostgresConnection, *, is_silent: bool) -> None:
        """The others are tried before its host; those that are silent come after all that answer."""
        with self._lock:
            for host in [host for host in self._hosts if host.is_of(session)]:
                self._put_last(host, is_silent=is_silent)

    def _put_last(self, last: ServerHost, *, is_silent: bool) -> None:
        if is_silent:
            self._silent.add(last)
        self._hosts = tuple(sorted(self._hosts, key=lambda host: (host in self._silent, host == last)))
        self._usable = None

    def _suspect(self, tried: tuple[ServerHost, ...]) -> None:
        """None could be used. If one of them let us wait, it is most likely the one that was usable until now: it goes
        last, once, and is the first again when it is usable."""
        with self._lock:
            if self._usable is not None and self._usable == tried[0]:
                self._put_last(self._usable, is_silent=True)

    def _sessions(self) -> list[PostgresConnection]:
        with self._lock:
            return list(self._open)


def read_hosts(given: Mapping[str, Any]) -> tuple[ServerHost, ...]:
    """Those that a URL names; none when it does not say which port is whose."""
    names, addresses, ports = (str(given.get(name, "")).split(",") for name in ("host", "hostaddr", "port"))
    count = max(len(names), len(addresses))
    columns = [column * count if len(column) == 1 else column for column in (names, addresses, ports)]
    if any(len(column) != count for column in columns):
        return ()
    return tuple(ServerHost(*each) for each in zip(*columns, strict=True))


def write_hosts(hosts: tuple[ServerHost, ...]) -> dict[str, str]:
    columns = {name: [getattr(host, name) for host in hosts] for name in ("host", "hostaddr", "port")}
    return {name: ",".join(values) for name, values in columns.items() if any(values)}
