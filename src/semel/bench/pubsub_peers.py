"""Other brokers under the same load: NATS JetStream, RabbitMQ and Mosquitto, each a private instance on loopback.

Each is measured twice: through the fastest client that there is for it in Python, and with ready-made packets of its
protocol and the client of `pubsub_load`, as Semel is. NATS and RabbitMQ keep what is published. Mosquitto keeps only
what somebody is to get, so there it has a subscriber, also at QoS 2.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from semel.bench.pubsub_load import HOST, READ_BYTES, WAIT_S, Marked, PublishLoad, Wire, drive
from semel.errors import PeerUnavailable
from semel.runtime.host.loop import run as run_loop

# -- through their Python libraries, with so many messages on their way: rates per second


def through_nats_py(port: int, subject: str, body_bytes: int, window: int, seconds: float) -> float:
    async def publish() -> float:
        import nats

        client = await nats.connect(f"nats://{HOST}:{port}")
        stream = client.jetstream(publish_async_max_pending=window)
        body, count, begin = b"x" * body_bytes, 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            await stream.publish_async(subject, body)
            count += 1
        await stream.publish_async_completed()
        took = time.perf_counter() - begin
        await client.close()
        return count / took

    return run_loop(publish())


def through_aiormq(port: int, queue: str, body_bytes: int, window: int, seconds: float) -> float:
    async def publish() -> float:
        import aiormq
        from pamqp.commands import Basic

        connection = await aiormq.connect(f"amqp://guest:guest@{HOST}:{port}/")
        channel = await connection.channel(publisher_confirms=True)
        body, kept = b"x" * body_bytes, Basic.Properties(delivery_mode=2)
        count, begin = 0, time.perf_counter()

        async def one_after_the_other() -> None:
            nonlocal count
            while time.perf_counter() - begin < seconds:
                await channel.basic_publish(body, routing_key=queue, properties=kept)
                count += 1

        await asyncio.gather(*(one_after_the_other() for _ in range(window)))
        took = time.perf_counter() - begin
        await connection.close()
        return count / took

    return run_loop(publish())


def through_paho(port: int, topic: str, body_bytes: int, window: int, seconds: float) -> float:
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    free = threading.Semaphore(window)
    client = Client(CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(window)
    client.on_publish = lambda *_: free.release()
    client.connect(HOST, port)
    client.loop_start()
    try:
        body, count, begin = b"x" * body_bytes, 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            _take(free)
            client.publish(topic, body, qos=2)
            count += 1
        for _ in range(window):
            _take(free)
        return count / (time.perf_counter() - begin)
    finally:
        client.disconnect()
        client.loop_stop()


def _take(free: threading.Semaphore) -> None:
    if not free.acquire(timeout=WAIT_S):
        raise PeerUnavailable("a broker does not answer the bench any more", fix="run it on a machine at rest")


@contextmanager
def listening(wire: Wire) -> Iterator[None]:
    """Meanwhile a thread receives what comes on this connection. It is closed at the end."""
    wire.sock.setblocking(True)

    def listen() -> None:
        while data := wire.sock.recv(READ_BYTES):
            wire.sock.sendall(wire.answers.receive(data))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        wire.sock.shutdown(socket.SHUT_RDWR)
        thread.join()
        wire.close()


# -- a private instance

START_S = 60.0
STOP_S = 20.0
SUBJECT = "bench"
BLOCK = 1000

Measure = Callable[[float], float]
"""Messages per second, measured for so many seconds."""


class Peer(NamedTuple):
    packets: Measure
    library: Measure


class NotInstalled(Exception):
    """A peer that is not on this machine is left out, and named."""


@contextmanager
def _running(
    command: Sequence[str | Path], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """What it prints is in the file `output` of its folder."""
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _program(name: str, *more: str) -> Path:
    places = [*more, str(Path(sys.executable).parent), *os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise NotInstalled(f"{name} is not installed: install it to have it measured")
    return Path(found)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def _dial(port: int, process: subprocess.Popen[bytes], folder: Path) -> socket.socket:
    """As soon as it listens."""
    until = time.monotonic() + START_S
    while True:
        try:
            sock = socket.create_connection((HOST, port), WAIT_S)
        except ConnectionError:
            if process.poll() is not None or time.monotonic() > until:
                answer = (folder / "output").read_text(errors="replace")[-500:]
                raise PeerUnavailable(
                    f"a peer of the bench does not begin: {answer}", fix="look at its message"
                ) from None
            time.sleep(0.05)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock


def _rate(publisher: PublishLoad, others: Sequence[Wire], seconds: float) -> float:
    count, took = drive(publisher, others, seconds)
    return count / took


# -- NATS


@contextmanager
def nats(folder: Path, body_bytes: int, window: int, *, sync_always: bool) -> Iterator[Peer]:
    """A JetStream on files. By default it answers before it has synced; `sync_always` is for those who want to know."""
    port = _free_port()
    sync = "sync_interval: always" if sync_always else ""
    (folder / "nats.conf").write_text(
        f'listen: "{HOST}:{port}"\njetstream {{ store_dir: "{folder}/data"\n {sync} }}\n', "utf-8"
    )
    with _running([_program("nats-server"), "-c", folder / "nats.conf"], folder) as process:
        _dial(port, process, folder).close()
        asyncio.run(_make_stream(port))

        def measure(seconds: float) -> float:
            sock = _dial(port, process, folder)
            sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.b 1\r\nPING\r\n')
            received = b""
            while b"PONG" not in received:
                received += sock.recv(READ_BYTES)
            packet = b"PUB %b _INBOX.b %d\r\n%b\r\n" % (SUBJECT.encode(), body_bytes, b"x" * body_bytes)
            publisher = PublishLoad(sock, Marked(b'"seq":'), packet * BLOCK, len(packet), window, is_endless=True)
            try:
                return _rate(publisher, (), seconds)
            finally:
                publisher.close()

        yield Peer(measure, partial(through_nats_py, port, SUBJECT, body_bytes, window))


async def _make_stream(port: int) -> None:
    import nats
    from nats.js.api import StorageType

    client = await nats.connect(f"nats://{HOST}:{port}")
    await client.jetstream().add_stream(name=SUBJECT, subjects=[SUBJECT], storage=StorageType.FILE)
    await client.close()


# -- RabbitMQ


class Confirms:
    """The confirms of a channel. A confirm is 21 bytes and may be for all up to its number."""

    SIZE = 21

    def __init__(self) -> None:
        self.count = self._floor = 0
        self._above: set[int] = set()
        self._rest = b""

    def receive(self, data: bytes) -> bytes:
        data = self._rest + data
        whole = len(data) - len(data) % self.SIZE
        for at in range(0, whole, self.SIZE):
            if data[at] != 1 or data[at + 7 : at + 11] != b"\x00\x3c\x00\x50":
                raise PeerUnavailable(f"RabbitMQ does not confirm: {data[at:][:100]!r}", fix="report this")
            self._confirm(int.from_bytes(data[at + 11 : at + 19], "big"), is_for_all=data[at + 19] != 0)
        self.count = self._floor + len(self._above)
        self._rest = data[whole:]
        return b""

    def _confirm(self, tag: int, *, is_for_all: bool) -> None:
        if is_for_all:
            self._floor = max(self._floor, tag)
            self._above = {each for each in self._above if each > tag}
        else:
            self._above.add(tag)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)


@contextmanager
def rabbitmq(folder: Path, body_bytes: int, window: int) -> Iterator[Peer]:
    """A quorum queue, which is on disk before it confirms."""
    port, names_port, node_port = _free_port(), _free_port(), _free_port()
    (folder / "plugins").write_text("[].", "utf-8")
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {HOST}:{port}\n", "utf-8")
    env = {
        "HOME": str(folder), "RABBITMQ_NODENAME": f"bench{port}@localhost", "RABBITMQ_MNESIA_BASE": f"{folder}/data",
        "RABBITMQ_LOG_BASE": f"{folder}/log", "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
        "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq", "RABBITMQ_PID_FILE": f"{folder}/pid",
        "RABBITMQ_DIST_PORT": str(node_port), "ERL_EPMD_PORT": str(names_port), "ERL_EPMD_ADDRESS": HOST,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }  # fmt: skip
    server = _program("rabbitmq-server", "/usr/lib/rabbitmq/bin")
    with ExitStack() as stack:
        stack.enter_context(_running([_program("epmd"), "-address", HOST, "-port", str(names_port)], folder))
        process = stack.enter_context(_running([server], folder, env))

        def measure(seconds: float) -> float:
            sock = _dial(port, process, folder)
            _open_channel(sock)
            packet = _publish_packet(body_bytes)
            publisher = PublishLoad(sock, Confirms(), packet * BLOCK, len(packet), window, is_endless=True)
            try:
                return _rate(publisher, (), seconds)
            finally:
                publisher.close()

        with _dial(port, process, folder) as sock:
            _open_channel(sock)  # makes the queue, before anybody publishes to it
        yield Peer(measure, partial(through_aiormq, port, SUBJECT, body_bytes, window))


def _open_channel(sock: socket.socket) -> None:
    """With a quorum queue, in the mode in which publishes are confirmed."""
    from pamqp import commands, frame, header

    def say(channel: int, command: Any, answer: type) -> None:
        """Each is answered by one frame, and nothing comes unasked."""
        sock.sendall(frame.marshal(command, channel))
        received = b""
        while len(received) < 7 or len(received) < 8 + int.from_bytes(received[3:7], "big"):
            data = sock.recv(READ_BYTES)
            if not data:
                raise PeerUnavailable("RabbitMQ has closed the connection", fix="see its log")
            received += data
        found = frame.unmarshal(received)[2]
        if not isinstance(found, answer):
            raise PeerUnavailable(f"RabbitMQ answers {found!r}", fix="see its log")

    say(0, header.ProtocolHeader(), commands.Connection.Start)
    say(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), commands.Connection.Tune)
    sock.sendall(frame.marshal(commands.Connection.TuneOk(1, 131_072, 0), 0))
    say(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
    say(1, commands.Channel.Open(), commands.Channel.OpenOk)
    queue = commands.Queue.Declare(queue=SUBJECT, durable=True, arguments={"x-queue-type": "quorum"})
    say(1, queue, commands.Queue.DeclareOk)
    say(1, commands.Confirm.Select(), commands.Confirm.SelectOk)


def _publish_packet(body_bytes: int) -> bytes:
    from pamqp import body, commands, frame, header

    content = body.ContentBody(b"x" * body_bytes)
    head = header.ContentHeader(0, body_bytes, commands.Basic.Properties(delivery_mode=2))
    parts = (commands.Basic.Publish(routing_key=SUBJECT), head, content)
    return b"".join(frame.marshal(part, 1) for part in parts)


# -- Mosquitto

IDS = 60_000
_REPLIES = {0x50: 0x62, 0x62: 0x70}
"""To what was received by the broker: release it. To what it has released: it is complete."""


class Mqtt:
    """Either end at QoS 2: `count` is how many messages were completed. `publish_bytes` is the size of a message."""

    def __init__(self, publish_bytes: int) -> None:
        self.count = 0
        self._size = publish_bytes
        self._rest = b""

    def receive(self, data: bytes) -> bytes:
        data = self._rest + data
        answer = bytearray()
        at, size = 0, len(data)
        while size - at >= 4:
            kind = data[at]
            if kind == 0x70:
                self.count += 1
            elif kind in _REPLIES:
                answer += bytes((_REPLIES[kind], 2, data[at + 2], data[at + 3]))
                self.count += kind == 0x62
            elif kind == 0x34:
                if size - at < self._size:
                    break
                answer += b"\x50\x02" + data[at + 4 + len(SUBJECT) + 1 :][:2]
                at += self._size - 4
            else:
                raise PeerUnavailable(f"Mosquitto says something else: {data[at:][:40]!r}", fix="report this")
            at += 4
        self._rest = data[at:]
        return bytes(answer)


@contextmanager
def mosquitto(folder: Path, body_bytes: int, window: int) -> Iterator[Peer]:
    """Persistent, with one subscriber; both publisher and subscriber at QoS 2."""
    port = _free_port()
    (folder / "mosquitto.conf").write_text(
        f"listener {port} {HOST}\nallow_anonymous true\npersistence true\npersistence_location {folder}/\n"
        f"max_inflight_messages {window}\nmax_queued_messages 0\nset_tcp_nodelay true\nuser root\n",
        "utf-8",
    )
    with _running([_program("mosquitto"), "-c", folder / "mosquitto.conf"], folder) as process:
        size = len(_mqtt_publish(1, body_bytes))

        def subscribed() -> Wire:
            # what a session has left of an earlier round is forgotten
            _mqtt_connect(_dial(port, process, folder), b"subscriber", is_new=True).close()
            return Wire(_mqtt_subscribe(_mqtt_connect(_dial(port, process, folder), b"subscriber")), Mqtt(size))

        def measure(seconds: float) -> float:
            subscriber = subscribed()
            block = b"".join(_mqtt_publish(1 + number, body_bytes) for number in range(IDS))
            sock = _mqtt_connect(_dial(port, process, folder), b"publisher", is_new=True)
            publisher = PublishLoad(sock, Mqtt(size), block, size, window, is_endless=True)
            try:
                return _rate(publisher, (subscriber,), seconds)
            finally:
                publisher.close(b"\xe0\x00")
                subscriber.close(b"\xe0\x00")

        def measure_library(seconds: float) -> float:
            with listening(subscribed()):
                return through_paho(port, SUBJECT, body_bytes, window, seconds)

        yield Peer(measure, measure_library)


def _mqtt_connect(sock: socket.socket, name: bytes, *, is_new: bool = False) -> socket.socket:
    """A session that is kept, unless it `is_new`."""
    head = b"\x00\x04MQTT\x04" + bytes((2 * is_new, 0, 0)) + len(name).to_bytes(2) + name
    sock.sendall(bytes((0x10, len(head))) + head)
    assert sock.recv(4)[:1] == b"\x20", "the broker takes a connection"
    return sock


def _mqtt_subscribe(sock: socket.socket) -> socket.socket:
    topic = len(SUBJECT).to_bytes(2) + SUBJECT.encode()
    sock.sendall(bytes((0x82, 3 + len(topic))) + b"\x00\x01" + topic + b"\x02")
    assert sock.recv(5)[:1] == b"\x90", "the broker takes a subscription"
    return sock


def _mqtt_publish(id: int, body_bytes: int) -> bytes:
    content = len(SUBJECT).to_bytes(2) + SUBJECT.encode() + id.to_bytes(2) + b"x" * body_bytes
    size = len(content)
    return bytes((0x34, 0x80 | size & 0x7F, size >> 7)) + content
