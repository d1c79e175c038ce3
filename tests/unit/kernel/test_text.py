from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError, LimitExceeded
from semel.kernel.text import (
    CAUSE_CHARS_MAX,
    ID_CHARS_MAX,
    NAME_CHARS_MAX,
    PART_CHARS_MAX,
    check_id,
    check_stream,
    check_text,
    clean_cause,
    quote_part,
    stream_name,
)

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=40)


@pytest.mark.parametrize("value", ["a", "ü", "🙂", " ", "\n", "x" * ID_CHARS_MAX])
def test_ids_are_any_text_that_every_store_holds(value: str) -> None:
    assert check_id("id", value) == value


@pytest.mark.parametrize("value", ["", "a\x00", "\x00", "\ud800", "a\udfffb", None, 5, b"a"])
def test_what_some_store_cannot_hold_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="id"):
        check_id("id", value)


def test_an_overlong_id_is_refused_as_a_limit() -> None:
    with pytest.raises(LimitExceeded, match="256 characters"):
        check_id("id", "x" * (ID_CHARS_MAX + 1))


def test_empty_text_is_allowed_only_where_it_is_said() -> None:
    assert check_text("subject", "", chars_max=5, empty=True) == ""


@given(st.lists(texts, min_size=1, max_size=4))
def test_a_quoted_name_reads_back(parts: list[str]) -> None:
    name = stream_name(*parts)
    assert [unquote(part) for part in name.split("/")] == parts


@given(st.lists(texts, min_size=1, max_size=4), st.lists(texts, min_size=1, max_size=4))
def test_different_names_stay_different(left: list[str], right: list[str]) -> None:
    assert (stream_name(*left) == stream_name(*right)) == (left == right)


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\x00"), min_size=1, max_size=30), max_size=4))
def test_a_quoted_name_is_a_valid_name(parts: list[str]) -> None:
    name = stream_name("hub", *parts)
    assert len(name) > NAME_CHARS_MAX or check_stream(name) == name


def test_plain_parts_stay_readable() -> None:
    assert stream_name("hub", "chat-room_1.a~b") == "hub/chat-room_1.a~b"
    assert stream_name("hub", "Chat room") == "hub/%43hat%20room"


@pytest.mark.parametrize("part", ["", "x" * (PART_CHARS_MAX + 1), "\x00", "\ud800"])
def test_parts_have_limits(part: str) -> None:
    with pytest.raises(InputError):
        quote_part(part)


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a//b", "A", "a b", "a%", "a%4", "a%4g", "a%zz", "ü", "a\n"])
def test_names_outside_the_grammar_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_stream(name)


def test_overlong_names_are_refused() -> None:
    with pytest.raises(LimitExceeded):
        check_stream("x" * (NAME_CHARS_MAX + 1))


@given(st.text(st.characters(), max_size=2000))
def test_a_cleaned_cause_fits_every_store(text: str) -> None:
    cleaned = clean_cause(text)
    check_text("cause", cleaned, chars_max=CAUSE_CHARS_MAX, empty=True)


@given(texts)
def test_a_cause_that_is_fine_is_left_alone(text: str) -> None:
    assert clean_cause(text) == text
