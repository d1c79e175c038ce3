"""What the tests of Microsoft's SDKs share. Each module has a `served` of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.javascript import Node
from tests.interop.javascript_clients import ONCE, Client, Connect, Service
from tests.interop.microsoft import sockets_end
from tests.interop.served import ROLES, Served

from semel.testing.renewing import sharing


@pytest.fixture(autouse=True)
def _sockets_go_with_their_test() -> Iterator[None]:
    """And not in the middle of a later one, which would be blamed for them."""
    with sockets_end():
        yield


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """It takes longer to start than most tests."""
    with sharing(Node()) as found:
        yield found
        found.close()


@pytest.fixture
def connect(node: Node, served: Served) -> Iterator[Connect]:
    opened: list[Client] = []

    def make(user: str = "alice", *, roles: list[str] = ROLES, groups: list[str] | None = None, port: int = 0,
             options: dict[str, Any] | None = None) -> Client:  # fmt: skip
        url = Service(node, port or served.port).url(user, roles, groups or [])
        opened.append(Client(node, url, options or ONCE))
        return opened[-1]

    yield make
    for each in opened:
        each.do("stop")


@pytest.fixture
def service(node: Node, served: Served) -> Service:
    return Service(node, served.port)
