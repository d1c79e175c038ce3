"""Routes: where a parcel goes next, and how an answer finds home."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError
from semel.kernel.envelope import Envelope
from semel.pipes.workers.route import (
    ROUTE_MAX,
    Address,
    NoRoute,
    Parcel,
    Router,
    ToNode,
    ToWorker,
    arrived_from,
    parse_address,
)

BODIES = (Envelope("a"),)
names = st.text(st.characters(codec="utf-8", exclude_characters="\x00#"), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("B", Address("0", "B")),
        ("0#B", Address("0", "B")),
        ("1#berlin", Address("1", "berlin")),
        ("0#a#b", Address("0", "a#b")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["2#x", "x#y", "#y", "", "0#", "1#", "0#" + "x" * 300, "0#a\x00"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_address(text)
    assert caught.value.fix


@given(st.sampled_from("01"), names)
def test_an_address_reads_back(kind: str, name: str) -> None:
    address = Address(kind, name)
    assert parse_address(str(address)) == address


def test_a_worker_takes_what_is_its_own_and_sees_the_rest() -> None:
    router = Router({"B"}, set(), set())
    parcel = Parcel(("0#B", "0#C"), ("0#A",), BODIES)
    assert router.route(parcel) == ToWorker("B", Parcel(("0#C",), ("0#A",), BODIES))


def test_a_transport_takes_it_to_its_node() -> None:
    router = Router({"B"}, set(), {"berlin"})
    parcel = Parcel(("1#berlin", "0#B"), ("0#A",), BODIES)
    assert router.route(parcel) == ToNode("berlin", Parcel(("0#B",), ("0#A",), BODIES))


def test_forwarders_add_themselves_to_the_way_back() -> None:
    router = Router({"B"}, {"f", "g"}, {"berlin"})
    there = Parcel(("0#f", "g", "1#berlin", "0#B"), ("0#A",), BODIES)
    assert router.route(there) == ToNode("berlin", Parcel(("0#B",), ("0#g", "0#f", "0#A"), BODIES))


@pytest.mark.parametrize(
    ("onward", "reason"),
    [
        (("0#nobody",), "no worker named nobody"),
        (("1#paris", "0#B"), "no connected node named paris"),
        ((), "ends before a worker"),
        (("0#f",), "ends before a worker"),
    ],
)
def test_what_finds_nobody_is_astray(onward: tuple[str, ...], reason: str) -> None:
    found = Router({"B"}, {"f"}, {"berlin"}).route(Parcel(onward, ("0#A",), BODIES))
    assert isinstance(found, NoRoute)
    assert reason in found.reason


def test_a_message_goes_only_where_somebody_is_connected() -> None:
    """A stranger's route names an address of its own choosing: nothing is dialled for it."""
    found = Router(set(), set(), {"berlin"}).route(Parcel(("1#evil.example:4000",), (), BODIES))
    assert isinstance(found, NoRoute)


def test_a_route_has_an_end() -> None:
    with pytest.raises(InputError, match="route"):
        Parcel(("0#a",) * ROUTE_MAX, ("0#b",), BODIES)
    full = Parcel(("0#a",) * (ROUTE_MAX - 1), ("0#b",), BODIES)
    with pytest.raises(InputError, match="route"):
        arrived_from("berlin", full)


def test_an_address_that_is_none_is_an_error_of_the_sender() -> None:
    with pytest.raises(InputError):
        Router({"B"}, set(), set()).route(Parcel(("9#B",), (), BODIES))


def test_the_sender_is_the_last_on_the_way_back() -> None:
    assert Parcel((), ("1#berlin", "0#g", "0#A"), BODIES).sender == "A"
    assert Parcel((), (), BODIES).sender == ""


def test_a_parcel_crosses_a_wire() -> None:
    parcel = Parcel(("0#B",), ("0#A",), ("text", 7))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(parcel), type=Parcel) == parcel
    wrong = msgspec.msgpack.encode(Parcel(("0#B",), ("0#A",), ())).replace(b"0#B", b"9#B")
    assert msgspec.msgpack.decode(wrong, type=Parcel).onward == ("9#B",)


@given(st.lists(st.sampled_from("fgh"), max_size=5), st.lists(st.sampled_from("fgh"), max_size=5))
def test_the_way_back_leads_home(before: list[str], behind: list[str]) -> None:
    """Over any forwarders of two nodes: whatever the way there, the answer arrives at the sender."""
    one, other = Router({"A"}, set("fgh"), {"two"}), Router({"B"}, set("fgh"), {"one"})
    onward = (*(f"0#{name}" for name in before), "1#two", *(f"0#{name}" for name in behind), "0#B")
    crossing = one.route(Parcel(onward, ("0#A",), BODIES))
    assert isinstance(crossing, ToNode)
    arrived = other.route(arrived_from("one", crossing.parcel))
    assert isinstance(arrived, ToWorker)
    back = other.route(Parcel(arrived.parcel.back, ("0#B",), BODIES))
    assert isinstance(back, ToNode)
    home = one.route(arrived_from("two", back.parcel))
    assert isinstance(home, ToWorker)
    assert (home.worker, home.parcel.onward, home.parcel.sender) == ("A", (), "B")
