"""A path as a picture."""

from __future__ import annotations

from xml.dom import minidom

import pytest
from hypothesis import given
from tests.unit.pipes.strategies import paths

from semel.pipes.language.draw import columns, draw_svg, draw_text
from semel.pipes.language.notation import parse_path
from semel.pipes.language.path import Path

PIPE = """\
          ╭ pipe retries=inf dedup=id ─────────────────────╮
┌───┐     │ ┌────┐ loss=0.1 ┌────────────┐ loss=0.2 ╔════╗ │     ┌───┐
│ A │────▶│ │ P1 │─────────▶│ X          │─────────▶║ P2 ║ │────▶│ B │
└───┘     │ └────┘          │ crash=0.05 │          ╚════╝ │     └───┘
          │                 └────────────┘                 │
          ╰────────────────────────────────────────────────╯"""

BRANCHES = """\
┌───┐   loss=0.1 ┌───┐             ┌───┐
│ A │─┬─────────▶│ X │──────────┬─▶│ B │
└───┘ │          └───┘          │  └───┘
      │ loss=0.3                │
      ├─────────────────────────┤
      │     ┌───┐     ┌───┐     │
      └────▶│ Y │────▶│ Z │─────┘
            └───┘     └───┘"""


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("A -> (P1 -[loss=.1]-> X{crash=.05} -[loss=.2]-> P2{durable=yes}){retries=inf,dedup=id} -> B", PIPE),
        ("A ( -[loss=.1]-> X -> | -[loss=.3]-> | -> Y -> Z -> ) B", BRANCHES),
    ],
)
def test_the_picture(text: str, drawn: str) -> None:
    assert draw_text(parse_path(text)) == drawn


def test_a_long_path_goes_on_in_the_next_row() -> None:
    drawn = draw_text(parse_path(" -> ".join(f"point{n}" for n in range(20))), 80)
    assert max(map(columns, drawn.splitlines())) <= 80
    assert all(f" point{n} " in drawn for n in range(20))
    assert drawn.count("▶") == 19


def test_branches_too_long_for_the_terminal_are_listed() -> None:
    chain = " -> ".join(f"X{n}" for n in range(15))
    drawn = draw_text(parse_path(f"A ( -> {chain} -> | -> ) B"), 80)
    assert "side by side" in drawn
    assert max(map(columns, drawn.splitlines())) <= 80


def test_wide_and_long_names_keep_the_boxes_straight() -> None:
    lines = draw_text(parse_path(f'漢字 -> {"x" * 200} -> "a\\u001bb"')).splitlines()
    assert len({columns(line) for line in lines}) == 1
    assert "\x1b" not in "".join(lines)
    assert "x…" in lines[1]


@given(paths())
def test_everything_can_be_drawn(path: Path) -> None:
    assert draw_text(path)
    svg = draw_svg(path)
    assert minidom.parseString(svg).documentElement.tagName == "svg"  # type: ignore[union-attr]


def test_the_svg_shows_every_point_and_option_and_asks_for_nothing_outside() -> None:
    svg = draw_svg(parse_path('A -> (P1 -[loss=.1 | loss=.3]-> P2){retries=5} -> "<b>"'))
    for text in ("A", "P1", "P2", "loss=0.1", "loss=0.3", "pipe retries=5", "&lt;b&gt;"):
        assert f">{text}</text>" in svg
    assert "href" not in svg
