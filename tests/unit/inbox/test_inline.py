"""Every way out of an inline delivery, on a store in memory: what the transport hears, and what the row is then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.errors import CommitInDoubt, DuplicateMessage, StaleFence, StoreUnavailable
from semel.inbox.endpoint import EndpointMode, EndpointOptions, Style
from semel.inbox.failure import FailureRules, on
from semel.inbox.identity import IdentityMode, identify
from semel.inbox.inline import CommitOps, InlineSteps, MarkLater, PauseEndpoint, RunHandler, StoreBody, WaitFor
from semel.inbox.reservation import DIED, is_reservation
from semel.inbox.settle import DeliveryEnd
from semel.kernel.effects import OwnTransaction
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Kind, balance, message_event
from semel.kernel.ops import OPEN_STATES, Applied, Attempts, Claim, Duplicate, Enqueue, Finish, Unit, WorkRow, WorkState
from semel.kernel.retry import Failure, type_names
from semel.stores.memory import MemoryStore

ACK, GIVE_BACK = DeliveryEnd.ACK, DeliveryEnd.GIVE_BACK
QUEUE = "inbox/sms"
MESSAGE = Envelope("a", type="Sms", data=b"hello")


class Delivery:
    """A driver in one process: `handler` is called for each run, and may raise."""

    def __init__(self, style: Style | None, rule: Any = None, **options: Any) -> None:
        self.now = 1_000_000_000
        self.store = MemoryStore(clock=lambda: self.now)
        self.options = EndpointOptions("sms", mode=EndpointMode.INLINE, **options)
        self.style = style
        self.rules = FailureRules((rule or on(ValueError).dead_letter(),))
        self.runs = 0
        self.waits: list[float] = []
        self.pauses: list[float] = []
        self.later: list[MarkLater] = []
        self.handler: Callable[[], None] = lambda: None
        self.fails: Callable[[CommitOps], Exception | None] = lambda step: None

    def arrives(self) -> DeliveryEnd:
        who = identify("shop", "sms", MESSAGE, IdentityMode.ID_AND_ENDPOINT)
        hop = self.options.hop
        enqueue = Enqueue(
            QUEUE, who.identity, MESSAGE, on_fresh=message_event(Kind.ACCEPTED, hop, "", MESSAGE),
            on_duplicate=message_event(Kind.DUPLICATE, hop, "", MESSAGE),
        )  # fmt: skip
        failure_of = lambda error: Failure(str(error), type_names(type(error)))  # noqa: E731
        self.steps = InlineSteps(self.options, self.style, self.rules, who, MESSAGE, enqueue, "shop", failure_of)
        steps = self.steps.run()
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.throw(error) if error is not None else steps.send(answer)
            except StopIteration as end:
                return end.value.delivery
            answer, error = None, None
            try:
                answer = self.take(step)
            except Exception as raised:
                error = raised

    def take(self, step: Any) -> Any:
        match step:
            case CommitOps():
                if (trouble := self.fails(step)) is not None:
                    raise trouble
                return self.commit(*step.ops)
            case RunHandler(before=before, mark=mark):
                return self.run(before, mark)
            case StoreBody(after_s=after_s):
                due = None if after_s is None else self.now + round(after_s * 1_000_000)
                return self.commit(Enqueue(QUEUE, "a", MESSAGE, due=due, on_fresh=self.steps.enqueue.on_fresh))[0]
            case WaitFor(seconds=seconds):
                self.waits.append(seconds)
                self.now += round(seconds * 1_000_000)
            case PauseEndpoint(seconds=seconds):
                self.pauses.append(seconds)
            case MarkLater():
                self.later.append(step)
        return None

    def run(self, before: Any, mark: Any) -> Any:
        self.runs += 1
        if self.style is Style.RESERVED:
            self.handler()
            return ()
        self.handler()
        if before or mark:
            if any(isinstance(result, Duplicate) for result in self.commit(*before, *mark)):
                raise DuplicateMessage("known", fix="ack")
            return OwnTransaction.FINISHED
        return ()

    def commit(self, *ops: Any) -> Any:
        [outcome] = self.store.commit([Unit(ops)])
        if not isinstance(outcome, Applied):
            raise StaleFence("stale", fix="let go")
        return outcome.results

    @property
    def row(self) -> WorkRow:
        row = self.store.work(QUEUE, "a")
        assert row is not None
        return row

    def balances(self) -> bool:
        events = [entry.event for entry in self.store.ledger(START, 1000)]
        states = self.store.work_counts(QUEUE).get(QUEUE, {})
        return balance(events, sum(states.get(state, 0) for state in OPEN_STATES)).holds


def told(delivery: Delivery) -> list[tuple[Kind, int]]:
    return [(entry.event.kind, entry.event.attempt) for entry in delivery.store.ledger(START, 1000)]


@pytest.mark.parametrize("style", [Style.EAGER, Style.OPTIMISTIC, Style.RESERVED])
def test_the_ledger_has_each_attempt_that_failed(style: Style) -> None:
    delivery = Delivery(style, on(ValueError).retry([1, 2]).dead_letter())
    delivery.handler = raises(ValueError("no"))
    assert delivery.arrives() is ACK
    accepted, *rest = told(delivery)
    assert accepted[0] is Kind.ACCEPTED
    assert rest == [(Kind.FAILED, 1), (Kind.FAILED, 2), (Kind.DEAD_LETTERED, 3)]
    assert delivery.balances()


@pytest.mark.parametrize("style", [Style.EAGER, Style.OPTIMISTIC, Style.RESERVED])
def test_the_ledger_has_the_attempts_before_one_that_succeeded(style: Style) -> None:
    delivery = Delivery(style, on(ValueError).retry([1, 2]).dead_letter())
    outcomes = [ValueError("no"), None]

    def handler() -> None:
        if (error := outcomes.pop(0)) is not None:
            raise error

    delivery.handler = handler
    assert delivery.arrives() is ACK
    assert told(delivery)[1:] == [(Kind.FAILED, 1), (Kind.HANDLED, 2)]


def raises(error: Exception) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


STYLES = [Style.EAGER, Style.OPTIMISTIC, Style.RESERVED]


@pytest.mark.parametrize("style", STYLES)
def test_one_that_succeeds_is_done_and_its_redelivery_is_acknowledged(style: Style) -> None:
    delivery = Delivery(style)
    assert [delivery.arrives(), delivery.arrives()] == [ACK, ACK]
    assert (delivery.row.state, delivery.row.envelope.data) == (WorkState.DONE, b"")
    assert delivery.balances()


@pytest.mark.parametrize("style", [*STYLES, Style.NONE])
@pytest.mark.parametrize(("end", "state"), [("dead_letter", WorkState.DEAD), ("park", WorkState.PARKED)])
def test_one_that_is_given_up_is_kept_with_its_body_and_its_redelivery_is_acknowledged(
    style: Style, end: str, state: WorkState
) -> None:
    delivery = Delivery(style, on(ValueError).then(end))
    delivery.handler = raises(ValueError("never"))
    assert [delivery.arrives(), delivery.arrives()] == [ACK, ACK]
    assert (delivery.row.state, delivery.row.envelope.data, delivery.row.cause) == (state, b"hello", "never")
    assert delivery.balances()


@pytest.mark.parametrize("style", [*STYLES, Style.NONE])
def test_one_that_is_scheduled_is_stored_with_its_body_before_it_is_acknowledged(style: Style) -> None:
    delivery = Delivery(style, on(ValueError).schedule([60]))
    delivery.handler = raises(ValueError("later"))
    assert delivery.arrives() is ACK
    assert (delivery.row.state, delivery.row.envelope.data) == (WorkState.SCHEDULED, b"hello")
    assert delivery.row.due == delivery.now + 60_000_000
    assert not is_reservation(delivery.row.envelope)


@pytest.mark.parametrize("style", STYLES)
def test_one_that_is_discarded_leaves_no_open_row(style: Style) -> None:
    delivery = Delivery(style, on(ValueError).discard())
    delivery.handler = raises(ValueError("nobody needs it"))
    assert delivery.arrives() is ACK
    assert delivery.row.state is WorkState.DONE
    assert delivery.balances()


def test_retries_keep_the_claim_and_the_broker_waits() -> None:
    delivery = Delivery(Style.RESERVED, on(ValueError).retry([1, 2]))
    delivery.handler = raises(ValueError("no"))
    assert delivery.arrives() is ACK
    assert (delivery.waits, delivery.runs, delivery.row.state) == ([1, 2], 3, WorkState.DEAD)


def test_a_reservation_that_is_requeued_is_found_by_its_identity_only() -> None:
    delivery = Delivery(Style.RESERVED, on(ValueError).requeue(1).dead_letter())
    delivery.handler = raises(ValueError("not yet"))
    assert delivery.arrives() is GIVE_BACK
    assert delivery.row.state is WorkState.DEFERRED
    assert delivery.arrives() is ACK, "the attempts of its row are counted, so it comes to an end"
    assert delivery.row.state is WorkState.DEAD


def test_one_that_has_its_body_is_requeued_for_a_worker() -> None:
    """Its first delivery was acknowledged when it was kept: nobody else would come for it."""
    delivery = Delivery(Style.RESERVED, on(ValueError).schedule([1]).requeue(5))
    delivery.handler = raises(ValueError("not yet"))
    assert delivery.arrives() is ACK
    delivery.now += 2_000_000
    # it was claimed once by then, as far as its row knows
    [claimed] = delivery.commit(Claim(QUEUE, "w", identity="a"))
    delivery.commit(Finish(QUEUE, "a", WorkState.READY, fence=claimed.rows[0].fence))
    delivery.arrives()
    assert (delivery.row.state, delivery.row.envelope.data) == (WorkState.READY, b"hello")


@pytest.mark.parametrize(("on_crash", "state"), [("drop", WorkState.DONE), ("park", WorkState.PARKED)])
@pytest.mark.parametrize("given_back", [True, False])
def test_a_claim_that_ran_out_is_ambiguous(on_crash: str, state: WorkState, given_back: bool) -> None:
    """Also when a worker found it first and gave it back for the broker's next delivery."""
    delivery = Delivery(Style.RESERVED, on_crash=on_crash)
    delivery.handler = raises(SystemExit())  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        delivery.arrives()
    assert delivery.row.state is WorkState.CLAIMED
    assert delivery.arrives() is GIVE_BACK, "somebody may be at it"
    delivery.now += 60_000_000
    if given_back:
        [claimed] = delivery.commit(Claim(QUEUE, "worker", limit=1))
        fence = claimed.rows[0].fence
        delivery.commit(Finish(QUEUE, "a", WorkState.DEFERRED, fence=fence, cause=DIED))
    assert delivery.arrives() is ACK
    assert (delivery.runs, delivery.row.state) == (1, state)
    assert delivery.row.envelope.data == (b"hello" if on_crash == "park" else b"")


def test_what_was_put_aside_waits_for_a_human_and_then_runs() -> None:
    delivery = Delivery(Style.RESERVED, on(ValueError).park())
    delivery.handler = raises(ValueError("look at it"))
    assert [delivery.arrives(), delivery.arrives()] == [ACK, ACK]
    assert (delivery.runs, delivery.row.state, delivery.row.attempts) == (1, WorkState.PARKED, 1)
    delivery.handler = lambda: None
    delivery.commit(Finish(QUEUE, "a", WorkState.READY, attempts=Attempts.RESET))
    assert delivery.arrives() is ACK
    assert delivery.row.state is WorkState.DONE


def test_what_was_put_aside_keeps_its_key_waiting_when_it_is_delivered_again() -> None:
    delivery = Delivery(Style.RESERVED)
    for id in "ab":
        delivery.commit(Enqueue(QUEUE, id, Envelope(id, type="Sms", data=b"hello"), key="ada"))
    [claimed] = delivery.commit(Claim(QUEUE, "worker"))
    delivery.commit(Finish(QUEUE, "a", WorkState.PARKED, fence=claimed.rows[0].fence, holds=True))
    assert delivery.arrives() is ACK
    assert delivery.row.state is WorkState.PARKED
    assert delivery.commit(Claim(QUEUE, "worker"))[0].rows == ()
    delivery.commit(Finish(QUEUE, "a", WorkState.DONE))
    assert len(delivery.commit(Claim(QUEUE, "worker"))[0].rows) == 1


def test_one_that_kills_its_process_pauses_its_endpoint_as_its_rule_says() -> None:
    delivery = Delivery(Style.RESERVED, on(Exception).pause(60).dead_letter())
    delivery.handler = raises(SystemExit())  # type: ignore[arg-type]
    for _ in range(delivery.rules.attempts_max):
        with pytest.raises(SystemExit):
            delivery.arrives()
        delivery.now += 60_000_000
    assert delivery.arrives() is ACK
    assert (delivery.row.state, delivery.pauses) == (WorkState.DEAD, [60])


def test_one_that_kills_its_process_is_a_dead_letter_in_the_end() -> None:
    delivery = Delivery(Style.RESERVED, on(ValueError).retry_now(1))
    delivery.handler = raises(SystemExit())  # type: ignore[arg-type]
    for _ in range(delivery.rules.attempts_max):
        with pytest.raises(SystemExit):
            delivery.arrives()
        delivery.now += 60_000_000
    assert delivery.arrives() is ACK
    assert (delivery.row.state, delivery.row.envelope.data) == (WorkState.DEAD, b"hello")


@pytest.mark.parametrize("error", [StoreUnavailable("away", fix="wait"), CommitInDoubt("broke", marker="1")])
def test_without_the_store_nothing_runs_and_nothing_is_acknowledged(error: Exception) -> None:
    delivery = Delivery(Style.RESERVED)
    delivery.fails = lambda step: error
    assert delivery.arrives() is GIVE_BACK
    assert delivery.runs == 0


def test_a_mark_that_cannot_be_written_is_written_later() -> None:
    delivery = Delivery(Style.RESERVED)
    delivery.fails = lambda step: StoreUnavailable("away", fix="wait") if delivery.runs else None
    assert delivery.arrives() is ACK
    assert delivery.row.state is WorkState.CLAIMED
    delivery.commit(*delivery.later[0].ops)
    assert delivery.row.state is WorkState.DONE


def test_a_claim_that_was_lost_between_attempts_belongs_to_another() -> None:
    delivery = Delivery(Style.RESERVED, on(ValueError).retry([1]))
    delivery.handler = raises(ValueError("no"))
    delivery.fails = lambda step: StaleFence("stale", fix="let go") if delivery.waits else None
    assert delivery.arrives() is GIVE_BACK
    assert delivery.runs == 1


def test_a_message_that_no_handler_knows_is_a_dead_letter() -> None:
    delivery = Delivery(None)
    assert delivery.arrives() is ACK
    assert delivery.row.state is WorkState.DEAD
    assert delivery.runs == 0
