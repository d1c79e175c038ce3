"""A node that is behind a stream that keeps moving: whenever it reads, more has come, and it is never at the end. It
answers when it has read what was the end when it was asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.unit.pubsub.hub.world import SlowWorld, World

from semel.errors import StoreUnavailable
from semel.kernel.effects import Load, LoadAll, LoadHead
from semel.kernel.interpreter import Seat
from semel.kernel.position import Position
from semel.pubsub.hub.answers import DONE
from semel.pubsub.hub.calls import Answer, Connection, Find, Outcome
from semel.pubsub.hub.machine import HubOptions

ROWS = 2
BEHIND = 9
LAST = f"client-{BEHIND - 1}"
NOT_FOUND = Answer(Outcome.NOT_FOUND)
AWAY = StoreUnavailable("away")


class Behind(SlowWorld):
    """`ends`: where the stream ended when it looked, of which it hears later, if that is a list."""

    ends: list[Callable[[], None]] | None = None
    is_failing = False

    def load(self, seat: Seat, effect: Load | LoadAll | LoadHead) -> None:
        found = partial(self.interpreter.load_done, seat, effect, effect.of(self.store))
        if isinstance(effect, LoadHead) and self.is_failing:
            self.interpreter.load_failed(seat, effect, AWAY)
        elif isinstance(effect, LoadHead) and self.ends is not None:
            self.ends.append(found)
        else:
            found()


@pytest.fixture
def busy() -> World:
    return World(HubOptions(is_shared=True), "busy")


@pytest.fixture
def behind(busy: World) -> Behind:
    node = Behind(HubOptions(is_shared=True, read_rows=ROWS), "behind", beside=busy)
    busy.nodes.remove(node)
    for number in range(BEHIND):
        busy.connect(f"client-{number}")
    node.reads = []
    return node


def reads_a_page(behind: Behind, busy: World) -> None:
    assert behind.reads is not None
    [read] = behind.reads
    behind.reads.clear()
    for _ in range(ROWS):
        busy.connect(f"more-{busy.store.head(busy.hub.name).offset}")
    read()


def pages_up_to(behind: Behind, busy: World, offset: int) -> None:
    while behind.hub.tail.offset < offset:
        reads_a_page(behind, busy)


def test_all_are_answered_who_asked_before_the_end_was_looked_for(busy: World, behind: Behind) -> None:
    assert behind.call_later(Find(Connection(LAST)))
    assert behind.call_later(Find(Connection("nobody")))
    pages_up_to(behind, busy, BEHIND - 1)
    assert behind.take("later") == []
    pages_up_to(behind, busy, BEHIND + ROWS)
    assert behind.take("later") == [DONE, NOT_FOUND]
    assert len(behind.hub.current) == 0


def test_an_end_that_was_looked_for_before_the_question_came_does_not_count(busy: World, behind: Behind) -> None:
    behind.ends = []
    assert behind.call_later(Find(Connection(LAST)))
    reads_a_page(behind, busy)
    pages_up_to(behind, busy, BEHIND + ROWS)
    busy.connect("late")
    assert behind.call_later(Find(Connection("late")))
    [end], behind.ends = behind.ends, None
    end()
    assert behind.take("later") == [DONE]
    pages_up_to(behind, busy, busy.hub.tail.offset + ROWS)
    assert behind.take("later") == [DONE]


def test_an_end_that_could_not_be_found_is_looked_for_again(busy: World, behind: Behind) -> None:
    behind.is_failing = True
    assert behind.call_later(Find(Connection(LAST)))
    pages_up_to(behind, busy, BEHIND + ROWS)
    assert behind.take("later") == []
    behind.is_failing = False
    pages_up_to(behind, busy, busy.hub.tail.offset + ROWS)
    assert behind.take("later") == [DONE]


def test_the_end_of_another_history_says_nothing(busy: World, behind: Behind) -> None:
    """Numbers start again there: what was read here may be more than there is."""
    behind.ends = []
    assert behind.call_later(Find(Connection(LAST)))
    reads_a_page(behind, busy)
    another = Position(behind.hub.name, behind.hub.context.epoch + 1, 0)
    behind.interpreter.load_done(behind.seat, LoadHead(another.stream), another)
    assert behind.take("later") == []
