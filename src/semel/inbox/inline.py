"""One delivery at an inline or buffered endpoint, as steps that a driver takes: every decision, and nothing that takes
time.

    style        a duplicate                                       a crash in the middle
    eager        never reaches the handler                         rolls back: the broker delivers again
    optimistic   runs, and is rolled back                          rolls back
    reserved     never reaches the handler                         leaves a claim: `on_crash` says what it means
    none         runs again                                        may have had its effect

A driver sends the answer of each step, or throws what went wrong, into the generator; what that returns is how the
delivery is settled. Whoever is asked to give a delivery back must not acknowledge it.

A message that is kept (scheduled, dead, parked) gets a row with its body before it is acknowledged. A reservation has
none, so the body is put in first, in a commit that claims the row again: whoever dies between the two commits leaves a
claim that runs out, and never a letter without its text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from xxhash import xxh64_intdigest

from semel.errors import CommitInDoubt, DuplicateMessage, MessageRefused, StaleFence, StoreBusy, StoreError
from semel.inbox.endpoint import EndpointOptions, FailedHead, OnCrash, Style
from semel.inbox.failure import FailureRules
from semel.inbox.identity import Identity
from semel.inbox.reservation import DIED, is_ambiguous, is_reservation, reservation_of
from semel.inbox.rows import done_row, end_row
from semel.inbox.settle import Exit, Settlement, exit_of, settle
from semel.kernel.effects import OwnTransaction
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind, message_event
from semel.kernel.ops import (
    Attempts,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Log,
    Op,
    Remember,
    Renew,
    Result,
    WorkRow,
    WorkState,
)
from semel.kernel.retry import Again, Decision, Enough, Failure, PauseThen
from semel.kernel.work import WORKER_DIED

# -- what a driver does


@dataclass(frozen=True, slots=True)
class CommitOps:
    """Commit one unit. Answer its results; throw StaleFence when it is refused, or another StoreError. `stores_body`:
    it gives a reservation its body."""

    ops: tuple[Op, ...]
    stores_body: bool = False


@dataclass(frozen=True, slots=True)
class RunHandler:
    """Run the handler with these marks in its transaction. Answer what is left to be committed, or how its own
    transaction ended; throw what it raised, or DuplicateMessage. A `claim` is renewed for as long as that takes."""

    before: tuple[Op, ...] = ()
    mark: tuple[Op, ...] = ()
    claim: WorkRow | None = None


@dataclass(frozen=True, slots=True)
class StoreBody:
    """Store the message with its body, if it is new, to be handled `after_s` from now. Answer the store's result.
    Not `keyed`: its key cannot be made."""

    after_s: float | None = None
    keyed: bool = True


@dataclass(frozen=True, slots=True)
class WaitFor:
    seconds: float


@dataclass(frozen=True, slots=True)
class PauseEndpoint:
    """Let the endpoint take nothing for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class MarkLater:
    """Write these once the store is back. Nobody waits for it."""

    ops: tuple[Op, ...]


Step = CommitOps | RunHandler | StoreBody | WaitFor | PauseEndpoint | MarkLater
Steps = Generator[Step, Any, Settlement]

KEEPING_S = 30.0
"""Between being stored and being put aside a row is due after so long: no worker takes it in between, and should the
process die there it is handled then, and fails again if it must."""


# -- the delivery


@dataclass(frozen=True, slots=True)
class InlineSteps:
    """`style` and `rules` are those of its handler; None if no handler knows the type. `enqueue` is the write that
    would store the message with its body. `tries` of its handler were made from memory before. `refused` says why no
    handler may have it: its key cannot be made, say."""

    options: EndpointOptions
    style: Style | None
    rules: FailureRules
    who: Identity
    envelope: Envelope
    enqueue: Enqueue
    owner: str
    failure_of: Callable[[Exception], Failure]
    is_expired: bool = False
    tries: int = 0
    refused: Exception | None = None

    def run(self) -> Steps:
        try:
            if self.is_expired:
                return (yield from self._expire())
            if self.style is None or self.refused is not None:
                return (yield from self._refuse())
            exit = yield from self._reserved() if self.style is Style.RESERVED else self._in_transaction(self.style)
        except StoreBusy:
            exit = Exit.DUPLICATE_OPEN
        except CommitInDoubt:
            exit = Exit.IN_DOUBT
        except StoreError:
            exit = Exit.STORE_DOWN
        return self._settled(exit)

    def _settled(self, exit: Exit) -> Settlement:
        return settle(self.options.mode, self.style or Style.NONE, exit)

    def _expire(self) -> Steps:
        """It is not handled when it comes again. Where nothing is checked nothing is remembered."""
        if self.style not in (None, Style.NONE):
            yield CommitOps((self._remember(Kind.EXPIRED, "it came too late"),))
        return self._settled(Exit.EXPIRED)

    def _refuse(self) -> Steps:
        error = self.refused or MessageRefused(
            f"no handler at {self.options.name!r} knows messages of type {self.envelope.type!r}",
            fix="add a handler for it, then replay the dead letter",
        )
        exit = yield from self._keep_new(Enough("dead_letter"), self.failure_of(error).text)
        return self._settled(exit)

    # -- eager, optimistic, none

    def _in_transaction(self, style: Style) -> Generator[Step, Any, Exit]:
        """Retries happen here: the broker waits meanwhile."""
        attempt, failed = self.tries + 1, _NONE_FAILED
        while True:
            try:
                left = yield self._run_in_transaction(style, attempt, failed)
                if isinstance(left, tuple) and left:
                    yield CommitOps(left)
                return Exit.OK
            except DuplicateMessage:
                return Exit.DUPLICATE_HANDLED
            except StoreError:
                raise
            except Exception as error:
                failure = self.failure_of(error)
            decision = yield from self._decide(failure, attempt)
            if not isinstance(decision, Again) or decision.passes:
                return (yield from self._give_up_new(style, decision, failure.text, attempt, failed))
            failed = (*failed, self._event(Kind.FAILED, attempt, failure.text))
            yield WaitFor(decision.at)
            attempt += 1

    def _event(self, kind: Kind, attempt: int, cause: str | None) -> Event:
        return message_event(kind, self.options.hop, "", self.envelope, attempt=attempt, cause=cause)

    def _run_in_transaction(self, style: Style, attempt: int, failed: tuple[Event, ...]) -> RunHandler:
        mark = (self._remember(Kind.HANDLED, None, attempt, failed),)
        return RunHandler(before=mark if style is Style.EAGER else (), mark=mark if style is Style.OPTIMISTIC else ())

    def _remember(self, kind: Kind, cause: str | None, attempt: int = 1, failed: tuple[Event, ...] = ()) -> Remember:
        """Nothing was stored before, so the attempts that failed are told with the end."""
        return Remember(
            self.who.queue,
            self.who.identity,
            scope=_scope(self.who),
            keep_s=self.options.keep_s,
            on_fresh=(self._event(Kind.ACCEPTED, 1, None), *failed, self._event(kind, attempt, cause)),
            on_duplicate=self._event(Kind.DUPLICATE, 1, None),
        )

    def _give_up_new(
        self, style: Style, decision: Decision, cause: str, attempt: int, failed: tuple[Event, ...]
    ) -> Generator[Step, Any, Exit]:
        """The handler's transaction is rolled back, and with it the mark: there is no row."""
        exit = exit_of(decision)
        if exit is Exit.DISCARD and style is not Style.NONE:
            yield CommitOps((self._remember(Kind.DISCARDED, cause, attempt, failed),))
        elif exit in (Exit.SCHEDULE, Exit.DEAD_LETTER, Exit.PARK):
            return (yield from self._keep_new(decision, cause, attempt, failed))
        return exit

    def _keep_new(
        self, decision: Decision, cause: str, attempt: int = 1, failed: tuple[Event, ...] = ()
    ) -> Generator[Step, Any, Exit]:
        """Stored with its body, then put where it belongs. Should we die between, it is handled like any that is
        stored; should a worker have it already, it decides."""
        exit = exit_of(decision)
        first = yield StoreBody(_wait_s(decision) if exit is Exit.SCHEDULE else KEEPING_S, self.refused is None)
        if isinstance(first, Duplicate):
            return Exit.DUPLICATE_HANDLED
        if exit is not Exit.SCHEDULE:
            to, kind = _KEPT[exit]
            keep_s = None if to is WorkState.DEAD else self.options.keep_s
            finish = Finish(
                self.who.queue, self.who.identity, to, keep_s=keep_s, cause=cause, holds=_holds(decision),
                was=WorkState.SCHEDULED,
            )  # fmt: skip
            try:
                yield CommitOps((finish, *map(Log, failed), Log(self._event(kind, attempt, cause))))
            except StaleFence:
                return Exit.DUPLICATE_HANDLED
        else:
            yield CommitOps(tuple(map(Log, (*failed, self._event(Kind.FAILED, attempt, cause)))))
        return exit

    # -- reserved: a committed claim, the effect, the mark

    def _reserved(self) -> Generator[Step, Any, Exit]:
        row, first = yield from self._claim()
        if row is None:
            return Exit.DUPLICATE_OPEN if _is_claimed(first) else Exit.DUPLICATE_HANDLED
        if is_ambiguous(row) and self.options.on_crash is not OnCrash.RETRY:
            return (yield from self._ambiguous(row))
        if row.attempts > self.rules.attempts_max:
            text = f"its worker died {row.attempts - 1} times while it had this message"
            decision = yield from self._decide(Failure(text, WORKER_DIED), row.attempts - 1)
            return (yield from self._give_up(row, decision, text))
        return (yield from self._attempts(row))

    def _claim(self) -> Generator[Step, Any, tuple[WorkRow | None, Result]]:
        """The row has no body: the broker has it, and delivers it again if we die."""
        enqueue = msgspec.structs.replace(self.enqueue, envelope=reservation_of(self.envelope), key=None, due=None)
        first, claimed = yield CommitOps((enqueue, self._claim_op()))
        assert isinstance(claimed, Claimed), "a claim answers with rows"
        return (claimed.rows[0] if claimed.rows else None), first

    def _claim_op(self) -> Claim:
        """Not one that is parked: whoever claimed it and died would leave it to a worker, which runs it."""
        return Claim(self.who.queue, self.owner, lease_s=self.options.lease_s, identity=self.who.identity, parked=False)

    def _attempts(self, row: WorkRow) -> Generator[Step, Any, Exit]:
        """The claim stays between attempts and keeps others away."""
        attempt = row.attempts
        while True:
            try:
                row = replace(row, attempts=attempt)
                left = yield RunHandler(mark=done_row(self.options, row, self.envelope), claim=row)
                if left is OwnTransaction.LOST:
                    return Exit.DUPLICATE_OPEN
                if isinstance(left, tuple):
                    yield from self._mark(row, left)
                return Exit.OK
            except StoreError as error:
                # what happened outside nobody knows; where that means to try again, the next delivery need not wait
                if self.options.on_crash is OnCrash.RETRY:
                    yield from self._release(row, self.failure_of(error).text)
                raise
            except Exception as error:
                failure = self.failure_of(error)
            decision = yield from self._decide(failure, attempt)
            if not isinstance(decision, Again) or decision.passes:
                return (yield from self._give_up(replace(row, attempts=attempt), decision, failure.text))
            yield WaitFor(decision.at)
            try:
                renew = Renew(row.queue, row.identity, row.fence, self.options.lease_s)
                yield CommitOps((renew, Log(self._event(Kind.FAILED, attempt, failure.text))))
            except StaleFence:
                return Exit.DUPLICATE_OPEN
            attempt += 1

    def _mark(self, row: WorkRow, left: tuple[Op, ...]) -> Generator[Step, Any, None]:
        """The effect has happened: a mark that cannot be written now fails nothing and is written later."""
        ops = (*done_row(self.options, row, self.envelope), *left)
        try:
            yield CommitOps(ops)
        except StaleFence:
            return  # it was handled for longer than its lease, and whoever has it now decides
        except StoreError:
            yield MarkLater(ops)

    def _release(self, row: WorkRow, cause: str) -> Generator[Step, Any, None]:
        """When this fails, the claim runs out."""
        to = WorkState.DEFERRED if is_reservation(row.envelope) else WorkState.READY
        finish = Finish(row.queue, row.identity, to, fence=row.fence, cause=cause, attempts=Attempts.RELEASE)
        try:
            yield CommitOps((finish,))
        except StoreError:
            return

    def _blocks(self) -> bool:
        return self.options.failed_head is FailedHead.BLOCKS

    def _ambiguous(self, row: WorkRow) -> Generator[Step, Any, Exit]:
        """Whoever had it died, and its effect may have happened."""
        drops = self.options.on_crash is OnCrash.DROP
        decision = Enough("discard") if drops else Enough("park", holds=self._blocks())
        return (yield from self._give_up(row, decision, DIED))

    def _give_up(self, row: WorkRow, decision: Decision, cause: str) -> Generator[Step, Any, Exit]:
        exit = exit_of(decision)
        if exit is Exit.DISCARD:
            yield CommitOps(end_row(self.options, row, self.envelope, WorkState.DONE, Kind.DISCARDED, cause=cause))
        elif exit is Exit.REQUEUE:
            # only its identity finds it while the body is with the broker, which delivers it again; one that was kept
            # with its body may have been acked before, and a worker goes on with it
            to = WorkState.DEFERRED if is_reservation(row.envelope) else WorkState.READY
            yield CommitOps(end_row(self.options, row, self.envelope, to, Kind.FAILED, cause=cause))
        else:
            kept = yield from self._take_body(row)
            if kept is None:
                return Exit.DUPLICATE_OPEN
            yield CommitOps(self._kept(replace(kept, attempts=row.attempts), decision, cause))
        return exit

    def _take_body(self, row: WorkRow) -> Generator[Step, Any, WorkRow | None]:
        """Under the fence that we have: opened, given its body, and claimed again, all in one commit."""
        opened = Finish(row.queue, row.identity, WorkState.READY, fence=row.fence, attempts=Attempts.RELEASE)
        body = msgspec.structs.replace(self.enqueue, replace=True, due=None, on_fresh=None, on_duplicate=None)
        try:
            *_, claimed = yield CommitOps((opened, body, self._claim_op()), stores_body=True)
        except StaleFence:
            return None
        assert isinstance(claimed, Claimed), "a claim answers with rows"
        return claimed.rows[0] if claimed.rows else None

    def _kept(self, row: WorkRow, decision: Decision, cause: str) -> tuple[Op, ...]:
        exit = exit_of(decision)
        if exit is Exit.SCHEDULE:
            again = Finish(
                row.queue, row.identity, WorkState.SCHEDULED, fence=row.fence, delay_s=_wait_s(decision), cause=cause,
                passes=True,
            )  # fmt: skip
            return again, Log(self._event(Kind.FAILED, row.attempts, cause))
        to, kind = _KEPT[exit]
        return end_row(self.options, row, self.envelope, to, kind, cause=cause, holds=_holds(decision))

    def _decide(self, failure: Failure, attempt: int) -> Generator[Step, Any, Decision]:
        """As if it were at time 0: when to try again is then how long to wait."""
        chance = xxh64_intdigest(f"{self.who.identity} {attempt}".encode()) / 2**64
        decision = self.rules.decide(failure, attempt, 0.0, chance)
        if isinstance(decision, PauseThen):
            yield PauseEndpoint(decision.for_s)
            return decision.then
        return decision


_NONE_FAILED: tuple[Event, ...] = ()
_KEPT = {
    Exit.DEAD_LETTER: (WorkState.DEAD, Kind.DEAD_LETTERED),
    Exit.PARK: (WorkState.PARKED, Kind.SUSPENDED),
}


def _scope(who: Identity) -> str | None:
    return who.scope if who.scope != who.queue else None


def _wait_s(decision: Decision) -> float:
    assert isinstance(decision, Again), "only a retry has a time"
    return decision.at


def _holds(decision: Decision) -> bool:
    return isinstance(decision, Enough) and decision.holds


def _is_claimed(first: Result) -> bool:
    """Somebody is handling it, and an ack would lose it should they fail. Any other row has its body, or is done."""
    return isinstance(first, Duplicate) and first.state is WorkState.CLAIMED
