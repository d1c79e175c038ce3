"""Known mistakes of the kernel and of the store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import semel.stores.memory
from semel.errors import StoreUnavailable
from semel.kernel.dedup import MonotonicIndex
from semel.kernel.effects import (
    Commit,
    Committed,
    Deliver,
    Effect,
    Event,
    Read,
    ReadDone,
    Send,
)
from semel.kernel.group import CommitGroup, CommitQueue, WaitingCommit
from semel.kernel.hop import Confirm, HopMessage, Receiver, Sender, _delivery
from semel.kernel.interpreter import Interpreter, Seat
from semel.kernel.ops import (
    Advance,
    Append,
    Applied,
    Fresh,
    Log,
    Op,
    Outcome,
    Put,
    Result,
    Stale,
    Unit,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.resend import GaveUp, Resend, Transmit
from semel.kernel.store import Record, Records, Trimmed
from semel.kernel.work import Follower, Worker
from semel.sim.plants.registry import plant
from semel.stores.apply import _Application
from semel.stores.engine import NewWork
from semel.stores.memory import Journal, MemoryEngine, MemoryStore

# -- confirming too early


@plant("ack-before-commit", "a receiver confirms on arrival and commits afterwards", (Receiver, "_commit"))
def _ack_before_commit(
    right: Callable[..., list[Effect]],
    receiver: Receiver,
    ops: tuple[Op, ...],
    confirms: list[tuple[str, str]],
    session: str | None,
) -> list[Effect]:
    return [*(Send(peer, Confirm((id,))) for peer, id in confirms), *right(receiver, ops, confirms, session)]


@plant(
    "duplicate-confirmed-early",
    "a second copy is confirmed although the first one's commit is undecided",
    (Receiver, "_repeat"),
)
def _duplicate_confirmed_early(
    right: Callable[..., Any], receiver: Receiver, name: str, peer: str, message: HopMessage
) -> list[Effect]:
    return [Send(peer, Confirm((message.delivery,)))]


@plant(
    "early-confirmed",
    "a message that waits in the reorder buffer is confirmed at once",
    (Receiver, "_arrived_by_index"),
)
def _early_confirmed(
    right: Callable[..., Sequence[Effect]], receiver: Receiver, name: str, peer: str, message: HopMessage, now: float
) -> Sequence[Effect]:
    index = receiver._sessions[name].index
    waiting = len(index) if not isinstance(index, MonotonicIndex) else 0
    effects = right(receiver, name, peer, message, now)
    if not isinstance(index, MonotonicIndex) and len(index) > waiting:
        return [*effects, Send(peer, Confirm((message.delivery,)))]
    return effects


@plant("commit-not-synced", "a commit is answered before the disk has it", (MemoryStore, "__init__"))
def _commit_not_synced(
    right: Callable[..., None], store: MemoryStore, *, journal: Journal | None = None, **options: Any
) -> None:
    right(store, journal=_Unsynced(journal) if journal is not None else None, **options)


class _Unsynced:
    def __init__(self, journal: Journal) -> None:
        self.frames, self.append = journal.frames, journal.append

    def sync(self) -> None: ...


@plant(
    "unknown-taken-for-failed",
    "a commit whose outcome is unknown is reported as failed",
    (Interpreter, "unknown"),
)
def _unknown_taken_for_failed(right: Callable[..., None], interpreter: Interpreter, group: CommitGroup) -> None:
    interpreter.failed(group, StoreUnavailable("the connection broke", fix="try again"))


# -- telling new from old


@plant("no-dedup", "nothing is recognised as a duplicate by its id", (MemoryEngine, "known"))
def _no_dedup_of_records(right: Callable[..., Any], engine: MemoryEngine, stream: str, ids: Sequence[str]) -> Any:
    return {}


@plant("no-dedup", "nothing is recognised as a duplicate by its id", (MemoryEngine, "add_work"))
def _no_dedup_of_work(right: Callable[..., Any], engine: MemoryEngine, rows: Sequence[NewWork]) -> Any:
    for new in rows:
        engine.data.scopes.pop((new.scope, new.identity), None)
        engine.data.work.pop((new.queue, new.identity), None)
    return right(engine, rows)


@plant(
    "status-in-dedup-key", "a work row is a duplicate only of rows that are not finished", (MemoryEngine, "add_work")
)
def _status_in_dedup_key(right: Callable[..., Any], engine: MemoryEngine, rows: Sequence[NewWork]) -> Any:
    for new in rows:
        row = engine.data.scopes.get((new.scope, new.identity))
        if row is not None and row.state in (WorkState.DONE, WorkState.DEAD):
            del engine.data.scopes[(new.scope, new.identity)]
            engine.data.work.pop((row.queue, row.identity), None)
    return right(engine, rows)


@plant(
    "index-dedup-off-by-one",
    "index dedup asks for < where <= is right, so the last message passes twice",
    (MonotonicIndex, "is_new"),
)
def _index_dedup_off_by_one(right: Callable[..., bool], seen: MonotonicIndex, index: int) -> bool:
    if index < seen.last:
        return False
    seen.last = index
    return True


@plant("session-not-compared", "a receiver writes a session's place without comparing its version", (Receiver, "_put"))
def _session_not_compared(right: Callable[..., Put], receiver: Receiver, *args: Any) -> Put:
    return msgspec.structs.replace(right(receiver, *args), expected=None)


@plant(
    "session-memory-kept",
    "after a failed commit a receiver keeps the memory that ran ahead of the store",
    (Receiver, "_forget"),
)
def _session_memory_kept(right: Callable[..., None], receiver: Receiver, token: int) -> None:
    _, confirms = receiver._pending.pop(token)
    receiver._undecided.difference_update(confirms)


@plant(
    "gap-never-looked-up",
    "a receiver waits for messages that have long passed through another node",
    (Receiver, "_look_again"),
)
def _gap_never_looked_up(right: Callable[..., Any], receiver: Receiver, name: str) -> Sequence[Effect]:
    return ()


# -- resending


@plant("new-id-on-resend", "every attempt gets an id of its own", (Sender, "_message"))
def _new_id_on_resend(right: Callable[..., HopMessage], sender: Sender, transmit: Transmit[Record]) -> HopMessage:
    message = right(sender, transmit)
    if transmit.attempt == 1:
        return message
    envelope = msgspec.structs.replace(message.envelope, id=f"{message.envelope.id}~{transmit.attempt}")
    return msgspec.structs.replace(message, envelope=envelope)


_NEWEST = "newest-confirm-only"
_NEWEST_TEXT = "only the confirm of the newest attempt counts, so a slow link makes no progress"


@plant(_NEWEST, _NEWEST_TEXT, (Sender, "_message"))
def _name_attempt(right: Callable[..., HopMessage], sender: Sender, transmit: Transmit[Record]) -> HopMessage:
    return msgspec.structs.replace(right(sender, transmit), delivery=f"{transmit.id}#{transmit.attempt}")


@plant(_NEWEST, _NEWEST_TEXT, (Sender, "_confirm"))
def _newest_confirm_only(
    right: Callable[..., list[Effect]], sender: Sender, deliveries: Sequence[str], now: float
) -> list[Effect]:
    flights = sender._resend._flights
    named = [delivery.split("#") for delivery in deliveries]
    return right(sender, [id for id, at in named if id in flights and flights[id].attempt == int(at)], now)


_REORDERED = "resend-reordered"
_REORDERED_TEXT = "what times out goes to the end of the queue, and the next one is sent first"


@plant(_REORDERED, _REORDERED_TEXT, (Sender, "_read_more"))
def _read_ahead(right: Callable[..., list[Effect]], sender: Sender) -> list[Effect]:
    room = sender.config.policy.window + 3 - len(sender._order)
    if sender._reading or sender._stopped or room <= 0 or sender.suspended is not None:
        return []
    sender._reading = True
    return [Read(sender.config.stream, sender._read_to, room)]


@plant(_REORDERED, _REORDERED_TEXT, (Resend, "on_timer"))
def _resend_reordered(
    right: Callable[..., list[Transmit[Any] | GaveUp]], resend: Resend[Any], now: float
) -> list[Transmit[Any] | GaveUp]:
    effects = right(resend, now)
    if not resend._queue or resend.suspended is not None:
        return effects
    for effect in effects:
        resend._flights.pop(effect.id)
        resend._queue[effect.id] = effect.item
    return [*resend._fill(now)]


@plant(
    "confirm-over-gap",
    "a cursor advances to the highest confirmed record, over unconfirmed ones",
    (Sender, "_advance"),
)
def _confirm_over_gap(right: Callable[..., list[Effect]], sender: Sender) -> list[Effect]:
    highest = max(sender._confirmed, default=0)
    for record in sender._order:
        if record.position.offset <= highest:
            sender._confirmed.add(record.position.offset)
            sender._resend._flights.pop(_delivery(record), None)
    return right(sender)


# -- order of commits


@plant("k-fails-k1-lands", "after a failed commit the later ones of its chain still land", (CommitQueue, "_cut"))
def _k_fails_k1_lands(right: Callable[..., Any], queue: CommitQueue, broken: set[str]) -> list[WaitingCommit]:
    return []


@plant(
    "push-own-commit",
    "a node delivers what it has just committed itself, before it has read what came before",
    (Interpreter, "committed"),
)
def _push_own_commit(
    right: Callable[..., None], interpreter: Interpreter, group: CommitGroup, outcomes: Sequence[Outcome]
) -> None:
    right(interpreter, group, outcomes)
    for unit, outcome in zip(group.units, outcomes, strict=True):
        if isinstance(outcome, Applied):
            for op, result in zip(unit.ops, outcome.results, strict=True):
                if isinstance(op, Append) and isinstance(result, Fresh):
                    _push(interpreter, Record(result.position, op.envelope, 0))


def _push(interpreter: Interpreter, record: Record) -> None:
    for seat in list(interpreter._seats.values()):
        waiting = [effect for effect in seat.waiting if _wants(effect, record.position)]
        if waiting:
            seat.waiting = [effect for effect in seat.waiting if effect not in waiting]
            interpreter.feed(seat, ReadDone(record.position.stream, (record,)))


def _wants(effect: Read, position: Position) -> bool:
    return effect.stream == position.stream and (effect.after is None or effect.after.offset < position.offset)


@plant(
    "offsets-out-of-order",
    "a later offset becomes visible before an earlier one, as with a bare sequence",
    (MemoryStore, "read"),
)
def _offsets_out_of_order(
    right: Callable[..., Records | Trimmed], store: MemoryStore, *args: Any, **kwargs: Any
) -> Records | Trimmed:
    found = right(store, *args, **kwargs)
    if isinstance(found, Trimmed):
        return found
    late = store._clock() - 100_000
    return Records(tuple(each for each in found.records if each.position.offset % 3 or each.at < late))


@plant(
    "wakeup-lost",
    "a commit that comes while an empty read is under way wakes nobody",
    (Interpreter, "read_done"),
)
def _wakeup_lost(
    right: Callable[..., None], interpreter: Interpreter, seat: Seat, effect: Read, found: Records | Trimmed
) -> None:
    seat.asked[effect] = interpreter._wakes
    right(interpreter, seat, effect, found)


# -- effects and their marks


_BEFORE = "cursor-before-effect"
_BEFORE_TEXT = "a follower saves its cursor before the effect is committed"


@plant(_BEFORE, _BEFORE_TEXT, (Follower, "_next"))
def _cursor_before_effect(right: Callable[..., list[Effect]], follower: Follower) -> list[Effect]:
    effects = right(follower)
    if not any(isinstance(effect, Deliver) for effect in effects):
        return effects
    advance = Advance(follower.config.cursor, follower._queue[0].position)
    return [Commit((advance,), -follower._token), *effects]


@plant(_BEFORE, _BEFORE_TEXT, (Follower, "_commit"))
def _effect_after_cursor(right: Callable[..., list[Effect]], follower: Follower, ops: tuple[Op, ...]) -> list[Effect]:
    commit = right(follower, ops)[0]
    assert isinstance(commit, Commit)
    return [Commit(tuple(op for op in commit.ops if not isinstance(op, Advance)), commit.token)]


@plant(_BEFORE, _BEFORE_TEXT, (Follower, "receive"))
def _ignore_own_cursor(
    right: Callable[..., Sequence[Effect]], follower: Follower, event: Event, now: float
) -> Sequence[Effect]:
    if isinstance(event, Committed) and event.token < 0:
        return ()
    return right(follower, event, now)


@plant("cursor-not-compared", "a follower moves its cursor from wherever it stands", (Follower, "_commit"))
def _cursor_not_compared(right: Callable[..., list[Effect]], follower: Follower, ops: tuple[Op, ...]) -> list[Effect]:
    commit = right(follower, ops)[0]
    assert isinstance(commit, Commit)
    free = tuple(msgspec.structs.replace(op, expected=None) if isinstance(op, Advance) else op for op in commit.ops)
    return [Commit(free, commit.token)]


@plant("ledger-outside-transaction", "a worker writes its ledger event in a commit of its own", (Worker, "_finish"))
def _ledger_outside_transaction(right: Callable[..., list[Effect]], worker: Worker, *args: Any, **kwargs: Any) -> Any:
    effects = right(worker, *args, **kwargs)
    for effect in effects:
        assert isinstance(effect, Commit)
        logs = tuple(op for op in effect.ops if isinstance(op, Log))
        later = worker._next_token()
        worker._renewing[later] = 0
        return [
            Commit(tuple(op for op in effect.ops if not isinstance(op, Log)), effect.token, None),
            Commit(logs, later, None),
        ]
    return effects


@plant(
    "unit-half-applied",
    "of a refused unit, the ops that were not refused themselves are applied",
    (_Application, "_decide"),
)
def _unit_half_applied(right: Callable[..., Any], application: Any, unit: Unit) -> tuple[bool, list[Result]]:
    is_applied, results = right(application, unit)
    if not is_applied:
        for op in unit.ops:
            right(application, Unit((op,)))
    return is_applied, results


# -- leases, fences, claims


@plant("missing-fence", "a write is not checked against the fence of its row", (_Application, "_check_fence"))
def _missing_fence(right: Callable[..., Any], application: Any, queue: str, identity: str, fence: int) -> Stale | None:
    return None if (queue, identity) in application.work else Stale(0)


_OWN_CLOCK = "lease-by-worker-clock"
_OWN_CLOCK_TEXT = "a worker trusts its own clock to know whether its lease still holds, and the store trusts the worker"


@plant(_OWN_CLOCK, _OWN_CLOCK_TEXT, (_Application, "_check_fence"))
def _trust_the_worker(right: Callable[..., Any], *args: Any) -> Stale | None:
    return _missing_fence(right, *args)


@plant(_OWN_CLOCK, _OWN_CLOCK_TEXT, (Worker, "receive"))
def _lease_by_worker_clock(
    right: Callable[..., Sequence[Effect]], worker: Worker, event: Event, now: float
) -> Sequence[Effect]:
    for token, held in list(worker._held.items()):
        if now > held.renew_at + worker.config.lease_s * 2 / 3:
            del worker._held[token]
    return right(worker, event, now)


@plant(
    "fence-reused",
    "the counter of fences begins again whenever nothing is claimed",
    (MemoryEngine, "next_fence"),
    caught_by="contract",
)
def _fence_reused(right: Callable[..., int], engine: MemoryEngine) -> int:
    live = [row.fence for row in engine.data.work.values() if row.state is WorkState.CLAIMED and row.due > engine.now]
    return max(live, default=0) + 1


@plant(
    "key-order-ignored",
    "a row is claimed although an earlier one of its key is open",
    (MemoryEngine, "_keyed_groups"),
)
def _key_order_ignored(right: Callable[..., Any], engine: MemoryEngine, claim: Any) -> Any:
    return [[row] for row in engine._rows(claim.queue) if row.key is not None and engine._is_due(row)]


# -- retention and epochs


@plant("retention-deletes-open", "retention deletes work rows that are still open", (MemoryStore, "_sweep_work"))
def _retention_deletes_open(right: Callable[..., int], store: MemoryStore, now: int, limit: int) -> int:
    data = store._data
    for row in [row for row in data.work.values() if row.state in (WorkState.READY, WorkState.SCHEDULED)]:
        del data.work[(row.queue, row.identity)], data.scopes[(row.scope, row.identity)]
        data.claimable[row.queue].pop(row.seq, None)
    return right(store, now, limit)


@plant("trim-ignores-pins", "a trim goes past cursors that have not read so far", (MemoryEngine, "trim"))
def _trim_ignores_pins(right: Callable[..., int], engine: MemoryEngine, stream: str, before: int) -> int:
    cursors, engine.data.cursors = engine.data.cursors, {}
    try:
        return right(engine, stream, before)
    finally:
        engine.data.cursors = cursors


@plant("trim-skips-silently", "a read below the trim mark goes on at the first record left", (MemoryStore, "read"))
def _trim_skips_silently(
    right: Callable[..., Records | Trimmed],
    store: MemoryStore,
    stream: str,
    after: Position | None = None,
    limit: int = 1000,
) -> Records | Trimmed:
    found = right(store, stream, after, limit)
    if isinstance(found, Trimmed):
        return right(store, stream, Position(stream, found.first.epoch, found.first.offset - 1), limit)
    return found


_EPOCH = "epoch-ignored"
_EPOCH_TEXT = "a restored store goes on in its old epoch, and a reader resumes by its offset alone"


@plant(_EPOCH, _EPOCH_TEXT, (semel.stores.memory, "check_epoch"))
def _epoch_ignored(right: Callable[..., None], after: Position, current: int) -> None: ...


@plant(_EPOCH, _EPOCH_TEXT, (MemoryStore, "_do_raise_epoch"))
def _epoch_kept(right: Callable[..., int], store: MemoryStore, now: int, reason: str) -> int:
    return store._data.epoch
