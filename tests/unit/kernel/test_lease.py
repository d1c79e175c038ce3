from __future__ import annotations

from semel.kernel.lease import Lease, renew_at


def test_expiry_decides_who_may_claim() -> None:
    lease = Lease("w", fence=5, expires_at=10.0)
    assert not lease.is_free(9.999)
    assert lease.is_free(10.0)


def test_the_fence_decides_what_may_be_written_whatever_the_time() -> None:
    lease = Lease("w", fence=5, expires_at=0.0)
    assert lease.permits(5)
    assert not lease.permits(4)
    assert not lease.permits(6)


def test_renewal_leaves_two_more_tries() -> None:
    at = renew_at(100.0, 30.0)
    assert at == 110.0
    assert 130.0 - at >= 2 * (at - 100.0)
