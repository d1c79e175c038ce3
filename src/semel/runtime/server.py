"""A server process: a store, the performer, and the pub/sub service behind its door."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from semel.errors import ConfigError, SemelError, StoreBusy
from semel.kernel.store import Store
from semel.runtime.door import Door, DoorLimits
from semel.runtime.perform import Performer
from semel.runtime.pubsub import PubSub, PubSubSettings

log = logging.getLogger(__name__)

SWEEP_S = 5.0
BEGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Listening:
    """Where it can be reached. `port` is never 0 here."""

    host: str
    port: int
    scheme: str

    @property
    def endpoint(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{shown}:{self.port}"


@asynccontextmanager
async def serving(
    store: Store,
    settings: PubSubSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    tls: ssl.SSLContext | None = None,
    limits: DoorLimits | None = None,
) -> AsyncIterator[Listening]:
    """Serve for as long as the block lasts. At the end clients are told to come back (1001), and what was taken is
    finished."""
    async with Performer(store) as performer, sweeping(store):
        service = PubSub(performer, settings)
        door = Door(service, limits=limits, tls=tls)
        try:
            async with beginning(service):
                yield Listening(host, await door.listen(host, port), door.scheme)
        finally:
            service.operating.stop()
            await door.stop()


@asynccontextmanager
async def sweeping(store: Store, every_s: float = SWEEP_S) -> AsyncIterator[None]:
    """Meanwhile rows that nobody needs any more are removed from the store, a little at a time."""

    async def sweep() -> bool:
        return (await asyncio.to_thread(store.sweep, time.time_ns() // 1000)).more

    async with _meanwhile("the store was not swept", sweep, every_s):
        yield


@asynccontextmanager
async def beginning(service: PubSub, every_s: float = BEGIN_S) -> AsyncIterator[None]:
    """Meanwhile hubs that other nodes have begun, or a server before this one, begin here as well."""

    async def begin() -> bool:
        await service.begin_known()
        return False

    async with _meanwhile("the hubs of the store cannot begin", begin, every_s):
        yield


@asynccontextmanager
async def _meanwhile(trouble: str, job: Callable[[], Awaitable[bool]], every_s: float) -> AsyncIterator[None]:
    """Do it again and again: at once if it says that there is more to do."""

    async def repeat() -> None:
        while True:
            try:
                is_more = await job()
            except SemelError as error:
                log.warning("%s: %s", trouble, error.message)
                is_more = False
            if not is_more:
                await asyncio.sleep(every_s)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate {certificate} cannot be used: {error}", fix="give --tls-cert and --tls-key in PEM form"
        ) from None
    return context


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """The only server on this SQLite file. The lock goes with the process, however that ends."""
    try:
        lock = open(path.with_name(f"{path.name}-server"), "a")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be written: {error.strerror}", fix="choose another --store") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(
                f"another server uses {path}", fix="stop that one, or choose another --store; nodes share PostgreSQL"
            ) from None
        yield
