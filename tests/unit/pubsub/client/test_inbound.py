"""Streams that come in: whoever reads one gets its parts in order, and takes for whole only what is."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.hub.world import text

from semel.errors import LocalProtocolError, StreamBroken
from semel.pubsub.client.inbound import Ended, Handled, Inbound, PartReceived, Step, StreamBegan
from semel.pubsub.protocol.messages import ErrorName, Fault, GroupMessage, StreamPart


def part(number: int, id: str = "s", user: str | None = "ann", group: str = "g") -> GroupMessage:
    return GroupMessage(group, text(f"{id} {number}"), user, stream=StreamPart(id, number))


def end(number: int, error: Fault | None = None, id: str = "s", user: str | None = "ann") -> GroupMessage:
    return GroupMessage("g", None, user, stream=StreamPart(id, number, True, error))


def why(step: Step) -> tuple[str, int]:
    assert isinstance(step, Ended)
    assert isinstance(step.error, StreamBroken)
    return step.error.name, step.error.parts


def test_a_stream_from_its_first_part_to_its_end() -> None:
    inbound = Inbound()
    assert inbound.take(part(1)) == [StreamBegan(1, part(1), True), PartReceived(1)]
    assert inbound.take(part(2)) == [PartReceived(1)]
    assert inbound.take(end(3)) == [Ended(1)]
    assert inbound.take(part(1)) == [StreamBegan(2, part(1), True), PartReceived(2)]


def test_an_empty_stream_is_a_stream() -> None:
    assert Inbound().take(end(1)) == [StreamBegan(1, end(1), True), Ended(1)]


def test_who_comes_late_gets_the_rest_and_is_told_that_it_is_one() -> None:
    inbound = Inbound()
    assert inbound.take(part(5)) == [StreamBegan(1, part(5), False), PartReceived(1)]
    assert inbound.take(end(6)) == [Ended(1)]


def test_the_end_alone_of_a_stream_concerns_nobody() -> None:
    assert Inbound().take(end(7)) == []


def test_an_end_with_an_error_says_whose_it_is() -> None:
    inbound = Inbound()
    inbound.take(part(1))
    [ended] = inbound.take(end(2, Fault(ErrorName.USER, "no more", "E7")))
    assert why(ended) == ("UserError", 1)
    assert ended.error.user_code == "E7"  # type: ignore[union-attr]


def test_after_a_gap_a_stream_is_broken_and_the_rest_is_another() -> None:
    inbound = Inbound()
    inbound.take(part(1))
    broken, began, came = inbound.take(part(3))
    assert why(broken) == ("PartsMissing", 1)
    assert (began, came) == (StreamBegan(2, part(3), False), PartReceived(2))
    [broken] = inbound.take(end(9))
    assert why(broken) == ("PartsMissing", 3)


def test_two_senders_may_use_the_same_id() -> None:
    inbound = Inbound()
    inbound.take(part(1, user="ann"))
    assert inbound.take(part(1, user="ben"))[0] == StreamBegan(2, part(1, user="ben"), True)
    assert inbound.take(part(2, user="ann")) == [PartReceived(1)]


def test_when_no_more_of_it_can_come_it_is_broken() -> None:
    inbound = Inbound()
    inbound.take(part(1, group="g"))
    inbound.take(part(1, group="h"))
    [left] = inbound.leave("g")
    assert why(left) == ("GroupLeft", 1)
    [lost] = inbound.on_session_lost(LocalProtocolError("gone"))
    assert why(lost) == ("SessionGone", 1)
    inbound.take(part(4))
    [stopped] = inbound.stop()
    assert why(stopped) == ("Stopped", 4)
    assert inbound.stop() == []


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4), st.randoms(use_true_random=False), st.sets(st.integers(0, 30))
)
def test_what_is_taken_for_whole_is_whole_whatever_is_missing(
    sizes: list[int], rng: random.Random, missing: set[int]
) -> None:
    """Streams are mixed, and some of their messages never come."""
    left = {
        f"s{n}": [part(i, f"s{n}") for i in range(1, size + 1)] + [end(size + 1, id=f"s{n}")]
        for n, size in enumerate(sizes)
    }
    inbound, bodies, whole, course = Inbound(), dict[int, list[str]](), dict[int, str](), 0
    while left:
        id = rng.choice(sorted(left))
        message = left[id].pop(0)
        if not left[id]:
            del left[id]
        course += 1
        if course in missing:
            continue
        for step in inbound.take(message):
            match step:
                case StreamBegan(number=number, is_whole=is_whole):
                    bodies[number] = []
                    if is_whole:
                        whole[number] = id
                case PartReceived(number=number):
                    assert message.data is not None
                    bodies[number].append(message.data.body.decode())
                case Ended(number=number, error=error):
                    if number in whole and error is None:
                        size = sizes[int(id[1:])]
                        assert bodies[number] == [f"{id} {i}" for i in range(1, size + 1)]


@given(st.permutations(range(1, 12)))
def test_what_is_handled_side_by_side_is_done_up_to_the_first_that_is_not(order: list[int]) -> None:
    handled, done, told = Handled(), set[int](), 0
    for number in order:
        done.add(number)
        upto = handled.add(number)
        assert handled.add(number) is None
        expected = next(n for n in range(1, 13) if n not in done) - 1
        assert (upto or told) == expected
        told = expected
    assert told == 11
