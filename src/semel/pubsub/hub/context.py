"""What every part of a hub needs from the machine around it: names, options, ids, the store, and a way to send.

Parts get this and the siblings that they call as constructor arguments. None of them gets the hub. What is committed in
the name of a session goes through `SessionCommits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from semel.kernel.effects import (
    Close,
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Effect,
    Load,
    LoadAll,
    Loaded,
    LoadedAll,
    LoadFailed,
    LoadHead,
    Notify,
    Send,
)
from semel.kernel.envelope import mint_id
from semel.kernel.ops import Append, Op, Put, Result
from semel.kernel.position import Position
from semel.pubsub.hub.commits import Done, Failed, Failure, is_conflict, is_trouble, why
from semel.pubsub.hub.records import accepted_event, repeated_event, stream_of
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.tail import READ_ROWS, PendingReads, Tail


class HubCounts:
    """Plain numbers that only grow, since this process has the hub. Messages are counted once however many get them,
    deliveries once for each session that a message was queued for or sent to."""

    __slots__ = ("accepted", "acknowledged", "deliveries", "discarded", "duplicates", "failed_commits", "spilled")

    def __init__(self) -> None:
        self.accepted = 0
        """Messages that were made durable."""
        self.duplicates = 0
        """Requests that were answered as done before."""
        self.deliveries = 0
        self.acknowledged = 0
        """Deliveries that a client has acknowledged."""
        self.discarded = 0
        """Deliveries that ended with their session, unacknowledged."""
        self.failed_commits = 0
        """Commits that the store did not make."""
        self.spilled = 0
        """Deliveries that were copied out of the stream, because they were not acknowledged for so long."""


OnLoaded = Callable[[Loaded | LoadedAll | LoadFailed, float], None]


@dataclass(frozen=True, slots=True)
class HubOptions:
    """`recovery_s`: how long a session waits for its client. The backlog is what a client has not acknowledged.
    `backlog_age_s`: what it leaves unacknowledged for longer goes into rows of its session, and the stream moves on.
    `is_shared`: other nodes may use the store at the same time; one that is silent for `lease_s` is taken for dead.
    `read_rows`: how many records are read at once."""

    recovery_s: float = 90.0
    backlog_count: int = 100_000
    backlog_bytes: int = 64 * 1024 * 1024
    backlog_age_s: float = 600.0
    trim_s: float = 5.0
    is_shared: bool = False
    lease_s: float = 10.0
    read_rows: int = READ_ROWS


class HubContext:
    """`head` is the end of the stream when this node read its sessions. `effects` is what the machine returns for the
    event at hand. `on_restart` are called before the hub is loaded again, so that nobody waits for an answer that
    cannot come any more."""

    __slots__ = (
        "_complaints", "_loads", "_on_end", "_random", "_tokens", "_waiting", "accepted", "counts", "effects", "epoch",
        "head", "hub", "node", "on_restart", "options", "repeated", "stream",
    )  # fmt: skip

    def __init__(
        self, hub: str, node: str, head: Position, random: Callable[[int], bytes], options: HubOptions | None = None
    ) -> None:
        self.hub, self.node, self.stream = hub, node, stream_of(hub)
        self.epoch, self.head = head.epoch, head.offset
        self.options = options or HubOptions()
        self.counts = HubCounts()
        self.accepted, self.repeated = accepted_event(hub), repeated_event(hub)
        self.effects: list[Effect] = []
        self.on_restart: Sequence[Callable[[str], None]] = ()
        self._random = random
        self._tokens = count(1)
        self._waiting: dict[int, tuple[Done, Failed]] = {}
        self._loads = PendingReads[str | LoadAll, OnLoaded](self._ask)
        self._on_end: Callable[[int | None, float], None] | None = None
        self._complaints: set[str] = set()

    def __len__(self) -> int:
        """How many answers of the store are waited for."""
        return len(self._waiting) + len(self._loads)

    def mint(self, now: float) -> str:
        return mint_id(now, self._random(10))

    def send(self, peer: str, message: object) -> None:
        self.effects.append(Send(peer, message))

    def take_effects(self) -> Sequence[Effect]:
        effects = list(self.effects)
        self.effects.clear()
        return effects

    # -- the store

    def commit(self, ops: Iterable[Op], done: Done, failed: Failed, chain: str | None = None) -> None:
        """Commits of one chain are made in order. If one fails, those that were asked for behind it fail too."""
        token = next(self._tokens)
        self._waiting[token] = done, failed
        self.effects.append(Commit(tuple(ops), token, chain))

    def committed(self, event: Committed, now: float) -> None:
        self._complaints.clear()
        done, _ = self._waiting.pop(event.token)
        done(event.results, now)

    def commit_failed(self, event: CommitFailed | CommitUnknown, now: float) -> None:
        self.counts.failed_commits += 1
        _, failed = self._waiting.pop(event.token)
        failed(event, now)

    def load(self, key: str, then: OnLoaded) -> None:
        self._loads.ask(key, then)

    def load_all(self, asked: LoadAll, then: OnLoaded) -> None:
        """If one of several loads with the same prefix fails, all of them do: the failure names only the prefix."""
        self._loads.ask(asked, then)

    def loaded(self, event: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if isinstance(event, Loaded):
            answered: Sequence[str | LoadAll] = (event.key,)
        elif isinstance(event, LoadedAll):
            answered = (event.asked,)
        elif event.key == self.stream:
            self.end_loaded(None, now)
            return
        else:
            key = event.key
            answered = [each for each in self._loads if key == (each if isinstance(each, str) else each.prefix)]
        for then in [then for each in answered for then in self._loads.answered(each)]:
            then(event, now)

    def load_end(self, then: Callable[[int | None, float], None]) -> None:
        """Where the stream ends now. None: it cannot be read, or belongs to another epoch."""
        assert self._on_end is None, "one at a time"
        self._on_end = then
        self.effects.append(LoadHead(self.stream))

    def end_loaded(self, end: Position | None, now: float) -> None:
        then, self._on_end = self._on_end, None
        if then is not None:
            then(end.offset if end is not None and end.epoch == self.epoch else None, now)

    def _ask(self, asked: str | LoadAll) -> None:
        self.effects.append(Load(asked) if isinstance(asked, str) else asked)

    def restart(self, reason: str) -> None:
        """What this node believes may differ from what the store holds: forget all of it and load the hub again. The
        clients come back, and find what the store holds."""
        for prepare in self.on_restart:
            prepare(reason)
        self.effects.append(Close("reload"))

    # -- for whoever runs the server

    def notify(self, topic: str, detail: str, *, is_store: bool = False) -> None:
        self.effects.append(Notify(topic, f"{self.stream}: {detail}", is_store=is_store))

    def report(self, topic: str, failure: Failure, what: str = "") -> None:
        detail = f"{what}: {why(failure)}" if what else why(failure)
        self.notify(topic, detail, is_store=is_trouble(failure))

    def report_once(self, topic: str, failure: Failure) -> None:
        """For failures that hit every session at once: reported again only after a commit has succeeded."""
        if topic not in self._complaints and not is_conflict(failure):
            self._complaints.add(topic)
            self.report(topic, failure)


# -- in the name of a session


def _nobody(session: Session, now: float) -> None:
    raise AssertionError("nobody handles refused commits")


class SessionCommits:
    """Each writes a row of the session under the version that this node knows, so the store refuses it if another node
    has taken the session over. `on_refused` is called then."""

    def __init__(self, context: HubContext, tail: Tail) -> None:
        self._context, self._tail = context, tail
        self._staged: dict[str, Session] = {}
        self.on_refused: Callable[[Session, float], None] = _nobody

    def commit(
        self,
        session: Session,
        appends: Sequence[Append],
        puts: Sequence[Put],
        done: Done,
        failed: Callable[[Failure], None],
        more: Sequence[Op] = (),
    ) -> None:
        """Commits of one session are made in order. If it is unknown whether one was made, the rows alone can tell: the
        hub is loaded again."""
        generation = session.versions.generation

        def on_done(results: tuple[Result, ...], now: float) -> None:
            for put, result in zip(puts, results[len(appends) :], strict=False):
                session.stored(put, result)
            if appends:
                self._tail.take_own(appends, results, now)
            done(results, now)

        def on_failed(failure: Failure, now: float) -> None:
            if isinstance(failure, CommitUnknown):
                self._context.restart("the store did not answer")
                return
            self._tail.drop_bodies(appends)
            if is_conflict(failure):
                self.on_refused(session, now)
            elif session.versions.generation == generation:
                # those behind this one in the chain fail as well, and find that the session has fallen back already
                session.fall_back()
            failed(failure)

        self._context.commit((*appends, *puts, *more), on_done, on_failed, session.id)

    def commit_at_end_of_event(self, session: Session) -> None:
        """What is staged without a request of the client is committed at the end of the event, if it was not before."""
        self._staged[session.id] = session

    def take_staged(self) -> Iterable[Session]:
        if not self._staged:
            return ()
        staged, self._staged = self._staged, {}
        return [session for session in staged.values() if session.staged.appends]
