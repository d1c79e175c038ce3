"""What a user's function may do with a row, and how one is found by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from semel.errors import ConfigError, HandlerError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.position import Position
from semel.kernel.text import CAUSE_CHARS_MAX
from semel.spark.handlers import BatchHandler, body, derived, handle, load_function
from semel.spark.landing import derived_id
from semel.spark.rows import Row, RowOutcome, batch_of, rows_of

ORDER = Envelope("order-1", data=b"ten", session="shop", index=4, headers={"h": "v"})
ROW = Row(ORDER, Position("orders", 1, 17))


def handled(handler: Callable[[Envelope], Any], row: Row = ROW) -> list[Row]:
    return handle(row, handler, "sales")


def test_the_same_id_goes_on_as_the_same_message() -> None:
    assert handled(lambda envelope: envelope) == [ROW]
    assert handled(lambda envelope: replace(envelope, data=b"12")) == [Row(replace(ORDER, data=b"12"), ROW.position)]


def test_session_and_index_are_kept_unless_the_function_sets_them() -> None:
    for given, kept in (
        (Envelope("order-1"), ("shop", 4)),
        (Envelope("other"), ("shop", 4)),
        (Envelope("other", session="till"), ("till", None)),
        (Envelope("other", session="till", index=9), ("till", 9)),
        (Envelope("other", index=9), ("shop", 9)),
        (Envelope("other", session="shop"), ("shop", 4)),
    ):
        *_, out = handled(lambda _, given=given: given)  # type: ignore[misc]
        assert (out.envelope.session, out.envelope.index) == kept


def test_another_id_names_its_input_and_its_number() -> None:
    _, *out = handled(lambda envelope: [Envelope("a"), Envelope("b", index=7)])
    assert [(row.envelope.id, row.input, row.ordinal) for row in out] == [("a", "order-1", 0), ("b", "order-1", 1)]
    assert [(row.envelope.session, row.envelope.index) for row in out] == [("shop", None), ("shop", 7)]
    assert {row.position for row in out} == {ROW.position}


def test_of_several_outputs_the_same_message_keeps_its_index() -> None:
    _, *out = handled(lambda envelope: (Envelope("receipt"), envelope))
    assert [(row.envelope.id, row.envelope.index, row.input) for row in out] == [
        ("receipt", None, "order-1"), ("order-1", 4, "order-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "outputs",
    [[Envelope("other", session="till")], [Envelope("order-1", session="till")], [Envelope("a"), Envelope("b")]],
)
def test_an_input_that_its_outputs_do_not_show_stands_before_them(outputs: list[Envelope]) -> None:
    itself, *out = handled(lambda envelope: outputs)
    bare = Envelope("order-1", session="shop", index=4)
    assert itself == Row(bare, ROW.position, RowOutcome.HANDLED)
    assert [(row.input, row.ordinal) for row in out] == [("order-1", place) for place in range(len(outputs))]


def test_an_input_that_its_output_shows_does_not_stand_before_it() -> None:
    assert [row.input for row in handled(lambda envelope: Envelope("other"))] == ["order-1"]
    assert [row.input for row in handled(lambda envelope: [envelope, Envelope("other")])] == [None, "order-1"]


@pytest.mark.parametrize(("number", "numbers"), [(0, [0, 1]), (3, [3, 1]), (None, [None, 1])])
def test_what_is_made_of_an_output_goes_on_under_its_input_and_number(
    number: int | None, numbers: list[int | None]
) -> None:
    made = replace(ROW, input="origin", ordinal=number)
    out = handled(lambda envelope: [Envelope("a"), Envelope("b", session="till")], made)
    assert [(row.input, row.ordinal) for row in out] == [("origin", each) for each in numbers]


def test_nothing_is_a_message_that_was_handled() -> None:
    for nothing in (None, [], ()):
        assert handled(lambda _, nothing=nothing: nothing) == [replace(ROW, outcome=RowOutcome.HANDLED)]  # type: ignore[misc]


def test_an_exception_makes_a_dead_letter_that_names_it() -> None:
    def refuses(envelope: Envelope) -> Envelope:
        raise ValueError(f"no such \x00 article {'x' * 2000}")

    [out] = handled(refuses)
    assert (out.envelope, out.position, out.outcome) == (ORDER, ROW.position, RowOutcome.DEAD)
    assert out.cause is not None
    assert out.cause.startswith("ValueError: no such \ufffd article")
    assert len(out.cause) == CAUSE_CHARS_MAX

    [out] = handled(lambda envelope: [][0])
    assert out.cause == "IndexError: list index out of range"


def test_nothing_of_a_generator_that_fails_goes_on() -> None:
    def half(envelope: Envelope) -> Iterator[Envelope]:
        yield Envelope("a")
        raise RuntimeError

    assert [(row.envelope.id, row.outcome, row.cause) for row in handled(half)] == [
        ("order-1", RowOutcome.DEAD, "RuntimeError"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (7, "the handler gave an int, not an Envelope"),
        ("text", "the handler gave a str, not an Envelope"),
        ({"id": "a"}, "the handler gave a dict, not an Envelope"),
        ({}, "the handler gave a dict, not an Envelope"),
        (b"", "the handler gave a bytes, not an Envelope"),
        ([Envelope("a"), None], "the handler gave a NoneType, not an Envelope"),
        ([Envelope("a"), Envelope("a")], "the handler gave two messages with the id 'a'"),
    ],
)
def test_what_is_no_message_makes_a_dead_letter(result: Any, cause: str) -> None:
    [out] = handled(lambda _: result)
    assert out.outcome is RowOutcome.DEAD
    assert out.cause is not None
    assert cause in out.cause


def test_a_stop_of_the_program_is_not_a_dead_letter() -> None:
    def interrupted(envelope: Envelope) -> Envelope:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handled(interrupted)


@pytest.mark.parametrize("code", [0, 3, "out of paper", None])
def test_a_handler_that_exits_makes_a_dead_letter_that_names_the_message(code: object) -> None:
    """It would end Spark's Python process, with the rest of its rows."""

    def exits(envelope: Envelope) -> Envelope:
        sys.exit(code)  # type: ignore[arg-type]

    [out] = handled(exits)
    assert (out.envelope, out.outcome) == (ORDER, RowOutcome.DEAD)
    assert out.cause == f"SystemExit: the handler called exit({code!r}) for order-1"


def test_a_row_with_an_outcome_travels_on_untouched() -> None:
    row = replace(ROW, outcome=RowOutcome.DUPLICATE, cause="index 4 came again")
    assert handled(lambda envelope: pytest.fail("it was called"), row) == [row]


def test_derived_messages_have_the_same_ids_at_every_run() -> None:
    def split(envelope: Envelope) -> list[Envelope]:
        return [derived(envelope, at, data=bytes([byte])) for at, byte in enumerate(envelope.data)]

    _, *out = handled(split)
    assert [row.envelope.id for row in out] == [derived_id("sales", "order-1", at) for at in range(3)]
    assert [row.envelope.data for row in out] == [b"t", b"e", b"n"]
    assert {row.envelope.headers["h"] for row in out} == {"v"}
    assert handled(split)[1:] == out


def test_a_large_body_can_be_read_and_goes_on_whole() -> None:
    large = b"x" * (DATA_INLINE_BYTES_MAX + 1)
    row = Row(Envelope("big"), large=large)
    seen: list[tuple[int, bytes]] = []

    def look(envelope: Envelope) -> Envelope:
        seen.append((envelope.size, body(envelope)))
        return envelope

    assert handled(look, row) == [row]
    assert seen == [(len(large), large)]
    [out] = handled(lambda envelope: derived(envelope, 0, data=b"small"), row)
    assert (out.envelope.data, out.large) == (b"small", None)
    [out] = handled(lambda envelope: derived(envelope, 0), row)
    assert (out.input, out.large) == ("big", large)


@pytest.mark.parametrize("call", [lambda: body(ORDER), lambda: derived(ORDER)])
def test_what_belongs_in_a_handler_says_so_outside_of_one(call: Callable[[], object]) -> None:
    with pytest.raises(HandlerError, match="outside a handler"):
        call()


def test_batches_go_through_with_rows_that_are_no_messages_as_dead_letters() -> None:
    batch = batch_of([ROW, Row(Envelope("order-2"))])
    bad = pa.table(batch.to_pydict() | {"id": ["order-1", "x" * 300]}, schema=batch.schema).to_batches()
    [out] = BatchHandler(lambda envelope: envelope, "sales")(bad)
    rows = list(rows_of(out))
    assert [row.outcome for row in rows] == [None, RowOutcome.DEAD]
    assert rows[0] == ROW


def test_outputs_without_ids_come_to_the_function_under_their_derived_ones() -> None:
    batch = batch_of([replace(ROW, input="m", ordinal=number) for number in range(2)])
    nameless = pa.table(batch.to_pydict() | {"id": [None, None], "session": [None, "\x00"]}, schema=batch.schema)
    [out] = BatchHandler(lambda envelope: envelope, "sales")(nameless.to_batches())
    good, bad = rows_of(out)
    assert (good.envelope.id, good.outcome) == (derived_id("sales", "m", 0), None)
    assert (bad.envelope.id, bad.outcome, bad.input) == (derived_id("sales", "m", 1), RowOutcome.DEAD, "m")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


def test_a_function_is_found_by_name(module: Callable[[str, str], None]) -> None:
    module(
        "shop_good",
        "class Till:\n    @staticmethod\n    def take(e):\n        return e\n\ndef accept(e):\n    return e\n",
    )
    assert load_function("shop_good:accept")(ORDER) is ORDER
    assert load_function("shop_good:Till.take")(ORDER) is ORDER


@pytest.mark.parametrize("spec", ["shop", "shop:", ":accept", ""])
def test_a_name_that_names_no_function_is_explained(spec: str) -> None:
    with pytest.raises(ConfigError, match="does not name a function"):
        load_function(spec)


def test_what_is_missing_is_named(module: Callable[[str, str], None]) -> None:
    module("shop_small", "rate = 3\n")
    with pytest.raises(ConfigError, match="no module 'shop_missing'"):
        load_function("shop_missing:accept")
    with pytest.raises(ConfigError, match="no module 'shop_missing'"):
        load_function("shop_missing.orders:accept")
    with pytest.raises(ConfigError, match="module 'shop_small' has no 'accept'"):
        load_function("shop_small:accept")
    with pytest.raises(ConfigError, match="is int, not a function"):
        load_function("shop_small:rate")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import json\nprice = 1 / 0\n",
            r"ZeroDivisionError: division by zero \(.*shop_bad\.py:2 in `price = 1 / 0`\)",
        ),
        ("import shop_nowhere\n", r"ModuleNotFoundError: No module named 'shop_nowhere' \(.*shop_bad\.py:1"),
        ("def accept(e:\n", r"SyntaxError: .*shop_bad\.py"),
    ],
)
def test_a_module_that_fails_shows_the_line_that_did_it(
    module: Callable[[str, str], None], text: str, said: str
) -> None:
    module("shop_bad", text)
    with pytest.raises(HandlerError, match=said):
        load_function("shop_bad:accept")
