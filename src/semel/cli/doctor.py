"""`semel doctor`: what is present, what is missing, and what to do about it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from semel.cli.options import ConfigOption, StoreOption, bundled, opened, shown
from semel.cli.terminal import CommandResult, Terminal, human_bytes
from semel.errors import EXIT_UNREACHABLE, EXIT_USAGE, NotAStore, SemelError

if TYPE_CHECKING:
    from semel.config import Config

PYTHON_MIN = (3, 11)
DISK_FREE_MIN = 100 * 1000 * 1000
SYNC_TRIAL_S = 0.25
SYNC_RATE_LOW = 50

_MARKS = {"ok": ("✓", "green"), "note": ("·", "dim"), "missing": ("–", "yellow"), "bad": ("✗", "bold red")}


State = Literal["ok", "note", "missing", "bad"]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One finding. Only `bad` makes the doctor fail; `missing` is something that a part of Semel could use."""

    name: str
    state: State
    detail: str
    fix: str = ""
    exit_code: int = EXIT_USAGE


@bundled
def doctor(
    context: typer.Context,
    store: StoreOption = None,
    config: ConfigOption = None,
    start_cache: bool = typer.Option(
        False, "--start-cache", help="Make the cache that halves the start of Spark (a minute, 180 MB)."
    ),
) -> CommandResult:
    """Check this machine, the configuration and the store, and say what to do about what is missing.

    \b
    Examples:
      semel doctor
      semel doctor --store postgresql://user@host/database
      semel doctor --start-cache
      semel doctor --json
    """
    terminal: Terminal = context.obj
    checks: list[DoctorCheck] = []
    with terminal.progress("examining", len(_MACHINE) + 2) as update:
        for done, check in enumerate(_MACHINE):
            checks.append(check())
            update(done + 1)
        found, settings = _check_config(config)
        checks.append(found)
        if settings is not None:
            checks += [check_spark(settings), *_check_store(settings, store)]
        if start_cache:
            checks.append(make_start_cache())
    return _answer(checks)


def _answer(checks: list[DoctorCheck]) -> CommandResult:
    bad = [check for check in checks if check.state == "bad"]
    result = {"checks": [_without_exit_code(check) for check in checks]}
    if not bad:
        return CommandResult(result, [_view(checks), "All that Semel needs is here."])
    names = ", ".join(check.name for check in bad)
    error = {"code": "doctor", "message": f"not well: {names}", "fix": "; ".join(check.fix for check in bad)}
    return CommandResult(result, [_view(checks)], max(check.exit_code for check in bad), error)


def _without_exit_code(check: DoctorCheck) -> dict[str, Any]:
    return {key: value for key, value in asdict(check).items() if key != "exit_code"}


def _view(checks: list[DoctorCheck]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        detail = Text(check.detail)
        if check.fix and check.state != "ok":
            detail.append(f"\n{check.fix}", "yellow" if check.state == "bad" else "dim")
        table.add_row(Text(*_MARKS[check.state]), check.name, detail)
    return table


# -- the machine


def check_python() -> DoctorCheck:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON_MIN:
        return DoctorCheck("Python", "bad", version, f"install Python {'.'.join(map(str, PYTHON_MIN))} or newer")
    return DoctorCheck("Python", "ok", version)


def check_sqlite() -> DoctorCheck:
    import sqlite3

    from semel.stores.sqlite import SQLITE_MIN

    options = _compile_options(sqlite3)
    least = ".".join(map(str, SQLITE_MIN))
    detail = f"{sqlite3.sqlite_version}, " + ", ".join(sorted(options & _SQLITE_NOTABLE) or ["default options"])
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        return DoctorCheck("SQLite", "bad", detail, f"use a Python with SQLite {least} or newer")
    if harmful := options & _SQLITE_HARMFUL:
        return DoctorCheck("SQLite", "bad", detail, f"use a Python whose SQLite is built without {', '.join(harmful)}")
    return DoctorCheck("SQLite", "ok", detail)


_SQLITE_HARMFUL = frozenset({"THREADSAFE=0", "OMIT_WAL", "OMIT_JSON", "OMIT_AUTOINIT"})
_SQLITE_NOTABLE = _SQLITE_HARMFUL | {
    "THREADSAFE=1", "THREADSAFE=2", "DEFAULT_SYNCHRONOUS=2", "DEFAULT_WAL_SYNCHRONOUS=1", "DEFAULT_WAL_SYNCHRONOUS=2",
}  # fmt: skip


def _compile_options(sqlite3: Any) -> frozenset[str]:
    connection = sqlite3.connect(":memory:")
    try:
        return frozenset(row[0] for row in connection.execute("PRAGMA compile_options"))
    finally:
        connection.close()


def check_disk() -> DoctorCheck:
    free = shutil.disk_usage(".").free
    if free < DISK_FREE_MIN:
        return DoctorCheck("disk", "bad", f"{human_bytes(free)} free here", "free some space", EXIT_UNREACHABLE)
    return DoctorCheck("disk", "ok", f"{human_bytes(free)} free here")


def check_sync() -> DoctorCheck:
    """How often this disk can promise that something is written: the limit of every durable store on it."""
    from semel.bench.disk import fdatasync_rate

    try:
        rate = fdatasync_rate(Path(), SYNC_TRIAL_S)
    except OSError as error:
        return DoctorCheck(
            "sync", "missing", f"this folder cannot be written: {error.strerror}", "run in a folder that may be written"
        )
    detail = f"{rate:,.0f} fdatasyncs per second in this folder"
    if rate < SYNC_RATE_LOW:
        return DoctorCheck("sync", "note", detail, "commits will be slow: keep the store on a local disk")
    return DoctorCheck("sync", "ok", detail)


def check_psycopg() -> DoctorCheck:
    return _check_package("psycopg", "postgres", "for postgresql:// stores")


def check_pyarrow() -> DoctorCheck:
    return _check_package("pyarrow", "export", "for semel store export")


def _check_package(package: str, extra: str, purpose: str) -> DoctorCheck:
    if find_spec(package) is None:
        fix = f"in a checkout: make setup; elsewhere: pip install 'semel[{extra}]'"
        return DoctorCheck(package, "missing", f"not installed; {purpose}", fix)
    from importlib.metadata import version

    return DoctorCheck(package, "ok", f"{version(package)}, {purpose}")


def check_pyspark() -> DoctorCheck:
    return _check_package("pyspark", "spark", "for pipelines and audits")


def check_java() -> DoctorCheck:
    """Which Java Spark would run on, and why that one."""
    from semel.spark.java import find_java

    try:
        java = find_java()
    except SemelError as error:
        return DoctorCheck("Java", "missing", error.message, error.fix)
    passed_over = "".join(f"; passed over {other}" for other in java.passed_over)
    return DoctorCheck("Java", "ok", f"{java.version} in {java.home} (from {java.origin}), for Spark{passed_over}")


def check_node() -> DoctorCheck:
    return _check_program("Node", ("node",))


def check_chromium() -> DoctorCheck:
    return _check_program("Chromium", ("chromium", "chromium-browser", "google-chrome"))


def _check_program(name: str, programs: tuple[str, ...]) -> DoctorCheck:
    """Parts that are still to come will use it. Nothing in this version does."""
    path = next(filter(None, map(shutil.which, programs)), None)
    return DoctorCheck(name, "note", f"{path or 'not found'}; not needed by this version")


_MACHINE: tuple[Callable[[], DoctorCheck], ...] = (
    check_python, check_sqlite, check_disk, check_sync, check_psycopg, check_pyarrow, check_pyspark, check_java,
    check_node, check_chromium,
)  # fmt: skip


# -- configuration and store


def _check_config(file: Path | None) -> tuple[DoctorCheck, Config | None]:
    from semel.config import FILE, load_config

    try:
        config = load_config(file)
    except SemelError as error:
        return DoctorCheck("configuration", "bad", error.message, error.fix, error.exit_code), None
    where = str(config.file) if config.file is not None else f"no {FILE} here: defaults and environment"
    return DoctorCheck("configuration", "ok", where), config


def check_spark(config: Config) -> DoctorCheck:
    """What a session would run with: master, memory, partitions, and whether it starts from a cache."""
    from semel.spark.host import this_machine
    from semel.spark.session import asked_settings, check_master, plan

    if find_spec("pyspark") is None:
        return DoctorCheck("Spark", "note", "not installed: pipelines and audits need it")
    given = config.spark
    try:
        asked = asked_settings(
            master=given.master, memory=given.memory, partitions=given.partitions, settings=given.settings
        )
        chosen = plan(this_machine(), asked)
        check_master(chosen["spark.master"])
    except SemelError as error:
        return DoctorCheck("Spark", "bad", error.message, error.fix, error.exit_code)
    memory = chosen["spark.driver.memory"]
    partitions = chosen.get("spark.sql.shuffle.partitions", "Spark's choice")
    cache, fix = _start_cache_found(given.start_cache)
    detail = f"master {chosen['spark.master']}, driver memory {memory}, shuffle partitions {partitions}, {cache}"
    return DoctorCheck("Spark", "note" if fix else "ok", detail, fix)


def _start_cache_found(used: bool) -> tuple[str, str]:
    """What is to be said about the cache, and what to do about it."""
    if not used:
        return "start-up cache switched off", ""
    try:
        cache = _start_cache()
    except SemelError:
        return "no start-up cache without Java", ""
    if cache.is_file():
        return f"start-up cache {cache}", ""
    return "no start-up cache", "start twice as fast: semel doctor --start-cache"


def _start_cache() -> Path:
    from semel.spark.java import cache_folder, find_java, start_cache
    from semel.spark.session import spark_jars

    return start_cache(find_java(), spark_jars(), cache_folder())


def make_start_cache() -> DoctorCheck:
    """Run Spark once to learn what it loads."""
    from semel.spark.java import build_start_cache
    from semel.spark.session import need_pyspark

    try:
        need_pyspark()
        cache = build_start_cache(_start_cache())
    except SemelError as error:
        return DoctorCheck("start-up cache", "bad", error.message, error.fix, error.exit_code)
    return DoctorCheck("start-up cache", "ok", f"{cache}, {human_bytes(cache.stat().st_size)}")


def _check_store(config: Config, given: str | None) -> list[DoctorCheck]:
    url, source = config.resolve_store(given)
    found = _check_opening(url, source, config)
    if found.state == "ok" and url.startswith("sqlite:"):
        return [found, *_check_rights(url)]
    if found.state == "bad" or not url.lower().startswith(("postgresql:", "postgres:")):
        return [found]
    return [found, *check_postgres(url)]


def _check_opening(url: str, source: str, config: Config) -> DoctorCheck:
    try:
        if url.startswith("sqlite:") and not _sqlite_exists(url):
            return DoctorCheck(
                "store",
                "missing",
                f"{shown(url)} is not there yet ({source})",
                f"create it: semel store init {shown(url)}",
            )
        with opened(url, config) as store:
            status = store.status()
    except NotAStore as error:
        state: State = "bad" if url.startswith("sqlite:") else "missing"
        return DoctorCheck("store", state, error.message, error.fix, error.exit_code)
    except SemelError as error:
        return DoctorCheck("store", "bad", error.message, error.fix, error.exit_code)
    if status.horizon.is_long:
        fix = "end that transaction, or wait for it: until then export and audit do not see what came after it began"
        return DoctorCheck("store", "note", f"{shown(url)} ({source}): the ledger has {status.horizon}", fix)
    return DoctorCheck(
        "store", "ok", f"{shown(url)} ({source}): {status.engine}, epoch {status.epoch}, schema {status.schema}"
    )


def _check_rights(url: str) -> list[DoctorCheck]:
    """The messages are in these files, and where the server is. They are made for their owner alone; those of before,
    or from elsewhere, are as somebody has left them."""
    from semel.stores.private_files import is_open_to_others
    from semel.stores.sqlite import path_of

    names = [f"{path_of(url)}{end}" for end in ("", "-wal", "-shm", "-semel", "-semel-turns", "-server")]
    shared = [name for name in names if is_open_to_others(Path(name))]
    if not shared:
        return []
    return [DoctorCheck("store files", "note", f"others can read {', '.join(shared)}", f"chmod 600 {' '.join(shared)}")]


def _sqlite_exists(url: str) -> bool:
    from semel.stores.sqlite import path_of

    return path_of(url).exists()


# -- PostgreSQL: whether what it acknowledges survives a crash, and a failover (docs/how-to/high-availability.md)

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
    return [check_durability(server), *check_standbys(server), *check_url(given)]


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


def check_durability(server: ServerFacts) -> DoctorCheck:
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
    """Semel's commits ask for durability themselves. Those of users with `store.bind` are refused without it."""
    setting = server.settings.get("synchronous_commit", "on")
    if setting in ("on", "remote_apply"):
        return [DoctorCheck("synchronous_commit", "ok", setting)]
    detail = f"{setting}: Semel's own commits ask for more, but store.bind refuses transactions of yours"
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
