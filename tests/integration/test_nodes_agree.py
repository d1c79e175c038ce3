"""Two real servers on one PostgreSQL: what is asked of one is true of connections that the other has just let in."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from tests.interop.served import HUB, ROLES
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from semel.testing.limits import scaled
from semel.testing.serve_process import KEY, ServeProcess

pytestmark = [pytest.mark.connected, pytest.mark.timeout(120)]

TURNS = 8
API = f"/api/hubs/{HUB}"


class Node(ServeProcess):
    """With what a client and a service do there."""

    def _token(self, path: str, **claims: Any) -> str:
        return jwt.encode({"aud": f"http://127.0.0.1:{self.port}{path}", "exp": time.time() + 60, **claims}, KEY)

    async def let_in(self, user: str, roles: list[str]) -> tuple[ClientConnection, str]:
        path = f"/client/hubs/{HUB}"
        address = f"ws://127.0.0.1:{self.port}{path}?access_token={self._token(path, sub=user, role=roles)}"
        socket = await connect(address, subprotocols=[Subprotocol("json.reliable.webpubsub.azure.v1")], proxy=None)
        return socket, json.loads(await socket.recv())["connectionId"]

    async def let_in_simple(self, user: str) -> ClientConnection:
        """It is in when its handshake is answered: nobody tells it more."""
        path = f"/client/hubs/{HUB}"
        return await connect(f"ws://127.0.0.1:{self.port}{path}?access_token={self._token(path, sub=user)}", proxy=None)

    async def call(self, http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> int:
        headers = {"authorization": f"Bearer {self._token(API + path)}"}
        address = f"http://127.0.0.1:{self.port}{API}{path}"
        return (await http.request(method, address, headers=headers, json=body)).status_code


@pytest.fixture
async def nodes(tmp_path: Path, postgres_url: str) -> AsyncIterator[list[Node]]:
    found = [Node(postgres_url, tmp_path / f"{name}.log", node=name) for name in ("a", "b")]
    try:
        for node in found:
            await node.start()
        yield found
    finally:
        for node in found:
            await node.kill()


async def asked(socket: ClientConnection, **request: Any) -> Any:
    await socket.send(json.dumps({"ackId": 1, **request}))
    return json.loads(await socket.recv())


async def test_a_node_that_is_asked_knows_whom_the_other_has_just_let_in(nodes: list[Node]) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=scaled(60)) as http:
        for turn in range(TURNS):
            here, other = nodes if turn % 2 else reversed(nodes)
            user = f"user-{turn}"

            socket, name = await here.let_in(user, ROLES)
            assert await other.call(http, "HEAD", f"/connections/{name}") == 200
            assert await other.call(http, "DELETE", f"/connections/{name}") == 204
            await socket.wait_closed()
            assert socket.close_code == 1008

            socket, name = await here.let_in(user, ROLES)
            assert await other.call(http, "DELETE", f"/permissions/sendToGroup/connections/{name}") == 204
            answer = await asked(socket, type="sendToGroup", group="g", dataType="text", data="x")
            assert answer["error"]["name"] == "Forbidden"
            await socket.close()

            socket, name = await here.let_in(user, [])
            assert await other.call(http, "PUT", f"/permissions/sendToGroup/connections/{name}?targetName=g") == 200
            answer = await asked(socket, type="sendToGroup", group="g", dataType="text", data="x")
            assert answer["success"]
            await socket.close()

            socket, name = await here.let_in(user, ROLES)
            assert await other.call(http, "PUT", f"/groups/joined-{turn}/connections/{name}") == 200
            assert await here.call(http, "HEAD", f"/groups/joined-{turn}") == 200
            await socket.close()

            (first, _), (second, _) = await here.let_in(user, ROLES), await other.let_in(user, ROLES)
            chosen = {"groups": [f"chosen-{turn}"], "filter": f"userId eq '{user}'"}
            assert await other.call(http, "POST", "/:addToGroups", chosen) == 200
            assert await here.call(http, "POST", f"/groups/chosen-{turn}/:send", {"turn": turn}) == 202
            for each in (first, second):
                assert json.loads(await each.recv())["data"] == {"turn": turn}
                await each.close()


async def test_a_simple_client_is_known_to_all_when_its_handshake_is_answered(nodes: list[Node]) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=scaled(60)) as http:
        for turn in range(TURNS):
            here, other = nodes if turn % 2 else reversed(nodes)
            socket = await here.let_in_simple(f"simple-{turn}")
            assert await other.call(http, "HEAD", f"/users/simple-{turn}") == 200
            await socket.close()
