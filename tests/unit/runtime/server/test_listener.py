"""The listener on its port; `tests/integration/test_listener.py` has the rest."""

from __future__ import annotations

import socket

import pytest
from tests.unit.runtime.server.lines import Guest, mounted

from semel.errors import ConfigError
from semel.runtime.server.listener import Listener


async def test_a_port_that_is_taken_is_a_config_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            await Listener(mounted(Guest())).listen(port=taken.getsockname()[1])
