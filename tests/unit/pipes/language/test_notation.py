"""The text of a path, both ways, and what it says about a mistake."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pipes.strategies import paths

from semel.errors import PathSyntaxError
from semel.pipes.language.notation import NESTING_MAX, POINTS_MAX, TEXT_CHARS_MAX, format_path, parse_path
from semel.pipes.language.options import ConfirmOn, DedupBy, Options
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Point
from semel.testing.limits import scaled

A, B, C, X = (Point(name) for name in "ABCX")


# -- what it reads


def test_points_and_hops() -> None:
    assert parse_path("A") == Path((A,))
    assert parse_path("A->B") == Path((A, Hop(), B))
    assert parse_path("A -[loss=0.1,retries=5]-> B -> C") == Path((A, Hop(Options(loss=0.1, retries=5)), B, Hop(), C))


@pytest.mark.parametrize(
    "text", ["A-[loss=.5]->B", " A\n-[ loss = 50% ]\n-> B", "A - [loss=5e-1,] -> B // so\n// it is"]
)
def test_white_space_and_comments_are_free(text: str) -> None:
    assert parse_path(text) == Path((A, Hop(Options(loss=0.5)), B))


def test_every_option_of_a_hop() -> None:
    text = (
        "A -[loss=10%,duplicate=.2,confirm_loss=0.3,retries=inf,timeout=200ms,delay=2m,window=7,dedup=id,keep=5s,"
        "size=9,confirm=cascade,durable=yes]-> B"
    )
    assert parse_path(text).steps[1] == Hop(
        Options(
            loss=0.1, duplicate=0.2, confirm_loss=0.3, retries=math.inf, timeout=0.2, delay=120.0, window=7,
            dedup=DedupBy.ID, keep=5.0, size=9, confirm=ConfirmOn.CASCADE, durable=True,
        )
    )  # fmt: skip
    assert parse_path("A -[repeats=2]-> B").steps[1] == Hop(Options(repeats=2))


def test_options_of_points_and_names_of_many_kinds() -> None:
    path = parse_path('X{crash=.1} -> S{durable=yes} -> inbox/orders -> my-host:80 -> "any name, really" -> Ärger')
    assert list(path.points()) == [
        Point("X", crash=0.1), Point("S", durable=True), Point("inbox/orders"), Point("my-host:80"),
        Point("any name, really"), Point("Ärger"),
    ]  # fmt: skip


def test_a_pipe_is_a_place() -> None:
    inner = Path((Point("P1"), Hop(Options(loss=0.1)), X, Hop(), Point("P2")))
    expected = Path((A, Hop(), Pipe(inner, Options(retries=5, dedup=DedupBy.ID)), Hop(), B))
    assert parse_path("A -> (P1 -[loss=.1]-> X -> P2){retries=5,dedup=id} -> B") == expected


def test_branches_in_both_forms() -> None:
    one, two = Hop(Options(loss=0.1)), Hop(Options(loss=0.3))
    assert parse_path("A ( -[loss=.1]-> X -> | -[loss=.3]-> ) B").steps[1] == Parallel(
        (Branch((one, X, Hop())), Branch((two,)))
    )
    both = Parallel((Branch((one,)), Branch((two,))))
    assert parse_path("A -[loss=.1 | loss=.3]-> B").steps[1] == both
    assert parse_path("A ( -[loss=.1]-> | -[loss=.3]-> ) B").steps[1] == both


@pytest.mark.parametrize(
    ("legs", "whole"),
    [
        ("A->B ; B->C", "A -> B -> C"),
        ("A->0#P1 ; P1->P2 ; P2->0#B", "A -> 0#P1 -> P2 -> 0#B"),
        ("[0#B]", "0#B"),
        ("A-[loss=.5]->[1#node; 0#B]", "A -[loss=0.5]-> node -> 0#B"),
        ("A->B{crash=.1} ; B->C", "A -> B{crash=0.1} -> C"),
        ("A->B ; B{crash=.1}->C ;", "A -> B{crash=0.1} -> C"),
        ("A->0#P1 ; (P1->X ; X->P2){retries=inf} ; P2->0#B", "A -> (0#P1 -> X -> P2){retries=inf} -> 0#B"),
        ("A->((P1->P2)->P3) ; P3{crash=.1}->B", "A -> ((P1 -> P2) -> P3{crash=0.1}) -> B"),
    ],
)
def test_the_notation_of_legs_routes_and_addresses(legs: str, whole: str) -> None:
    assert format_path(parse_path(legs)) == whole
    assert parse_path(legs) == parse_path(whole)


def test_milliseconds_mean_what_they_say() -> None:
    assert [parse_path(f"A -[delay={n}ms]-> B").steps[1] for n in (300, 700)] == [
        Hop(Options(delay=0.3)), Hop(Options(delay=0.7)),
    ]  # fmt: skip


# -- what it says about mistakes


def error(text: str) -> list[str]:
    with pytest.raises(PathSyntaxError) as caught:
        parse_path(text)
    assert caught.value.fix
    return [*caught.value.message.split("\n"), caught.value.fix]


def test_an_unknown_option_is_pointed_at_and_the_nearest_is_named() -> None:
    head, line, caret, fix = error("A -> B -[los=0.1]-> C")
    assert head == "line 1, column 10: a hop has no option 'los'"
    assert (line, caret) == ("    A -> B -[los=0.1]-> C", "             ^^^")
    assert fix.startswith("did you mean loss? a hop has: loss, duplicate, confirm_loss, retries")


def test_the_line_is_the_one_in_which_it_stands() -> None:
    assert error("A ->\n  B -[loss=2]->\n C")[:3] == [
        "line 2, column 12: loss=2 is not a probability", "      B -[loss=2]->", "               ^",
    ]  # fmt: skip


def test_a_cycle_shows_both_places() -> None:
    head, line, caret, _ = error("A -> B -> A")
    assert head == "line 1, column 11, and line 1, column 1: the path comes to A twice: a cycle"
    assert (line, caret) == ("    A -> B -> A", "    ^         ^")
    assert error("A -> B // away\n -> A")[1:5] == ["    A -> B // away", "    ^", "     -> A", "        ^"]


def test_a_caret_stands_under_its_word_behind_wide_characters_and_tabs() -> None:
    assert error("漢字\t-[los=1]-> B")[1:3] == ["    漢字 -[los=1]-> B", "           ^^^"]


def test_a_long_line_is_cut_around_the_caret() -> None:
    _, line, caret, _ = error(" -> ".join(f"point{n}" for n in range(400)) + " -[los=1]-> B" + " -> C" * 100)
    assert line[caret.index("^") :].startswith("los=1")
    assert line.startswith("    …")
    assert line.endswith("…")
    assert len(line) <= 80


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("", 1, "the path is empty"),
        ("  // nothing", 13, "the path is empty"),
        ("A B", 3, "an arrow is missing before B"),
        ("A -> ", 6, "ends in an arrow"),
        ("-> B", 1, "comes from nowhere"),
        ("A -> -> B", 6, "two arrows"),
        ("A -- B", 3, "where an arrow should be"),
        ("A → B", 3, "where an arrow should be"),
        ("A -[loss=0.1] B", 13, "has no arrow"),
        ("A -[loss=0.1", 3, "not closed"),
        ("A -[loss=0.1 -> B", 14, "should go on or end"),
        ("A -[loss]-> B", 5, "has no value"),
        ("A -[loss=]-> B", 5, "has no value"),
        ("A -[loss=.1 retries=1]-> B", 13, "a comma is missing"),
        ("A -[loss=.1,,]-> B", 13, "where an option of a hop should be"),
        ("A -[loss=.1,loss=.2]-> B", 13, "loss is given twice"),
        ("A -[loss=ten]-> B", 10, "not a number"),
        ("A -[loss=1.01]-> B", 10, "not a probability"),
        ("A -[loss=-1]-> B", 10, "not a probability"),
        ("A -[loss=101%]-> B", 10, "not a probability"),
        ("A -[loss=nan]-> B", 10, "not a number"),
        ("A -[retries=1.5]-> B", 13, "not a count"),
        ("A -[retries=-1]-> B", 13, "not a count"),
        ("A -[repeats=inf]-> B", 13, "not a count"),
        ("A -[window=0]-> B", 12, "not a count"),
        ("A -[window=1e99]-> B", 12, "not a count"),
        ("A -[timeout=soon]-> B", 13, "not a time"),
        ("A -[timeout=0]-> B", 13, "too short"),
        ("A -[timeout=1e999s]-> B", 13, "not a time"),
        ("A -[timeout=1e308w]-> B", 13, "not a time"),
        ("A -[delay=-1s]-> B", 11, "too short"),
        ("A -[dedup=ids]-> B", 11, "dedup=ids is not known"),
        ("A -[durable=maybe]-> B", 13, "neither yes nor no"),
        ("A -[retries=1,repeats=2]-> B", 15, "exclude each other"),
        ("A -[keep=5s]-> B", 5, "bounds the memory of ids"),
        ("A -[dedup=index,size=5]-> B", 17, "bounds the memory of ids"),
        ("A -[confirm=cascade]-> B", 5, "nothing is resent"),
        ("A -[crash=.1]-> B", 5, "a hop cannot crash"),
        ("A{loss=.1} -> B", 3, "a point has no option 'loss'"),
        ("A{crash=.1}{crash=.2} -> B", 12, "directly behind"),
        ("A{crash=.1 -> B", 12, "should go on or end"),
        ("(A -> B){loss=.1}", 10, "a pipe has no loss"),
        ("(A -> B", 1, "the pipe is not closed"),
        ("A -> B)", 7, "closes nothing"),
        ("A -> (P1)", 6, "two ends"),
        ("A (P1 -> P2) B", 3, "an arrow is missing"),
        ("A ( -> ) B", 3, "one branch"),
        ("A ( -> | ) B", 10, "needs an arrow"),
        ("A ( -> X | -> ) B", 10, "needs an arrow"),
        ("A ( -> | -> ", 3, "not closed"),
        ("A ( -[|]-> | -> ) B", 5, "cannot branch again"),
        ("A ( -> (P -> Q) -> | -> ) B", 8, "a pipe cannot stand inside a branch"),
        ("( -> X -> | -> ) B", 1, "the first one is missing"),
        ("A->B;C->D", 6, "the legs do not meet"),
        ("A->B{crash=.1};B{crash=.2}->C", 16, "described twice"),
        ("(A->B);(B->C)", 8, "two pipes share the end B"),
        ("2#x -> B", 1, "address type"),
        ("0# -> B", 1, "has no name"),
        ("A -> [0#B", 6, "the route is not closed"),
        ('"abc -> B', 1, "where a point should be"),
        ('"a\\qc" -> B', 1, "escape"),
        ('"" -> B', 1, "is empty"),
        ('"\\ud800" -> B', 1, "lone surrogate"),
        ("x" * 256, 1, "255"),
        ("# A -> B", 1, "where a point should be"),
    ],
)  # fmt: skip
def test_every_mistake_is_shown_where_it_is(text: str, where: int, words: str) -> None:
    head, _, caret, *_ = error(text)
    assert head.startswith(f"line 1, column {where}")
    assert words in head
    assert "^" in caret


def test_hostile_text_meets_a_limit_soon() -> None:
    began = time.perf_counter()
    assert "characters" in error("A" * (TEXT_CHARS_MAX + 1))[0]
    assert "nested deeper" in error("(" * TEXT_CHARS_MAX)[0]
    assert "more than 1,000 points" in error("->".join(f"p{n}" for n in range(POINTS_MAX + 1)))[0]
    assert "more than 2,000 hops" in error(f"A -[{'|' * 90_000}]-> B")[0]
    parse_path("(" * NESTING_MAX + "A->B" + "".join(f")->p{n}" for n in range(NESTING_MAX)))
    parse_path("->".join(f"p{n}" for n in range(POINTS_MAX)))
    assert time.perf_counter() - began < scaled(30)


# -- laws


@given(paths())
def test_a_path_is_what_its_text_says(path: Path) -> None:
    assert parse_path(format_path(path)) == path


PIECES = st.sampled_from(
    ["A", "B", "X", "->", "-[", "]->", "]", "[", "(", ")", "{", "}", "|", ";", ",", "=", "loss", "0.1", "retries",
     "inf", "dedup", "id", "crash", "0#", "1#", "//", "\n", " ", '"', "\\", "-", "%", "5s"]
)  # fmt: skip


def parsed(text: str) -> Path | None:
    """The path, or None after a syntax error that says what to do. Anything else is a failure."""
    try:
        return parse_path(text)
    except PathSyntaxError as error:
        if not error.fix or "\n" not in error.message:
            raise AssertionError(text) from error
        return None


@given(st.one_of(st.text(), st.lists(PIECES).map("".join), st.lists(PIECES).map(" ".join)))
def test_any_text_is_a_path_or_a_syntax_error(text: str) -> None:
    path = parsed(text)
    assert path is None or parse_path(format_path(path)) == path


@given(paths(), st.data())
def test_a_damaged_path_is_a_path_or_a_syntax_error(path: Path, data: st.DataObject) -> None:
    text = format_path(path)
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(PIECES) + text[at + data.draw(st.integers(0, 3)) :]
    parsed(damaged)
