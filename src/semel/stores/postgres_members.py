"""Membership of a process in a store: a row with a lease, so that no switch is decided without asking it.

A new member does nothing until an older member has seen its row, or there is no older one. Should a switch to a standby
that lagged behind lose the row, the older member knows that one is missing and does not vouch. See ADR 19.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psycopg

from semel.errors import SemelError, StoreUnavailable
from semel.stores.points import reach
from semel.stores.postgres_connection import PostgresConnection, Silent, Statements, errors, is_silence, texts
from semel.stores.postgres_lines import Lines
from semel.stores.postgres_sync import transaction, watched
from semel.stores.postgres_witness import Witness

log = logging.getLogger(__name__)

LEASE_S = 40.0
"""Longer than it takes to notice that a host is gone and to promote another one."""
WAITING_LEASE_S = 5.0
"""The lease of a newcomer, which answers for nothing yet. If it dies, the next one need not wait for it for long."""
BEAT_S = 1.0
AGAIN_S = 0.2
LOOK_S = 0.02
CLOSE_S = 1.0
"""How long leaving may take. A member that does not leave is waited for until its lease is over."""
SILENT_S = 5.0
"""A server that leaves a beat unanswered for so long is taken for frozen."""
SILENT_S_MAX = 20.0
CALM_BEATS = 60
LOCK_S = 2.0
"""How long a beat waits for its row, which is changed by others when an epoch is raised. Less than SILENT_S."""


class Patience:
    """How long a beat may go unanswered. A server that is merely overloaded is not made to accept all connections
    over and over: each limit is longer than the one before, until it has been well for a while."""

    def __init__(self) -> None:
        self.s = SILENT_S
        self._calm = 0

    def answered(self) -> None:
        self._calm += 1
        if self._calm >= CALM_BEATS:
            self.s = SILENT_S

    def unanswered(self) -> None:
        self._calm = 0
        self.s = min(2 * self.s, SILENT_S_MAX)


class Membership:
    """`open` makes a connection that may be used. Nothing happens until `join`.

    A beat waits for no standby and for no lock for long. When it is not answered the server is frozen, whatever its
    kernel confirms, and nothing that waits for it will ever be answered: it is cut from `lines`."""

    def __init__(
        self, url: str, node: str, witness: Witness, open: Callable[[], PostgresConnection], lines: Lines
    ) -> None:
        self._url, self._node, self._witness, self._open, self._lines = url, node, witness, open, lines
        self._answered_at = time.monotonic()
        self._patience = Patience()
        self.member = ""
        self.number = self.known = 0
        self._joining = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._stop_read, self._stop_write = socket.socketpair()

    @property
    def is_joined(self) -> bool:
        return bool(self.member)

    def join(self, session: PostgresConnection, timeline: int) -> None:
        """Become a member. Returns when an older member has seen it, or when there is none."""
        with self._joining:
            if self._closed.is_set() or self.is_joined:
                return
            while not self._join(session, timeline):
                log.info("this process was silent for too long to become a member of the store, and begins again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="semel-member", daemon=True)
                self._thread.start()

    def renew(self, session: PostgresConnection, timeline: int) -> None:
        """On a server that is new to us: become a member there before anything is answered."""
        try:
            self._beat_in_time(session)
        except StoreUnavailable:
            if self.is_joined:
                raise
            self.join(session, timeline)

    def _beat_in_time(self, session: PostgresConnection) -> None:
        """A lease need not outlive a crash of the server, so it waits for no standby."""
        with watched(session), transaction(session, durable=False):
            self.beat(session)

    def _join(self, session: PostgresConnection, timeline: int) -> bool:
        """False if the lease ran out before anybody had seen it."""
        member = uuid.uuid4().hex
        number = self._register(session, member, timeline)
        is_member = False
        try:
            if self._becomes_known(session, member, number):
                self.number, self.known = number, max(number, self.known)
                with watched(session), transaction(session):
                    has_lease = self._renew(session, member)
                is_member = has_lease
        finally:
            if not is_member:
                self._withdraw(session, member)
        if is_member:
            self.member = member
        return is_member

    def _register(self, session: PostgresConnection, member: str, timeline: int) -> int:
        with transaction(session, "own_members") as run:
            dead = [name for name, process in run.ask("member_processes") if not _may_live(process)]
            run.run("members_gone", texts(dead))
            [(number,)] = run.ask("count_member")
            run.run("add_member", member, self._node, _this_process(), number, _us(WAITING_LEASE_S), timeline)
            run.run("notify_members")
            reach("member.joined")
        return int(number)

    def _withdraw(self, session: PostgresConnection, member: str) -> None:
        """Take back a lease that was never used, so that nobody waits for it. If that fails, it soon ends by itself."""
        with (
            suppress(SemelError),
            errors(self._url),
            watched(session, CLOSE_S),
            transaction(session, durable=False) as run,
        ):
            run.run("leave", member)

    def _becomes_known(self, session: PostgresConnection, member: str, number: int) -> bool:
        """Wait for it. False when the lease has run out meanwhile."""
        run = Statements(session)
        is_logged = False
        renewed = time.monotonic()
        while not run.ask("is_known", number)[0][0]:
            if self._closed.wait(LOOK_S):
                raise StoreUnavailable("the store is closed", fix="open it again")
            if not is_logged:
                log.info("waiting until another member of the store knows this process, or until its lease is over")
                is_logged = True
            if time.monotonic() - renewed >= BEAT_S:
                renewed = time.monotonic()
                with watched(session), transaction(session, durable=False):
                    if not run.ask("beat", member, number, _us(WAITING_LEASE_S)):
                        return False
        return True

    def beat(self, session: PostgresConnection) -> None:
        """Renew the lease. The number of members that we know of is read here and written with the next renewal, so
        that others rely only on what we remember."""
        if not self._renew(session, self.member):
            self.member = ""
            raise StoreUnavailable("the lease of this process on the store has run out", fix="it joins again by itself")

    def _renew(self, session: PostgresConnection, member: str) -> bool:
        run = Statements(session)
        while True:
            begun = self._witness.begin_turn(session.term)
            rows = run.ask("beat", member, self.known, _us(LEASE_S))
            if not rows:
                return False
            [(members, lsn)] = rows
            self._witness.end_turn(session.term, begun, LEASE_S, lsn)
            self._answered_at = time.monotonic()
            if members <= self.known:
                return True
            self.known = members

    def _run(self) -> None:
        with self._stop_read:
            while not self._closed.is_set():
                try:
                    with closing(self._open()) as session, errors(self._url):
                        self._stay_while_answered(session)
                except (SemelError, OSError) as error:
                    log.debug("the lease on the store could not be renewed: %s", error)
                    if isinstance(error, SemelError) and is_silence(error):
                        self._cut_waiting()
                    self._closed.wait(AGAIN_S)
                except Exception:
                    # without this thread the lease runs out, and nothing is answered any more until a restart
                    log.exception("the lease on the store could not be renewed")
                    self._closed.wait(AGAIN_S)

    def _cut_waiting(self) -> None:
        """There may be no connection for beats when a server freezes. Then whoever has waited for too long is cut."""
        if time.monotonic() - self._answered_at > self._patience.s:
            self._lines.hang_up_waiting(self._patience.s)

    def _stay_while_answered(self, session: PostgresConnection) -> None:
        try:
            self._stay(session)
        except Silent as error:
            self._patience.unanswered()
            log.warning("PostgreSQL is silent, so its connections are cut: %s", error)
            self._lines.hang_up(session)
            raise

    def _stay(self, session: PostgresConnection) -> None:
        """Like `_beat_in_time`, for a whole session, until its server is replaced."""
        session.patience_s = self._patience.s
        session.execute("SET synchronous_commit = off")
        session.execute("SELECT set_config('lock_timeout', %s, false)", [f"{int(LOCK_S * 1000)}ms"])
        session.execute("LISTEN semel_member")
        # a selector, because `select` knows no descriptors above 1023, and a server has thousands
        with selectors.DefaultSelector() as selector:
            for readable in (session.fileno(), self._stop_read.fileno()):
                selector.register(readable, selectors.EVENT_READ)
            while not self._closed.is_set():
                if session.term != self._witness.term:
                    return
                # that somebody holds the row is an answer too; the lease outlasts many beats
                with suppress(psycopg.errors.LockNotAvailable):
                    self.beat(session)
                self._patience.answered()
                session.patience_s = self._patience.s
                selector.select(BEAT_S)
                session.pgconn.consume_input()
                while session.pgconn.notifies() is not None:
                    pass
        with transaction(session, wait_s=CLOSE_S) as run:
            run.run("leave", self.member)

    def close(self) -> None:
        """Leave, so that nobody waits for us to vouch. Call it when nothing is answered any more."""
        self._closed.set()
        self._stop_write.close()
        with self._joining:
            thread = self._thread
        if thread is None:
            self._stop_read.close()
        else:
            thread.join(2 * CLOSE_S)


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _this_process() -> str:
    """Where it runs, its number and when it started; a number is used again only by a process that starts later."""
    return f"{_machine()} {os.getpid()} {_started(os.getpid())}"


def _machine() -> str:
    """A machine since it was started, and the numbering of processes on it. Empty where that is unknown."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return ""


def _started(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _may_live(process: str) -> bool:
    """False only of a process on this machine that has surely ended."""
    machine, _, rest = process.partition(" ")
    pid, _, started = rest.partition(" ")
    if not machine or machine != _machine() or not started:
        return True
    return _started(int(pid)) == started
