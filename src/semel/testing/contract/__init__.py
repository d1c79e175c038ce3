"""One contract for all stores. Run it against yours:

    class TestMyStore(StoreContract, DurableContract, SharedContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path / "data")

        @pytest.fixture
        def connect(self, tmp_path):
            return lambda: my_driver.connect(tmp_path / "data")

`StoreContract` is for every store, `DurableContract` for those that outlive their process, `SharedContract` for those
that several processes may use at once. See `base.StoreSuite` for the fixtures.
"""

from __future__ import annotations

import pytest

_SUITES = (
    "base", "binding", "bodies", "durable", "identities", "inputs", "ledger", "model", "streams", "threads", "units",
    "work",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in _SUITES))

from semel.testing.contract.base import ManualClock, StoreSuite, Time  # noqa: E402
from semel.testing.contract.contracts import DurableContract, SharedContract, StoreContract  # noqa: E402
from semel.testing.contract.model import World  # noqa: E402

__all__ = ["DurableContract", "ManualClock", "SharedContract", "StoreContract", "StoreSuite", "Time", "World"]
