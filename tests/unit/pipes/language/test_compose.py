"""A path in Python, written as it runs."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import pytest

from semel.errors import ConfigError
from semel.pipes.language import compose
from semel.pipes.language.compose import Unfinished, hop, inf, pipe_ends, point, points
from semel.pipes.language.notation import parse_path
from semel.pipes.language.path import Path, Point

A, B, C, X, Y = points("A", "B", "C", "X", "Y")
P1, P2 = pipe_ends("P1", "P2", retries=inf, dedup="id")
Q1, Q2 = pipe_ends("Q1", "Q2", retries=3)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (A >> B, "A -> B"),
        (A >> hop(loss=0.1) >> X >> hop(timeout="200ms") >> B, "A -[loss=.1]-> X -[timeout=.2s]-> B"),
        (A >> P1 >> X >> P2 >> B, "A -> (P1 -> X -> P2){retries=inf,dedup=id} -> B"),
        (P1 >> hop(loss="10%") >> P2, "(P1 -[loss=.1]-> P2){retries=inf,dedup=id}"),
        (P1 >> Q1 >> Q2 >> P2, "(P1 -> (Q1 -> Q2){retries=3} -> P2){retries=inf,dedup=id}"),
        (P1 >> P2 >> Q1 >> Q2, "(P1 -> P2){retries=inf,dedup=id} -> (Q1 -> Q2){retries=3}"),
        (A >> (hop(loss=0.1) | hop(loss=0.3)) >> B, "A -[loss=.1 | loss=.3]-> B"),
        (A >> (hop() >> X >> hop() | hop(loss=0.3)) >> B, "A ( -> X -> | -[loss=.3]-> ) B"),
        (A >> (hop() | hop() | hop() >> X >> hop()) >> B, "A ( -> | -> | -> X -> ) B"),
        (A >> (hop(loss=0.1) >> X >> hop()) >> B, "A -[loss=.1]-> X -> B"),
        ((A >> B) >> (X >> Y), "A -> B -> X -> Y"),
        (point("A", crash=0.1) >> point("S", durable=True), "A{crash=.1} -> S{durable=yes}"),
    ],
)  # fmt: skip
def test_what_is_composed_is_what_the_text_says(path: Path, text: str) -> None:
    assert path == parse_path(text)
    assert not isinstance(path, Unfinished)
    assert parse_path(str(path)) == path


def test_the_ends_of_a_pipe_may_have_options_of_their_own() -> None:
    sender, receiver = pipe_ends(point("P1", crash=0.1), "P2", retries=1)
    assert sender >> receiver == parse_path("(P1{crash=.1} -> P2){retries=1}")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: A >> P1 >> Q1 >> P2, r"P1\.\.P2 and Q1\.\.Q2 cross"),
        (lambda: (A >> P1 >> B).steps, r"P1\.\.P2 stays open: P2 never comes"),
        (lambda: A >> P2, r"P1\.\.P2, which has not begun"),
        (lambda: P2 >> A, r"P1\.\.P2, which has not begun"),
        (lambda: A >> hop() >> hop(), "two hops without a point"),
        (lambda: (A >> hop()).first, "ends with a hop"),
        (lambda: list((hop() >> A).points()), "begins with a hop"),
        (lambda: A >> B >> A, "A twice"),
        (lambda: A >> 3, "3 cannot be a part"),
        (lambda: A | hop(), "is not a branch"),
        (lambda: hop() | (hop() >> X), "a branch is hop, point, hop"),
        (lambda: hop() | (hop() >> Q1 >> hop()), "is not a branch"),
        (lambda: hop(los=1), "no option 'los'"),
        (lambda: hop(loss=2), "not a probability"),
        (lambda: hop(confirm="cascade"), "without retries"),
        (lambda: pipe_ends("P", "Q", loss=0.1), "no loss of its own"),
        (lambda: point("A", loss=1), "no option 'loss'"),
    ],
)
def test_what_cannot_be_composed_says_why(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make()
    assert caught.value.fix


def test_an_unfinished_path_can_be_looked_at_and_gone_on_with() -> None:
    begun = A >> P1 >> hop(loss=0.1)
    assert str(begun) == repr(begun) == "<unfinished path of 4 parts>"
    assert begun >> P2 == parse_path("A -> (P1 -[loss=.1]-> P2){retries=inf,dedup=id}")
    assert begun >> X >> P2 == parse_path("A -> (P1 -[loss=.1]-> X -> P2){retries=inf,dedup=id}")


def test_the_example_in_the_documentation_is_true() -> None:
    assert doctest.testmod(compose).failed == 0


def test_a_point_is_still_a_plain_value() -> None:
    assert {A, Point("A")} == {A}
