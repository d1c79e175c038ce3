"""What the calculus gets to see of a path."""

from __future__ import annotations

import pytest

from semel.calculus.elements import Crash, Dedup, DurableElement, LinkElement, PipeElement, Series
from semel.errors import ConfigError
from semel.pipes.language.notation import parse_path
from semel.pipes.plan.elements import Stretch, durable_points, element, folded, pipes_deep, stretches


def only(text: str) -> Stretch:
    (found,) = stretches(parse_path(text))[1]
    return found


def test_a_hop_is_a_link_and_with_retries_a_pipe_around_it() -> None:
    assert only("A -[loss=0.1]-> B").elements == (LinkElement(0.1),)
    sent = only("A -[loss=0.1,retries=2]-> B")
    assert sent.elements == (PipeElement(LinkElement(0.1), 3),)
    assert (sent.resends, sent.name) == (True, "A>B")


def test_a_point_that_crashes_has_confirmed_already() -> None:
    found = only("A -[retries=2]-> B{crash=0.1}")
    assert (found.behind, found.survives) == ((Crash(0.1),), 0.9)


def test_a_durable_point_drops_copies_loses_nothing_and_sends_without_end() -> None:
    found = only("A{durable=yes} -[loss=0.1]-> B{durable=yes,crash=0.1}")
    assert (found.behind, found.survives) == ((Dedup(), DurableElement()), 1.0)
    (sent,) = found.elements
    assert isinstance(sent, PipeElement)
    assert sent.attempts is None


def test_an_id_is_remembered_over_the_whole_path_and_a_number_on_its_own_hop() -> None:
    assert Dedup() in only("A -[retries=2,dedup=id]-> B").behind
    (sent,) = only("A -[retries=2,dedup=index]-> B").elements
    assert isinstance(sent, PipeElement)
    assert sent.dedup


def test_the_round_trip_of_a_cascade_reaches_to_the_end() -> None:
    path = parse_path("A -[retries=2,delay=1s,confirm=cascade]-> B -[retries=2,delay=3s]-> C")
    first, second = stretches(path)[1]
    assert (first.rtt_s, second.rtt_s) == (8.0, 6.0)
    assert (first.one_way_s, second.one_way_s) == (1.0, 3.0)


def test_links_that_make_no_copies_are_one_link() -> None:
    assert folded([LinkElement(0.5), Crash(0.5)]) == Series([LinkElement(0.75)])
    assert len(folded([LinkElement(0.1), LinkElement(duplicate=0.1)]).elements) == 2


def test_a_dedup_leaves_one_copy_of_all_before_it() -> None:
    assert folded([LinkElement(repeats=1, loss=0.5), Dedup()]) == Series([LinkElement(0.25)])
    assert folded([Dedup()]) == Series([])


def test_the_whole_path_has_the_figures_of_its_parts() -> None:
    nothing_arrives = element(parse_path("A -[loss=0.1]-> B -[loss=0.1]-> C")).apply(0.0, 0.0)[0]
    assert nothing_arrives == pytest.approx(0.19)


def test_durable_by_its_own_word_or_by_that_of_a_hop_at_it() -> None:
    assert durable_points(parse_path("A -> B{durable=yes} -> C")) == {"B"}
    assert durable_points(parse_path("A -[durable=yes]-> B -> C")) == {"A", "B"}


def test_what_no_worker_could_promise_is_refused() -> None:
    with pytest.raises(ConfigError, match="processes none"):
        stretches(parse_path("A -[retries=2,confirm=processing]-> B -> C"))
    with pytest.raises(ConfigError, match="needs a memory"):
        stretches(parse_path("A -[retries=2,dedup=session]-> B"))


def test_pipes_in_pipes_are_counted() -> None:
    assert pipes_deep(parse_path("A -> B")) == 0
    assert pipes_deep(parse_path("(A -> (B -> C){retries=2} -> D){retries=2}")) == 2
