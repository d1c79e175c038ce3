"""What `semel doctor` asks a PostgreSQL: whether what it acknowledges survives a crash, and a failover.

docs/how-to/high-availability.md says why each of them matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semel.cli.doctor_checks import DoctorCheck
from semel.errors import SemelError

SETTINGS = (
    "fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "data_checksums", "wal_log_hints",
)  # fmt: skip
CONNECT_S_MAX = 5
SILENT_S_MAX = 20
WRITABLE = frozenset({"read-write", "primary"})
SYNCHRONOUS = frozenset({"sync", "quorum"})
HOW_TO = "see docs/how-to/high-availability.md"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a running server says of itself. `standbys` is how each of its standbys is replicated to, None for one whose
    state this user may not see. `reads_history`: this user may see where a standby was promoted."""

    settings: Mapping[str, str]
    is_standby: bool = False
    standbys: Sequence[str | None] = ()
    reads_history: bool = True


def check_postgres(url: str) -> list[DoctorCheck]:
    """Check a server that can be reached. The check of the store reports one that cannot."""
    try:
        given = _parameters(url)
        server = _look(url)
    except SemelError as error:
        return [DoctorCheck("PostgreSQL", "bad", error.message, error.fix, error.exit_code)]
    return [check_disk(server), *check_standbys(server), *check_url(given)]


def _look(url: str) -> ServerFacts:
    from semel.stores.postgres_connection import connect, errors

    connection = connect(url)
    try:
        with errors(url):
            names = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", [list(SETTINGS)])
            settings = {str(name): str(setting) for name, setting in names}
            [(is_standby,)] = connection.execute("SELECT pg_is_in_recovery()").fetchall()
            rows = connection.execute("SELECT sync_state FROM pg_stat_replication ORDER BY pid").fetchall()
            [(reads_history,)] = connection.execute(
                "SELECT has_function_privilege('pg_read_file(text)', 'EXECUTE')"
            ).fetchall()
            return ServerFacts(settings, bool(is_standby), [state for (state,) in rows], bool(reads_history))
    finally:
        connection.close()


def _parameters(url: str) -> dict[str, Any]:
    """The parameters of the URL, with what Semel adds to them."""
    from semel.stores.postgres_connection import add_defaults, read_url

    return add_defaults(read_url(url))


def check_disk(server: ServerFacts) -> DoctorCheck:
    """Off, they make a server faster and its word worthless: what it acknowledged may be gone after a loss of power."""
    off = [name for name in ("fsync", "full_page_writes") if server.settings.get(name) == "off"]
    if off:
        fix = "switch them on" if len(off) > 1 else "switch it on"
        return DoctorCheck(
            "PostgreSQL disk", "bad", f"{' and '.join(off)} off: a crash can lose what was acknowledged",
            f"{fix} in the configuration of the server, and reload it; {HOW_TO}",
        )  # fmt: skip
    return DoctorCheck("PostgreSQL disk", "ok", "fsync and full_page_writes are on")


def check_standbys(server: ServerFacts) -> list[DoctorCheck]:
    if server.is_standby:
        fix = "ask the primary; with several hosts in the URL, add target_session_attrs=read-write"
        return [DoctorCheck("PostgreSQL standbys", "note", "this server is a standby itself", fix)]
    return [
        _check_replication(server), *_check_history(server), *_check_rewind(server), *_check_own_transactions(server)
    ]  # fmt: skip


def _check_replication(server: ServerFacts) -> DoctorCheck:
    """Without a synchronous standby a failover loses what was acknowledged last, and every session with it."""
    names, standbys = server.settings.get("synchronous_standby_names", ""), server.standbys
    count = f"{len(standbys)} standby{'s' * (len(standbys) != 1)}"
    if not names and not standbys:
        detail = "none: what is acknowledged is as safe as the disk of this one server"
        return DoctorCheck("PostgreSQL standbys", "note", detail, HOW_TO)
    if not names:
        detail = f"{count}, none of them synchronous: a failover may lose what was acknowledged, and ends all sessions"
        fix = f"set synchronous_standby_names, with Patroni synchronous_mode; {HOW_TO}"
        return DoctorCheck("PostgreSQL standbys", "missing", detail, fix)
    if not standbys or (all(standbys) and not SYNCHRONOUS & set(standbys)):
        detail = f"synchronous_standby_names is {names!r}, but no such standby is connected: commits wait for one"
        return DoctorCheck("PostgreSQL standbys", "bad", detail, "start a standby that it names, or correct it")
    if not all(standbys):
        detail = f"{count}; this user may not see whether one is synchronous"
        return DoctorCheck("PostgreSQL standbys", "note", detail, "grant it pg_monitor to see that here")
    return DoctorCheck("PostgreSQL standbys", "ok", f"{count}: {', '.join(filter(None, standbys))}")


def _check_history(server: ServerFacts) -> list[DoctorCheck]:
    """Whether a failover lost something is seen in the history of timelines. Who may not read it has to assume so."""
    if not server.settings.get("synchronous_standby_names"):
        return []
    if server.reads_history:
        return [
            DoctorCheck("history of timelines", "ok", "may be read: sessions survive a failover that loses nothing")
        ]
    return [
        DoctorCheck(
            "history of timelines", "missing", "may not be read: every failover ends all sessions",
            "GRANT EXECUTE ON FUNCTION pg_read_file(text) to the user of the URL, in this database",
        )
    ]  # fmt: skip


def _check_rewind(server: ServerFacts) -> list[DoctorCheck]:
    """pg_rewind needs one of the two, and both can only be chosen before they are needed."""
    if not server.standbys and not server.settings.get("synchronous_standby_names"):
        return []
    on = [name for name in ("data_checksums", "wal_log_hints") if server.settings.get(name) == "on"]
    if on:
        return [
            DoctorCheck("pg_rewind", "ok", f"{' and '.join(on)} on: a primary that died can come back as a standby")
        ]
    return [
        DoctorCheck(
            "pg_rewind", "missing", "data_checksums and wal_log_hints are off: who died has to be copied again",
            f"set wal_log_hints = on, or switch checksums on with pg_checksums; {HOW_TO}",
        )
    ]  # fmt: skip


def _check_own_transactions(server: ServerFacts) -> list[DoctorCheck]:
    """Semel's commits ask for durability themselves. Those that the user makes with `store.bind` have the server's."""
    setting = server.settings.get("synchronous_commit", "on")
    if setting in ("on", "remote_apply"):
        return [DoctorCheck("synchronous_commit", "ok", setting)]
    detail = f"{setting}: Semel's own commits ask for more, but transactions of yours with store.bind get no more"
    return [DoctorCheck("synchronous_commit", "note", detail, "set it to on, for the server or the user of the URL")]


def check_url(given: Mapping[str, Any]) -> list[DoctorCheck]:
    """With several hosts, Semel finds the primary by itself, if the URL lets it and does not let it wait too long."""
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    if len(hosts) < 2:
        return []
    name = f"{len(hosts)} hosts in the URL"
    if given.get("target_session_attrs") not in WRITABLE:
        detail = "it may lead to a standby, which cannot be written"
        return [DoctorCheck("PostgreSQL URL", "bad", f"{name}: {detail}", "add target_session_attrs=read-write to it")]
    connect_s, silent_s = int(given["connect_timeout"]), int(given["tcp_user_timeout"]) / 1000
    slow = []
    if not 0 < connect_s <= CONNECT_S_MAX:
        slow.append(f"connect_timeout={min(3, CONNECT_S_MAX)}")
    if not 0 < silent_s <= SILENT_S_MAX:
        slow.append("tcp_user_timeout=10000")
    if slow:
        detail = "a host that is switched off is noticed late, and costs each new connection as long as it takes"
        return [DoctorCheck("PostgreSQL URL", "note", f"{name}: {detail}", f"add {' and '.join(slow)} to it")]
    return [DoctorCheck("PostgreSQL URL", "ok", f"{name}, and the one that can be written is looked for")]
