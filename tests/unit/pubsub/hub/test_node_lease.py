from __future__ import annotations

import pytest

from semel.kernel.lease import Guard
from semel.pubsub.hub.node_lease import NodeLease


def test_a_single_node_needs_no_lease() -> None:
    lease = NodeLease("hub/chat/nodes", "node", is_shared=False)
    assert (lease.is_held, lease.guard, lease.has_run_out(1e12)) == (True, None, False)
    with pytest.raises(AssertionError):
        lease.hold(1, 10.0)


def test_one_of_several_waits_for_its_lease_and_knows_when_it_runs_out() -> None:
    lease = NodeLease("hub/chat/nodes", "node", is_shared=True)
    assert (lease.is_held, lease.guard, lease.has_run_out(1e12)) == (False, None, False)
    lease.hold(7, 10.0)
    assert (lease.is_held, lease.guard) == (True, Guard("hub/chat/nodes", "node", 7))
    assert [lease.has_run_out(now) for now in (9.9, 10.0)] == [False, True]
