from __future__ import annotations

import re

import pytest

from semel import errors
from semel.errors import CommitInDoubt, EpochChanged, SemelError, StoreError, StreamBroken


def every_error(root: type[SemelError] = SemelError) -> list[type[SemelError]]:
    return [root, *(error for child in root.__subclasses__() for error in every_error(child))]


def make(kind: type[SemelError]) -> SemelError:
    if issubclass(kind, EpochChanged):
        return kind("what happened", current=2, fix="what to do")
    if issubclass(kind, CommitInDoubt):
        return kind("what happened", marker="m", fix="what to do")
    if issubclass(kind, StreamBroken):
        return kind("what happened", name="Cancelled", fix="what to do")
    return kind("what happened", fix="what to do")


@pytest.fixture(params=every_error(), ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[SemelError]:
    found: type[SemelError] = request.param
    return found


def test_every_error_says_what_happened_and_what_to_do(kind: type[SemelError]) -> None:
    error = make(kind)
    assert str(error) == "what happened\n  fix: what to do"
    assert error.as_dict() == {"code": kind.code, "message": "what happened", "fix": "what to do"}


def test_every_error_says_whose_fault_it_is(kind: type[SemelError]) -> None:
    assert kind.fault in ("local", "remote", "store", "config")
    assert kind.exit_code in (1, 2, 3, 4, 5)


def test_codes_are_unique_and_stable_words() -> None:
    codes = [kind.code for kind in every_error()]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


def test_an_error_without_a_fix_has_no_empty_line() -> None:
    assert str(SemelError("oh")) == "oh"


def test_the_tree_at_the_top_of_the_module_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"(?:├── |└── )(\w+)", errors.__doc__)
    assert sorted(drawn) == sorted(kind.__name__ for kind in every_error()[1:])


def test_every_error_of_the_tree_hangs_where_it_is_drawn() -> None:
    assert errors.__doc__ is not None
    parents: list[str] = ["SemelError"]
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ((?:[│ ]   )*)(?:├── |└── )(\w+)", line)
        if found:
            depth = len(found[1]) // 4
            parents[depth + 1 :] = [found[2]]
            assert getattr(errors, found[2]).__mro__[1].__name__ == parents[depth]


def test_only_a_store_that_may_come_back_is_worth_a_retry() -> None:
    retryable = {kind.__name__ for kind in every_error() if kind.retryable}
    assert retryable == {"StoreUnavailable", "StoreInRecovery", "StoreBusy", "StoreFull", "PeerUnavailable"}


def test_store_errors_end_a_command_as_unreachable_unless_a_commit_is_in_doubt() -> None:
    others = {kind.exit_code for kind in every_error(StoreError) if kind is not CommitInDoubt}
    assert others == {errors.EXIT_UNREACHABLE}
    assert CommitInDoubt.exit_code == errors.EXIT_IN_DOUBT
    assert [kind for kind in every_error() if kind.exit_code == errors.EXIT_IN_DOUBT] == [CommitInDoubt]


def test_errors_carry_what_the_caller_needs_to_go_on() -> None:
    assert EpochChanged("e", current=7).current == 7
    assert CommitInDoubt("e", marker="x").marker == "x"
