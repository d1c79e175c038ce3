"""A primary and a standby for tests, made with `pg_basebackup` from the same wheel as `PrivatePostgres`.

    with Pair() as pair, pair.new_database() as url:
        store = PostgresStore(url)   # leads to whichever of the two may be written
        pair.fail_over()             # the primary is gone as by a crash, the standby takes its place

The standby is synchronous unless told otherwise. `freeze` stops it from receiving, as a host that hangs would.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import psycopg
from psycopg import sql

from semel.errors import StoreUnavailable
from semel.testing.limits import scaled
from semel.testing.postgres import ADMIN, START_TIMEOUT_S, PrivatePostgres, new_database

SYNCHRONOUS = "standby"
PRIMARY = {"hot_standby_feedback": "off", "wal_keep_size": "256MB", "wal_sender_timeout": "0", "wal_log_hints": "on"}


class Standby(PrivatePostgres):
    """A copy of a running primary that follows it. `name` is what the primary knows it by."""

    def __init__(
        self, primary: PrivatePostgres, name: str = SYNCHRONOUS, settings: dict[str, str] | None = None
    ) -> None:
        self._primary = primary
        self.name = name
        source = f"host={primary.folder} user={ADMIN} application_name={name}"
        super().__init__(
            settings={**PRIMARY, "primary_conninfo": source, "wal_receiver_timeout": "0", **(settings or {})}
        )

    def _initialise(self) -> None:
        source = ["-h", str(self._primary.folder), "-U", ADMIN]
        self._run(
            [
                self._bin / "pg_basebackup",
                "-D",
                self._data,
                *source,
                "--checkpoint=fast",
                "--no-sync",
                "--wal-method=stream",
            ]
        )
        Path(self._data, "standby.signal").touch()
        self._own(Path(self._data, "standby.signal"))

    def promote(self) -> None:
        """Make it a primary, and return when it is one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(wait_seconds => %s)", [int(scaled(START_TIMEOUT_S))])

    def freeze(self) -> None:
        """Nothing is received any more; connections stay open."""
        for pid in self._receivers():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._receivers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _receivers(self) -> list[int]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walreceiver'").fetchall()
        return [pid for (pid,) in rows]


class Pair:
    """A primary and one standby that follows it, `synchronous` or not."""

    def __init__(
        self, *, synchronous: bool = True, settings: dict[str, str] | None = None, template: Path | None = None
    ) -> None:
        self.primary = PrivatePostgres(settings={**PRIMARY, **(settings or {})}, template=template)
        self.primary.start()
        try:
            self.standby = Standby(self.primary, settings=settings)
            self.standby.start()
            if synchronous:
                self.require(SYNCHRONOUS)
            self.wait_until_followed()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with suppress(psycopg.Error, AttributeError):
            self.standby.thaw()
        for server in (getattr(self, "standby", None), self.primary):
            if server is not None:
                server.close()

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """A URL that leads to whichever server may be written. The database goes with the servers."""
        with new_database(self.primary.url, drop=False) as url:
            yield self.url_of(url)

    def url_of(self, url: str, user: str = ADMIN) -> str:
        """The database of a URL, on whichever of the two may be written."""
        name = url.partition("?")[0].rpartition("/")[2]
        hosts = ",".join(quote(str(server.folder), safe="") for server in (self.primary, self.standby))
        return f"postgresql://{user}@/{name}?host={hosts}&target_session_attrs=read-write"

    def require(self, names: str) -> None:
        """Which standbys a commit waits for; none: ''."""
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(names))
            connection.execute("SELECT pg_reload_conf()")

    def wait_until_followed(self) -> None:
        """Until the standby has all that the primary has written."""
        until = time.monotonic() + scaled(START_TIMEOUT_S)
        asked = "SELECT count(*) FROM pg_stat_replication WHERE flush_lsn >= pg_current_wal_flush_lsn()"
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            # a standby confirms what it receives at once, and that it has all only now and then
            connection.execute("SELECT pg_logical_emit_message(true, 'test', '')")
            while connection.execute(asked).fetchall() == [(0,)]:
                if time.monotonic() > until:
                    raise StoreUnavailable("the standby does not follow", fix=self.standby.log_text)
                time.sleep(0.01)

    def fail_over(self) -> None:
        """The primary crashes and the standby takes its place."""
        self.primary.stop()
        self.standby.promote()
