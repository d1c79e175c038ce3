"""What the tests of Microsoft's SDKs share.

Every scenario runs on one node and on two: to clients and services there may be no difference. What is about one node,
or one file, is marked `one_node`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.messaging.webpubsubclient import _client
from azure.messaging.webpubsubclient.aio import _client as aio_client
from tests.interop.javascript import Node
from tests.interop.javascript_clients import ONCE, Client, Connect, Service
from tests.interop.microsoft import sockets_end
from tests.interop.served import NODES, ROLES, TWO, Pair, Served, shared_pair, shared_server
from tests.tools.renewing import sharing

from semel.testing.limits import scaled


@pytest.fixture(autouse=True)
def _sockets_go_with_their_test() -> Iterator[None]:
    """And not in the middle of a later one, which would be blamed for them."""
    with sockets_end():
        yield


@pytest.fixture(autouse=True)
def _slow_servers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their clients give up after 30 s; on a busy machine a server takes longer than that to come back."""
    for client in (_client, aio_client):
        monkeypatch.setattr(client, "_RECOVERY_TIMEOUT", scaled(client._RECOVERY_TIMEOUT))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "served" in metafunc.fixturenames:
        is_about_one = metafunc.definition.get_closest_marker("one_node") is not None
        metafunc.parametrize("served", NODES[:1] if is_about_one else NODES, indirect=True, scope="module")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres_server_url: str) -> Iterator[Pair]:
    with shared_pair(tmp_path_factory.mktemp("pair"), postgres_server_url) as found:
        yield found


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A module that needs another one has its own."""
    if request.param == TWO:
        found: Pair = request.getfixturevalue("pair")
        found.service.close_all_connections()  # of the module before
        yield found
    else:
        with shared_server(tmp_path_factory.mktemp("served")) as server:
            yield server


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
