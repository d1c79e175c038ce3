"""The two machines that hand messages to the application: `Worker` and `Follower`.

A worker claims rows of a work queue under a lease and finishes them under its fence. A follower reads a stream in
offset order and remembers how far it came. Both commit the application's own writes together with the completion, so
an effect and the mark that it happened cannot be without each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from semel.errors import EpochChanged
from semel.kernel.effects import (
    Close,
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Deliver,
    Delivered,
    DeliverFailed,
    Effect,
    Event,
    Notify,
    Read,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Wake,
)
from semel.kernel.lease import renew_at
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Advance, Claim, Claimed, Finish, Log, Op, Renew, Stale, WorkRow, WorkState
from semel.kernel.position import Position
from semel.kernel.retry import Again, RetryPolicy
from semel.kernel.store import Record
from semel.kernel.text import clean_cause

CLAIM_AGAIN_S = 1.0
RENEW_AGAIN = 1 / 10
"""A renewal that failed is made again after this part of the lease."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """`parallel` rows at most are with the application at a time; a wake or `idle_s` makes it look for more."""

    name: str
    queue: str
    hop: str
    pipeline: str = ""
    parallel: int = 1
    lease_s: float = 30.0
    idle_s: float = 5.0
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(retries=9, then="dead_letter"))


@dataclass(slots=True)
class _Held:
    row: WorkRow
    renew_at: float
    finishing: bool = False


class Worker:
    """Claims, delivers, finishes. What it holds when it dies is claimed by another after the lease."""

    def __init__(self, config: WorkerConfig) -> None:
        self.name = config.name
        self.config = config
        self._token = 0
        self._held: dict[int, _Held] = {}
        self._claiming: int | None = None
        self._renewing: dict[int, int] = {}
        self._finishing: dict[int, int] = {}
        self._look_at: float | None = None

    def start(self, now: float) -> Sequence[Effect]:
        return self._claim(now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Committed(token=token, results=results) if token == self._claiming:
                return self._claimed(results, now)
            case Committed(token=token):
                return self._settled(token, now)
            case CommitFailed(token=token, results=results) if token in self._renewing and not _is_stale(results):
                return self._renew_again(token, now)
            case CommitUnknown(token=token) if token in self._renewing:
                return self._renew_again(token, now)
            case CommitFailed(token=token) | CommitUnknown(token=token):
                return self._failed(token, now)
            case Delivered(token=token, ops=ops):
                return self._finish(token, WorkState.DONE, Kind.HANDLED, ops=ops)
            case DeliverFailed(token=token, error=error):
                return self._try_again(token, error, now)
            case Wake():
                return self._claim(now)
        return ()

    def next_deadline(self) -> float | None:
        deadlines = [held.renew_at for held in self._held.values() if not held.finishing]
        if self._look_at is not None and self._may_claim():
            deadlines.append(self._look_at)
        return min(deadlines, default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for token, held in self._held.items():
            if not held.finishing and now >= held.renew_at:
                effects.append(self._renew(token, held, now))
        if self._look_at is not None and now >= self._look_at:
            effects += self._claim(now)
        return effects

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _may_claim(self) -> bool:
        return self._claiming is None and len(self._held) < self.config.parallel

    def _claim(self, now: float) -> list[Effect]:
        if not self._may_claim():
            return []
        self._look_at = None
        self._claiming = self._next_token()
        room = self.config.parallel - len(self._held)
        claim = Claim(self.config.queue, self.name, limit=room, lease_s=self.config.lease_s)
        return [Commit((claim,), self._claiming, chain=None)]

    def _claimed(self, results: Sequence[object], now: float) -> list[Effect]:
        self._claiming = None
        assert isinstance(results[0], Claimed)
        effects: list[Effect] = []
        for row in results[0].rows:
            token = self._next_token()
            self._held[token] = _Held(row, renew_at(now, self.config.lease_s))
            effects.append(Deliver(row, token, row.attempts))
        self._look_at = now + self.config.idle_s
        return effects

    def _finish(
        self,
        token: int,
        to: WorkState,
        kind: Kind,
        *,
        ops: tuple[Op, ...] = (),
        delay_s: float | None = None,
        cause: str | None = None,
    ) -> list[Effect]:
        """The application's writes, the row's end and the ledger event: all under the fence, or none of them."""
        held = self._held.get(token)
        if held is None:
            return []
        held.finishing = True
        row = held.row
        finish = Finish(row.queue, row.identity, to, fence=row.fence, delay_s=delay_s, cause=cause)
        config = self.config
        event = message_event(kind, config.hop, config.pipeline, row.envelope, attempt=row.attempts, cause=cause)
        commit = self._next_token()
        self._finishing[commit] = token
        return [Commit((finish, *ops, Log(event)), commit, chain=None)]

    def _try_again(self, token: int, error: str, now: float) -> list[Effect]:
        held = self._held.get(token)
        if held is None:
            return []
        error = clean_cause(error)
        decision = self.config.retry.decide(held.row.attempts, now, 0.0)
        if isinstance(decision, Again):
            # a wait, not a time: the store's clock says when a row is due, and ours may go differently
            return self._finish(token, WorkState.SCHEDULED, Kind.FAILED, delay_s=decision.at - now, cause=error)
        if decision.then == "discard":
            return self._finish(token, WorkState.DONE, Kind.DISCARDED, cause=error)
        if decision.then == "dead_letter":
            return self._finish(token, WorkState.DEAD, Kind.DEAD_LETTERED, cause=error)
        return self._finish(token, WorkState.PARKED, Kind.SUSPENDED, cause=error)

    def _renew(self, token: int, held: _Held, now: float) -> Commit:
        held.renew_at = renew_at(now, self.config.lease_s)
        commit = self._next_token()
        self._renewing[commit] = token
        renew = Renew(held.row.queue, held.row.identity, held.row.fence, self.config.lease_s)
        return Commit((renew,), commit, chain=None)

    def _renew_again(self, commit: int, now: float) -> list[Effect]:
        """The store was busy or away, and the claim may well stand: only `Stale` says that another has the row."""
        held = self._held.get(self._renewing.pop(commit))
        if held is not None:
            held.renew_at = min(held.renew_at, now + self.config.lease_s * RENEW_AGAIN)
        return []

    def _settled(self, commit: int, now: float) -> list[Effect]:
        if self._renewing.pop(commit, None) is None:
            token = self._finishing.pop(commit)
            self._held.pop(token, None)
            return self._claim(now)
        return []

    def _failed(self, commit: int, now: float) -> list[Effect]:
        """Let go of the row: either another worker has it already, or the lease will run out and one will claim it."""
        if commit == self._claiming:
            self._claiming = None
            self._look_at = now + CLAIM_AGAIN_S
            return []
        token = self._finishing.pop(commit, None) or self._renewing.pop(commit, None)
        held = self._held.pop(token, None) if token is not None else None
        self._look_at = min(self._look_at or now + CLAIM_AGAIN_S, now + CLAIM_AGAIN_S)
        if held is None:
            return []
        return [Notify("claim-lost", f"{self.name} lost its claim on {held.row.identity}", held.row.envelope.id)]


def _is_stale(results: Sequence[object]) -> bool:
    return any(isinstance(result, Stale) for result in results)


@dataclass(frozen=True, slots=True)
class FollowerConfig:
    """`cursor` belongs to the follower's name, so a restarted one goes on where its last commit ended.

    With `ahead` above 1 that many records may be with the store at a time while the handler has the next one. Should
    a commit fail, the handler sees again all whose commits it took down.
    """

    name: str
    stream: str
    hop: str
    pipeline: str = ""
    batch: int = 100
    ahead: int = 1
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(retries=None, interval_s=1.0, interval_max_s=60.0))

    @property
    def cursor(self) -> str:
        return f"follow/{self.name}"


class Follower:
    """Delivers the records of a stream one after the other. One that fails is tried again: nothing overtakes it.

    Commits that are under way together may share a transaction. They form a chain: should one fail, the later ones fail
    with it, and a fresh follower begins where the store says.
    """

    def __init__(self, config: FollowerConfig, cursor: Position | None) -> None:
        self.name = config.name
        self.config = config
        self._cursor = cursor
        self._delivered_to = cursor
        self._read_to = cursor
        self._queue: deque[Record] = deque()
        self._committing: dict[int, Position] = {}
        self._token = 0
        self._attempt = 1
        self._busy = False
        self._reading = False
        self._again_at: float | None = None
        self._stopped = False

    @property
    def cursor(self) -> Position | None:
        """Everything up to here is handled, and the store knows it."""
        return self._cursor

    def awaits(self, after: Position | None) -> bool:
        """Whether it has asked for the records after that position and not yet heard."""
        return self._reading and after == self._read_to

    def start(self, now: float) -> Sequence[Effect]:
        return self._read()

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case ReadDone(records=records):
                return self._take(records)
            case Delivered(token=token, ops=ops) if self._busy and token == self._token:
                return self._commit(ops)
            case DeliverFailed(token=token, error=error) if self._busy and token == self._token:
                return self._failed(error, now)
            case Committed(token=token):
                self._cursor = self._committing.pop(token)
                return self._next()
            case CommitFailed() | CommitUnknown():
                return self._reload()
            case ReadTrimmed(first=first):
                return self._stop("trimmed", f"{self.name}: the records before {first} are gone; begin there to go on")
            case ReadFailed(error=EpochChanged() as error):
                return self._stop("epoch-changed", f"{self.name}: {error}")
            case ReadFailed():
                self._reading = False
                self._again_at = now + CLAIM_AGAIN_S
        return ()

    def next_deadline(self) -> float | None:
        return None if self._stopped else self._again_at

    def on_timer(self, now: float) -> Sequence[Effect]:
        if self._again_at is None or now < self._again_at:
            return ()
        self._again_at = None
        return self._next()

    def _read(self) -> list[Effect]:
        if self._reading or self._stopped:
            return []
        self._reading = True
        return [Read(self.config.stream, self._read_to, self.config.batch)]

    def _take(self, records: Sequence[Record]) -> list[Effect]:
        self._reading = False
        self._queue.extend(records)
        self._read_to = records[-1].position
        return self._next()

    def _next(self) -> list[Effect]:
        if self._busy or self._stopped or self._again_at is not None or len(self._committing) >= self.config.ahead:
            return []
        if not self._queue:
            return self._read()
        self._busy = True
        self._token += 1
        return [Deliver(self._queue[0], self._token, self._attempt)]

    def _commit(self, ops: tuple[Op, ...]) -> list[Effect]:
        """The cursor moves in the commit of the effect, and only from where this follower believes it to be."""
        record = self._queue.popleft()
        expected = self._delivered_to.offset if self._delivered_to is not None else 0
        advance = Advance(self.config.cursor, record.position, expected=expected)
        config = self.config
        event = message_event(Kind.HANDLED, config.hop, config.pipeline, record.envelope, attempt=self._attempt)
        self._committing[self._token] = self._delivered_to = record.position
        self._busy, self._attempt = False, 1
        return [Commit((*ops, advance, Log(event)), self._token), *self._next()]

    def _failed(self, error: str, now: float) -> list[Effect]:
        self._busy = False
        decision = self.config.retry.decide(self._attempt, now, 0.0)
        if not isinstance(decision, Again):
            return self._stop("suspended", f"{self.name}: {self._queue[0].position} failed: {error}")
        self._attempt += 1
        self._again_at = decision.at
        return []

    def _reload(self) -> list[Effect]:
        """Whether the commit happened is for the store to say: deliver nothing until a fresh follower has asked."""
        self._stopped = True
        return [Close("reload")]

    def _stop(self, topic: str, detail: str) -> list[Effect]:
        """Going on would skip records in silence, so the follower stops and says so."""
        self._stopped = True
        return [Notify(topic, detail), Close(topic)]
