from __future__ import annotations

from semel.pubsub.hub.in_order import InOrder


def test_what_is_on_its_way_behind_a_failure_is_held_until_the_client_begins_again() -> None:
    order = InOrder()
    for ack_id in (1, 2, 3):
        order.receive(ack_id)
    order.hold()
    order.receive(4)
    assert order.is_held
    order.receive(2)
    assert not order.is_held
    order.receive(3)
    assert not order.is_held


def test_on_a_socket_on_which_nothing_came_there_is_nothing_to_hold() -> None:
    order = InOrder()
    order.hold()
    assert not order.is_held
