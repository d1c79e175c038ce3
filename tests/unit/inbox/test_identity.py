from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.inbox.commits import commit

from semel.errors import InputError, LimitExceeded
from semel.inbox.identity import (
    DEDUPLICATION_HEADER,
    Identity,
    IdentityMode,
    derived_id,
    id_text,
    identify,
    identify_id,
    identity_text,
    inbox_hop,
    sourced_text,
)
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Duplicate, Enqueue, Fresh
from semel.kernel.text import ID_CHARS_MAX, check_id
from semel.stores.memory import MemoryStore

# few letters, so that Hypothesis finds what could be written alike
tricky = st.text(" %205ab", min_size=1, max_size=6)
long = st.text("ab %", min_size=200, max_size=255)
sources = st.sampled_from(["semel"]) | tricky | long
ids = tricky | long


@given(st.tuples(sources, ids), st.tuples(sources, ids))
@example(("a", "b c"), ("semel", "a b c"))
@example(("a b", "c"), ("a", "b c"))
@example(("a b", "c"), ("a%20b", "c"))
@example(("%sha256", "x"), ("semel", "%sha256 x"))
def test_two_messages_are_never_taken_for_one(one: tuple[str, str], other: tuple[str, str]) -> None:
    texts = [identity_text(Envelope(id, source)) for source, id in (one, other)]
    assert (texts[0] == texts[1]) == (one == other)


@given(sources, ids)
def test_every_identity_fits_a_store(source: str, id: str) -> None:
    check_id("identity", identity_text(Envelope(id, source)))


def test_nobody_can_send_an_id_that_looks_like_the_hash_of_a_long_one() -> None:
    hashed = sourced_text("s" * 200, "x" * 200)
    assert len(hashed) <= ID_CHARS_MAX
    assert identity_text(Envelope(hashed)) != hashed
    source, _, id = hashed.partition(" ")
    assert identity_text(Envelope(id, source)) != hashed


def test_an_id_is_stored_as_it_was_given() -> None:
    assert identity_text(Envelope("order-7")) == "order-7"
    assert identity_text(Envelope("7", "https://shop/a b")) == "https://shop/a%20b 7"


def test_ids_of_two_sources_are_two_messages() -> None:
    """CloudEvents ids are unique per source: alone, one sender's message would be dropped as another's duplicate."""
    assert identity_text(Envelope("1", "a")) != identity_text(Envelope("1", "b"))


def test_a_deduplication_id_is_one_intent_whatever_the_delivery() -> None:
    headers = {DEDUPLICATION_HEADER: "pay-7"}
    texts = {identity_text(Envelope(id, source, headers=headers)) for id in ("1", "2") for source in ("a", "semel")}
    assert texts == {"pay-7"}


def test_an_empty_deduplication_id_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        identity_text(Envelope("1", headers={DEDUPLICATION_HEADER: ""}))
    assert "deduplication" in caught.value.fix


def test_a_deduplication_id_cannot_pass_for_the_message_of_a_source() -> None:
    forged = Envelope("x", headers={DEDUPLICATION_HEADER: "a 1"})
    assert identity_text(forged) != identity_text(Envelope("1", "a"))


def first_at(store: MemoryStore, identity: Identity) -> bool:
    enqueue = Enqueue(identity.queue, identity.identity, Envelope("1"), scope=identity.scope)
    [result] = commit(store, [enqueue])
    assert isinstance(result, Fresh | Duplicate)
    return isinstance(result, Fresh)


@pytest.mark.parametrize(
    ("mode", "second"), [(IdentityMode.ID, False), (IdentityMode.ID_AND_ENDPOINT, True)], ids=["id", "id+endpoint"]
)
def test_the_same_id_at_two_endpoints(mode: IdentityMode, second: bool) -> None:
    store, envelope = MemoryStore(), Envelope("1")
    assert first_at(store, identify("shop", "a", envelope, mode))
    assert first_at(store, identify("shop", "b", envelope, mode)) is second
    assert not first_at(store, identify("shop", "a", envelope, mode))


def test_an_application_called_like_an_endpoint_of_another_does_not_share_its_ids() -> None:
    of_app = identify("orders", "in", Envelope("1"), IdentityMode.ID)
    of_endpoint = identify("shop", "orders", Envelope("1"), IdentityMode.ID_AND_ENDPOINT)
    assert of_app.scope != of_endpoint.scope


@given(ids)
def test_an_id_alone_is_the_message_that_has_only_an_id(id: str) -> None:
    expected = identify("shop", "orders", Envelope(id), IdentityMode.ID)
    assert identify_id("shop", "orders", id, IdentityMode.ID) == expected


@pytest.mark.parametrize("id", ["", "a\x00b", "x" * 256])
def test_an_id_that_no_store_can_hold_is_refused(id: str) -> None:
    with pytest.raises((InputError, LimitExceeded)) as caught:
        identify_id("shop", "orders", id, IdentityMode.ID)
    assert caught.value.fix


def test_names_are_quoted_into_queues_and_hops() -> None:
    assert identify("shop", "Orders", Envelope("1"), IdentityMode.ID_AND_ENDPOINT).queue == "inbox/%4Frders"
    assert inbox_hop("orders") == "inbox/orders>handler"


# -- derived ids

identities = st.builds(Identity, st.sampled_from(["s", "t"]), st.sampled_from(["q", "r"]), ids.map(id_text))
origins = st.tuples(st.sampled_from(["pay", "ship"]), identities, st.integers(1, 3))


@given(origins, origins)
def test_derived_ids_are_the_same_for_the_same_origin_only(
    one: tuple[str, Identity, int], other: tuple[str, Identity, int]
) -> None:
    assert (derived_id(*one) == derived_id(*other)) == (one == other)


@given(origins)
def test_a_derived_id_is_an_id(origin: tuple[str, Identity, int]) -> None:
    Envelope(derived_id(*origin))


def test_derived_ids_stay_in_the_order_of_the_ids_they_come_from() -> None:
    """Random ids make the index of a large store slow; ids in the order of time do not."""
    incoming = [f"0190{n:04x}-7000" for n in range(100)]
    derived = [derived_id("pay", identify_id("shop", "in", id, IdentityMode.ID), 1) for id in incoming]
    assert derived == sorted(derived)


def test_the_endpoint_and_the_source_are_part_of_a_derived_id() -> None:
    mode = IdentityMode.ID_AND_ENDPOINT
    origins = [
        identify("shop", endpoint, Envelope("1", source), mode) for endpoint in ("a", "b") for source in ("x", "y")
    ]
    assert len({derived_id("pay", origin, 1) for origin in origins}) == 4
