"""A server process: a store, the performer, the parts, and the listener on which they are mounted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from semel.errors import CommitInDoubt, ConfigError, StoreError, StoreUnavailable
from semel.http import THIS_MACHINE, HttpRequest, HttpResponse, in_url, unavailable
from semel.kernel.store import Store
from semel.runtime.host.outages import Outages, public_message
from semel.runtime.host.performer import Performer
from semel.runtime.host.store_watch import SLOW_S, StoreWatch
from semel.runtime.host.sweeper import Sweeper
from semel.runtime.server.listener import Listener
from semel.runtime.server.operating import Metrics, Operating
from semel.runtime.server.part import Health, Mount, OwnListener, Part, PartFactory, ServerContext, ServerSettings


class StorePart(Part):
    """The store of a server as operators see it."""

    name = "store"

    def __init__(self, performer: Performer) -> None:
        self.watch = StoreWatch(performer)
        self._performer, self._outages = performer, performer.outages

    async def run(self) -> None:
        await asyncio.gather(self.watch.run(), self.watch.run_horizon())

    def health(self) -> Health:
        """What goes away by itself, or when somebody looks after the store, is no reason to restart the process."""
        current = self._outages.current
        return Health() if current is None else Health(public_message(current.cause), current.is_ended_by_restart)

    async def ready(self) -> Health:
        await self.watch.is_well()
        return self.health()

    def metrics(self) -> Iterator[Metric]:
        times, outages = self._performer.commit_times, self._outages
        yield CounterMetricFamily("semel_commits", "What was asked of the store.", times.commits)
        buckets = [(floatToGoString(limit), count) for limit, count in times.up_to()]
        yield HistogramMetricFamily("semel_transaction_seconds", "From the order to the answer.", buckets, times.sum_s)
        is_in_one = int(outages.current is not None)
        yield GaugeMetricFamily(
            "semel_store_in_trouble", "1 while the store does not do what it is asked to.", is_in_one
        )
        yield CounterMetricFamily("semel_store_outages", "How often that began.", outages.count)
        held = self.watch.horizon
        yield GaugeMetricFamily(
            "semel_ledger_held_seconds", "For how long an open transaction has held the ledger back.", held.held_s
        )
        yield GaugeMetricFamily("semel_ledger_held_entries", "Entries that are not shown because of it.", held.events)

    async def overview(self) -> Mapping[str, Any]:
        return {"commits": self._performer.commit_times.commits, "outages": self._outages.count}


SWEEP_S = 5.0
SWEEP_ROWS = 1000
CLOSE_S = 3.0
"""How long what was taken may take to be finished, after the listeners are closed."""
STUCK_STOP_S = 1.0
"""How long calls under way are waited for when the store does not answer."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Where it can be reached. `port` is never 0 here. `own_ports` are those of listeners that parts have for
    themselves, by name."""

    host: str
    port: int
    scheme: str
    own_ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        """An address that leads here from this machine."""
        return f"{self.scheme}://{in_url(THIS_MACHINE.get(self.host, self.host))}:{self.port}"


class Server:
    """The parts of one process, mounted. It knows none of them: `factories` make them."""

    def __init__(self, performer: Performer, settings: ServerSettings, factories: Sequence[PartFactory]) -> None:
        context = ServerContext(performer, settings)
        self._performer, self._settings = performer, settings
        self.store = StorePart(performer)
        self.parts: list[Part] = [self.store, *(make(context) for make in factories)]
        self.metrics = Metrics(settings.node, self.parts)
        performer.observe(self.metrics.observe)
        self._operating = Operating(self.parts, self.metrics, context)
        mounts = (*self._operating.mounts, *(mount for part in self.parts for mount in part.mounts))
        main = OwnListener("", settings.host, settings.port, mounts, settings.tls, settings.limits)
        own = (at for part in self.parts for at in part.listeners)
        self._listeners = {at: self._listener(at) for at in (main, *own)}
        self.listener = self._listeners[main]

    def _listener(self, at: OwnListener) -> Listener:
        mounts = [_guarded(mount, self._performer.outages) for mount in at.mounts]
        return Listener(mounts, limits=at.limits, tls=at.tls, errors=at.errors, responded=self.metrics.responded)

    async def listen(self) -> Listening:
        for at, listener in self._listeners.items():
            await listener.listen(at.host, at.port)
        own_ports = {at.name: listener.port for at, listener in self._listeners.items() if at.name}
        return Listening(self._settings.host, self.listener.port, self.listener.scheme, own_ports)

    async def stop(self) -> None:
        self._operating.stop()
        for part in self.parts:
            part.stop()
        is_stuck = self._performer.outages.current is not None or self._performer.under_way_s() > SLOW_S
        within_s = STUCK_STOP_S if is_stuck else None
        await asyncio.gather(*(listener.stop(within_s) for listener in self._listeners.values()))
        await self.store.watch.look_again(STUCK_STOP_S)


@asynccontextmanager
async def serving(store: Store, settings: ServerSettings, parts: Sequence[PartFactory]) -> AsyncIterator[Listening]:
    """Serve for as long as the block lasts. At the end clients are asked to come back (1001), and what was taken is
    finished. That takes less than 10 seconds, whatever the store does. Raises a `StoreError` at the end if it did not
    answer to the last."""
    performer = await Performer(store).start()
    try:
        server = Server(performer, settings, parts)
        async with sweeping(store, performer.outages), AsyncExitStack() as stack:
            await stack.enter_async_context(_meanwhile(server.store.run()))
            stack.push_async_callback(server.stop)
            for part in server.parts[1:]:
                await stack.enter_async_context(_meanwhile(part.run()))
            yield await server.listen()
    finally:
        await performer.close(CLOSE_S)
    _check_end(performer)


def _guarded(mount: Mount, outages: Outages) -> Mount:
    """Trouble with the store that a service does not answer itself is answered in its style, and accounted for."""

    async def handle(request: HttpRequest) -> HttpResponse:
        try:
            return await mount.handle(request)
        except StoreError as error:
            outages.record(error, "a request was not answered")
            raise unavailable(public_message(error)) from None

    return replace(mount, handle=handle)


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


@asynccontextmanager
async def sweeping(store: Store, outages: Outages, every_s: float = SWEEP_S) -> AsyncIterator[None]:
    """Meanwhile rows that nobody needs any more are removed from the store, a little at a time."""
    async with _meanwhile(Sweeper(store, every_s=every_s, limit=SWEEP_ROWS, failed=outages.record).run()):
        yield


@asynccontextmanager
async def _meanwhile(job: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(job)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def tls_context(certificate: Path, key: Path | None, client_ca: Path | None = None) -> ssl.SSLContext:
    """With `client_ca` clients are asked for a certificate. One that is shown must come from there; who shows none is
    let in, and the services decide what that means."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate {certificate} cannot be used: {error}",
            fix="give --tls-cert and --tls-key as files in PEM form that belong together",
        ) from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the authorities in {client_ca} cannot be used: {error}",
                fix="give --tls-client-ca as a file in PEM form with one certificate or more",
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
