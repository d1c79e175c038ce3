"""Which connections a filter means, and what it says about a mistake."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError, LimitExceeded
from semel.pubsub.protocol.filters import CLAUSES_MAX, NESTING_MAX, TEXT_CHARS_MAX, parse


@dataclass(frozen=True)
class Somebody:
    user_id: str | None = "ann"
    connection_id: str = "c1"
    groups: frozenset[str] = frozenset({"red", "blue"})


@dataclass(frozen=True)
class Speaker(Somebody):
    protocol: str | None = "json.webpubsub.azure.v1"


ANN, NOBODY, ALONE = Somebody(), Somebody(user_id=None), Somebody(groups=frozenset())


def matches(text: str, connection: Somebody = ANN) -> bool:
    found = parse(text).matches(connection)
    assert isinstance(found, bool)
    return found


# -- what it says


@pytest.mark.parametrize(
    "text",
    [
        "true",
        "userId eq 'ann'",
        "USERID eq 'ann'",
        "connectionid eq 'c1'",
        "'red' in GROUPS",
        "userId ne 'Ann'",
        "userId ne null",
        "null eq null",
        "null ne 'x'",
        "'ann' eq userId",
        "userId eq concat('a', 'nn')",
        "length(userId) gt 2",
        "length(userId) ge 3",
        "length(userId) lt 4",
        "length(userId) le 3",
        "length(groups) eq 2",
        "3 eq length(userId)",
        "2 lt length(userId)",
        "length(userId) gt -1",
        "length(userId) eq +3",
        "length(userId) eq 003",
        "userId in ('bob', 'ann')",
        "userId in ('bob', tolower('ANN'))",
        "userId in ( connectionId , userId )",
        "null in ('a', null)",
        "3 in (1, 2, length(userId))",
        "length(userId) in (1, 2, 3)",
        "'red' in (groups)",
        "'red' in ((groups))",
        "concat('re', 'd') in groups",
        "not ('green' in groups)",
        "not userId in ('bob')",
        "not not true",
        "startswith(userId, 'an')",
        "endswith(userId,'nn')",
        "contains(userId, 'n')",
        "contains(userId, '')",
        "indexof(userId, 'n') eq 1",
        "indexof(userId, 'x') eq -1",
        "tolower('ANN') eq userId",
        "toupper(userId) eq 'ANN'",
        "trim('  ann ') eq userId",
        "substring(userId, 1) eq 'nn'",
        "substring(userId, 0, 1) eq 'a'",
        "substring(userId, 3) eq ''",
        "substring(userId, length(userId)) eq ''",
        "concat(userId, '-x') eq 'ann-x'",
        "startswith(concat(userId, connectionId), 'annc')",
        "(userId eq 'ann')",
        "((userId) eq ('ann'))",
        "userId eq 'ann' eq true",
        "(userId eq 'ann') ne false",
        "protocol eq null",
        " \t\nuserId\n eq\t'ann' ",
    ],
)
def test_what_holds_for_ann(text: str) -> None:
    assert matches(text)
    assert not matches(f"not ({text})")


@pytest.mark.parametrize(
    "text",
    [
        "false",
        "userId eq 'ANN'",
        "userId eq null",
        "userId eq 3",
        "length(userId) eq '3'",
        "length(userId) gt 3",
        "length(userId) gt null",
        "userId lt null",
        "userId in ()",
        "userId in ('bob', 3, true, null)",
        "'green' in groups",
        "null in groups",
        "3 in groups",
        "substring(userId, 4) eq ''",
        "substring(userId, 1, 3) eq 'nn'",
        "substring(userId, -1) eq 'n'",
        "substring(userId, 0, -1) eq ''",
        "1 eq true",
        "true eq 1",
        "0 in (false, true)",
        "true in (1, 0)",
    ],
)
def test_what_does_not_hold_for_ann(text: str) -> None:
    assert not matches(text)
    assert matches(f"not ({text})")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("userId eq null", True),
        ("userId ne null", False),
        ("userId ne 'ann'", True),
        ("userId in ('ann')", False),
        ("userId in ('ann', null)", True),
        ("length(userId) eq null", True),
        ("length(userId) eq 0", False),
        ("length(userId) ge 0", False),
        ("length(userId) lt 5", False),
        ("not (length(userId) gt 5)", True),
        ("contains(userId, 'a')", False),
        ("not contains(userId, 'a')", True),
        ("startswith(userId, '')", False),
        ("endswith('ann', userId)", False),
        ("contains('ann', null)", False),
        ("indexof(userId, 'a') eq -1", True),
        ("tolower(userId) eq null", True),
        ("trim(userId) eq ''", False),
        ("substring(userId, 0) eq null", True),
        ("substring('ann', length(userId)) eq null", True),
        ("concat(userId, 'x') eq 'x'", True),
        ("concat('x', userId) eq 'x'", True),
        ("concat(userId, null) eq null", True),
        ("userId eq length(userId)", True),
    ],
)
def test_without_a_user(text: str, expected: bool) -> None:
    assert matches(text, NOBODY) is expected


def test_quotes_and_commas_in_text() -> None:
    brien = Somebody(user_id="O'Brien, Jane")
    assert matches("userId eq 'O''Brien, Jane'", brien)
    assert matches("userId in ('Doe, John', 'O''Brien, Jane')", brien)
    assert matches("userId eq ''''", Somebody(user_id="'"))
    assert matches("userId eq ''", Somebody(user_id=""))
    assert matches("userId eq ') or ('", Somebody(user_id=") or ("))


def test_characters_are_counted_as_people_do() -> None:
    assert matches("length(userId) eq 1 and userId eq '\N{GRINNING FACE}'", Somebody(user_id="\N{GRINNING FACE}"))


def test_the_protocol_is_asked_for_where_there_is_one() -> None:
    assert matches("protocol eq 'json.webpubsub.azure.v1'", Speaker())
    assert matches("Protocol eq null", Speaker(protocol=None))


@pytest.mark.parametrize("a", [True, False])
@pytest.mark.parametrize("b", [True, False])
@pytest.mark.parametrize("c", [True, False])
def test_and_binds_tighter_than_or(a: bool, b: bool, c: bool) -> None:
    x, y, z = (str(value).lower() for value in (a, b, c))
    assert matches(f"{x} or {y} and {z}") == (a or (b and c))
    assert matches(f"{x} and {y} or {z}") == ((a and b) or c)
    assert matches(f"({x} or {y}) and {z}") == ((a or b) and c)
    assert matches(f"not {x} and {y} or not {z}") == ((not a and b) or not c)
    assert matches(f"{x} eq {y} and {z}") == ((a == b) and c)


# the same truth twice: as a filter, and as what it should be
@st.composite
def conditions(draw: st.DrawFn, depth: int = 4) -> tuple[str, bool]:
    kind = draw(st.sampled_from(["leaf", "leaf", "and", "or", "not"] if depth else ["leaf"]))
    if kind == "leaf":
        return draw(
            st.sampled_from(
                [("true", True), ("userId eq 'bob'", False), ("'red' in groups", True), ("length(groups) gt 2", False)]
            )
        )
    text, value = draw(conditions(depth - 1))
    if kind == "not":
        return f"not ({text})", not value
    other_text, other = draw(conditions(depth - 1))
    return f"({text}) {kind} ({other_text})", (value and other) if kind == "and" else (value or other)


@given(conditions())
def test_conditions_combine_as_logic_has_it(condition: tuple[str, bool]) -> None:
    text, expected = condition
    assert matches(text) is expected


@given(st.text(), st.text(max_size=3))
def test_any_text_can_be_quoted(user: str, part: str) -> None:
    somebody = Somebody(user_id=user)
    quoted, quoted_part = (value.replace("'", "''") for value in (user, part))
    if len(quoted) < 1000:
        assert matches(f"userId eq '{quoted}'", somebody)
        assert matches(f"contains(userId, '{quoted_part}')", somebody) == (part in user)


# -- mistakes


def test_the_words_of_the_service() -> None:
    with pytest.raises(InputError) as caught:
        parse("invalid filter")
    assert caught.value.message == (
        "Invalid syntax for 'invalid filter': Syntax error at position 14 in 'invalid filter'. (Parameter 'filter')"
    )
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("   ", 3),
        ("invalid filter here", 14),
        ("userId eq", 9),
        ("userId eq 'ann' and", 19),
        ("userId eq 'ann' userId", 22),
        ("userId eq 'ann", 14),
        ("userId eq 'ann''", 16),
        ("(userId eq 'ann'", 16),
        ("userId eq 'ann')", 16),
        ("userId eq ;", 10),
        ("userId = 'ann'", 7),
        ("userId eq 'ann' & true", 16),
        ("userId EQ 'ann'", 9),
        ("length(userId", 13),
        ("length(userId,)", 15),
        ("userId in ('a',)", 16),
        ("userId in ('a' 'b')", 18),
        ("userId in", 9),
        ("eq 'ann'", 8),
        ("length(userId) eq 1.5", 18),
        ("length(userId) eq 5L", 18),
        ("length(userId) eq - 5", 18),
        ("length(userId) eq 9223372036854775808", 37),
        ("groups/any(g: g eq 'x')", 6),
        ("true (true)", 6),
        ('userId eq "ann"', 10),
    ],
)
def test_the_position_of_a_mistake_is_where_reading_stood(text: str, position: int) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    detail = f"Syntax error at position {position} in '{text}'."
    assert caught.value.message == f"Invalid syntax for '{text}': {detail} (Parameter 'filter')"


@pytest.mark.parametrize(
    ("text", "part", "detail"),
    [
        ("( not 'a' )", "not 'a'", "Type 'string', expect 'bool'."),
        ("not length(userId) gt 5", "not length(userId)", "Type 'null', expect 'bool'."),
        ("not length(connectionId) gt 5", "not length(connectionId)", "Type 'int', expect 'bool'."),
        ("length(groups)", "length(groups)", "Type 'int', expect 'bool'."),
        ("tolower(trim(userId))", "tolower(trim(userId))", "Type 'null', expect 'bool'."),
        ("true and tolower(protocol)", "true and tolower(protocol)", "Type 'null', expect 'bool'."),
        ("userId lt 1", "userId lt 1", "Type 'string', expect 'int'."),
        ("1 lt userId", "1 lt userId", "Type 'string', expect 'int'."),
        ("userId gt 'a'", "userId gt 'a'", "Type 'string', expect 'int'."),
        ("true gt false", "true gt false", "Type 'bool', expect 'int'."),
        ("userId", "userId", "Type 'string', expect 'bool'."),
        ("null", "null", "Type 'null', expect 'bool'."),
        ("groups", "groups", "Type 'collection', expect 'bool'."),
        ("true and 1", "true and 1", "Type 'int', expect 'bool'."),
        ("userId or (true)", "userId or (true)", "Type 'string', expect 'bool'."),
        ("groups eq 'red'", "groups eq 'red'", "Type 'collection', expect 'string'."),
        ("groups in ('red')", "groups in ('red')", "Type 'collection', expect 'string'."),
        ("'red' in ('red', groups)", "'red' in ('red', groups)", "Type 'collection', expect 'string'."),
        ("'red' in 'redder'", "'red' in 'redder'", "Type 'string', expect 'collection'."),
        ("userId in tolower('ANN')", "userId in tolower('ANN')", "Type 'string', expect 'collection'."),
        ("length(1) eq 1", "length(1)", "Type 'int', expect 'string'."),
        ("contains(groups, 'a')", "contains(groups, 'a')", "Type 'collection', expect 'string'."),
        ("substring(userId, '1') eq 'a'", "substring(userId, '1')", "Type 'string', expect 'int'."),
        ("substring(userId, null) eq 'a'", "substring(userId, null)", "Type 'null', expect 'int'."),
        ("invalid(ab,c)", "invalid(ab,c)", "Token 'invalid(ab,c)' is not supported."),
        ("Length(userId) eq 1", "Length(userId)", "Token 'Length(userId)' is not supported."),
        ("ab eq 1", "ab eq 1", "Token 'ab' is not supported."),
        ("true and ab eq 1", "ab eq 1", "Token 'ab' is not supported."),
        ("true and (not ab)", "true and (not ab)", "Token 'ab' is not supported."),
        ("length(ab) gt 1", "length(ab)", "Token 'ab' is not supported."),
        ("not ab", "not ab", "Token 'ab' is not supported."),
        ("trim(userId, 'a') eq 'b'", "trim(userId, 'a')", "The function has 2 arguments, expect 1."),
        ("substring(userId) eq 'b'", "substring(userId)", "The function has 1 arguments, expect 2 or 3."),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(text: str, part: str, detail: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert caught.value.message == f"Invalid syntax for '{part}': {detail} (Parameter 'filter')"
    assert caught.value.fix


@pytest.mark.parametrize(
    "text",
    [
        "(" * NESTING_MAX + "true" + ")" * NESTING_MAX,
        "not " * (NESTING_MAX - 1) + "false",
        "true" + " eq true" * (NESTING_MAX - 1),
        " or ".join(["false"] * 1500 + ["true"]),
        " or ".join(f"userId eq '{n}'" for n in range(CLAUSES_MAX - 1)) + " or userId ne ''",
        f"userId in ({','.join(['1'] * 7000)},'ann')",
        "length(" + "trim(" * (NESTING_MAX - 3) + "userId" + ")" * (NESTING_MAX - 3) + ") eq 3",
    ],
)
def test_a_large_filter_is_read_and_asked(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(" * (NESTING_MAX + 1), "nested deeper"),
        ("(" * 8000, "nested deeper"),
        ("not " * 4000, "nested deeper"),
        ("length(" * 2000, "nested deeper"),
        ("true" + " eq true" * NESTING_MAX, "nested deeper"),
        ("1" + " in (1)" * NESTING_MAX, "nested deeper"),
        (" or ".join(["userId eq 'a'"] * (CLAUSES_MAX + 1)), "clauses"),
        ("a" * (TEXT_CHARS_MAX + 1), "characters"),
    ],
)
def test_a_filter_that_is_too_large_is_refused(text: str, reason: str) -> None:
    with pytest.raises(LimitExceeded, match=reason):
        parse(text)


def test_nested_functions_are_read_once_each() -> None:
    text, expected = "'a'", "a"
    for _ in range(NESTING_MAX // 2 - 1):
        text, expected = f"substring('abc', length({text}))", "abc"[len(expected) :]
    assert matches(f"{text} eq '{expected}'")


FRAGMENTS = st.sampled_from(
    ["userId", "groups", "connectionId", "protocol", "eq", "ne", "gt", "le", "and", "or", "not", "in", "(", ")", ",",
     "'a'", "''", "'", "1", "-1", "null", "true", "length(", "substring(", "concat(", "indexof(", "tolower(", "x", ".",
     "é", "9" * 30, "\ud800"]
)  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(FRAGMENTS, max_size=25).map(" ".join)))
def test_anything_else_is_an_input_error(text: str) -> None:
    try:
        found = parse(text)
    except InputError:
        return
    for connection in (ANN, NOBODY, ALONE, Speaker()):
        assert found.matches(connection) in (True, False)
