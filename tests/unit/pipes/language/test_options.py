"""What an option may be, and that one value means one thing however it is written."""

from __future__ import annotations

import math

import pytest

from semel.errors import ConfigError
from semel.pipes.language.options import (
    BACKOFF_WAIT_MAX_S,
    HOP_OPTIONS,
    PIPE_OPTIONS,
    ConfirmOn,
    DedupBy,
    Options,
    read_option,
    show_option,
    unknown_option,
)


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("loss", ("0.1", "10%", "10 %", 0.1), 0.1),
        ("timeout", ("2", "2s", "2000ms", 2), 2.0),
        ("timeout", ("300ms", "0.3"), 0.3),
        ("keep", ("1h", "60m", 3600), 3600.0),
        ("keep", (None,), None),
        ("retries", ("inf", "∞", math.inf), math.inf),
        ("retries", ("3", 3, 3.0), 3),
        ("durable", ("yes", "true", True), True),
        ("dedup", ("id", DedupBy.ID), DedupBy.ID),
        ("delay", ("0",), 0.0),
    ],
)
def test_one_value_however_it_is_written(name: str, written: tuple[object, ...], value: object) -> None:
    assert [read_option(name, each) for each in written] == [value] * len(written)


@pytest.mark.parametrize(
    ("name", "value"),
    [("loss", 0.25), ("timeout", 0.3), ("retries", math.inf), ("durable", True), ("confirm", ConfirmOn.CASCADE)],
)
def test_what_is_shown_can_be_read_again(name: str, value: object) -> None:
    if value != math.inf:
        assert read_option(name, show_option(name, value)) == value
    assert show_option("timeout", 2.0) == "2s"


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("loss", "10", "10 in a hundred is loss=10%"),
        ("loss", "-0.1", "from 0 to 1"),
        ("loss", "nan", "write loss=0.1"),
        ("loss", True, "write loss=0.1"),
        ("timeout", "0", "1ms or more"),
        ("timeout", "400d", "up to 366d"),
        ("keep", "soon", "remember for 24 hours"),
        ("retries", "1.5", "or retries=inf"),
        ("window", "0", "from 1 on"),
        ("backoff", "0.5", "from 1"),
        ("durable", "maybe", "durable=yes"),
        ("dedup", "ids", "did you mean dedup=id"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(name: str, raw: object, says: str) -> None:
    with pytest.raises(ConfigError) as found:
        read_option(name, raw)
    assert says in str(found.value)


@pytest.mark.parametrize(
    "stated",
    [
        {"loss": 1.1},
        {"retries": -1},
        {"retries": 1, "repeats": 1},
        {"timeout": 0.0},
        {"window": 0},
        {"backoff": 0.9},
        {"keep": 5.0},
        {"size": 5, "dedup": DedupBy.INDEX},
        {"confirm": ConfirmOn.CASCADE},
    ],
)
def test_options_that_contradict_each_other_are_refused(stated: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Options(**stated)  # type: ignore[arg-type]


def test_what_follows_from_the_retries() -> None:
    assert (Options().resends, Options().attempts) == (False, 1)
    assert (Options(retries=2).resends, Options(retries=2).attempts) == (True, 3)
    assert Options(retries=math.inf).attempts is None
    assert Options(timeout=5.0).longest_wait == BACKOFF_WAIT_MAX_S
    assert Options(timeout=90.0).longest_wait == 90.0


def test_only_what_differs_from_the_defaults_is_stated() -> None:
    assert Options(loss=0.1, window=1).stated() == {"loss": 0.1}


def test_a_pipe_has_no_link_of_its_own_and_says_where_it_is() -> None:
    assert set(HOP_OPTIONS) - set(PIPE_OPTIONS) == {"loss", "duplicate", "confirm_loss", "delay", "repeats"}
    assert "inside the parentheses" in str(unknown_option("loss", "a pipe", PIPE_OPTIONS))
    assert "behind the point" in str(unknown_option("crash", "a hop", HOP_OPTIONS))
    assert "did you mean timeout?" in str(unknown_option("time_out", "a hop", HOP_OPTIONS))
