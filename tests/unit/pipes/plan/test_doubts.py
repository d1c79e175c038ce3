"""What is said of a path beside its figures: why they are not exact, and what would help."""

from __future__ import annotations

import pytest

from semel.pipes.language.notation import parse_path
from semel.pipes.plan.plan import Plan, plan


def planned(text: str) -> Plan:
    return plan(parse_path(text))


# -- what is not exact


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A -[retries=inf,dedup=id,confirm=cascade]-> B -[delay=600ms]-> C", "should be more than 1.2 s"),
        ("A -> (P1 -[loss=.5,retries=inf]-> X -> P2){retries=inf} -> B", "no timeout is long enough"),
        ("A -> (P1 -[loss=.5,retries=2,timeout=2s]-> X -> P2){retries=9} -> B", "should be more than 6 s"),
        ("A -[retries=1,confirm=cascade]-> B -[loss=.1,retries=2,backoff=3]-> C", "should be more than 13 s"),
        ("A -[delay=400ms,retries=1,jitter=0.5]-> B", "should be more than 1.6 s"),
        ("A -[delay=500ms,retries=1]-> B", "should be more than 1 s"),
        ("A -[retries=1,jitter=1]-> B", "no wait at all"),
        ("A -[duplicate=.3,retries=inf,dedup=id,confirm=cascade]-> B -> C", "arrive together"),
        ("A -[retries=2]-> S{crash=.1,durable=yes} -> B", "when it starts again"),
    ],
)
def test_a_timeout_too_short_is_not_called_exact(text: str, words: str) -> None:
    found = planned(text)
    assert not found.exact
    assert any(words in doubt for doubt in found.doubts)


@pytest.mark.parametrize(
    "text",
    [
        "A -[loss=.1,retries=1,dedup=index,window=5]-> B",
        "A -[duplicate=.1]-> B -[dedup=id | ]-> C",
        "A -[duplicate=.1]-> B ( -> S{durable=yes} -> | -> ) C",
        "A -[retries=1,confirm=cascade]-> B -[loss=.1,retries=1]-> C",
        "A -[retries=1,confirm=cascade]-> B -[dedup=id]-> C -> D",
        "A -[retries=1,confirm=cascade]-> B -[dedup=index]-> C",
        "A -[retries=1,confirm=cascade | ]-> B -> C",
        "(A -[retries=1,confirm=cascade]-> B) -> C",
        "A -[loss=.5,dedup=strict]-> B{crash=.2}",
        "A -[dedup=id | ]-> B{crash=.2}",
        "A -> (P1 -[duplicate=.1]-> X -[dedup=id | ]-> P2){retries=1}",
    ],
)
def test_a_bound_is_not_called_exact(text: str) -> None:
    found = planned(text)
    assert not found.exact
    assert found.notes


# -- what would help


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A -[confirm_loss=.1,retries=1]-> B", "dedup=id at B would lift uniqueness"),
        ("A -[confirm_loss=.1,retries=1]-> B", "tends to 1 - confirm loss = 0.9"),
        ("A -[loss=.1 | loss=.1]-> B", "dedup=id at a hop behind B"),
        ("A -[retries=1,delay=1s]-> B", "below the round trip of 2 s, so a message is sent 2 times"),
        ("A -[loss=.1,confirm_loss=.1,retries=inf,dedup=id,keep=1s]-> B", "one message in 10 leaks"),
        ("A -[confirm_loss=.5,retries=2,dedup=id]-> B -[loss=.5]-> C", "takes second chances"),
        ("A -[retries=1]-> X{crash=.1} -> B", "X confirms before it has passed"),
        ("A -[confirm_loss=1,retries=inf]-> B", "copies without end"),
        ("A -[loss=.1,retries=1,dedup=index,window=5]-> B", "drops what was overtaken"),
    ],
)
def test_the_notes_say_what_to_look_at(text: str, words: str) -> None:
    assert any(words in note for note in planned(text).notes)


def test_a_path_without_faults_needs_no_notes() -> None:
    assert planned("A -[loss=.1,retries=inf,dedup=id]-> B").notes == ()
