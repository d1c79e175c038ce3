"""Microsoft's JavaScript SDKs, as the tests use them: a service client and clients that keep to the recipes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from tests.interop.javascript import WAIT_S, JavaScriptError, Node
from tests.interop.served import HUB, KEY

from semel.testing.limits import scaled

INSECURE = {"allowInsecureConnection": True}
ONCE = {"messageRetryOptions": {"maxRetries": 0}}
_numbers = itertools.count(1)


class Service:
    """A service client for a port of this machine."""

    def __init__(self, node: Node, port: int, scheme: str = "http") -> None:
        self._node, self._name = node, f"service-{next(_numbers)}"
        text = f"Endpoint={scheme}://127.0.0.1:{port};AccessKey={KEY};Version=1.0;"
        node.ask(make="service", name=self._name, args=[text, HUB, INSECURE if scheme == "http" else {}])

    def __call__(self, do: str, *args: Any, group: str | None = None) -> Any:
        return self._node.ask(of=self._name, do=do, args=args, **({"group": group} if group else {}))

    def pages(self, group: str, **options: int) -> list[list[dict[str, Any]]]:
        found: list[list[dict[str, Any]]] = self._node.ask(of=self._name, group=group, pages=options)
        return found

    def url(self, user: str, roles: list[str], groups: list[str]) -> str:
        asked = {"userId": user, "roles": roles, "groups": groups}
        return str(self("getClientAccessToken", asked)["url"])


class Writer:
    """Writes a stream to a group."""

    def __init__(self, node: Node, client: str, group: str, options: dict[str, Any]) -> None:
        self._node, self._name = node, f"writer-{next(_numbers)}"
        node.ask(of=client, do="openGroupStream", args=[group, options], **{"as": self._name})

    def do(self, do: str, *args: Any) -> Any:
        return self._node.ask(of=self._name, do=do, args=args)

    def error(self) -> Any:
        return self._node.heard(self._name, "error").get(timeout=scaled(WAIT_S))


class Wire:
    """A WebSocket, and the client's protocol to write and to read it."""

    def __init__(self, node: Node, url: str) -> None:
        self._node, self._name = node, f"wire-{next(_numbers)}"
        node.ask(make="wire", name=self._name, args=[url])
        self.id = self.heard("connected")["connectionId"]

    def send(self, kind: str, **fields: Any) -> None:
        self._node.ask(of=self._name, do="send", args=[{"kind": kind, **fields}])

    def heard(self, kind: str) -> Any:
        return self._node.heard(self._name, kind).get(timeout=scaled(WAIT_S))

    def asked(self, kind: str, ack_id: int, **fields: Any) -> Any:
        self.send(kind, ackId=ack_id, **fields)
        ack = self.heard("ack")
        assert ack["ackId"] == ack_id
        return ack

    def stop(self) -> None:
        self._node.ask(of=self._name, do="stop")


class Client:
    def __init__(self, node: Node, url: str, options: dict[str, Any]) -> None:
        self.name = f"client-{next(_numbers)}"
        self._node = node
        node.ask(make="client", name=self.name, args=[url, options])
        self.do("start")
        self.id = self.heard("connected")["connectionId"]

    def do(self, do: str, *args: Any) -> Any:
        return self._node.ask(of=self.name, do=do, args=args)

    def heard(self, event: str) -> Any:
        return self._node.heard(self.name, event).get(timeout=scaled(WAIT_S))

    def stream(self, group: str, **options: Any) -> Writer:
        return Writer(self._node, self.name, group, options)

    def read(self, stream: str, count: int) -> list[Any]:
        """So much of a stream: its parts, and then its end or its error."""
        return [self.heard(f"stream {stream}") for _ in range(count)]

    def has_no_stream(self) -> bool:
        return self._node.heard(self.name, "stream").empty()

    def messages(self, count: int, event: str = "group-message") -> list[Any]:
        return [self.heard(event)["message"] for _ in range(count)]

    def is_quiet(self) -> bool:
        """Nothing more has come by the time that an ack went there and back."""
        self.do("joinGroup", "quiet")
        return all(self._node.heard(self.name, event).empty() for event in ("group-message", "server-message"))

    def send_once(self, group: str, data: Any, data_type: str, ack_id: int) -> Any:
        """The recipe for exactly once: an ackId of one's own, and the same again until there is an answer."""
        until = time.monotonic() + scaled(WAIT_S)
        while True:
            try:
                return self.do("sendToGroup", group, data, data_type, {"ackId": ack_id})
            except JavaScriptError as error:
                if error.detail:
                    raise
                assert time.monotonic() < until, f"{data} was never answered"
                time.sleep(0.05)


Connect = Callable[..., Client]
