"""Elements of SVG are well-formed whatever is written into them."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from semel import svg

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))


@given(TEXTS, TEXTS)
def test_any_text_comes_back_as_it_was(text: str, name: str) -> None:
    drawn = svg.picture(10, 20, svg.title(text), svg.label(1, 2, text, aria_label=name), class_="all")
    whole = ElementTree.fromstring(drawn)
    assert (whole.tag, whole.attrib) == ("svg", {"class": "all", "viewBox": "0 0 10 20"})
    assert [each.text or "" for each in whole] == [text, text]
    assert whole[1].attrib["aria-label"] == name


def test_numbers_are_as_short_as_a_tenth_of_a_pixel_allows() -> None:
    assert svg.box(1.0, 2.25, 3, 0.04, rx=None, fill="none") == '<rect x="1" y="2.2" width="3" height="0" fill="none"/>'


def test_a_way_has_spaces_where_two_numbers_meet() -> None:
    assert svg.along("M", 1, 2.5, "C", 0, 0, -1, 4, "z") == "M1 2.5C0 0 -1 4z"
    assert svg.line("M0 0V6", class_="x") == '<path d="M0 0V6" class="x"/>'
