"""A server process: a store, the performer, and the pub/sub service behind its door."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from semel.errors import ConfigError, SemelError
from semel.kernel.store import Store
from semel.runtime.door import Door, DoorLimits
from semel.runtime.perform import Performer
from semel.runtime.pubsub import PubSub, PubSubSettings
from semel.runtime.sweeper import Sweeper

log = logging.getLogger(__name__)

SWEEP_S = 5.0
SWEEP_ROWS = 1000
BEGIN_S = 5.0

THIS_MACHINE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to find here what listens on every address."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where it can be reached. `port` is never 0 here."""

    host: str
    port: int
    scheme: str

    @property
    def endpoint(self) -> str:
        """An address that leads here from this machine."""
        return f"{self.scheme}://{_in_url(THIS_MACHINE.get(self.host, self.host))}:{self.port}"


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
        service = PubSub(performer, _known_by(host, settings))
        door = Door(service, limits=limits, tls=tls)
        try:
            async with beginning(service):
                yield Listening(host, await door.listen(host, port), door.scheme)
        finally:
            service.operating.stop()
            await door.stop()


def _known_by(host: str, settings: PubSubSettings) -> PubSubSettings:
    """Where nothing else is said, event handlers know a server by the host on which it listens."""
    if settings.origin or settings.endpoints or host in THIS_MACHINE:
        return settings
    return replace(settings, origin=_in_url(host))


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@asynccontextmanager
async def sweeping(store: Store, every_s: float = SWEEP_S) -> AsyncIterator[None]:
    """Meanwhile rows that nobody needs any more are removed from the store, a little at a time."""
    async with _meanwhile(Sweeper(store, every_s=every_s, limit=SWEEP_ROWS).run()):
        yield


@asynccontextmanager
async def beginning(service: PubSub, every_s: float = BEGIN_S) -> AsyncIterator[None]:
    """Meanwhile hubs that other nodes have begun, or a server before this one, begin here as well."""

    async def begin() -> None:
        while True:
            try:
                await service.begin_known()
            except SemelError as error:
                log.warning("the hubs of the store cannot begin: %s", error.message)
            await asyncio.sleep(every_s)

    async with _meanwhile(begin()):
        yield


@asynccontextmanager
async def _meanwhile(job: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(job)
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
            f"the certificate {certificate} cannot be used: {error}",
            fix="give --tls-cert and --tls-key as files in PEM form that belong together",
        ) from None
    return context
