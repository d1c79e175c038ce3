"""A path as TOML."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import PathSyntaxError
from semel.pipes.language.notation import parse_path
from semel.pipes.language.path import Hop, Path
from semel.pipes.language.tables import parse_tables

GRAPH = """\
name = "orders"

[[hop]]
from = "A"
to = "P1"

[[hop]]
from = "P1"
to = "P2"
loss = 0.1

[[hop]]
from = "P1"
to = "X"
timeout = "200ms"

[[hop]]
from = "X"
to = "P2"
loss = "20%"

[[hop]]
from = "P2"
to = "0#B"

[points.P1]
crash = 0.05

[[pipe]]
from = "P1"
to = "P2"
retries = "inf"
"""


def hops(*pairs: str) -> str:
    return "".join(f'[[hop]]\nfrom = "{pair[0]}"\nto = "{pair[1]}"\n' for pair in pairs)


def pipes(*pairs: str) -> str:
    return hops(*pairs).replace("[[hop]]", "[[pipe]]")


def error(text: str) -> PathSyntaxError:
    with pytest.raises(PathSyntaxError) as caught:
        parse_tables(text)
    assert caught.value.fix
    return caught.value


def test_the_text_form_inside_toml() -> None:
    path = parse_tables('name = "orders"\npath = "A -[loss=.1]-> B"')
    assert (path, path.name) == (parse_path("A -[loss=.1]-> B"), "orders")


def test_hops_points_and_pipes_make_the_path() -> None:
    path = parse_tables(GRAPH)
    assert path.name == "orders"
    assert path == parse_path(
        "A -> (P1{crash=.05} ( -[loss=.1]-> | -[timeout=200ms]-> X -[loss=.2]-> ) P2){retries=inf} -> 0#B"
    )


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        (["AB", "BC"], "A -> B -> C"),
        (["BC", "AB"], "A -> B -> C"),
        (["AB", "AB"], "A -[|]-> B"),
        (["AX", "XB", "AB"], "A ( -> X -> | -> ) B"),
        (["AX", "XY", "YB", "AZ", "ZB", "BC"], "A ( -> X -> Y -> | -> Z -> ) B -> C"),
        (["AX", "XB", "AB", "BY", "YC", "BC"], "A ( -> X -> | -> ) B ( -> Y -> | -> ) C"),
    ],
)
def test_branches_part_and_meet(pairs: list[str], text: str) -> None:
    assert parse_tables(hops(*pairs)) == parse_path(text)


def test_pipes_may_lie_inside_each_other_and_begin_at_one_point() -> None:
    nested = '[[pipe]]\nfrom = "A"\nto = "B"\nretries = 1\n[[pipe]]\nfrom = "A"\nto = "C"\nretries = 2\n'
    assert parse_tables(hops("AB", "BC", "CD") + nested) == parse_path("((A -> B){retries=1} -> C){retries=2} -> D")


@pytest.mark.parametrize(
    ("old", "new", "line", "words", "fix"),
    [
        ("loss = 0.1", "los = 0.1", 10, "a hop has no option 'los'", "did you mean loss?"),
        ("crash = 0.05", "crsh = 0.05", 27, "a point has no option 'crsh'", "did you mean crash?"),
        ("[[pipe]]", "[[pip]]", 29, "the file has no key 'pip'", "did you mean pipe?"),
        ("loss = 0.1", "loss = 2", 10, "loss=2 is not a probability", "from 0 to 1"),
        ("loss = 0.1", "loss = true", 10, "not a number", "10%"),
        ("loss = 0.1", "loss = [1]", 10, "not a number", "10%"),
        ("[points.P1]", "[points.P9]", 26, "no hop comes to the point P9", "the points are A, P1"),
        ('retries = "inf"', "loss = 0.1", 32, "a pipe has no loss", "on a hop"),
        ('to = "0#B"', 'to = "P2"', 24, "from P2 to itself", "two different ends"),
        ('to = "0#B"', "to = 3", 24, "to is not text", 'to = "'),
        ('to = "0#B"', "", 22, "has no 'to'", "add to"),
        ('name = "orders"', "name = 7", 1, "name is not text", "name ="),
        ("loss = 0.1", "keep = 5", 7, "memory of ids", "dedup=id"),
    ],
)
def test_a_mistake_is_shown_in_its_line(old: str, new: str, line: int, words: str, fix: str) -> None:
    caught = error(GRAPH.replace(old, new, 1))
    assert caught.message.startswith(f"line {line}, column 1: ")
    assert words in caught.message
    assert fix in caught.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither a path nor a hop"),
        ("x", "not TOML"),
        ('path = "A ->"', "in the value of path, line 1, column 5: the path ends in an arrow"),
        ('path = "A"\n' + hops("AB"), "exclude each other"),
        ("[hop]\nfrom = 'A'", "not a list of tables"),
        ("points = 3\n" + hops("AB"), "not a table of tables"),
        (hops("AB", "BC", "CA"), "in a circle: "),
        (hops("AB", "BC", "CB", "BD"), "in a circle: "),
        (hops("AC", "BC"), "begins at 2 points: A, B"),
        (hops("AB", "AC"), "ends at 2 points: B, C"),
        (hops("AB", "CD"), "begins at 2 points: A, C"),
        (hops("AX", "AY", "XY", "XB", "YB"), "from A"),
        (hops("AX", "XB", "XB", "AB"), "from A do not meet: they lead to X and B"),
        (hops("AB", "BC", "CD") + pipes("AC", "BD"), "A..C and B..D cross"),
        (hops("AB", "BC") + pipes("AB", "BC"), "A..B and B..C cross"),
        (hops("AB") + pipes("AB", "AB"), "two pipes A..B"),
        (hops("AB") + pipes("BA"), "goes backwards"),
        (hops("AX", "XB", "AB") + pipes("XB"), "needs X on the line"),
        ("#" * 100_001, "characters"),
    ],
)  # fmt: skip
def test_what_is_no_path_names_its_points(text: str, words: str) -> None:
    assert words in error(text).message


@given(st.lists(st.tuples(st.sampled_from("ABCDEF"), st.sampled_from("ABCDEF")), max_size=9))
def test_any_graph_is_a_path_with_all_its_hops_or_a_syntax_error(pairs: list[tuple[str, str]]) -> None:
    text = hops(*("".join(pair) for pair in pairs))
    try:
        path = parse_tables(text)
    except PathSyntaxError:
        return
    assert sorted(_hops(path)) == sorted(pairs)


def _hops(path: Path) -> list[tuple[str, str]]:
    found = []
    for at in range(1, len(path.steps), 2):
        way, start, end = path.steps[at], path.steps[at - 1], path.steps[at + 1]
        branches = [(way,)] if isinstance(way, Hop) else [branch.steps for branch in way.branches]  # type: ignore[union-attr]
        for steps in branches:
            names = [start.name, *(step.name for step in steps[1::2]), end.name]  # type: ignore[union-attr]
            found += list(pairwise(names))
    return found


def test_a_circle_is_pointed_at_where_it_closes() -> None:
    with pytest.raises(PathSyntaxError) as raised:
        parse_tables(hops("AB", "BC", "CA"))
    assert "[[hop]]" in raised.value.message
    assert "^^^" in raised.value.message
