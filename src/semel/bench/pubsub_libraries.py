"""Publishing through the Python libraries of other brokers, with so many messages on their way: rates per second."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from semel.bench.pubsub_load import HOST, READ_BYTES, WAIT_S, Wire
from semel.errors import PeerUnavailable
from semel.runtime.host.loop import run as run_loop


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
    """Meanwhile a thread hears what comes on this connection. It is closed at the end."""
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
