from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.calculus.mode import MessageCounts
from semel.errors import InputError
from semel.kernel.effects import Deliver, Delivered, Received, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import HopMessage
from semel.kernel.ledger import Event, Kind, fold_ids
from semel.kernel.position import Position
from semel.kernel.store import Record
from semel.pipes.language.notation import parse_path
from semel.pipes.plan.figures import PathFigures, Tally, compare, measure, records_by_place
from semel.pipes.workers.build import APP, Built, build
from semel.pipes.workers.stage import Stage

PATH = "A -> (P1 -> P2){retries=3,window=1000,dedup=id} -> B"

Drop = Callable[[str, str, Any], bool]


def built(text: str = PATH) -> Built:
    return build(parse_path(text), report_s=1.0)


def event(kind: Kind, hop: str, *ids: str, pipeline: str = "path", **more: Any) -> Event:
    """What a volatile worker's meter writes."""
    place = {"stream": "pipe/path/x", "epoch": 0, "first": 1, "last": len(ids)} | more
    return Event(kind, hop, pipeline, n=len(ids), fold=fold_ids(ids), **place)


def handled(*ids: str) -> list[Event]:
    """What a durable worker writes."""
    return [Event(Kind.HANDLED, "B>handler", "path", message=id) for id in ids]


def travel(plan: Built, ids: Iterable[str], drop: Drop) -> list[Event]:
    """Messages one after the other through the machines of a path; the ledger of them all."""
    stages = {worker.config.name: Stage(worker.config, f"run-{worker.config.name}") for worker in plan.workers}
    under_way: deque[tuple[str, Any]] = deque((plan.first, Received(APP, Envelope(id))) for id in ids)
    while under_way:
        name, heard = under_way.popleft()
        for effect in stages[name].receive(heard, 0.0):
            if isinstance(effect, Send) and not drop(name, effect.peer, effect.message):
                under_way.append((effect.peer, Received(name, effect.message)))
            elif isinstance(effect, Deliver):
                under_way.append((name, Delivered(effect.token)))
    return [event for stage in stages.values() for meter in stage._meters() for event in meter.take()]


def rates(figures: PathFigures, hop: str = "P1>P2") -> tuple[float | None, float | None]:
    return figures.pipes[hop].counts.reliability, figures.delivery.counts.reliability


IDS = [f"m{number}" for number in range(100)]
SOME = set(IDS[::4])


def test_when_all_arrive_both_figures_say_so() -> None:
    figures = measure(built(), travel(built(), IDS, lambda *_: False))

    assert figures.pipes["P1>P2"].counts == figures.delivery.counts == MessageCounts(100, 100, 100)
    assert figures.pipes["P1>P2"].exact
    assert figures.delivery.exact


def test_a_drop_behind_the_pipe_shows_in_the_delivery_alone() -> None:
    def drop(sender: str, receiver: str, message: Any) -> bool:
        return (sender, receiver) == ("P2", "B") and message.envelope.id in SOME

    assert rates(measure(built(), travel(built(), IDS, drop))) == (1.0, 0.75)


def test_a_drop_before_the_pipe_shows_in_the_delivery_alone() -> None:
    def drop(sender: str, receiver: str, message: Any) -> bool:
        return (sender, receiver) == ("A", "P1") and message.envelope.id in SOME

    assert rates(measure(built(), travel(built(), IDS, drop))) == (1.0, 0.75)


def test_a_drop_in_the_pipe_shows_in_both() -> None:
    def drop(sender: str, receiver: str, message: Any) -> bool:
        return (sender, receiver) == ("P1", "P2") and isinstance(message, HopMessage) and message.envelope.id in SOME

    assert rates(measure(built(), travel(built(), IDS, drop))) == (0.75, 0.75)


def test_a_lost_confirm_shows_in_neither() -> None:
    def drop(sender: str, receiver: str, message: Any) -> bool:
        return (sender, receiver) == ("P2", "P1")

    figures = measure(built(), travel(built(), IDS, drop))
    assert figures.pipes["P1>P2"].counts == figures.delivery.counts == MessageCounts(100, 100, 100)


def test_several_pipes_have_a_figure_each() -> None:
    plan = built("A -[retries=3,window=1000]-> B -[retries=3,window=1000]-> C")

    def drop(sender: str, receiver: str, message: Any) -> bool:
        return (sender, receiver) == ("B", "C") and isinstance(message, HopMessage) and message.envelope.id in SOME

    figures = measure(plan, travel(plan, IDS, drop))
    assert {hop: each.counts.reliability for hop, each in figures.pipes.items()} == {"A>B": 1.0, "B>C": 0.75}
    assert figures.delivery.counts.reliability == 0.75


# -- ledgers of durable workers

DURABLE = "A -[retries=inf,durable=yes]-> B"


def record(stream: str, offset: int, id: str) -> Record:
    return Record(Position(stream, 1, offset), Envelope(id), at=0)


def taken(worker: str, hop: str, *ids: str, **more: Any) -> tuple[list[Event], list[Record]]:
    """What a durable worker took over: the ledger's range and the records that it names."""
    stream = build(parse_path(DURABLE)).worker(worker).config.stream
    records = [record(stream, number, id) for number, id in enumerate(ids, 1)]
    place = {"stream": stream, "epoch": 1, "n": len(ids), "fold": fold_ids(ids)} | more
    return [Event(Kind.ACCEPTED, hop, "path", first=1, last=len(ids), **place)], records


def test_ids_make_figures_exact_even_when_loss_and_doubling_balance() -> None:
    said, outbox = taken("A", "app>A", "m1", "m2", "m3")
    heard, inbox = taken("B", "A>B", "m1", "m2", "m2")
    figures = measure(built(DURABLE), [*said, *heard, *handled("m1", "m2", "m2")], records_by_place([*outbox, *inbox]))

    assert figures.pipes["A>B"].counts == figures.delivery.counts == MessageCounts(3, 2, 3, 5)
    assert figures.pipes["A>B"].exact
    assert figures.delivery.exact
    assert figures.delivery.gaps == 0


def test_a_drop_between_the_store_and_the_handler_is_no_fault_of_the_pipe() -> None:
    said, outbox = taken("A", "app>A", "m1", "m2")
    heard, inbox = taken("B", "A>B", "m1", "m2")
    figures = measure(built(DURABLE), [*said, *heard, *handled("m1")], records_by_place([*outbox, *inbox]))

    assert rates(figures, "A>B") == (1.0, 0.5)


def test_what_nobody_sent_does_not_count() -> None:
    said, outbox = taken("A", "app>A", "m1", "m2")
    figures = measure(built(DURABLE), [*said, *handled("m1", "foreign")], records_by_place(outbox))

    assert figures.delivery.counts == MessageCounts(2, 1, 1, 1)


def test_other_paths_and_other_hops_are_left_out() -> None:
    said, outbox = taken("A", "app>A", "m1")
    foreign = [
        Event(Kind.HANDLED, "B>handler", "another", message="m1"),
        Event(Kind.HANDLED, "C>handler", "path", message="m1"),
        Event(Kind.DUPLICATE, "A>B", "path", message="m1"),
    ]
    figures = measure(built(DURABLE), [*said, *foreign, *handled("m1")], records_by_place(outbox))

    assert figures.delivery.counts == MessageCounts(1, 1, 1, 1)


@pytest.mark.parametrize("lie", [{"n": 3}, {"fold": 0}])
def test_a_range_that_does_not_fit_its_records_is_found(lie: dict[str, int]) -> None:
    said, outbox = taken("A", "app>A", "m1", "m2", **lie)
    figures = measure(built(DURABLE), [*said, *handled("m1", "m2")], records_by_place(outbox))

    assert figures.delivery.gaps == 1


def test_a_range_must_name_its_place() -> None:
    with pytest.raises(InputError, match="no range"):
        records_by_place([])(Event(Kind.ACCEPTED, "A>B"))


# -- numbers only


def test_without_ids_a_difference_is_a_bound_and_says_so() -> None:
    figures = measure(built(), [event(Kind.ACCEPTED, "app>A", "m1", "m2", "m3"), *handled("m1", "m1")])

    assert figures.delivery.counts == MessageCounts(3, 2, 2)
    assert not figures.delivery.exact


def test_without_ids_equal_numbers_of_other_messages_are_not_taken_for_the_same() -> None:
    sent, others = event(Kind.ACCEPTED, "app>A", "m1", "m2"), event(Kind.HANDLED, "B>handler", "m1", "m3")

    assert not measure(built(), [sent, others]).delivery.exact


def test_nothing_sent_has_no_figures() -> None:
    figures = measure(built(), handled("m1"))

    assert figures.delivery.counts == MessageCounts(0, 0, 0, 0)
    assert figures.delivery.counts.reliability is None


messages = st.lists(st.sampled_from("abcdefgh"), max_size=20)


@given(st.sets(st.sampled_from("abcdefgh")), messages)
def test_with_ids_it_is_counting(sent: set[str], received: list[str]) -> None:
    measured = compare(tally(*sent), tally(*received))

    assert measured.exact
    assert measured.counts == MessageCounts.of(sent, received)


@given(st.sets(st.sampled_from("abcdefgh")), messages)
def test_without_ids_it_never_claims_worse_reliability_than_the_truth(sent: set[str], received: list[str]) -> None:
    heard = [id for id in received if id in sent]
    exact, bound = compare(tally(*sent), tally(*heard)), compare(tally(*sent), unknown(*heard))

    assert bound.counts.unique >= exact.counts.unique
    assert bound.counts.received == exact.counts.received
    if bound.exact:
        assert bound.counts.unique == exact.counts.unique


def tally(*ids: str) -> Tally:
    return Tally(len(ids), fold_ids(ids), list(ids))


def unknown(*ids: str) -> Tally:
    return Tally(len(ids), fold_ids(ids), None)


def test_numbers_without_a_fold_are_never_exact() -> None:
    """The same number on both sides may be other messages: nobody has looked."""
    counted = Event(Kind.ACCEPTED, "A>B", "path", stream="pipe/path/x", epoch=0, first=1, last=5, n=5)
    tallies = [Tally(), Tally()]
    for tally in tallies:
        tally.add(counted, lambda event: None)
    found = compare(*tallies)
    assert (found.counts.sent, found.counts.unique, found.exact) == (5, 5, False)
    known = Tally()
    known.add(counted, lambda event: ["a", "b", "c", "d", "e"])
    assert known.gaps == 0, "a fold that is missing is no contradiction"
