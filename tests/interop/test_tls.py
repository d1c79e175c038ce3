"""Microsoft's SDKs over TLS: https and wss to a `semel serve` with a certificate of nobody that they know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.messaging.webpubsubclient import WebPubSubClient
from azure.messaging.webpubsubclient.models import OpenClientError
from azure.messaging.webpubsubservice import WebPubSubServiceClient
from tests.integration.test_listener import CERTIFICATE, PRIVATE_KEY
from tests.interop.javascript import JavaScriptError, Node
from tests.interop.javascript_clients import ONCE, Client, Service
from tests.interop.served import HUB, KEY, ROLES, Served, shared_server
from tests.interop.test_webpubsub_python import Subscriber

from semel.testing.limits import scaled

pytestmark = [
    pytest.mark.interop,
    pytest.mark.connected,
    pytest.mark.one_node,
    pytest.mark.timeout(120),
    # the Python SDK does not expect its socket to be gone, and it leaves broken sockets open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trust") / "ca.pem"
    path.write_text(CERTIFICATE)
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "cert.pem").write_text(CERTIFICATE)
    (folder / "key.pem").write_text(PRIVATE_KEY)
    with shared_server(folder, "--tls-cert", "cert.pem", "--tls-key", "key.pem") as server:
        yield server


def service_client(served: Served, **options: Any) -> Any:
    text = f"Endpoint={served.endpoint};AccessKey={KEY};Version=1.0;"
    return WebPubSubServiceClient.from_connection_string(text, hub=HUB, retry_total=0, **options)


def test_the_python_sdks(served: Served, ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBSOCKET_CLIENT_CA_BUNDLE", str(ca))
    with service_client(served, connection_verify=str(ca)) as service:
        url = service.get_client_access_token(user_id="alice", roles=ROLES)["url"]
        assert url.startswith("wss://127.0.0.1:")
        alice = Subscriber(url)
        alice.join("tls")
        alice.send("tls", "from the client")
        service.send_to_group("tls", {"from": "the service"})
        assert [message.data for message in alice.take(2)] == ["from the client", {"from": "the service"}]
        alice.cut()
        service.send_to_group("tls", {"after": "a cut"})
        assert [message.data for message in alice.take(1)] == [{"after": "a cut"}]
        alice.client.close()


def test_the_python_sdks_refuse_who_is_not_trusted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEBSOCKET_CLIENT_CA_BUNDLE", raising=False)
    with service_client(served) as service:
        url = service.get_client_access_token(roles=ROLES)["url"]
        with pytest.raises(ServiceRequestError, match="CERTIFICATE_VERIFY_FAILED"):
            service.send_to_all("x", content_type="text/plain")
    with pytest.raises(OpenClientError, match="CERTIFICATE_VERIFY_FAILED"):
        WebPubSubClient(url, auto_reconnect=False, reconnect_retry_total=0, start_timeout=scaled(10)).open()


def test_the_javascript_sdks(served: Served, ca: Path, node: Node) -> None:
    with pytest.raises(JavaScriptError, match="certificate"):
        Service(node, served.port, "https")("userExists", "nobody")
    trusting = Node(ca)
    try:
        service = Service(trusting, served.port, "https")
        url = service.url("alice", ROLES, ["tls-js"])
        assert url.startswith("wss://127.0.0.1:")
        client = Client(trusting, url, ONCE)
        client.do("sendToGroup", "tls-js", "from the client", "text")
        service("sendToAll", {"from": "the service"}, group="tls-js")
        assert [message["data"] for message in client.messages(2)] == ["from the client", {"from": "the service"}]
        client.do("stop")
    finally:
        trusting.close()
