"""The campaign against the data pipeline at a twentieth of its size. Its drivers are processes of their own."""

from __future__ import annotations

import pytest
from tests.integration.test_soak import check_twentieth


@pytest.mark.slow(150)
@pytest.mark.timeout(900)
def test_campaign_holds() -> None:
    check_twentieth("spark")
