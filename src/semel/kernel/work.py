"""The two machines that hand messages to the application: `Worker` and `Follower`.

A worker claims rows of a work queue under a lease and finishes them under its fence. A follower reads a stream in
offset order and remembers how far it came. Both commit the application's own writes together with the completion, so
an effect and the mark that it happened cannot be without each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from xxhash import xxh64_intdigest

from semel.errors import ConfigError, EpochChanged
from semel.kernel.effects import (
    Close,
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Deliver,
    Delivered,
    DeliverFailed,
    DeliverLost,
    DeliverUntouched,
    Drain,
    Effect,
    Event,
    LoadFailed,
    LookForWork,
    Notify,
    Pause,
    Read,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Resume,
    Wake,
    WorkFound,
)
from semel.kernel.lease import renew_at
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import (
    KEEP_S,
    Advance,
    Attempts,
    Claim,
    Claimed,
    Finish,
    Log,
    Op,
    Renew,
    Stale,
    WorkRow,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.retry import (
    Again,
    AnyFailure,
    Decision,
    Enough,
    Failure,
    FailurePolicy,
    PauseThen,
    Release,
    Requeue,
    RetryPolicy,
)
from semel.kernel.store import Record
from semel.kernel.text import clean_cause
from semel.kernel.work_gate import WorkGate

CLAIM_AGAIN_S = 1.0
END_AGAIN_S = 0.25
"""Sooner than anybody claims again: a store that is back is given first what has happened."""
RENEW_AGAIN = 1 / 10
"""A renewal that failed is made again after this part of the lease."""
WORKER_DIED = ("semel.WorkerDied", "Exception", "BaseException")
"""The names under which a policy finds a message whose worker died again and again."""
ALONE = "it runs alone, because its worker died while it had this message"
"""The cause of a row that is handed out while its worker has nothing else. If the worker dies of it too, it was that
row: whatever else a worker had when it died may be innocent."""
BEFORE = "; before that: "
RENEW_TOGETHER = 1 / 6
"""Who is to be renewed within this part of the lease is renewed with one that is due."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """`parallel` rows at most are with the application at a time, and `ahead` more wait for it in memory. A claim is
    made when `batch` rows fit, or when nothing is held: one commit then serves many rows. A wake or `idle_s` makes it
    look for more.

    `policy` decides by what went wrong; without one `retry` decides alike for all failures. What is done is remembered
    for `keep_s`, what is dead stays for `dead_keep_s`: None is until somebody replays or discards it. A `gate` may let
    it take less than there is room for, or nothing.

    With `ahead_s` no more rows wait here than the application has done in about so long: what it would come to much
    later is left to others. It works at `at_once` rows at a time, `parallel` unless said.

    `delivery` names what the ledger is to say besides the message: for which of its deliveries a row stands.
    """

    name: str
    queue: str
    hop: str
    pipeline: str = ""
    parallel: int = 1
    lease_s: float = 30.0
    idle_s: float = 5.0
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(retries=9, then="dead_letter"))
    ahead: int = 0
    batch: int = 1
    keep_s: float = KEEP_S
    dead_keep_s: float | None = KEEP_S
    policy: FailurePolicy | None = None
    gate: WorkGate | None = None
    ahead_s: float | None = None
    at_once: int | None = None
    delivery: Callable[[WorkRow], str] | None = None

    def __post_init__(self) -> None:
        if self.parallel < 1 or self.ahead < 0:
            raise ConfigError(
                f"parallel is {self.parallel} and ahead is {self.ahead}",
                fix="let at least one row be with the application, and none or more wait for it",
            )
        if not 1 <= self.batch <= self.capacity:
            raise ConfigError(
                f"batch is {self.batch}, and {self.capacity} rows fit",
                fix="use a batch between 1 and parallel + ahead",
            )

    @property
    def capacity(self) -> int:
        return self.parallel + self.ahead


@dataclass(slots=True)
class _Pace:
    """How many rows ended lately: between one and two times `window_s` back."""

    window_s: float
    begin: float = -math.inf
    now: int = 0
    before: int = 0

    def ended(self, now: float, count: int = 1) -> int:
        if now >= self.begin + self.window_s:
            self.before = self.now if now < self.begin + 2 * self.window_s else 0
            self.begin, self.now = now, 0
        self.now += count
        return self.before + self.now


@dataclass(slots=True)
class _Held:
    """A row that we have claimed. `until` is when its lease ends by our clock, as far as the store has confirmed it;
    `asked_until` is what the renewal under way asks for. `end` is what ends it, once that is decided; it is committed
    again at `end_again_at` if the store has not taken it."""

    row: WorkRow
    renew_at: float
    until: float
    asked_until: float = 0.0
    end: tuple[Op, ...] = ()
    end_again_at: float | None = None


class Worker:
    """Claims, delivers, finishes. What it holds when it dies is claimed by another after the lease.

    Which of the rows has killed it nobody knows. So one that comes from a dead worker and is at its last attempt is a
    suspect: it waits until all others have left the application, a mark is written into its row, and it runs alone.
    Only a row that has this mark when its worker dies is given up for it. Meanwhile nothing is claimed.
    """

    wants_rest = True

    def __init__(self, config: WorkerConfig) -> None:
        self.name = config.name
        self.config = config
        self._policy: FailurePolicy = config.policy or AnyFailure(config.retry)
        self._token = 0
        self._held: dict[int, _Held] = {}
        self._waiting: deque[int] = deque()
        self._suspects: deque[int] = deque()
        self._apart: int | None = None
        self._with_app: set[int] = set()
        self._claiming: int | None = None
        self._asked_at = 0.0
        self._asked_for = 0
        self._renewing: dict[int, int] = {}
        self._finishing: dict[int, int] = {}
        self._releasing: set[int] = set()
        self._look_at: float | None = None
        self._looking = False
        self._woken = False
        self._is_dry = False
        self._paused_until: float | None = None
        self._resting = False
        self._behind_gate: dict[int, WorkRow] = {}
        self._pace = _Pace(config.ahead_s) if config.ahead_s is not None else None
        self._capacity = config.capacity
        self._count_ended(0.0, 0)

    @property
    def is_paused(self) -> bool:
        return self._paused_until is not None

    def may_begin(self, token: int, now: float) -> bool:
        """Whether the application may begin with what it was given; else it gives it back untouched. One whose lease
        has run out is no longer worth beginning."""
        held = self._held.get(token)
        return self._paused_until is None and not self._resting and held is not None and now < held.until

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
            case CommitFailed(token=token, error=error) if token in self._finishing and error and error.retryable:
                return self._end_later(token, now)
            case CommitUnknown(token=token) if token in self._finishing:
                return self._end_later(token, now)
            case CommitFailed(token=token) | CommitUnknown(token=token):
                return self._failed(token, now)
            case Delivered() | DeliverFailed() | DeliverLost() | DeliverUntouched():
                return self._answered(event, now)
            case Wake(is_own=is_own):
                return self._wake(is_own, now)
            case WorkFound(is_due=is_due):
                return self._looked(is_due, now)
            case LoadFailed():
                self._looking, self._look_at = False, now + CLAIM_AGAIN_S
            case Pause(until=until):
                return self._pause(until)
            case Resume():
                return self._resume(now)
            case Drain():
                self._resting = True
                return [*self._release_waiting(), *self._end_due(math.inf)]
        return ()

    def next_deadline(self) -> float | None:
        deadlines = [held.renew_at for held in self._held.values() if not held.end]
        deadlines += [held.end_again_at for held in self._held.values() if held.end_again_at is not None]
        if self._paused_until is not None and self._paused_until < math.inf:
            deadlines.append(self._paused_until)
        if self._look_at is not None and self._may_claim():
            deadlines.append(self._look_at)
        return min(deadlines, default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        effects = [*self._renew_due(now), *self._end_due(now)]
        if self._paused_until is not None and now >= self._paused_until:
            effects += self._resume(now)
        elif self._look_at is not None and now >= self._look_at:
            effects += self._look(now)
        return effects

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    # -- looking for work and claiming it

    def _wake(self, is_own: bool, now: float) -> list[Effect]:
        """A claim of ours that is under way has missed what others committed since; what we committed it has seen."""
        if self._claiming is not None:
            self._woken = self._woken or not is_own
            return []
        return self._look(now) if is_own and self._is_dry else self._claim(now)

    def _look(self, now: float) -> list[Effect]:
        """A read instead of a commit, for when there is probably nothing."""
        if not self._may_claim():
            return []
        self._look_at = None
        if self._looking:
            self._woken = True
            return []
        self._looking = True
        return [LookForWork(self.config.queue)]

    def _looked(self, is_due: bool, now: float) -> list[Effect]:
        self._looking = False
        if is_due:
            return self._claim(now)
        if self._take_woken():
            return self._look(now)
        if self._look_at is None:
            self._look_at = now + self.config.idle_s
        return []

    def _take_woken(self) -> bool:
        woken, self._woken = self._woken, False
        return woken

    def _room(self) -> int:
        """Rows that we have lost may still be with the application, and count until it returns."""
        held = self._held
        return self._capacity - len(held) - sum(token not in held for token in self._with_app)

    def _count_ended(self, now: float, count: int) -> None:
        """How fast the application is says how many rows are worth holding."""
        if self._pace is not None:
            at_once = self.config.at_once or self.config.parallel
            self._capacity = min(self.config.capacity, at_once + self._pace.ended(now, count))

    def _may_claim(self) -> bool:
        if self._claiming is not None or self._paused_until is not None or self._resting:
            return False
        if any(token in self._held for token in (self._apart, *self._suspects)):
            return False
        room = self._room()
        return room > 0 and (room >= min(self.config.batch, max(1, self._capacity // 2)) or not self._held)

    def _claim(self, now: float) -> list[Effect]:
        if not self._may_claim():
            return []
        self._look_at, self._woken = None, False
        gate, room = self.config.gate, self._room()
        if gate is not None and (room := gate.room(now, room)) == 0:
            # what does not depend on time may change unseen: somebody else's message is being tried, say
            self._look_at = gate.next_deadline(now) or now + self.config.idle_s
            return []
        self._claiming = self._next_token()
        self._asked_at, self._asked_for = now, room
        claim = Claim(self.config.queue, self.name, limit=self._asked_for, lease_s=self.config.lease_s)
        return [Commit((claim,), self._claiming, chain=None)]

    def _claimed(self, results: Sequence[object], now: float) -> list[Effect]:
        self._claiming = None
        assert isinstance(results[0], Claimed)
        rows = results[0].rows
        self._is_dry = len(rows) < self._asked_for
        self._look_at = now + self.config.idle_s
        effects: list[Effect] = []
        for row in rows:
            effects += self._take(row, now)
        if self._resting or self.is_paused:
            return [*effects, *self._release_waiting()]
        effects += self._hand_out(now)
        return [*effects, *self._claim(now)] if self._take_woken() and self._is_dry else effects

    def _take(self, row: WorkRow, now: float) -> list[Effect]:
        """A row that nobody may try any more, because it has killed whoever had it last, is not handed out."""
        token = self._next_token()
        self._held[token] = _Held(row, renew_at(now, self.config.lease_s), self._asked_at + self.config.lease_s)
        last = self._policy.last_attempt(row)
        if last is not None and row.attempts > last and _died_alone(row):
            decision = self._policy.decide(_died(row), row, row.attempts - 1, now, _chance(row))
            if isinstance(decision.then if isinstance(decision, PauseThen) else decision, Enough):
                return self._carry_out(token, decision, _died(row).text, now)
        is_suspect = last is not None and row.attempts >= last + (not row.taken_over)
        (self._suspects if is_suspect else self._waiting).append(token)
        return []

    def _hand_out(self, now: float) -> list[Effect]:
        """One whose lease has run out, because nothing could be renewed, is no longer worth beginning."""
        effects: list[Effect] = []
        while self._waiting and len(self._with_app) < self.config.parallel:
            if self._has_no_room(now):
                return [*effects, *self._release_waiting()]
            effects += self._deliver(self._waiting.popleft(), now)
        return [*effects, *self._set_apart(now)]

    def _deliver(self, token: int, now: float) -> list[Effect]:
        held = self._held.get(token)
        if held is None:
            return []
        if now >= held.until:
            del self._held[token]
            return []
        self._with_app.add(token)
        self._pass_gate(token, held.row, now)
        return [Deliver(held.row, token, held.row.attempts)]

    def _set_apart(self, now: float) -> list[Effect]:
        """When the application has nothing else: the mark first, and `_begin_apart` when it is written."""
        while self._suspects and not self._with_app and not self._waiting and self._apart not in self._held:
            if self._has_no_room(now):
                return self._release_waiting()
            token = self._suspects.popleft()
            held = self._held.get(token)
            if held is not None and now < held.until:
                self._apart = token
                return [self._renew(token, held, now)]
            self._held.pop(token, None)
        return []

    def _begin_apart(self, token: int, now: float) -> list[Effect]:
        if self._has_no_room(now):
            return self._release_waiting()
        return self._deliver(token, now)

    def _has_no_room(self, now: float) -> bool:
        return self.config.gate is not None and self.config.gate.room(now, 1) == 0

    def _pass_gate(self, token: int, row: WorkRow, now: float) -> None:
        if self.config.gate is not None:
            self._behind_gate[token] = row
            self.config.gate.taken(row, now)

    def _leave_gate(self, token: int) -> None:
        row = self._behind_gate.pop(token, None)
        if row is not None and self.config.gate is not None:
            self.config.gate.returned(row)

    def _go_on(self, now: float) -> list[Effect]:
        """There is room for more."""
        return [*self._hand_out(now), *(self._look(now) if self._is_dry else self._claim(now))]

    # -- what the application answers

    def _answered(self, event: Delivered | DeliverFailed | DeliverLost | DeliverUntouched, now: float) -> list[Effect]:
        self._with_app.discard(event.token)
        self._leave_gate(event.token)
        self._count_ended(now, 0 if isinstance(event, DeliverUntouched) else 1)
        if event.token not in self._held:
            # lost meanwhile; at least there is room now
            return self._go_on(now)
        match event:
            case Delivered(token=token, finished=True):
                row = self._held.pop(token).row
                if self._is_dry and self._held and row.key is None:
                    # the queue was empty, and this has made nothing claimable: others call us, and we look in a while
                    return self._hand_out(now)
                return self._go_on(now)
            case Delivered(token=token, ops=ops):
                return [*self._finish(token, WorkState.DONE, Kind.HANDLED, ops=ops), *self._hand_out(now)]
            case DeliverFailed(token=token, error=error, types=types):
                failure = Failure(clean_cause(error), types)
                return [*self._try_again(token, failure, now), *self._hand_out(now)]
            case DeliverLost(token=token):
                return [*self._claim_lost(token), *self._go_on(now)]
            case DeliverUntouched(token=token):
                return [self._release(token, self._held.pop(token).row), *self._hand_out(now)]

    def _try_again(self, token: int, failure: Failure, now: float) -> list[Effect]:
        held = self._held.get(token)
        if held is None:
            return []
        decision = self._policy.decide(failure, held.row, held.row.attempts, now, _chance(held.row))
        return self._carry_out(token, decision, failure.text, now)

    def _carry_out(self, token: int, decision: Decision, cause: str, now: float) -> list[Effect]:
        match decision:
            case Again(at=at, passes=passes):
                # a wait, not a time: the store's clock says when a row is due, and ours may go differently
                wait_s = max(0.0, at - now)
                return self._finish(
                    token, WorkState.SCHEDULED, Kind.FAILED, delay_s=wait_s, cause=cause, passes=passes
                )  # fmt: skip
            case Requeue():
                return self._finish(token, WorkState.SCHEDULED, Kind.FAILED, delay_s=0.0, cause=cause, passes=True)
            case Release():
                return self._finish(token, WorkState.READY, Kind.FAILED, cause=cause, attempts=Attempts.RELEASE)
            case Enough(then="discard"):
                return self._finish(token, WorkState.DONE, Kind.DISCARDED, cause=cause)
            case Enough(then="dead_letter", holds=holds):
                return self._finish(token, WorkState.DEAD, Kind.DEAD_LETTERED, cause=cause, holds=holds)
            case Enough(holds=holds):
                return self._finish(token, WorkState.PARKED, Kind.SUSPENDED, cause=cause, holds=holds)
            case PauseThen(for_s=for_s, then=then):
                return [*self._carry_out(token, then, cause, now), *self._pause(now + for_s)]

    def _finish(
        self,
        token: int,
        to: WorkState,
        kind: Kind,
        *,
        ops: tuple[Op, ...] = (),
        delay_s: float | None = None,
        cause: str | None = None,
        passes: bool = False,
        holds: bool = False,
        attempts: Attempts = Attempts.KEEP,
    ) -> list[Effect]:
        """The application's writes, the row's end and the ledger event: all under the fence, or none of them."""
        held = self._held.get(token)
        if held is None:
            return []
        row = held.row
        finish = Finish(
            row.queue, row.identity, to, fence=row.fence, delay_s=delay_s, cause=cause, passes=passes, holds=holds,
            keep_s=self.config.dead_keep_s if to is WorkState.DEAD else self.config.keep_s, attempts=attempts,
        )  # fmt: skip
        config = self.config
        delivery = config.delivery(row) if config.delivery is not None else None
        event = message_event(
            kind, config.hop, config.pipeline, row.envelope, delivery=delivery, attempt=row.attempts, cause=cause
        )
        held.end = (finish, *ops, Log(event))
        return [self._commit_end(token, held)]

    def _commit_end(self, token: int, held: _Held) -> Commit:
        held.end_again_at = None
        commit = self._next_token()
        self._finishing[commit] = token
        return Commit(held.end, commit, chain=None)

    def _end_later(self, commit: int, now: float) -> list[Effect]:
        """What the application did may have happened outside: as long as the claim stands, only its end is missing. One
        that was committed after all is refused the next time, by its fence."""
        held = self._held.get(self._finishing.pop(commit))
        if held is not None:
            held.end_again_at = now + END_AGAIN_S
        return self._hand_out(now)

    def _end_due(self, now: float) -> list[Effect]:
        ends = [(held.end_again_at, token, held) for token, held in self._held.items()]
        return [self._commit_end(token, held) for at, token, held in ends if at is not None and at <= now]

    def _settled(self, commit: int, now: float) -> list[Effect]:
        if commit in self._releasing:
            self._releasing.remove(commit)
            return []
        if (token := self._renewing.pop(commit, None)) is not None:
            if (renewed := self._held.get(token)) is None:
                return []
            renewed.until = renewed.asked_until
            return self._begin_apart(token, now) if token == self._apart and token not in self._with_app else []
        held = self._held.pop(self._finishing.pop(commit), None)
        if held is not None and held.row.key is not None:
            # the next of its key may be claimed now
            return [*self._hand_out(now), *self._claim(now)]
        return self._go_on(now)

    def _failed(self, commit: int, now: float) -> list[Effect]:
        """Let go of the row: either another worker has it already, or the lease will run out and one will claim it."""
        if commit == self._claiming:
            self._claiming = None
            self._look_at = now + CLAIM_AGAIN_S
            return []
        if commit in self._releasing:
            self._releasing.remove(commit)
            return []
        token = self._finishing.pop(commit, None) or self._renewing.pop(commit, None)
        self._look_at = min(self._look_at or now + CLAIM_AGAIN_S, now + CLAIM_AGAIN_S)
        return [*self._claim_lost(token), *self._hand_out(now)] if token is not None else []

    def _claim_lost(self, token: int) -> list[Effect]:
        held = self._held.pop(token, None)
        if held is None:
            return []
        lost = Notify("claim-lost", f"{self.name} lost its claim on {held.row.identity}", held.row.envelope.id)
        return [lost, self._unmark(held.row)] if token == self._apart else [lost]

    def _unmark(self, row: WorkRow) -> Commit:
        """We live: whoever claims it next must not take its mark for our death."""
        renew = Renew(row.queue, row.identity, row.fence, self.config.lease_s, cause=_cause_before(row) or "")
        return self._commit_release(renew)

    # -- leases

    def _renew_due(self, now: float) -> list[Effect]:
        """Those that are nearly due come along: what is asked for together is one transaction."""
        if not any(now >= held.renew_at for held in self._held.values() if not held.end):
            return []
        soon = now + self.config.lease_s * RENEW_TOGETHER
        return [
            self._renew(token, held, now)
            for token, held in self._held.items()
            if not held.end and held.renew_at <= soon
        ]

    def _renew(self, token: int, held: _Held, now: float) -> Commit:
        held.renew_at = renew_at(now, self.config.lease_s)
        held.asked_until = now + self.config.lease_s
        commit = self._next_token()
        self._renewing[commit] = token
        cause = _mark_of(held.row) if token == self._apart else None
        renew = Renew(held.row.queue, held.row.identity, held.row.fence, self.config.lease_s, cause)
        return Commit((renew,), commit, chain=None)

    def _renew_again(self, commit: int, now: float) -> list[Effect]:
        """The store was busy or away, and the claim may well stand: only `Stale` says that another has the row."""
        held = self._held.get(self._renewing.pop(commit))
        if held is not None:
            held.renew_at = min(held.renew_at, now + self.config.lease_s * RENEW_AGAIN)
        return []

    # -- pausing and closing

    def _pause(self, until: float | None) -> list[Effect]:
        self._paused_until = math.inf if until is None else until
        return self._release_waiting()

    def _resume(self, now: float) -> list[Effect]:
        self._paused_until = None
        return self._claim(now)

    def _release_waiting(self) -> list[Effect]:
        """What nobody has begun is given back, each for itself: that one is lost says nothing of the others."""
        tokens = [*self._waiting, *self._suspects]
        if self._apart is not None and self._apart not in self._with_app:
            tokens.append(self._apart)
        self._waiting, self._suspects = deque(), deque()
        rows = [(token, held.row) for token in tokens if (held := self._held.pop(token, None)) is not None]
        return [self._release(token, row) for token, row in rows]

    def _release(self, token: int, row: WorkRow) -> Commit:
        """One that came from a dead worker is let go as a claim that has run out: that its effect may have happened is
        news for the next one too."""
        cause = _cause_before(row) or "" if token == self._apart else None
        if row.taken_over:
            return self._commit_release(Renew(row.queue, row.identity, row.fence, 0.0, cause))
        ready = Finish(
            row.queue, row.identity, WorkState.READY, fence=row.fence, cause=cause, attempts=Attempts.RELEASE
        )
        return self._commit_release(ready)

    def _commit_release(self, op: Op) -> Commit:
        commit = self._next_token()
        self._releasing.add(commit)
        return Commit((op,), commit, chain=None)


def _is_stale(results: Sequence[object]) -> bool:
    return any(isinstance(result, Stale) for result in results)


def _mark_of(row: WorkRow) -> str:
    before = _cause_before(row)
    return clean_cause(f"{ALONE}{BEFORE}{before}") if before else ALONE


def _died_alone(row: WorkRow) -> bool:
    return row.taken_over and row.cause is not None and row.cause.startswith(ALONE)


def _cause_before(row: WorkRow) -> str | None:
    """What it had failed with before it ran alone."""
    if row.cause is None or not row.cause.startswith(ALONE):
        return row.cause
    return row.cause.removeprefix(ALONE).removeprefix(BEFORE) or None


def _died(row: WorkRow) -> Failure:
    before = _cause_before(row)
    if not before:
        return Failure(f"its worker died {row.attempts - 1} times while it had this message", WORKER_DIED)
    text = f"its worker died while it had this message, at attempt {row.attempts - 1}{BEFORE}{before}"
    return Failure(clean_cause(text), WORKER_DIED)


def _chance(row: WorkRow) -> float:
    """In [0, 1), another one for each row and attempt, and the same whoever asks."""
    return xxh64_intdigest(f"{row.identity} {row.attempts}".encode()) / 2**64


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
        """Whether it has asked for the records after that position and not yet got them."""
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
