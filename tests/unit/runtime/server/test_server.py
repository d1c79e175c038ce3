"""A server process: one on a file, and its store kept small."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel.errors import ConfigError, StoreBusy, StoreUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Trim, Unit
from semel.kernel.store import Swept
from semel.runtime.host.outages import Outages
from semel.runtime.server.server import Listening, sweeping, tls_context
from semel.runtime.server.server_lock import Running, running_on, server_lock
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled


async def test_what_is_trimmed_goes_while_it_serves() -> None:
    store = MemoryStore()
    appends = tuple(Append("hub/a", Envelope(f"m{number}")) for number in range(2_500))
    store.commit([Unit((*appends, Trim("hub/a", 2_501)))])
    async with sweeping(store, Outages(), every_s=0.001), asyncio.timeout(scaled(30)):
        await asyncio.to_thread(_until_swept, store)


def _until_swept(store: MemoryStore) -> None:
    while store.status().sweepable:
        pass


async def test_a_store_that_cannot_be_swept_now_is_swept_later() -> None:
    swept = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Failing(MemoryStore):
        tries = 0

        def sweep(self, now: int, limit: int = 1000) -> Swept:
            self.tries += 1
            if self.tries == 1:
                raise StoreUnavailable("not now")
            loop.call_soon_threadsafe(swept.set)
            return super().sweep(now, limit)

    async with sweeping(Failing(), Outages(), every_s=0.001), asyncio.timeout(scaled(30)):
        await swept.wait()


def test_there_is_one_server_on_a_file(tmp_path: Path) -> None:
    file = tmp_path / "semel.db"
    with server_lock(file), pytest.raises(StoreBusy, match="another server"), server_lock(file):
        pass
    with server_lock(tmp_path / "semel.db"):
        pass
    with pytest.raises(ConfigError, match="there is no folder") as caught, server_lock(tmp_path / "no" / "semel.db"):
        pass
    assert "mkdir" in caught.value.fix
    (tmp_path / "in-the-way").touch()
    with pytest.raises(ConfigError, match="cannot be written"), server_lock(tmp_path / "in-the-way" / "semel.db"):
        pass


def test_a_server_says_where_it_is_for_as_long_as_it_runs(tmp_path: Path) -> None:
    file, said = tmp_path / "semel.db", Running("https://s.example", keys="/etc/semel.keys")
    assert running_on(file) is None
    with server_lock(file) as tell:
        assert running_on(file) is None
        tell(said)
        assert running_on(file) == said
        with pytest.raises(StoreBusy), server_lock(file):
            pass
        assert running_on(file) == said
    assert running_on(file) is None


@pytest.mark.parametrize("left", ["", "nonsense", "[]", "{}", '{"endpoint": "http://x", "other": 1}'])
def test_what_is_no_word_of_a_server_is_none(left: str, tmp_path: Path) -> None:
    (tmp_path / "semel.db-server").write_text(left)
    assert running_on(tmp_path / "semel.db") is None


def test_a_server_on_every_address_is_found_on_this_machine() -> None:
    assert [Listening(host, 81, "http").endpoint for host in ("0.0.0.0", "::", "10.0.0.1")] == [
        "http://127.0.0.1:81",
        "http://[::1]:81",
        "http://10.0.0.1:81",
    ]


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        tls_context(tmp_path / "cert.pem", None)


@pytest.mark.parametrize(("host", "endpoint"), [("127.0.0.1", "http://127.0.0.1:80"), ("::1", "http://[::1]:80")])
def test_an_endpoint_is_an_address(host: str, endpoint: str) -> None:
    assert Listening(host, 80, "http").endpoint == endpoint
