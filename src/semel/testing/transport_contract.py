"""One contract for all transports of an inbox. Run it against yours:

    class TestMyTransport(TransportContract):
        @pytest_asyncio.fixture
        async def rig(self):
            async with MyRig() as rig:
                yield rig

A rig has the broker: see `TransportRig`. The tests run a listener on a real store, which is SQLite unless the fixture
`store_url` says another. They are coroutines: pytest-asyncio runs them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from semel.errors import StoreUnavailable
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.ledger import Kind
from semel.runtime.brokers.listeners import make_listeners
from semel.runtime.inbox import operating
from semel.runtime.inbox.app import App
from semel.runtime.inbox.listening import InboxListener, InboxTransport, ListenerState
from semel.runtime.inbox.service import InboxService
from semel.testing.limits import POLL_S, scaled

ENDPOINT = "orders"
TYPE = "order"


class TransportRig(Protocol):
    """A broker with one queue, for one test. Its transports read the id from a field that may be missing."""

    def transport(self) -> InboxTransport:
        """Another one to the same queue."""

    async def publish(self, id: str | None, data: bytes) -> None:
        """With the type `order`. The same id may be published twice."""

    async def waiting(self) -> int:
        """How many messages are in the queue and with nobody. With no transport open: how many were never settled."""

    async def cut(self) -> None:
        """End the connections of all transports without a word. They may be made again."""

    async def stop(self) -> None:
        """End the broker. It keeps its messages."""

    async def start(self) -> None:
        """Begin again, at the same address."""


class Effects:
    """What handlers did, in their order. Each run is counted by the handler itself, in memory: a duplicate that reached
    it shows. `hold` lets them wait within."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.at_once = self.at_once_max = 0
        self.go = threading.Event()
        self.go.set()
        self._lock = threading.Lock()

    def hold(self) -> None:
        self.go.clear()

    def handle(self, id: str) -> None:
        with self._lock:
            self.at_once += 1
            self.at_once_max = max(self.at_once, self.at_once_max)
        assert self.go.wait(scaled(60)), "the test lets the handlers go on"
        with self._lock:
            self.at_once -= 1
            self.ids.append(id)


class HeldApp(App):
    """Its store can be away: `trouble` is raised instead of storing. `stored` is called after the commit and before
    anybody hears of it. So many times as `busy` says, a delivery is given back."""

    trouble: StoreUnavailable | None = None
    busy = 0
    refused = commits = 0
    before: Callable[[], None] = staticmethod(lambda: None)
    stored: Callable[[], None] = staticmethod(lambda: None)

    def receive(self, endpoint: str, envelopes: Any) -> Any:
        if self.trouble is not None:
            self.refused += 1
            raise self.trouble
        self.before()
        verdicts = super().receive(endpoint, envelopes)
        self.commits += 1
        self.stored()
        return verdicts

    async def deliver(self, endpoint: str, envelope: Envelope, threads: Executor | None = None) -> DeliveryEnd:
        if self.busy:
            self.busy -= 1
            return DeliveryEnd.GIVE_BACK
        return await super().deliver(endpoint, envelope, threads)


class TransportContract:
    """What each transport must do, whatever the broker."""

    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/inbox.db"

    @pytest.fixture
    def rig(self) -> TransportRig:
        raise NotImplementedError("give a rig with your broker")

    @pytest.fixture
    def effects(self) -> Iterator[Effects]:
        effects = Effects()
        yield effects
        effects.go.set()

    @pytest.fixture
    def app(self, store_url: str, effects: Effects) -> Iterator[HeldApp]:
        app = HeldApp(store_url, name="shop")
        yield app
        app.close()

    # -- acks

    async def test_what_is_stored_is_acknowledged_and_handled_in_order(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        async with listening(app, rig, effects):
            for number in range(20):
                await publish(rig, f"m{number:02}")
            await until(lambda: len(effects.ids) == 20, "20 effects")
        assert effects.ids == [f"m{number:02}" for number in range(20)]
        await left(rig, 0)

    async def test_nothing_is_acknowledged_before_it_is_stored(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        came, store = threading.Event(), threading.Event()

        def hold() -> None:
            came.set()
            assert store.wait(scaled(60)), "the test lets it be stored"

        app.before = hold
        async with listening(app, rig, effects) as listener:
            await publish(rig, "a")
            await until(came.is_set, "the message")
            assert listener.acked == 0
            assert app.store.work(f"inbox/{ENDPOINT}", "a") is None
            await rig.cut()
            store.set()
            await until(lambda: effects.ids == ["a"], "its effect")
            await until(lambda: app.commits == 2, "its second delivery")
        assert effects.ids == ["a"], "it was not acknowledged, so it came again: a duplicate"
        await left(rig, 0)
        assert Kind.DUPLICATE in kinds(app, "a")

    async def test_a_duplicate_is_acknowledged_and_not_handled(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        async with listening(app, rig, effects) as listener:
            for id in ("a", "a", "b", "a"):
                await publish(rig, id)
            await until(lambda: listener.acked == 4, "four acks")
            await until(lambda: sorted(effects.ids) == ["a", "b"], "two effects")
        assert effects.ids == ["a", "b"]
        await left(rig, 0)

    async def test_acks_that_are_lost_make_duplicates_and_one_effect(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        loop = asyncio.get_running_loop()

        def cut_after_commit() -> None:
            if app.commits < 3:
                asyncio.run_coroutine_threadsafe(rig.cut(), loop).result(scaled(60))

        app.stored = cut_after_commit
        async with listening(app, rig, effects):
            await publish(rig, "a")
            # an ack may be said on a connection that is cut already: only the third delivery is told for sure
            await until(lambda: app.commits == 3, "the delivery whose ack is not lost")
            await until(lambda: len(effects.ids) == 1, "one effect")
        assert effects.ids == ["a"]
        await left(rig, 0)
        assert kinds(app, "a").count(Kind.DUPLICATE) == 2

    # -- what cannot be taken

    async def test_a_store_that_is_away_gives_all_back_in_order(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        app.trouble = StoreUnavailable("the store is away", fix="wait")
        async with listening(app, rig, effects) as listener:
            for id in ("a", "b", "c"):
                await publish(rig, id)
            await until(lambda: app.refused >= 2, "a second attempt: they were given back and came again")
            assert listener.acked == 0
            app.trouble = None
            await until(lambda: len(effects.ids) == 3, "all effects")
        assert effects.ids == ["a", "b", "c"]
        await left(rig, 0)

    async def test_what_is_no_message_is_kept_and_acknowledged(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        async with listening(app, rig, effects) as listener:
            await rig.publish(None, b'{"id": "without one"}')
            await publish(rig, "a")
            await until(lambda: listener.acked == 2, "both acks")
            await until(lambda: effects.ids == ["a"], "the effect of the other")
        [letter] = app.dead_letters(ENDPOINT)
        assert "it has no id" in letter.cause
        assert "without one" in letter.body
        await left(rig, 0)

    async def test_what_is_too_large_is_taken_off_the_queue_and_blocks_nobody(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        async with listening(app, rig, effects) as listener:
            await rig.publish("large", b"x" * (DATA_INLINE_BYTES_MAX + 1))
            await publish(rig, "a")
            await until(lambda: listener.acked == 1 and effects.ids == ["a"], "the other one")
        [letter] = app.dead_letters(ENDPOINT)
        assert "262,145 bytes" in letter.cause
        await left(rig, 0)

    # -- how much

    async def test_never_more_is_unsettled_than_handlers_run(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        effects.hold()
        async with listening(app, rig, effects, mode="inline", parallel=2):
            for number in range(6):
                await publish(rig, f"m{number}")
            await until(lambda: effects.at_once == 2, "two handlers")
            await left(rig, 4)  # what nobody has room for stays where another process finds it
            effects.go.set()
            await until(lambda: len(effects.ids) == 6, "all of them")
        assert effects.at_once_max == 2
        await left(rig, 0)

    async def test_who_is_given_back_comes_again_later(self, rig: TransportRig, app: HeldApp, effects: Effects) -> None:
        """At an inline endpoint, while somebody else has the message."""
        app.busy = 2
        async with listening(app, rig, effects, mode="inline", parallel=2) as listener:
            await publish(rig, "a")
            await until(lambda: effects.ids == ["a"], "its effect")
            assert listener.given_back == 2
        assert effects.ids == ["a"]
        await left(rig, 0)

    # -- pauses and ends

    async def test_a_paused_endpoint_takes_nothing_and_goes_on(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        async with listening(app, rig, effects) as listener:
            await publish(rig, "a")
            await until(lambda: effects.ids == ["a"], "the first")
            await asyncio.to_thread(operating.set_paused, app, ENDPOINT, True)
            await until(lambda: listener.state is ListenerState.PAUSED, "the pause")
            await publish(rig, "b")
            await left(rig, 1)  # it stays at the broker
            await asyncio.to_thread(operating.set_paused, app, ENDPOINT, False)
            await until(lambda: effects.ids == ["a", "b"], "the second")
        await left(rig, 0)

    async def test_a_pause_lets_handlers_finish_that_have_begun(
        self, rig: TransportRig, app: HeldApp, effects: Effects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("semel.runtime.inbox.listening.FINISH_S", 0.05)
        effects.hold()
        async with listening(app, rig, effects, mode="inline", parallel=1) as listener:
            await publish(rig, "a")
            await until(lambda: effects.at_once == 1, "a handler")
            await asyncio.to_thread(operating.set_paused, app, ENDPOINT, True)
            await until(lambda: listener.state is ListenerState.PAUSED, "the pause")
            await asyncio.sleep(0.2)  # longer than a process that ends would wait for it
            effects.go.set()
            await until(lambda: listener.acked == 1, "its ack")
        assert effects.ids == ["a"]
        await left(rig, 0)

    async def test_a_process_that_ends_finishes_what_it_has_and_leaves_the_rest(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        effects.hold()
        async with listening(app, rig, effects, mode="inline", parallel=1) as listener:
            for id in ("a", "b", "c"):
                await publish(rig, id)
            await until(lambda: effects.at_once == 1, "a handler")
            closing = asyncio.create_task(listener.close())
            await asyncio.sleep(0)
            effects.go.set()
            await closing
        assert effects.ids == ["a"], "what was begun is finished, and nothing else begun"
        await left(rig, 2)  # at once, and not when the broker has lost patience

    # -- the broker

    async def test_a_broker_that_restarts_is_dialled_again(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        async with listening(app, rig, effects) as listener:
            await publish(rig, "a")
            await until(lambda: effects.ids == ["a"], "the first")
            await rig.stop()
            await until(lambda: listener.state is ListenerState.AWAY, "the loss")
            await rig.start()
            await publish(rig, "b")
            await until(lambda: effects.ids == ["a", "b"], "the second")
        # a broker that was killed may have forgotten an ack: it would deliver again, and it would be a duplicate
        assert effects.ids == ["a", "b"]

    async def test_a_broker_that_is_away_at_first_is_found_later(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        await publish(rig, "a")
        await rig.stop()
        async with listening(app, rig, effects) as listener:
            await until(lambda: listener.state is ListenerState.AWAY, "an attempt")
            await rig.start()
            await until(lambda: effects.ids == ["a"], "the message")


# -- what the tests share


@asynccontextmanager
async def listening(app: App, rig: TransportRig, effects: Effects, **options: Any) -> AsyncIterator[InboxListener]:
    endpoint = app.endpoint(ENDPOINT, **options)

    @endpoint.on(TYPE)
    def handle(message: dict) -> None:
        effects.handle(message["id"])

    app.listen(ENDPOINT, rig.transport)
    [listener] = make_listeners(app, app)
    async with InboxService(app, listeners=[listener]):
        yield listener


async def publish(rig: TransportRig, id: str) -> None:
    await rig.publish(id, json.dumps({"id": id}).encode())


async def until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(scaled(60)):
            while not condition():  # noqa: ASYNC110 - other threads and processes make it true
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"{what} did not come") from None


def kinds(app: App, id: str) -> list[Kind]:
    return [entry.event.kind for entry in app.store.history(id)]


async def left(rig: TransportRig, count: int) -> None:
    """So many are in the queue. A broker may take a moment to count what it was told."""
    found = -1
    try:
        async with asyncio.timeout(scaled(20)):
            while (found := await rig.waiting()) != count:  # noqa: ASYNC110 - the broker is another process
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise AssertionError(f"{found} messages are left, not {count}") from None
