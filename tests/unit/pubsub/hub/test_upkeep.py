from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench

from semel.pubsub.hub.catchup import CatchUp
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.lost_sessions import LostSessions
from semel.pubsub.hub.machine import Upkeep
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.spills import Spills
from semel.pubsub.hub.tail import Tail


@pytest.mark.parametrize("has_lease", [False, True])
def test_all_is_tried_again_and_only_who_has_a_lease_trims(has_lease: bool) -> None:
    tail, floors, closing = Mock(spec=Tail), Mock(spec=Floors), Mock(spec=Closing)
    spills, missing, catch_up = Mock(spec=Spills), Mock(spec=LostSessions), Mock(spec=CatchUp)
    lease = NodeLease("hub/chat/nodes", "node", is_shared=True)
    if has_lease:
        lease.hold(1, NOW + 10)
    upkeep = Upkeep(Bench(trim_s=5.0).context, lease, tail, floors, closing, spills, missing, catch_up)
    upkeep.on_timer(NOW)
    upkeep.start(NOW)
    upkeep.on_timer(NOW + 4)
    tail.read_on.assert_not_called()
    upkeep.on_timer(NOW + 5)
    closing.try_again.assert_called_once_with(NOW + 5)
    for part in (spills, missing, catch_up):
        part.try_again.assert_called_once_with()
    tail.read_on.assert_called_once_with()
    assert floors.update.called == has_lease
    assert upkeep.next_deadline() == NOW + 10
