"""The consumer: its place moves when a message was handled, never before and never past one that failed."""

from __future__ import annotations

from collections.abc import Sequence

from semel.kernel.effects import (
    Close,
    Commit,
    Committed,
    CommitUnknown,
    Deliver,
    Delivered,
    DeliverFailed,
    Effect,
    Load,
    Loaded,
    Notify,
    Received,
    Resume,
    Send,
)
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Advanced, Log, Put
from semel.kernel.retry import RetryPolicy
from semel.pipes.services.consumer import Consumer, ConsumerConfig
from semel.pipes.services.storage import (
    TRIMMED,
    GetIndex,
    IndexIs,
    Pull,
    Pulled,
    ReadPlace,
    SaveIndex,
    StorageRefused,
)

ONCE_MORE = RetryPolicy(1, interval_s=1.0)


def consumer(**more: object) -> Consumer:
    config = ConsumerConfig("con", "store", "orders", "billing", retry=ONCE_MORE, report_s=None, **more)  # type: ignore[arg-type]
    return Consumer(config, "run")


def sent(effects: Sequence[Effect], kind: type) -> list[object]:
    return [each.message for each in effects if isinstance(each, Send) and isinstance(each.message, kind)]


def answer(made: Consumer, message: object, now: float = 0.0) -> list[Effect]:
    return list(made.receive(Received("store", message), now))


def began(made: Consumer, index: int = 4) -> Pull:
    (asked,) = sent(made.start(0.0), GetIndex)
    (pull,) = sent(answer(made, IndexIs(asked.request, 1, index)), Pull)  # type: ignore[attr-defined]
    assert isinstance(pull, Pull)
    return pull


def pulled(pull: Pull, *offsets: int) -> Pulled:
    return Pulled(pull.request, 1, tuple((offset, Envelope(f"m{offset}", "app")) for offset in offsets), False)


def delivered(effects: Sequence[Effect]) -> Deliver:
    (found,) = [each for each in effects if isinstance(each, Deliver)]
    return found


def test_it_reads_on_from_where_the_index_service_says() -> None:
    made = consumer()
    assert began(made, index=4).after == 4
    assert made.place == ReadPlace(1, 4)


def test_the_place_moves_when_a_message_was_handled_and_is_saved_then() -> None:
    made = consumer()
    pull = began(made)
    first = delivered(answer(made, pulled(pull, 5, 6)))
    assert (first.item.position.offset, made.place) == (5, ReadPlace(1, 4))
    effects = made.receive(Delivered(first.token, ()), 0.0)
    assert made.place == ReadPlace(1, 5)
    (save,) = sent(effects, SaveIndex)
    assert isinstance(save, SaveIndex)
    assert (save.index, delivered(effects).item.position.offset) == (5, 6)
    assert made.saved == ReadPlace(1, 4)
    answer(made, IndexIs(save.request, 1, 5))
    assert made.saved == ReadPlace(1, 5)


def test_what_was_read_before_and_copies_of_it_are_not_handed_over() -> None:
    made = consumer()
    assert delivered(answer(made, pulled(began(made), 3, 4, 5))).item.position.offset == 5


def test_an_answer_of_somebody_else_or_to_no_question_is_nothing() -> None:
    made = consumer()
    pull = began(made)
    assert made.receive(Received("stranger", pulled(pull, 5)), 0.0) == ()
    assert answer(made, Pulled("other", 1, ((5, Envelope("m5", "app")),), False)) == []


def test_a_message_that_fails_is_read_again_and_stops_the_consumer_in_the_end() -> None:
    made = consumer()
    first = delivered(answer(made, pulled(began(made), 5, 6)))
    assert made.receive(DeliverFailed(first.token, "boom"), 0.0) == []
    (pull,) = sent(made.on_timer(1.0), Pull)
    assert isinstance(pull, Pull)
    assert (pull.after, made.place) == (4, ReadPlace(1, 4))
    second = delivered(answer(made, pulled(pull, 5, 6), 1.0))
    assert second.attempt == 2
    (notify,) = made.receive(DeliverFailed(second.token, "boom"), 1.0)
    assert isinstance(notify, Notify)
    assert (notify.topic, made.is_suspended, made.place) == ("suspended", True, ReadPlace(1, 4))
    assert len(sent(made.receive(Resume(), 2.0), Pull)) == 1


def test_one_that_may_be_skipped_is_in_the_ledger_before_the_place_moves() -> None:
    made = consumer(poison="skip")
    first = delivered(answer(made, pulled(began(made), 5)))
    made.receive(DeliverFailed(first.token, "boom"), 0.0)
    (pull,) = sent(made.on_timer(1.0), Pull)
    assert isinstance(pull, Pull)
    second = delivered(answer(made, pulled(pull, 5), 1.0))
    commit, _ = made.receive(DeliverFailed(second.token, "boom"), 1.0)
    assert isinstance(commit, Commit)
    assert [type(op) for op in commit.ops] == [Log]
    assert made.place == ReadPlace(1, 4)
    made.receive(Committed(commit.token, (Advanced(1),)), 1.0)
    assert made.place == ReadPlace(1, 5)


def test_records_that_are_gone_stop_it_unless_it_may_skip_them() -> None:
    made = consumer()
    pull = began(made)
    notify, close = answer(made, StorageRefused(pull.request, TRIMMED, 1, 10))
    assert isinstance(notify, Notify)
    assert isinstance(close, Close)
    assert made.next_deadline() is None
    made = consumer(trimmed="skip")
    commit, notify = answer(made, StorageRefused(began(made).request, TRIMMED, 1, 10))
    assert isinstance(commit, Commit)
    made.receive(Committed(commit.token, (Advanced(1),)), 0.0)
    assert made.place == ReadPlace(1, 9)


def test_a_durable_one_commits_its_place_with_what_the_handler_writes() -> None:
    made = consumer(durable=True)
    assert made.start(0.0) == [Load(made.config.key)]
    effects = made.receive(Loaded(made.config.key, None), 0.0)
    (pull,) = sent(effects, Pull)
    assert isinstance(pull, Pull)
    first = delivered(answer(made, pulled(pull, 1)))
    write = Put("mine", b"1")
    (commit,) = made.receive(Delivered(first.token, (write,)), 0.0)
    assert isinstance(commit, Commit)
    assert commit.ops[:2] == (write, Put(made.config.key, ReadPlace(1, 1).encode(), expected=0))


def test_a_durable_one_asks_the_store_when_it_does_not_know_what_became_of_its_commit() -> None:
    made = consumer(durable=True)
    made.start(0.0)
    (pull,) = sent(made.receive(Loaded(made.config.key, None), 0.0), Pull)
    assert isinstance(pull, Pull)
    first = delivered(answer(made, pulled(pull, 1)))
    (commit,) = made.receive(Delivered(first.token, ()), 0.0)
    assert isinstance(commit, Commit)
    assert made.receive(CommitUnknown(commit.token), 0.0) == []
    assert made.place is None
    assert Load(made.config.key) in made.on_timer(1.0)
