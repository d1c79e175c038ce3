"""Private brokers on loopback: NATS from its wheel, and RabbitMQ where the system has one. They can be killed and
started again on the same port and with what they kept."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aio_pika
import nats
from tests.tools.leftovers import shared
from tests.tools.renewing import sharing

from semel.testing.limits import scaled, wait_until

HOST = "127.0.0.1"
USER, PASSWORD = "shop", "a secret/with@signs"
QUOTED = "a%20secret%2Fwith%40signs"
STOP_S = 30.0


def program(name: str, *more: str) -> str | None:
    places = [*more, str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin"]
    return shutil.which(name, path=os.pathsep.join(places))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), 1.0):
        return True
    return False


class BrokerProcess(ABC):
    """One that tests may share: whoever breaks it gets the others a new one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        # of whoever shares it, also when a test kills it and starts it again
        self._environment = dict(os.environ)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Returns when it takes connections."""

    def _run(self, command: Sequence[str | None], env: Mapping[str, str] | None = None) -> None:
        assert command[0] is not None, "who asks for it has looked whether it is there"
        with (self.folder / "output").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    [str(each) for each in command],
                    cwd=self.folder,
                    env={**self._environment, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def kill(self) -> None:
        """With -9, and whatever it has started."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(scaled(STOP_S))
        self._processes = []

    def stop(self) -> None:
        """In order: RabbitMQ that is killed forgets a queue that was declared a moment ago."""
        for process in reversed(self._processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(scaled(STOP_S))
        self._processes = []

    def is_well(self) -> bool:
        return answers(self.port)

    cut_off = kill

    def renew(self) -> None:
        self.kill()
        self.start()


class NatsServer(BrokerProcess):
    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        return f"nats://{USER}:{QUOTED}@{HOST}:{port}"

    def start(self) -> None:
        (self.folder / "nats.conf").write_text(
            f'listen: "{HOST}:{self.port}"\nauthorization {{ user: {USER}, password: "{PASSWORD}" }}\n'
            f'jetstream {{ store_dir: "{self.folder}/data" }}\n'
        )
        self._run([program("nats-server"), "-c", str(self.folder / "nats.conf")])
        wait_until(lambda: answers(self.port), "NATS")


class RabbitServer(BrokerProcess):
    """With its HTTP API, whose port is `management`."""

    def __init__(self, folder: Path) -> None:
        self.management, self._names, self._node = free_port(), free_port(), free_port()
        super().__init__(folder)

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        return f"amqp://{USER}:{QUOTED}@{HOST}:{port}/"

    def start(self) -> None:
        folder = self.folder
        (folder / "plugins").write_text("[rabbitmq_management].")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{self.port}\n"
            f"management.tcp.ip = {HOST}\nmanagement.tcp.port = {self.management}\n"
            f"default_user = {USER}\ndefault_pass = {PASSWORD}\nmanagement_agent.disable_metrics_collector = false\n"
        )
        self._run([program("epmd"), "-address", HOST, "-port", str(self._names)])
        self._run(
            [program("rabbitmq-server", "/usr/lib/rabbitmq/bin")],
            {
                "HOME": str(folder), "RABBITMQ_NODENAME": f"test{self.port}@localhost",
                "RABBITMQ_MNESIA_BASE": f"{folder}/data", "RABBITMQ_LOG_BASE": f"{folder}/log",
                "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins", "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
                "RABBITMQ_PID_FILE": f"{folder}/pid", "RABBITMQ_DIST_PORT": str(self._node),
                "ERL_EPMD_PORT": str(self._names), "ERL_EPMD_ADDRESS": HOST,
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none",
            },
        )  # fmt: skip
        wait_until(lambda: answers(self.port), "RabbitMQ", 120.0)


def has_rabbitmq() -> bool:
    return program("rabbitmq-server", "/usr/lib/rabbitmq/bin") is not None and program("epmd") is not None


WITHOUT_RABBITMQ = "there is no RabbitMQ: scripts/system-needs.toml names its package"


@contextmanager
def shared_nats() -> Iterator[NatsServer]:
    with shared("nats"), TemporaryDirectory(prefix="semel-nats-") as folder:
        server = NatsServer(Path(folder))
        try:
            with sharing(server):
                yield server
        finally:
            server.kill()


@contextmanager
def shared_rabbitmq() -> Iterator[RabbitServer]:
    with shared("rabbitmq"), TemporaryDirectory(prefix="semel-rabbit-") as folder:
        server = RabbitServer(Path(folder))
        try:
            with sharing(server):
                yield server
        finally:
            server.kill()


class JetStream:
    """A connection of a test's own: `async with JetStream(port) as stream`."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Any:
        self._client = await nats.connect(f"nats://{HOST}:{self._port}", user=USER, password=PASSWORD)
        return self._client.jetstream(timeout=scaled(10))

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


class Rabbit:
    """Likewise: `async with Rabbit(server) as channel`."""

    def __init__(self, server: RabbitServer) -> None:
        self._url = server.url

    async def __aenter__(self) -> Any:
        self._connection = await aio_pika.connect(self._url, timeout=scaled(30))
        return await self._connection.channel(publisher_confirms=True, on_return_raises=True)

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()
