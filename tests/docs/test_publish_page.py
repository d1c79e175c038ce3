"""The how-to about publishing exactly once is run against a real server, over a link on which acks are lost."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.messaging.webpubsubclient import WebPubSubClient
from azure.messaging.webpubsubclient.aio import WebPubSubClient as AioClient
from azure.messaging.webpubsubclient.models import CallbackType
from azure.messaging.webpubsubservice import WebPubSubServiceClient
from tests.interop.broken_link import BrokenLink
from tests.interop.microsoft import sockets_end
from tests.interop.served import HUB, KEY, ROLES, Served, shared_server

from semel import SyncWebPubSubClient
from semel.testing.byte_faults import ByteFault
from semel.testing.limits import scaled

pytestmark = [
    pytest.mark.interop,
    pytest.mark.connected,
    pytest.mark.timeout(120),
    # the SDK's own thread that acknowledges does not expect its socket to be gone, and it leaves broken sockets open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "publish-exactly-once.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)
WAIT_S = 30.0
Names = dict[str, Any]


@pytest.fixture(autouse=True)
def _sockets_go_with_their_test() -> Iterator[None]:
    with sockets_end():
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with shared_server(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(scope="module")
def link(served: Served) -> Iterator[BrokenLink]:
    with BrokenLink(served.port) as link:
        yield link


@pytest.fixture(scope="module")
def url(link: BrokenLink) -> str:
    """Over the link."""
    text = f"Endpoint=http://127.0.0.1:{link.port};AccessKey={KEY};Version=1.0;"
    with WebPubSubServiceClient.from_connection_string(text, hub=HUB) as service:
        return str(service.get_client_access_token(user_id="ann", roles=ROLES)["url"])


class Bob:
    """Somebody who listens, not over the link."""

    def __init__(self, url: str) -> None:
        self._client = SyncWebPubSubClient(url)
        self._client.open()
        self._client.join_group("orders")

    def heard(self) -> list[Any]:
        """Since the last time. What stands before our own word has come by the time that it does."""
        self._client.send_to_group("orders", "that is all")
        found = []
        for message in self._client:
            if message.data == "that is all":
                break
            found.append(message.data)
        return found

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def bob(served: Served) -> Iterator[Bob]:
    made = Bob(served.url("bob"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(served: Served, url: str) -> Names:
    """What is defined on the page, after all of it was run."""
    names: Names = {"url": url, "service": served.service}
    bob = Bob(served.url("bob"))
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 4
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, PAGE.name, "exec"), names)
        assert printed.getvalue() == expected
    names["heard"] = bob.heard()
    bob.close()
    return names


def test_the_page_publishes_what_it_says(page: Names) -> None:
    assert page["heard"] == [f"order {number} is paid" for number in range(7, 13)]


def opened(url: str, **options: Any) -> tuple[WebPubSubClient, threading.Event]:
    connected, lost = threading.Event(), threading.Event()
    client = WebPubSubClient(url, ack_timeout=scaled(5), start_timeout=scaled(5), **options)
    client.subscribe(CallbackType.CONNECTED, lambda told: connected.set())
    client.subscribe(CallbackType.DISCONNECTED, lambda told: lost.set())
    client.open()
    assert connected.wait(scaled(WAIT_S))
    return client, lost


def test_python_as_on_the_page_publishes_once_when_the_ack_is_lost(
    page: Names, link: BrokenLink, url: str, bob: Bob
) -> None:
    client, lost = opened(url, message_retry_total=0)
    link.strike(ByteFault.TORN, "down")
    page["publish"](client, lost, "orders", "once")
    assert bob.heard() == ["once"]
    client.close()


def test_aio_as_on_the_page_publishes_once_when_the_ack_is_lost(
    page: Names, link: BrokenLink, url: str, bob: Bob
) -> None:
    async def publish() -> None:
        connected, lost = asyncio.Event(), asyncio.Event()

        def setting(event: asyncio.Event) -> Callable[[Any], Any]:
            async def set_it(told: Any) -> None:
                event.set()

            return set_it

        client = AioClient(url, message_retry_total=0, ack_timeout=scaled(5), start_timeout=scaled(10))
        await client.subscribe(CallbackType.CONNECTED, setting(connected))
        await client.subscribe(CallbackType.DISCONNECTED, setting(lost))
        async with client:
            await connected.wait()
            link.strike(ByteFault.TORN, "down")
            await page["publish_aio"](client, lost, "orders", "once")

    asyncio.run(asyncio.wait_for(publish(), scaled(WAIT_S)))
    assert bob.heard() == ["once"]


def test_a_client_of_ones_own_publishes_once_when_the_ack_is_lost(
    page: Names, link: BrokenLink, url: str, bob: Bob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link breaks as soon as the client has heard how to come back."""
    way_back, breaks = page["way_back"], []

    def struck(connected: dict[str, Any]) -> dict[str, str]:
        link.strike(ByteFault.TORN, "down")
        breaks.append(connected)
        found: dict[str, str] = way_back(connected)
        return found

    monkeypatch.setitem(page, "way_back", struck)
    page["publish_all"](url, "orders", ["one", "two"])
    assert bob.heard() == ["one", "two"]
    assert len(breaks) == 1


def test_python_by_default_publishes_twice_and_forgets_what_it_was_given(link: BrokenLink, url: str, bob: Bob) -> None:
    """As the page says: the second attempt has neither the ackId nor no_echo any more."""
    echoes: list[Any] = []
    client, _ = opened(url)
    client.subscribe(CallbackType.GROUP_MESSAGE, echoes.append)
    client.join_group("orders")
    link.strike(ByteFault.TORN, "down")
    client.send_to_group("orders", "twice", "text", ack_id=1_000_000, no_echo=True)
    assert bob.heard() == ["twice", "twice"]
    client.close()
    assert "twice" in [each.data for each in echoes]


def test_who_loses_the_session_hears_that_it_is_in_doubt(page: Names, served: Served, url: str) -> None:
    client, lost = opened(url, message_retry_total=0, reconnect_retry_total=0)
    served.service.close_connection(client._connection_id)
    assert lost.wait(scaled(WAIT_S))
    with pytest.raises(ConnectionError, match="nobody knows"):
        page["publish"](client, lost, "orders", "in doubt")


def test_a_key_is_taken_once(served: Served, bob: Bob) -> None:
    """Bob has not acknowledged the first message, so it is still there to be compared with."""
    terms = {"headers": {"Idempotency-Key": "order-13-paid"}, "content_type": "text/plain"}
    for _ in range(2):
        served.service.send_to_group("orders", "order 13 is paid", **terms)
    with pytest.raises(HttpResponseError) as refused:
        served.service.send_to_group("orders", "order 14 is paid", **terms)
    assert refused.value.status_code == 409
    assert bob.heard() == ["order 13 is paid"]
