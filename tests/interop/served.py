"""A real `semel serve` in a process of its own, which can be killed and started again on the same port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.messaging.webpubsubclient.models import SendMessageError
from azure.messaging.webpubsubservice import WebPubSubServiceClient
from tests.interop.broken_link import Beside
from tests.tools.balancer import Balancer
from tests.tools.renewing import sharing

from semel.errors import PeerUnavailable
from semel.testing.limits import scaled
from semel.testing.postgres import new_database

KEY = "k" * 44
HUB = "chat"
ROLES = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"]
START_S = 60.0
ONE, TWO = NODES = "one-node", "two-nodes"
_NO_ANSWER = ("", "NoAckMessageReceivedFromServer")


def is_answer(error: SendMessageError) -> bool:
    """Whether the server has said no. Otherwise nothing was heard from it, and the SDK says so under these names."""
    return error.error_detail is not None and error.error_detail.name not in _NO_ANSWER


class Served:
    """On a SQLite file of its own, unless there is another `store`; at a port that the system chooses, unless there is
    one. Later starts take the same."""

    def __init__(self, folder: Path, *options: str, store: str | None = None, port: int = 0) -> None:
        self.folder, self.options = folder, options
        self.store = store or f"sqlite:///{folder / 'served.db'}"
        self.port = port
        self.process: subprocess.Popen[str] | None = None
        # of whoever shares it, also when a test kills it and starts it again
        self._environment = os.environ | {"SEMEL_ACCESS_KEY": KEY}
        self.start()

    def start(self) -> None:
        command = [
            sys.executable, "-m", "semel", "serve", "--json", "--port", str(self.port), *self.options,
            "--store", self.store,
        ]  # fmt: skip
        with open(self.folder / "served.log", "a") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder, env=self._environment,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        told = json.loads(line) if line else {"ok": False, "error": (self.folder / "served.log").read_text()}
        if not told["ok"]:
            self._end()
            raise PeerUnavailable(f"the server did not start: {told['error']}")
        self.endpoint = str(told["result"]["endpoint"])
        self.port = int(self.endpoint.rpartition(":")[2])

    def kill(self) -> None:
        """With -9: nobody gets to say good-bye."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self._end()

    def stop(self) -> int:
        self.service.close()
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        assert self.process is not None
        code = self.process.wait(scaled(START_S))
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    # -- whether it can be shared still

    def is_well(self) -> bool:
        found = httpx.get(f"{self.endpoint}/healthz", timeout=scaled(START_S), trust_env=False, verify=False)
        return found.status_code == 200

    def cut_off(self) -> None:
        if self.process is not None:
            self.process.kill()

    def renew(self) -> None:
        """On the same port, so that whoever knows where it is finds the new one."""
        self.kill()
        self.start()

    # -- Microsoft's service client

    @cached_property
    def service(self) -> Any:
        text = f"Endpoint={self.endpoint};AccessKey={KEY};Version=1.0;"
        return WebPubSubServiceClient.from_connection_string(text, hub=HUB)

    def url(self, user: str | None = None, roles: list[str] | None = None) -> str:
        token = self.service.get_client_access_token(user_id=user, roles=ROLES if roles is None else roles)
        return str(token["url"])


@contextmanager
def shared_server(folder: Path, *options: str) -> Iterator[Served]:
    """For several tests. One that breaks it gets the others a new one."""
    with sharing(Served(folder, *options)) as server:
        yield server
        assert server.stop() == 0


class Pair(Served):
    """Two servers on one PostgreSQL, behind a balancer that sends each request to the other one of them."""

    def __init__(self, folder: Path, store: str, config: str = "") -> None:
        self.folder, self.store = folder, store
        self._nodes: list[Served] = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            (folder / name / "semel.toml").write_text(f'{config}\n[store]\nnode = "{name}"\n')
            self._nodes.append(Served(folder / name, store=store))
        self._balancer = Beside(Balancer([("127.0.0.1", node.port) for node in self._nodes]))
        self.port = self._balancer.__enter__().port
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        for node in self._nodes:
            node.start()

    def kill(self) -> None:
        for node in self._nodes:
            node.kill()

    def stop(self) -> int:
        self.service.close()
        codes = [node.stop() for node in self._nodes]
        self._balancer.__exit__(None, None, None)
        return max(codes)

    def is_well(self) -> bool:
        return all(node.is_well() for node in self._nodes)

    def cut_off(self) -> None:
        for node in self._nodes:
            node.cut_off()


@contextmanager
def shared_pair(folder: Path, postgres: str, config: str = "") -> Iterator[Pair]:
    """In a database of its own on this PostgreSQL."""
    with new_database(postgres) as store, sharing(Pair(folder, store, config)) as pair:
        yield pair
        assert pair.stop() == 0


@contextmanager
def configured(request: pytest.FixtureRequest, folder: Path, config: str) -> Iterator[Served]:
    """As many nodes as the fixture asks for, with this configuration."""
    if request.param == TWO:
        with shared_pair(folder, request.getfixturevalue("postgres_server_url"), config) as pair:
            yield pair
    else:
        (folder / "semel.toml").write_text(config)
        with shared_server(folder) as server:
            yield server
