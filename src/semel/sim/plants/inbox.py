"""Known mistakes of inboxes: most of them were made by others, and have cost messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

import semel.inbox.inline
import semel.inbox.outbox
import semel.inbox.rows
import semel.kernel.work
import semel.runtime.inbox.inline
import semel.runtime.inbox.outbox
from semel.errors import DuplicateMessage, PeerUnavailable, StoreError
from semel.inbox.breaker import Breaker
from semel.inbox.inline import InlineSteps
from semel.inbox.outbox import CANCELLED, OutboxCalls
from semel.inbox.settle import DeliveryEnd, Exit, Settlement, exit_of
from semel.kernel.effects import Effect, OwnTransaction
from semel.kernel.ledger import Kind
from semel.kernel.ops import Claim, Duplicate, Enqueue, Finish, Op, Remember, Unit, WorkRow, WorkState
from semel.kernel.retry import Decision, Failure
from semel.kernel.work import Worker
from semel.runtime.inbox.buffered import Buffer
from semel.runtime.inbox.handling import HandlerRun
from semel.runtime.inbox.outbox import Outbox
from semel.runtime.inbox.policies import EndpointPolicy
from semel.runtime.inbox.relay import Relay
from semel.sim.plants.registry import plant
from semel.stores.apply import _Application
from semel.stores.engine import Move, NewWork
from semel.stores.memory import MemoryEngine

# -- the mark that a message is handled


@plant(
    "inbox-placeholder-committed-first",
    "the placeholder is committed before the handler runs, so that what fails is never tried again",
    (HandlerRun, "_apply_first"),
    caught_by="inbox",
)
def _placeholder_committed_first(right: Callable[..., None], run: HandlerRun, transaction: Any) -> None:
    if run.before:
        [outcome] = run.context.store.commit([Unit(run.before)])
        if any(isinstance(result, Duplicate) for result in outcome.results):
            raise DuplicateMessage("it was here before", fix="acknowledge it")


@plant(
    "inbox-flag-before-commit",
    "a message counts as handled although the commit of its handler has failed",
    (HandlerRun, "in_thread"),
    caught_by="inbox",
)
def _flag_before_commit(right: Callable[..., Any], run: HandlerRun) -> Any:
    try:
        return right(run)
    except StoreError:
        return OwnTransaction.FINISHED


@plant(
    "inbox-mark-by-id-alone",
    "who marks a message as handled marks the rows of all endpoints under its id",
    (MemoryEngine, "move_work"),
    caught_by="inbox",
)
def _mark_by_id_alone(right: Callable[..., None], engine: MemoryEngine, moves: Sequence[Move]) -> None:
    right(engine, moves)
    for move in moves:
        others = [key for key in engine.data.work if key[1] == move.identity and key[0] != move.queue]
        if move.state is WorkState.DONE and move.queue.startswith("inbox/"):
            right(engine, [replace(move, queue=queue) for queue, _ in others])


@plant(
    "inbox-keep-forgotten",
    "a finished row has no time until which it is kept, and stays for ever",
    (_Application, "_keep_until"),
    caught_by="inbox",
)
def _keep_forgotten(right: Callable[..., Any], application: _Application, keep_s: float | None) -> None:
    return None


@plant(
    "inbox-dead-letters-swept",
    "a dead letter is forgotten after a week like anything that is done",
    (_Application, "_keep_until"),
    caught_by="inbox",
)
def _dead_letters_swept(right: Callable[..., Any], application: _Application, keep_s: float | None) -> Any:
    return right(application, 7 * 24 * 3600.0 if keep_s is None else keep_s)


# -- acknowledging


@plant(
    "inbox-store-trouble-is-duplicate",
    "any trouble of the store is taken for a duplicate, and the delivery is acknowledged",
    (InlineSteps, "_settled"),
    caught_by="inbox",
)
def _store_trouble_is_duplicate(right: Callable[..., Settlement], steps: InlineSteps, exit: Exit) -> Settlement:
    trouble = (Exit.STORE_DOWN, Exit.IN_DOUBT, Exit.DUPLICATE_OPEN)
    return right(steps, Exit.DUPLICATE_HANDLED if exit in trouble else exit)


@plant(
    "inbox-acked-before-kept",
    "a message that is given up or scheduled is acknowledged before it is stored",
    (InlineSteps, "_keep_new"),
    caught_by="inbox",
)
def _acked_before_kept(
    right: Callable[..., Any], steps: InlineSteps, decision: Decision, cause: str, *more: Any
) -> Generator[Any, Any, Exit]:
    yield from ()
    return exit_of(decision)


@plant(
    "inbox-discard-leaves-row",
    "a message that is discarded is acknowledged, and its row stays open",
    (InlineSteps, "_give_up"),
    caught_by="inbox",
)
def _discard_leaves_row(
    right: Callable[..., Any], steps: InlineSteps, row: WorkRow, decision: Decision, cause: str
) -> Generator[Any, Any, Exit]:
    if (exit := exit_of(decision)) is Exit.DISCARD:
        return exit
    answer: Exit = yield from right(steps, row, decision, cause)
    return answer


# -- moves of a row


@plant(
    "inbox-reschedule-is-insert",
    "a reserved message that is kept goes in as a new row, which its own row refuses",
    (InlineSteps, "_take_body"),
    caught_by="inbox",
)
def _reschedule_is_insert(
    right: Callable[..., Any], steps: InlineSteps, row: WorkRow
) -> Generator[Any, Any, WorkRow | None]:
    yield semel.inbox.inline.CommitOps((steps.enqueue,))
    return row


@plant(
    "inbox-requeue-through-dedup",
    "a message that is tried again is received again, as a duplicate of itself",
    (Worker, "_finish"),
    caught_by="inbox",
)
def _requeue_through_dedup(
    right: Callable[..., list[Effect]], worker: Worker, token: int, to: WorkState, kind: Kind, **more: Any
) -> list[Effect]:
    if to is not WorkState.SCHEDULED or not worker.config.queue.startswith("inbox/"):
        return right(worker, token, to, kind, **more)
    row = worker._held[token].row
    again: tuple[Op, ...] = (Enqueue(row.queue, row.identity, row.envelope, key=row.key),)
    return right(worker, token, WorkState.DONE, kind, ops=again, cause=more.get("cause"))


@plant(
    "inbox-row-unclaimable",
    "a message is stored in a state in which no worker looks for it",
    (_Application, "_new_work"),
    caught_by="inbox",
)
def _row_unclaimable(right: Callable[..., NewWork], application: _Application, op: Enqueue | Remember) -> NewWork:
    new = right(application, op)
    if new.queue != "inbox/parcels" or new.state is not WorkState.READY:
        return new
    return replace(new, state=WorkState.DEFERRED)


@plant(
    "inbox-retry-loses-turn",
    "a message that is tried again lets those of its key behind it go first",
    (_Application, "_finish_move"),
    caught_by="inbox",
)
def _retry_loses_turn(
    right: Callable[..., Move], application: _Application, op: Finish, row: Any, attempts: int
) -> Move:
    return right(application, msgspec.structs.replace(op, passes=op.to is WorkState.SCHEDULED), row, attempts)


@plant(
    "inbox-head-never-blocks",
    "a dead letter lets its key go on although the endpoint says that it blocks",
    (_Application, "_finish_move"),
    caught_by="inbox",
)
def _head_never_blocks(
    right: Callable[..., Move], application: _Application, op: Finish, row: Any, attempts: int
) -> Move:
    return right(application, msgspec.structs.replace(op, holds=False), row, attempts)


# -- claims


@plant(
    "inbox-claim-without-lease",
    "a row that somebody has just taken may be taken by the next one, as if nobody had it",
    (MemoryEngine, "claim"),
    caught_by="inbox",
)
def _claim_without_lease(right: Callable[..., Any], engine: MemoryEngine, claim: Claim, fence: int) -> Any:
    rows = right(engine, msgspec.structs.replace(claim, lease_s=0.0), fence)
    return [replace(row, taken_over=False) for row in rows]


@plant(
    "inbox-ambiguous-runs",
    "a claim that ran out is handled again although the endpoint says drop or park",
    (semel.inbox.rows, "is_ambiguous"),
    (semel.inbox.inline, "is_ambiguous"),
    caught_by="inbox",
)
def _ambiguous_runs(right: Callable[..., bool], row: WorkRow) -> bool:
    return False


@plant(
    "inbox-parked-runs-again",
    "a redelivery runs a message that was put aside for a human",
    (InlineSteps, "_claim_op"),
    caught_by="inbox",
)
def _parked_runs_again(right: Callable[..., Claim], steps: InlineSteps) -> Claim:
    return msgspec.structs.replace(right(steps), parked=True)


@plant(
    "inbox-poison-blames-neighbours",
    "whatever a worker had when it died counts as what killed it, and is given up",
    (semel.kernel.work, "_died_alone"),
    caught_by="inbox",
)
def _poison_blames_neighbours(right: Callable[..., bool], row: WorkRow) -> bool:
    return row.taken_over


@plant(
    "inbox-poison-for-ever",
    "a message that kills its process is handed out again for ever",
    (EndpointPolicy, "last_attempt"),
    caught_by="inbox",
)
def _poison_for_ever(right: Callable[..., Any], policy: EndpointPolicy, row: WorkRow) -> None:
    return None


@plant(
    "inbox-failure-stops-worker",
    "a message that fails stops its worker, and with it all the others",
    (Worker, "_try_again"),
    caught_by="inbox",
)
def _failure_stops_worker(
    right: Callable[..., list[Effect]], worker: Worker, token: int, failure: Failure, now: float
) -> list[Effect]:
    return [*right(worker, token, failure, now), *worker._pause(None)]


# -- what goes out


@plant(
    "inbox-outgoing-ids-minted",
    "a handler that runs again sends its messages under new ids",
    (OutboxCalls, "_derived"),
    caught_by="inbox",
)
def _outgoing_ids_minted(right: Callable[..., str], calls: OutboxCalls) -> str:
    return f"{right(calls)}.{next(_MINTED)}"


_MINTED = itertools.count()


@plant(
    "inbox-scheduled-on-two-paths",
    "a message for later is also sent at once, from memory",
    (OutboxCalls, "schedule"),
    caught_by="inbox",
)
def _scheduled_on_two_paths(
    right: Callable[..., str], calls: OutboxCalls, message: object, to: Any, **more: Any
) -> str:
    id = right(calls, message, to, **more)
    if calls.handled is not None:
        calls.publish(message, to)
    return id


@plant(
    "inbox-relay-takes-silence-for-yes",
    "the relay ends a row although its receiver did not say that it has the message",
    (Relay, "deliver"),
    caught_by="inbox",
)
async def _relay_takes_silence_for_yes(right: Callable[..., Any], relay: Relay, row: Any) -> Any:
    try:
        return await right(relay, row)
    except PeerUnavailable:
        return ()


# -- what is taken back, and what is sent by the clock


@plant(
    "inbox-cancel-also-sends",
    "a message that is being sent can still be taken back, and the receiver has it all the same",
    (_Application, "_decide_finish"),
    caught_by="inbox",
)
def _cancel_also_sends(right: Callable[..., Any], application: _Application, op: Finish) -> Any:
    row = application.work.get((op.queue, op.identity))
    if op.cause == CANCELLED and row is not None and row.state is WorkState.CLAIMED:
        op = msgspec.structs.replace(op, fence=row.fence)
    return right(application, op)


@plant(
    "inbox-cancel-in-words-only",
    "a cancel is written into the ledger, and the message stays where it is",
    (Outbox, "cancels"),
    caught_by="inbox",
)
def _cancel_in_words_only(right: Any, outbox: Outbox) -> tuple[tuple[Op, ...], ...]:
    return tuple((told,) for _, told in right.fget(outbox))


@plant(
    "inbox-cancel-too-late-fails",
    "a cancel that comes too late is an error, and takes the handler's own writes with it",
    (semel.runtime.inbox.outbox, "apply_cancels"),
    caught_by="inbox",
)
def _cancel_too_late_fails(right: Callable[..., None], tx: Any, outbox: Outbox) -> None:
    for cancel in outbox.cancels:
        tx.apply(cancel)


@plant(
    "inbox-periodic-per-process",
    "every process sends a periodic message under an id of its own",
    (semel.inbox.outbox, "periodic_id"),
    caught_by="inbox",
)
def _periodic_per_process(right: Callable[..., str], name: str, due: int) -> str:
    return f"{right(name, due)}.{next(_MINTED)}"


# -- the circuit breaker


@plant(
    "inbox-breaker-drops",
    "what a worker has claimed when the breaker opens is ended, as if somebody would bring it again",
    (Worker, "_release_waiting"),
    caught_by="inbox",
)
def _breaker_drops(right: Callable[..., list[Effect]], worker: Worker) -> list[Effect]:
    if worker.config.gate is None:
        return right(worker)
    waiting = [token for token in worker._waiting if token in worker._held]
    worker._waiting.clear()
    dropped = [effect for token in waiting for effect in worker._finish(token, WorkState.DONE, Kind.HANDLED)]
    return [*dropped, *right(worker)]


@plant(
    "inbox-breaker-refuses-with-ack",
    "a delivery that comes while the breaker is open is acknowledged and not kept",
    (semel.runtime.inbox.inline, "not_now"),
    caught_by="inbox",
)
def _breaker_refuses_with_ack(right: Callable[..., Settlement]) -> Settlement:
    return replace(right(), delivery=DeliveryEnd.ACK, again=False)


@plant(
    "inbox-breaker-lets-all-in",
    "an open breaker lets messages through",
    (Breaker, "room"),
    caught_by="inbox",
)
def _breaker_lets_all_in(right: Callable[..., int], breaker: Breaker, now: float, asked: int) -> int:
    return asked


@plant(
    "inbox-breaker-waits-for-ever",
    "a message that was tried and said nothing, a duplicate say, keeps the breaker waiting for ever",
    (Breaker, "released"),
    caught_by="inbox",
)
def _breaker_waits_for_ever(right: Callable[..., None], breaker: Breaker, turn: int) -> None:
    return None


# -- in memory


@plant(
    "inbox-buffer-counts-as-durable",
    "what a buffered endpoint cannot handle now is let go, as if it were stored",
    (InlineSteps, "_settled"),
    caught_by="inbox",
)
def _buffer_counts_as_durable(right: Callable[..., Settlement], steps: InlineSteps, exit: Exit) -> Settlement:
    return replace(right(steps, exit), again=False)


@plant(
    "inbox-buffer-unmarked-again",
    "a message that is tried again from memory is not looked up, and its effect happens again",
    (Buffer, "put_back"),
    caught_by="inbox",
)
def _tried_before(right: Callable[..., None], buffer: Buffer, item: Any) -> None:
    item.tries.count += 1
    right(buffer, item)


@plant(
    "inbox-buffer-unmarked-again",
    "a message that is tried again from memory is not looked up, and its effect happens again",
    (InlineSteps, "_run_in_transaction"),
    caught_by="inbox",
)
def _buffer_unmarked_again(right: Callable[..., Any], steps: InlineSteps, *more: Any) -> Any:
    return semel.inbox.inline.RunHandler() if steps.tries else right(steps, *more)
