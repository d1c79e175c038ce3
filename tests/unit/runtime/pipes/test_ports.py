"""What a worker sends to the others: by which route, in which parcels, and who may speak for whom."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.pipes.workers.build import APP
from semel.pipes.workers.route import LOCAL, TRANSPORT, Parcel
from semel.runtime.pipes import ports
from semel.runtime.pipes.ports import PARCEL_BYTES_MAX, Port, confirms_in_parts, first_node, parts

ROUTE = (f"{TRANSPORT}#n2", f"{LOCAL}#next")
BACK = (f"{LOCAL}#worker",)


class Node:
    def __init__(self) -> None:
        self.parcel_bodies = 2
        self.ports_to_flush: list[Port] = []
        self.posted: list[Parcel] = []
        self.confirmed: list[tuple[str, list[str]]] = []

    def post(self, parcel: Parcel) -> None:
        self.posted.append(parcel)

    def answered(self, worker: str, ids: Sequence[str]) -> None:
        self.confirmed.append((worker, list(ids)))


def port() -> tuple[Port, Node]:
    node = Node()
    made = Port(node, "worker")
    made.routes["next"] = ROUTE
    return made, node


def message(id: str, size: int = 0) -> HopMessage:
    return HopMessage(id, Envelope(id, "app", data=b"x" * size), 1)


def test_what_is_sent_in_a_tick_goes_in_as_few_parcels_as_hold_it() -> None:
    made, node = port()
    sent = [message(str(number)) for number in range(3)]
    for each in sent:
        made.send("next", each)
    assert (node.posted, node.ports_to_flush) == ([], [made])
    made.flush_boxes()
    assert node.posted == [Parcel(ROUTE, BACK, (sent[0], sent[1])), Parcel(ROUTE, BACK, (sent[2],))]
    made.flush_boxes()
    assert len(node.posted) == 2


def test_confirms_to_one_peer_are_one_and_those_for_the_application_go_to_the_node() -> None:
    made, node = port()
    for peer, ids in (("next", ("a",)), ("next", ("b", "c")), (APP, ("d",))):
        made.send(peer, Confirm(ids))
    made.flush_boxes()
    assert node.posted == [Parcel(ROUTE, BACK, (Confirm(("a", "b", "c")),))]
    assert node.confirmed == [("worker", ["d"])]


def test_a_peer_is_answered_on_the_way_by_which_it_came_unless_its_route_is_known() -> None:
    made, node = port()
    made.learn("guest", (f"{TRANSPORT}#n9", f"{LOCAL}#guest"))
    made.learn("next", (f"{TRANSPORT}#n9", f"{LOCAL}#next"))
    made.send("guest", Confirm(("a",)))
    made.send("next", Confirm(("b",)))
    made.flush_boxes()
    assert [parcel.onward for parcel in node.posted] == [(f"{TRANSPORT}#n9", f"{LOCAL}#guest"), ROUTE]


def test_ways_that_were_learned_are_forgotten_in_the_order_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LEARNED_MAX", 2)
    made, _ = port()
    for peer in ("a", "b", "a", "c"):
        made.learn(peer, (f"{LOCAL}#{peer}",))
    assert list(made._learned) == ["a", "c"]


def test_what_has_no_route_is_dropped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    made, node = port()
    made.send("nobody", Confirm(("a",)))
    with caplog.at_level(logging.WARNING):
        made.flush_boxes()
    assert node.posted == []
    assert "knows no route to nobody" in caplog.text


def test_a_node_speaks_for_the_workers_that_it_leads_to_and_never_for_the_application() -> None:
    made, _ = port()
    assert made.may_come("next", "n2")
    assert not made.may_come("next", "n3")
    assert made.may_come("guest", "n3")
    assert not made.may_come(APP, "n2")


def test_the_first_node_of_a_route() -> None:
    assert first_node((f"{LOCAL}#a", f"{TRANSPORT}#n2", f"{TRANSPORT}#n3")) == "n2"
    assert first_node((f"{LOCAL}#a",)) is None


def test_parts_have_room_for_one_body_however_large_and_for_many_small_ones() -> None:
    large, small = message("l", PARCEL_BYTES_MAX), message("s")
    assert list(parts([small, large, small], 9)) == [(small,), (large,), (small,)]
    assert list(parts([], 9)) == []


def test_confirms_are_cut_so_that_each_fits() -> None:
    ids = ["x" * 1000] * 100
    cut = list(confirms_in_parts(ids))
    assert [id for confirm in cut for id in confirm.deliveries] == ids
    assert all(sum(map(len, confirm.deliveries)) <= PARCEL_BYTES_MAX // 2 for confirm in cut)
    assert len(cut) > 1
