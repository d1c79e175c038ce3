"""How orders come to the demo's shop: through a NATS server of its own, or over HTTP where there is none.

Both deliver what is sent twice twice: the ids of the orders are the shop's business and not the broker's.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import shutil
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx

from semel.auth.authority import SEND
from semel.auth.keys import AccessKeys
from semel.auth.tokens import service_token
from semel.demo.options import SHOP, SHOP_ENDPOINT, SHOP_TYPE
from semel.errors import PeerUnavailable
from semel.runtime.brokers.nats import connect_nats
from semel.testing.limits import scaled
from semel.testing.serve_process import KEY, MINDER, ServeProcess

STREAM, SUBJECT, CONSUMER = "ORDERS", "orders.placed", "shop"
AGAIN_S, AGAIN_MAX_S = 1.5, 4.0
"""After that the broker delivers again what a killed process has taken, and another claims what it was handling.
On a slow machine it takes somewhat longer. Too soon is no harm: it makes one more duplicate."""
START_S = 30.0
LOOK_S = 0.02
TAIL = 1_000
ANSWER_S = 10.0
AGAIN_FOR_S = 30.0
ACCEPTED, UNAVAILABLE = 202, 503


def again_s() -> float:
    return min(scaled(AGAIN_S), AGAIN_MAX_S)


class ShopWay(Protocol):
    """`label` is what people read. `config` is what the processes of the shop need to know of it."""

    label: str
    is_broker: bool

    async def start(self) -> None: ...

    @property
    def config(self) -> dict[str, Any]: ...

    async def send(self, orders: Sequence[dict[str, Any]]) -> None:
        """Returns when all of them are confirmed."""

    async def is_empty(self) -> bool:
        """Whether nothing is on the way any more, that is, between here and the shop's own store."""

    def check(self) -> None:
        """Raises when it has ended by itself."""

    async def close(self) -> None: ...


def nats_server() -> str | None:
    """The program, which comes as a wheel, if its client is there as well."""
    if importlib.util.find_spec("nats") is None:
        return None
    places = (str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep))
    return shutil.which("nats-server", path=os.pathsep.join(places))


class NatsWay:
    """A NATS server on loopback with a stream on the disk. It ends with whoever started it."""

    label, is_broker = "NATS JetStream", True

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._log = folder / "nats.log"
        self._token = secrets.token_hex(16)
        self._minder: Process | None = None
        self._pid = 0
        self._url = ""
        self._client: Any = None
        self._stream: Any = None

    @property
    def config(self) -> dict[str, Any]:
        return {"nats": self._url, "listen": f"nats:{STREAM}?consumer={CONSUMER}&id=json:id&type=text:{SHOP_TYPE}"}

    async def start(self) -> None:
        settings = self._folder / "nats.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: {json.dumps(str(self._folder))}\n'
            f"authorization {{ token: {json.dumps(self._token)} }}\n"
            f"jetstream {{ store_dir: {json.dumps(str(self._folder / 'nats'))} }}\n"
        )
        with self._log.open("ab") as log:
            self._minder = await asyncio.create_subprocess_exec(
                "sh", "-c", MINDER, "minder", self._program, "-c", str(settings),
                stdin=PIPE, stdout=PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        assert self._minder.stdout is not None
        self._pid = int(await self._minder.stdout.readline())
        port = await self._port()
        self._url = f"nats://{self._token}@127.0.0.1:{port}"
        self._client = await connect_nats(self._url, "semel demo")
        await self._make_stream()

    async def _port(self) -> int:
        """The system chooses it; the server writes it down."""
        file = self._folder / f"nats-server_{self._pid}.ports"
        limit = scaled(START_S)
        until = time.monotonic() + limit
        while time.monotonic() < until:
            self.check()
            try:
                return int(json.loads(file.read_text())["nats"][0].rpartition(":")[2])
            except (OSError, ValueError):  # not there yet, or half of it
                await asyncio.sleep(LOOK_S)
        raise self._trouble(f"was not ready after {limit:.0f} s")

    async def _make_stream(self) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

        self._stream = self._client.jetstream(timeout=scaled(ANSWER_S))
        # it is gone with the demo, long before an order is forgotten
        stream = StreamConfig(name=STREAM, subjects=[SUBJECT], max_age=3600)
        consumer = ConsumerConfig(
            durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, ack_wait=again_s(), max_deliver=-1
        )
        await self._answered(self._stream.add_stream(stream))
        await self._answered(self._stream.add_consumer(STREAM, consumer))

    async def send(self, orders: Sequence[dict[str, Any]]) -> None:
        """Without a Nats-Msg-Id, by which the server itself would drop the copies that follow soon."""
        publish = self._stream.publish
        sending = [self._answered(publish(SUBJECT, json.dumps(order).encode())) for order in orders]
        await asyncio.gather(*sending)

    async def is_empty(self) -> bool:
        info = await self._answered(self._stream.consumer_info(STREAM, CONSUMER))
        return not info.num_pending and not info.num_ack_pending

    async def _answered(self, asking: Awaitable[Any]) -> Any:
        from nats.errors import Error

        try:
            return await asking
        except (Error, OSError, TimeoutError) as error:
            raise self._trouble(f"does not answer: {type(error).__name__} {error}") from None

    def check(self) -> None:
        if self._minder is not None and self._minder.returncode is not None:
            raise self._trouble(f"ended by itself with code {self._minder.returncode}")

    def _trouble(self, what: str) -> PeerUnavailable:
        tail = self._log.read_text(errors="replace")[-TAIL:] if self._log.exists() else ""
        return PeerUnavailable(
            f"the NATS server {what}; it said last:\n{tail or '(nothing)'}", fix="or run the demo with --no-inbox"
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        if self._minder is not None:
            assert self._minder.stdin is not None
            self._minder.stdin.close()  # the minder kills the server
            await self._minder.wait()


class HttpWay:
    """CloudEvents to `semel serve`, which stores them for the shop."""

    label, is_broker = "HTTP to semel serve", False

    def __init__(self, store: str, folder: Path) -> None:
        (folder / "semel.toml").write_text(
            f'[inbox]\nstore = {json.dumps(store)}\nname = "{SHOP}"\n\n[[inbox.endpoint]]\nname = "{SHOP_ENDPOINT}"\n'
        )
        self._server = ServeProcess(f"sqlite:///{folder / 'server.db'}", folder / "serve.log", node="shop")
        self._client = httpx.AsyncClient(timeout=scaled(ANSWER_S), trust_env=False)

    @property
    def config(self) -> dict[str, Any]:
        return {"nats": None, "listen": None}

    async def start(self) -> None:
        await self._server.start()
        self._url = f"http://127.0.0.1:{self._server.port}/v1/inbox/{SHOP_ENDPOINT}"
        token = service_token(
            AccessKeys(KEY), self._url, now=time.time(), roles=(f"{SEND}inbox/{SHOP_ENDPOINT}",), lifetime_s=6 * 3600
        )
        self._headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/cloudevents+json",
        }

    async def send(self, orders: Sequence[dict[str, Any]]) -> None:
        await asyncio.gather(*(self._post(order) for order in orders))

    async def _post(self, order: dict[str, Any]) -> None:
        """After 503 the same again, as every sender should."""
        event = {"specversion": "1.0", "id": order["id"], "source": "/demo", "type": SHOP_TYPE, "data": order}
        until = time.monotonic() + scaled(AGAIN_FOR_S)
        answer = await self._answer(event)
        while answer.status_code == UNAVAILABLE and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            answer = await self._answer(event)
        if answer.status_code != ACCEPTED:
            raise self._server.trouble(f"answered {answer.status_code} {answer.text[:TAIL]}")

    async def _answer(self, event: dict[str, Any]) -> httpx.Response:
        try:
            return await self._client.post(self._url, json=event, headers=self._headers)
        except httpx.TransportError as error:
            raise self._server.trouble(f"does not answer: {type(error).__name__} {error}") from None

    async def is_empty(self) -> bool:
        return True  # what is confirmed is in the shop's store

    def check(self) -> None:
        if not self._server.is_running:
            raise self._server.trouble("ended by itself")

    async def close(self) -> None:
        await self._client.aclose()
        await self._server.kill()
