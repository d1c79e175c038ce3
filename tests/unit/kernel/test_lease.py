from __future__ import annotations

from semel.kernel.lease import renew_at


def test_renewal_leaves_two_more_tries() -> None:
    at = renew_at(100.0, 30.0)
    assert at == 110.0
    assert 130.0 - at >= 2 * (at - 100.0)
