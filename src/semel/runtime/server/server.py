"""A server process: a store, the performer, and the pub/sub service behind its listener."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from semel.errors import CommitInDoubt, ConfigError, SemelError, StoreUnavailable
from semel.kernel.store import Store
from semel.runtime.host.outages import Outages
from semel.runtime.host.performer import Performer
from semel.runtime.host.store_watch import SLOW_S
from semel.runtime.host.sweeper import Sweeper
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.listener import Listener
from semel.runtime.server.pubsub import PubSub, PubSubSettings

SWEEP_S = 5.0
SWEEP_ROWS = 1000
BEGIN_S = 5.0
CLOSE_S = 3.0
"""How long what was taken may take to be finished, after the listener is closed."""
STUCK_STOP_S = 1.0
"""How long calls under way are waited for when the store does not answer."""

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
    limits: ListenerLimits | None = None,
) -> AsyncIterator[Listening]:
    """Serve for as long as the block lasts. At the end clients are told to come back (1001), and what was taken is
    finished. That takes less than 10 seconds, whatever the store does. Raises a `StoreError` at the end if it did not
    answer to the last."""
    performer = await Performer(store).start()
    outages = performer.outages
    try:
        service = PubSub(performer, _known_by(host, settings))
        listener = Listener(service, limits=limits, tls=tls)
        async with sweeping(store, outages), _meanwhile(service.watch.run()):
            try:
                async with beginning(service, outages):
                    yield Listening(host, await listener.listen(host, port), listener.scheme)
            finally:
                service.operating.stop()
                is_stuck = outages.current is not None or performer.under_way_s() > SLOW_S
                await listener.stop(STUCK_STOP_S if is_stuck else listener.limits.stop_s)
                await service.watch.look_again(STUCK_STOP_S)
    finally:
        await performer.close(CLOSE_S)
    _check_end(performer)


def _check_end(performer: Performer) -> None:
    if performer.unanswered:
        raise CommitInDoubt(
            f"ended while the store did not answer; in doubt: {performer.unanswered}",
            marker="",
            fix="look after the store and start again; who got no answer asks again, with the same ids",
        )
    if performer.outages.current is not None:
        cause = performer.outages.current.cause
        raise StoreUnavailable(f"ended while the store was in trouble: {cause.message}", fix=cause.fix)


def _known_by(host: str, settings: PubSubSettings) -> PubSubSettings:
    """Where nothing else is said, event handlers know a server by the host on which it listens."""
    if settings.origin or settings.endpoints or host in THIS_MACHINE:
        return settings
    return replace(settings, origin=_in_url(host))


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@asynccontextmanager
async def sweeping(store: Store, outages: Outages, every_s: float = SWEEP_S) -> AsyncIterator[None]:
    """Meanwhile rows that nobody needs any more are removed from the store, a little at a time."""
    async with _meanwhile(Sweeper(store, every_s=every_s, limit=SWEEP_ROWS, failed=outages.met).run()):
        yield


@asynccontextmanager
async def beginning(service: PubSub, outages: Outages, every_s: float = BEGIN_S) -> AsyncIterator[None]:
    """Meanwhile hubs that other nodes have begun, or a server before this one, begin here as well."""

    async def begin() -> None:
        while True:
            try:
                await service.begin_known()
            except SemelError as error:
                outages.met(error, "the hubs of the store cannot begin")
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
