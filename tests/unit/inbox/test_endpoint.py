from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from semel.errors import ConfigError, InputError
from semel.inbox.endpoint import (
    ALLOWED,
    EndpointMode,
    EndpointOptions,
    HandlerFacts,
    HandlerKind,
    OnCrash,
    Style,
    StylePolicy,
    keep_warning,
    style_for,
)

HANDLERS = {
    HandlerKind.TRANSACTION: HandlerFacts("h", has_transaction=True),
    HandlerKind.OUTSIDE_TOO: HandlerFacts("h", has_transaction=True, outside=True),
    HandlerKind.PLAIN: HandlerFacts("h", has_transaction=False),
}


def handler(kind: HandlerKind, style: Style | None = None) -> HandlerFacts:
    facts = HANDLERS[kind]
    assert facts.kind is kind
    return HandlerFacts("h", facts.has_transaction, facts.outside, style)


def test_the_table_knows_every_combination() -> None:
    assert ALLOWED.keys() == set(product(EndpointMode, Style))


@pytest.mark.parametrize(("mode", "style", "kind"), list(product(EndpointMode, Style, HandlerKind)))
def test_a_combination_works_or_says_what_to_do(mode: EndpointMode, style: Style, kind: HandlerKind) -> None:
    options = EndpointOptions("orders", mode)
    if kind in ALLOWED[mode, style]:
        assert style_for(options, handler(kind, style)) is style
        return
    with pytest.raises(ConfigError) as caught:
        style_for(options, handler(kind, style))
    assert "'h'" in caught.value.message
    assert "'orders'" in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize("mode", EndpointMode)
@pytest.mark.parametrize("style", [Style.EAGER, Style.OPTIMISTIC])
def test_effects_outside_are_refused_where_a_rollback_is_counted_on(mode: EndpointMode, style: Style) -> None:
    with pytest.raises(ConfigError):
        style_for(EndpointOptions("orders", mode), handler(HandlerKind.OUTSIDE_TOO, style))


@pytest.mark.parametrize("mode", EndpointMode)
@pytest.mark.parametrize("kind", [HandlerKind.OUTSIDE_TOO, HandlerKind.PLAIN])
def test_reserved_is_for_everybody(mode: EndpointMode, kind: HandlerKind) -> None:
    assert style_for(EndpointOptions("orders", mode, Style.RESERVED), handler(kind)) is Style.RESERVED


def test_a_durable_handler_marks_last() -> None:
    options = EndpointOptions("orders")
    assert style_for(options, handler(HandlerKind.TRANSACTION)) is Style.OPTIMISTIC
    assert style_for(options, handler(HandlerKind.OUTSIDE_TOO)) is Style.RESERVED
    assert style_for(options, handler(HandlerKind.PLAIN)) is Style.RESERVED


def test_a_policy_for_all_does_not_reach_durable_endpoints() -> None:
    policy = StylePolicy(Style.EAGER, Style.RESERVED)
    assert style_for(EndpointOptions("orders"), handler(HandlerKind.TRANSACTION), policy) is Style.OPTIMISTIC


@pytest.mark.parametrize("mode", [EndpointMode.BUFFERED, EndpointMode.INLINE])
def test_the_others_find_duplicates_only_on_request(mode: EndpointMode) -> None:
    for kind in HandlerKind:
        assert style_for(EndpointOptions("orders", mode), handler(kind)) is Style.NONE


def test_the_handlers_own_word_wins_over_the_endpoints_and_that_over_the_policys() -> None:
    policy = StylePolicy(Style.EAGER, Style.RESERVED)
    plain, by_endpoint = (
        EndpointOptions("a", EndpointMode.INLINE),
        EndpointOptions("a", EndpointMode.INLINE, Style.OPTIMISTIC),
    )
    assert style_for(plain, handler(HandlerKind.TRANSACTION), policy) is Style.EAGER
    assert style_for(by_endpoint, handler(HandlerKind.TRANSACTION), policy) is Style.OPTIMISTIC
    assert style_for(by_endpoint, handler(HandlerKind.TRANSACTION, Style.NONE), policy) is Style.NONE


def test_a_policy_for_transactions_makes_outside_effects_reserved_and_leaves_plain_handlers() -> None:
    policy, options = StylePolicy(Style.OPTIMISTIC), EndpointOptions("a", EndpointMode.INLINE)
    assert style_for(options, handler(HandlerKind.OUTSIDE_TOO), policy) is Style.RESERVED
    assert style_for(options, handler(HandlerKind.PLAIN), policy) is Style.NONE


def test_a_policy_for_handlers_without_a_transaction_reserves() -> None:
    policy, options = StylePolicy(without=Style.RESERVED), EndpointOptions("a", EndpointMode.BUFFERED)
    assert style_for(options, handler(HandlerKind.PLAIN), policy) is Style.RESERVED
    with pytest.raises(ConfigError, match="transaction"):
        StylePolicy(without=Style.EAGER)


@pytest.mark.parametrize(
    ("options", "style"),
    [
        (EndpointOptions("a"), None),
        (EndpointOptions("a", EndpointMode.INLINE), Style.EAGER),
        (EndpointOptions("a", EndpointMode.BUFFERED), Style.RESERVED),
    ],
)
def test_duplicates_are_not_found_without_a_store(options: EndpointOptions, style: Style | None) -> None:
    with pytest.raises(ConfigError, match="needs a store") as caught:
        style_for(options, handler(HandlerKind.TRANSACTION, style), has_store=False)
    assert caught.value.fix


def test_an_endpoint_that_checks_nothing_needs_no_store() -> None:
    options = EndpointOptions("a", EndpointMode.INLINE)
    assert style_for(options, handler(HandlerKind.PLAIN), has_store=False) is Style.NONE


def test_words_are_taken_as_text() -> None:
    options = EndpointOptions("a", "inline", "reserved", "park", "passes")  # type: ignore[arg-type]
    assert options == EndpointOptions("a", EndpointMode.INLINE, Style.RESERVED, OnCrash.PARK, options.failed_head)
    assert options.mode is EndpointMode.INLINE
    assert HandlerFacts("h", True, style="eager").style is Style.EAGER  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "persistent"},
        {"style": "lazy"},
        {"on_crash": "ignore"},
        {"failed_head": "waits"},
        {"mode": None},
        {"style": "eager"},
        {"style": "none"},
        {"mode": "inline", "style": "eager", "on_crash": "drop"},
        {"parallel": 0},
        {"buffer_low": 0},
        {"buffer_low": 2000},
        {"lease_s": 0.0},
        {"keep_s": 0.0},
        {"expire_s": 0.0},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        EndpointOptions("orders", **wrong)
    assert caught.value.fix


@pytest.mark.parametrize("name", ["", "x" * 200, "a\x00"])
def test_a_name_that_no_queue_can_have_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        EndpointOptions(name)
    assert caught.value.fix


def test_a_transport_that_redelivers_after_the_memory_is_warned_of() -> None:
    assert keep_warning(EndpointOptions("orders", keep_s=300.0)) is None
    assert keep_warning(EndpointOptions("orders", keep_s=300.0, redelivery_s=300.0)) is None
    warning = keep_warning(EndpointOptions("orders", keep_s=300.0, redelivery_s=3600.0))
    assert warning is not None
    assert "keep_s to 3600" in warning


@pytest.mark.parametrize(
    "options",
    [{"parallel": "4"}, {"parallel": 1.5}, {"share_commit": True}, {"buffer_high": None}, {"lease_s": float("nan")},
     {"lease_s": "30"}, {"keep_s": None}, {"keep_s": float("inf")}, {"expire_s": "1"}, {"redelivery_s": float("nan")}],
)  # fmt: skip
def test_what_is_no_number_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is") as caught:
        EndpointOptions("orders", **options)
    assert caught.value.fix.startswith("use ")
