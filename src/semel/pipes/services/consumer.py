"""The reading client of the storage pipe: pulls on from where it has come to, and hands over one message at a time.

The index moves when a message has been handled, never before and never past one that failed: after an error the
consumer reads again from where it stands. Saving the index is a request like any other, sent until it is confirmed.

    volatile   the index service says where to go on; what was handled and not yet saved is handled again. A message
               whose handler writes nothing is counted in `meter`, and in the ledger with the next report
    durable    the handler's writes and the place are one commit in the consumer's own store; that is exactly once, and
               the index service is only informed
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from semel.errors import ConfigError, SemelError
from semel.kernel.dedup import IdWindow
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
    Load,
    Loaded,
    LoadFailed,
    Notify,
    PeerConnected,
    Received,
    Resume,
    Send,
)
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Advanced, Conflict, Log, Op, Put, Result, Stale
from semel.kernel.position import Position
from semel.kernel.resend import GaveUp, Resend, Transmit
from semel.kernel.retry import Again, RetryPolicy
from semel.kernel.store import Record
from semel.kernel.text import clean_cause
from semel.pipes.services.storage import (
    BUSY,
    LOAD_AGAIN_S,
    NO_STREAM,
    TRIMMED,
    GetIndex,
    IndexIs,
    Pull,
    Pulled,
    ReadPlace,
    SaveIndex,
    StorageRefused,
    decode_place,
    is_refusal,
    until_answered,
)
from semel.pipes.workers.meter import HopMeter, Reports


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """`client` is the name under which the index is kept, so a restarted consumer goes on where it was.

    `poison`: what becomes of a message that fails through all of `retry`. To wait stops the consumer until an operator
    resumes it; to skip records it in the ledger first. `trimmed`: whether to stop, or go on, when records are gone that
    were never read; either way people are notified. `report_s`: how often the counts of what has no ledger event of its
    own are written to the ledger; None: never.
    """

    name: str
    service: str
    stream: str
    client: str
    pipeline: str = ""
    durable: bool = False
    limit: int = 10
    wait_s: float = 5.0
    timeout_s: float = 5.0
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(interval_s=1.0, factor=2.0, interval_max_s=60.0))
    poison: Literal["wait", "skip"] = "wait"
    trimmed: Literal["stop", "skip"] = "stop"
    dedup_size: int = 10_000
    dedup_keep_s: float = 3600.0
    seed: int = 0
    report_s: float | None = 1.0

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ConfigError(f"limit is {self.limit}", fix="pull one message at a time or more")

    @property
    def key(self) -> str:
        return f"consume/{self.name}/{self.stream}"

    @property
    def hop(self) -> str:
        return f"{self.stream}>{self.name}"


class Consumer:
    """`run` names this life of the consumer and is never used twice: its request ids begin with it."""

    def __init__(self, config: ConsumerConfig, run: str) -> None:
        self.name = config.name
        self.config = config
        self.meter = HopMeter(config.hop, config.pipeline, config.stream, config.service)
        self._reports = Reports([self.meter], config.report_s)
        self._run = run
        self._last = 0
        self._place: ReadPlace | None = None
        self._version = 0
        self._saved = ReadPlace()
        self._saving: tuple[str, ReadPlace] | None = None
        self._asks: Resend[GetIndex | SaveIndex] = Resend(until_answered(config.timeout_s), seed=config.seed)
        self._pulls: Resend[Pull] = Resend(until_answered(config.wait_s + config.timeout_s), seed=config.seed)
        self._queue: deque[Record] = deque()
        self._seen = IdWindow(config.dedup_size, config.dedup_keep_s)
        self._token = 0
        self._busy = False
        self._attempt = 1
        self._failing: ReadPlace | None = None
        self._going: tuple[ReadPlace, Kind] = ReadPlace(), Kind.HANDLED
        self._put_at: int | None = None
        self._again_at: float | None = None
        self._suspended = False
        self._stopped = False

    @property
    def place(self) -> ReadPlace | None:
        """Everything up to here is handled; None until the consumer knows."""
        return self._place

    @property
    def saved(self) -> ReadPlace:
        """What the index service has confirmed."""
        return self._saved

    @property
    def is_suspended(self) -> bool:
        return self._suspended

    def start(self, now: float) -> Sequence[Effect]:
        if self.config.durable:
            return [Load(self.config.key)]
        return self._ask(GetIndex(self._next_request(), self.config.client, self.config.stream), now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        if self._stopped:
            return ()
        effects = self._receive(event, now)
        self._reports.look(now)
        return effects

    def _receive(self, event: Event, now: float) -> Sequence[Effect]:
        service = self.config.service
        match event:
            case Received(peer=peer, message=Pulled() as pulled) if peer == service:
                return self._pulled(pulled, now)
            case Received(peer=peer, message=IndexIs() as index) if peer == service:
                return self._index_is(index, now)
            case Received(peer=peer, message=StorageRefused() as refused) if peer == service:
                return self._refused(refused, now)
            case Delivered(token=token, ops=ops) if self._busy and token == self._token:
                return self._handled(ops, now)
            case DeliverFailed(token=token, error=error) if self._busy and token == self._token:
                return self._failed(error, now)
            case Committed(token=token, results=results) if self._busy and token == self._token:
                return self._committed(results, now)
            case CommitFailed(token=token, results=results, error=failure) if self._busy and token == self._token:
                return self._not_committed(results, failure, now)
            case CommitUnknown(token=token) if self._busy and token == self._token:
                return self._not_committed((), None, now)
            case Loaded(key=key, state=state) if key == self.config.key and self._place is None:
                self._version = state.version if state is not None else 0
                return self._begin(decode_place(state), now)
            case LoadFailed(key=key) if key == self.config.key:
                self._again_at = now + LOAD_AGAIN_S
            case PeerConnected(peer=peer) if peer == service:
                return self._sends([*self._asks.resend_all(now), *self._pulls.resend_all(now)])
            case Resume() if self._suspended:
                self._suspended, self._attempt = False, 1
                return self._go_on(now)
            case Committed(token=token):
                self._reports.written(token)
            case CommitFailed(token=token) | CommitUnknown(token=token):
                self._reports.not_written(token)
        return ()

    def next_deadline(self) -> float | None:
        deadlines = (self._asks.next_deadline(), self._pulls.next_deadline(), self._again_at, self._reports.at)
        return None if self._stopped else min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        outcomes: list[Transmit[GetIndex | SaveIndex] | Transmit[Pull] | GaveUp] = []
        outcomes += self._asks.on_timer(now)
        outcomes += self._pulls.on_timer(now)
        effects = self._sends([each for each in outcomes if not isinstance(each, GaveUp)])
        if self._again_at is not None and now >= self._again_at:
            self._again_at = None
            effects += self._go_on(now)
        effects += self._reports.on_timer(now)
        self._reports.look(now)
        return effects

    # -- requests

    def _next_request(self) -> str:
        self._last += 1
        return f"{self._run}/{self._last}"

    def _ask(self, request: GetIndex | SaveIndex, now: float) -> list[Effect]:
        return self._sends(self._asks.offer(request.request, request, now))

    def _sends(self, transmits: Sequence[Transmit[GetIndex | SaveIndex] | Transmit[Pull]]) -> list[Effect]:
        return [Send(self.config.service, transmit.item) for transmit in transmits]

    def _index_is(self, index: IndexIs, now: float) -> list[Effect]:
        first, transmits = self._asks.confirm(index.request, now)
        if not first:
            return []
        effects = self._sends(transmits)
        if self._saving is None or index.request != self._saving[0]:
            self._saved = ReadPlace(index.epoch, index.index)
            return effects + self._begin(self._saved, now)
        self._saved, self._saving = self._saving[1], None
        return effects + self._save(now)

    def _save(self, now: float) -> list[Effect]:
        """One at a time, and always the newest place: what comes meanwhile is saved with the next."""
        if self._saving is not None or self._place is None or self._place == self._saved:
            return []
        request = self._next_request()
        self._saving = request, self._place
        place, config = self._place, self.config
        return self._ask(SaveIndex(request, config.client, config.stream, place.epoch, place.offset), now)

    # -- reading

    def _begin(self, place: ReadPlace, now: float) -> list[Effect]:
        if self._failing is not None and place >= self._failing:
            self._attempt, self._failing = 1, None
        self._place = place
        return [*self._save(now), *self._go_on(now)] if self.config.durable else self._go_on(now)

    def _go_on(self, now: float) -> list[Effect]:
        if self._busy or self._suspended or self._stopped or self._again_at is not None:
            return []
        if self._place is None:
            return [Load(self.config.key)] if self.config.durable else []
        if self._queue:
            return self._next(now)
        if len(self._pulls):
            return []
        request, config = self._next_request(), self.config
        pull = Pull(request, config.stream, self._place.offset, self._place.epoch, config.limit, config.wait_s)
        return self._sends(self._pulls.offer(request, pull, now))

    def _pulled(self, pulled: Pulled, now: float) -> list[Effect]:
        """The answer to a question that was asked before things went wrong is no longer wanted: it is asked again."""
        first, _ = self._pulls.confirm(pulled.request, now)
        if not first or self._place is None:
            return []
        last = self._place.offset
        for offset, envelope in pulled.entries:
            if offset > last:
                last = offset
                self._queue.append(Record(Position(self.config.stream, pulled.epoch, offset), envelope, at=0))
        return self._go_on(now)

    def _refused(self, refused: StorageRefused, now: float) -> list[Effect]:
        """An index that is refused for now is asked for again by its own timer."""
        first, _ = self._pulls.confirm(refused.request, now)
        if not first:
            asked = refused.request in self._asks.unconfirmed()
            return self._stop(refused) if asked and refused.reason not in (BUSY, NO_STREAM) else []
        if refused.reason in (BUSY, NO_STREAM):
            self._again_at = now + self.config.timeout_s
            return []
        if refused.reason == TRIMMED and self.config.trimmed == "skip" and refused.first is not None:
            return self._skip_trimmed(ReadPlace(refused.epoch, refused.first - 1))
        return self._stop(refused)

    def _skip_trimmed(self, to: ReadPlace) -> list[Effect]:
        assert self._place is not None
        gap = f"{self._place.offset + 1}..{to.offset}"
        cause = f"offsets {gap} were trimmed before {self.name} had read them"
        event = LedgerEvent(Kind.ACTION, self.config.hop, self.config.pipeline, message=f"gap {gap}", cause=cause)
        return [*self._commit((), event, to), Notify("trimmed", f"{self.name} goes on without them: {cause}")]

    def _stop(self, refused: StorageRefused) -> list[Effect]:
        """Going on would skip records in silence, so the consumer stops and says so."""
        self._stopped = True
        left = f"; the first one left is {refused.first}" if refused.first is not None else ""
        detail = f"{self.name} stands at {self._place} of {self.config.stream}: {refused.reason}{left}"
        return [Notify(refused.reason, detail), Close(refused.reason)]

    # -- the application

    def _next(self, now: float) -> list[Effect]:
        record = self._queue[0]
        if not self._seen.is_new(record.envelope.id, now):
            return self._passes((), Kind.DUPLICATE, now)
        self._busy = True
        self._token += 1
        return [Deliver(record, self._token, self._attempt)]

    def _handled(self, ops: tuple[Op, ...], now: float) -> list[Effect]:
        return self._passes(ops, Kind.HANDLED, now)

    def _passes(self, ops: tuple[Op, ...], kind: Kind, now: float, cause: str | None = None) -> list[Effect]:
        """The message is done with. Whatever must be durable for that is committed first."""
        record = self._queue[0]
        to = ReadPlace(record.position.epoch, record.position.offset)
        if not ops and not self.config.durable and kind is not Kind.SKIPPED:
            self.meter.count(kind, record.envelope.id, to.offset)
            return self._passed(to, now)
        config = self.config
        event = message_event(
            kind, config.hop, config.pipeline, record.envelope, attempt=self._attempt, cause=cause
        )  # fmt: skip
        return self._commit(ops, event, to)

    def _commit(self, ops: tuple[Op, ...], event: LedgerEvent, to: ReadPlace) -> list[Effect]:
        self._busy = True
        self._token += 1
        self._going = to, event.kind
        self._put_at = len(ops) if self.config.durable else None
        place = (Put(self.config.key, to.encode(), expected=self._version),) if self.config.durable else ()
        return [Commit((*ops, *place, Log(event)), self._token, chain=None)]

    def _committed(self, results: Sequence[Result], now: float) -> list[Effect]:
        if self._put_at is not None:
            put = results[self._put_at]
            assert isinstance(put, Advanced)
            self._version = put.version or 0
        to, kind = self._going
        if self._queue:
            self.meter.count_reported(kind)
        return self._passed(to, now)

    def _passed(self, to: ReadPlace, now: float) -> list[Effect]:
        self._busy, self._attempt, self._failing = False, 1, None
        self._place = to
        if self._queue:
            self._queue.popleft()
        return [*self._save(now), *self._go_on(now)]

    # -- when it did not work

    def _failed(self, error: str, now: float) -> list[Effect]:
        """The index stays before the message. It is read again, and handed over again, when its time has come."""
        record = self._queue[0]
        self.meter.count(Kind.FAILED, record.envelope.id, record.position.offset)
        decision = self.config.retry.decide(self._attempt, now, 0.0)
        if isinstance(decision, Again):
            self._attempt += 1
            return self._read_again(decision.at)
        cause = clean_cause(error)
        detail = f"{self.name}: {record.position} failed {self._attempt} times: {cause}"
        if self.config.poison == "skip":
            return [*self._passes((), Kind.SKIPPED, now, cause), Notify("skipped", detail, record.envelope.id)]
        self._suspended = True
        self._read_again(None)
        return [Notify("suspended", f"{detail}; resume it when that is fixed", record.envelope.id)]

    def _not_committed(self, results: Sequence[Result], error: SemelError | None, now: float) -> list[Effect]:
        """Only what the handler's own writes are to blame for counts as its failure; a store that is away does not.
        Whether a commit happened is for the store to say, so a durable consumer asks where it stands."""
        mine = self._put_at is not None and len(results) > self._put_at and isinstance(results[self._put_at], Conflict)
        refused = is_refusal(error) or any(isinstance(result, Conflict | Stale) for result in results)
        if refused and not mine and self._going[1] is Kind.HANDLED:
            return self._failed("its writes were refused" if error is None else str(error), now)
        return self._read_again(now + LOAD_AGAIN_S)

    def _read_again(self, at: float | None) -> list[Effect]:
        self._busy = False
        if self._queue:
            record = self._queue[0]
            self._seen.forget(record.envelope.id)
            self._failing = ReadPlace(record.position.epoch, record.position.offset)
        self._queue.clear()
        self._again_at = at
        if self.config.durable:
            self._place = None
        return []
