"""The node that runs the workers of paths: what it does in one process, without a network."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

import semel.runtime.pipes.node as module
from semel.errors import ConfigError, InputError, LimitExceeded, StoreRefused, StoreUnavailable, Suspended
from semel.kernel.effects import Close, Notify
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, FRAME_BYTES_MAX, Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.ledger import START, Kind
from semel.kernel.ops import Append, Trim, Unit
from semel.kernel.retry import RetryPolicy
from semel.pipes.language.notation import parse_path
from semel.pipes.workers.build import Built, build
from semel.pipes.workers.durable import DurableStage
from semel.pipes.workers.outlet import PACKED_BYTES_MAX
from semel.pipes.workers.route import Parcel
from semel.pipes.workers.stage import Stage
from semel.runtime.host.performer import Performer
from semel.runtime.pipes import ports
from semel.runtime.pipes.node import PipeNode
from semel.runtime.transports.frames import encode
from semel.runtime.transports.tcp import TcpTransport
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled
from unit.runtime.stores import ScriptedStore, ids

VOLATILE = "A -[retries=inf,window=10,dedup=strict]-> B"
DURABLE = "A -[retries=inf,window=10,dedup=strict,durable=yes]-> B"
STREAM_A = build(parse_path(DURABLE)).worker("A").config.stream


def built(text: str, **options: Any) -> Built:
    return build(parse_path(text), **options)


def with_queue(plan: Built, queue_max: int) -> Built:
    """The same path with outlets that hold so many messages."""
    workers = []
    for worker in plan.workers:
        outlets = tuple(replace(outlet, queue_max=queue_max) for outlet in worker.config.outlets)
        workers.append(replace(worker, config=replace(worker.config, outlets=outlets)))
    return replace(plan, workers=tuple(workers))


def messages(count: int, first: int = 1) -> list[Envelope]:
    return [Envelope(f"m{number}") for number in range(first, first + count)]


class Sink:
    """A handler that keeps what it gets. It may be called on any thread."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def __call__(self, item: Any) -> None:
        self.ids.append(item.envelope.id)

    async def until(self, count: int) -> list[str]:
        await until(lambda: len(self.ids) >= count)
        return self.ids


@asynccontextmanager
async def local(store: Any = None, **options: Any) -> AsyncIterator[PipeNode]:
    async with Performer(store or MemoryStore()) as performer:
        yield PipeNode("here", performer, **options)


@asynccontextmanager
async def alone(text: str = VOLATILE, store: Any = None, queue_max: int = 100) -> AsyncIterator[PipeNode]:
    """Worker A, whose B is at a node that nobody has reached yet."""
    async with local(store, tcp=TcpTransport("here", insecure=True)) as node:
        await node.deploy(with_queue(built(text), queue_max), here={"A"}, nodes={"B": "there"})
        yield node


def stage(node: PipeNode, name: str) -> Stage:
    machine = node.performer.machine(name)
    assert isinstance(machine, Stage)
    return machine


def confirm(node: PipeNode, count: int) -> None:
    """B says that it has the oldest messages."""
    resend = stage(node, "A").outlets[0].resend
    assert resend is not None
    deliveries = tuple(resend.unconfirmed())[:count]
    node.post(Parcel(("0#A",), ("0#B",), (Confirm(deliveries),)))


async def turns(count: int = 20) -> None:
    """Let everything that is ready happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(30)):
        while not condition():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0.005)


# -- delivery


@pytest.mark.parametrize("text", [VOLATILE, DURABLE, "A -> B", "A -[retries=3,confirm=processing]-> B"])
async def test_messages_get_through_within_one_process(text: str) -> None:
    async with local() as node:
        sink = Sink()
        await node.deploy(built(text), handler=sink)
        for envelope in messages(3):
            await node.offer("A", envelope)
        await node.offer_all("A", messages(597, first=4))
        await node.drained("A")
        assert sorted(await sink.until(600)) == sorted(envelope.id for envelope in messages(600))
        assert node.astray == 0


@pytest.mark.parametrize("text", [VOLATILE, DURABLE])
async def test_order_is_kept(text: str) -> None:
    async with local() as node:
        sink = Sink()
        await node.deploy(built(text), handler=sink, inline=True)
        await node.offer_all("A", messages(300))
        assert await sink.until(300) == [envelope.id for envelope in messages(300)]


@pytest.mark.parametrize(
    "text",
    [
        "A -> (P1 -> X -> P2){retries=inf,window=10,dedup=id} -> B",
        "A -> (P1 -[retries=3,window=10]-> X -[retries=3,window=10]-> P2){retries=inf,window=10,dedup=id} -> B",
        "A -> (P1 -[retries=3]-> X -> P2){retries=inf,window=10,dedup=id,confirm=cascade} -[retries=2,window=10]-> B",
        "A (-[retries=2,window=10]-> X -> | -[retries=2,window=10]-> ) B -[dedup=id]-> C",
        "A -[retries=inf,window=10,confirm=cascade]-> P -[retries=inf,window=10,confirm=processing]-> B",
    ],
)
async def test_pipes_branches_and_cascades_confirm_all_the_way_back(text: str) -> None:
    async with local() as node:
        sink = Sink()
        plan = built(text)
        await node.deploy(plan, handler=sink)
        await node.offer_all(plan.first, messages(50))
        assert set(await sink.until(50)) == {envelope.id for envelope in messages(50)}
        async with asyncio.timeout(scaled(30)):
            for worker in plan.workers:
                await node.drained(worker.config.name)
        assert node.astray == 0


async def test_a_failed_handler_of_a_durable_worker_is_tried_again_as_asked() -> None:
    tried: list[str] = []

    def handle(item: Any) -> list[Append]:
        tried.append(item.envelope.id)
        if len(tried) < 3:
            raise ValueError("not yet")
        return [Append("effects", item.envelope)]

    async with local(store := MemoryStore()) as node:
        await node.deploy(built(DURABLE), handler=handle, retry=RetryPolicy(interval_s=0.001))
        await node.offer("A", Envelope("m1"))
        await node.drained("A")
        await node.drained("B")
        assert tried == ["m1"] * 3
        assert ids(store, "effects") == ["m1"]


# -- offering


async def test_a_volatile_offer_waits_for_room() -> None:
    async with alone(queue_max=3) as node:
        await node.offer_all("A", messages(3))
        fourth = asyncio.create_task(node.offer("A", Envelope("m4")))
        await turns()
        assert not fourth.done()

        confirm(node, 1)
        async with asyncio.timeout(scaled(30)):
            await fourth
        assert stage(node, "A").unconfirmed == 3


async def test_a_batch_never_brings_more_than_there_is_room_for() -> None:
    async with alone(queue_max=7) as node:
        offering = asyncio.create_task(node.offer_all("A", messages(30)))
        for _ in range(10):
            await turns()
            assert stage(node, "A").unconfirmed <= 7
            confirm(node, 5)
        async with asyncio.timeout(scaled(30)):
            await offering
        assert stage(node, "A").outlets[0].meter.counts[Kind.SENT] == 30, "none was dropped for want of room"


async def test_a_durable_offer_returns_only_when_it_is_stored() -> None:
    store = ScriptedStore()
    async with alone(DURABLE, store) as node:
        store.gate.clear()
        offering = asyncio.create_task(node.offer("A", Envelope("m1")))
        assert await asyncio.to_thread(store.under_way)
        await turns()
        assert not offering.done()
        assert ids(store, STREAM_A) == []
        store.gate.set()
        async with asyncio.timeout(scaled(30)):
            await offering
        assert ids(store, STREAM_A) == ["m1"]


async def test_the_same_message_offered_twice_is_stored_once() -> None:
    async with alone(DURABLE, store := MemoryStore()) as node:
        await asyncio.gather(node.offer("A", Envelope("m1")), node.offer("A", Envelope("m1")))
        await node.offer("A", Envelope("m1"))
        assert ids(store, STREAM_A) == ["m1"]


async def test_offers_beyond_the_limit_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFERS_MAX", 4)
    async with alone(DURABLE, store := MemoryStore()) as node:
        async with asyncio.timeout(scaled(30)):
            await node.offer_all("A", messages(20))
        assert sorted(ids(store, STREAM_A)) == sorted(envelope.id for envelope in messages(20))


async def test_an_offer_whose_commit_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFER_AGAIN_S", 0.05)

    def fail(units: object) -> None:
        raise StoreUnavailable("away for a moment", fix="wait")

    store = ScriptedStore()
    async with alone(DURABLE, store) as node:
        store.script.append(fail)
        async with asyncio.timeout(scaled(30)):
            await node.offer("A", Envelope("m1"))
        assert ids(store, STREAM_A) == ["m1"]


async def test_an_offer_outlives_a_worker_that_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFER_AGAIN_S", 0.05)
    receive = DurableStage.receive
    broken = ["m1"]

    def receive_badly(self: DurableStage, event: Any, now: float) -> Any:
        if broken and getattr(getattr(event, "message", None), "id", "") == broken[0]:
            broken.pop()
            raise RuntimeError("a defect")
        return receive(self, event, now)

    monkeypatch.setattr(DurableStage, "receive", receive_badly)
    async with alone(DURABLE, store := MemoryStore()) as node:
        async with asyncio.timeout(scaled(30)):
            await asyncio.gather(node.offer("A", Envelope("m1")), node.offer("A", Envelope("m2")))
            await node.offer("A", Envelope("m3"))
        assert sorted(ids(store, STREAM_A)) == ["m1", "m2", "m3"]


async def test_an_offer_that_the_store_refuses_fails_with_its_reason() -> None:
    store = ScriptedStore()
    store.poison["m1"] = StoreRefused("m1 is not to its taste", fix="")
    async with alone(DURABLE, store) as node:
        with pytest.raises(InputError, match="not to its taste"):
            async with asyncio.timeout(scaled(30)):
                await node.offer("A", Envelope("m1"))
        await node.offer("A", Envelope("m2"))
        assert ids(store, STREAM_A) == ["m2"]


async def test_a_worker_that_has_stopped_says_so_to_whoever_offers() -> None:
    store = MemoryStore()
    store.commit([Unit((Append(STREAM_A, envelope),)) for envelope in messages(3)])
    store.commit([Unit((Trim(STREAM_A, 3),))])
    async with alone(DURABLE, store) as node:
        await until(lambda: node.performer.machine("A") is None)
        with pytest.raises(Suspended, match="A has stopped: trimmed"):
            await node.offer("A", Envelope("m4"))
        with pytest.raises(Suspended):
            await node.drained("A")


async def test_an_offer_that_waits_hears_that_the_worker_has_stopped() -> None:
    store = ScriptedStore()
    async with alone(DURABLE, store) as node:
        store.gate.clear()
        offering = asyncio.create_task(node.offer("A", Envelope("m1")))
        assert await asyncio.to_thread(store.under_way)
        node._observed("A", Close("epoch-changed"))
        with pytest.raises(Suspended, match="A has stopped: epoch-changed"):
            await offering
        store.gate.set()


async def test_offering_to_nobody_is_an_error_and_not_a_wait() -> None:
    async with alone() as node:
        for call in (node.offer("Z", Envelope("m1")), node.offer_all("Z", messages(2)), node.drained("Z")):
            with pytest.raises(InputError, match="no worker Z"):
                await call


async def test_a_message_too_large_for_the_path_is_refused_at_its_entrance() -> None:
    headers = {f"x{number}": "\N{GRINNING FACE}" * 500 for number in range(30)}
    large = Envelope("m1", data=b"x" * DATA_INLINE_BYTES_MAX, headers=headers)
    async with alone() as node:
        with pytest.raises(LimitExceeded, match="carries at most"):
            await node.offer("A", large)
        with pytest.raises(LimitExceeded):
            await node.offer_all("A", [large])
        await node.offer("A", Envelope("m2", data=b"x" * DATA_INLINE_BYTES_MAX))


async def test_a_pipe_around_a_middle_leaves_room_for_its_own_words() -> None:
    text = "A -> (P1 -[retries=3]-> X -[retries=3]-> P2){retries=inf,dedup=id} -> B"
    async with local() as node:
        sink = Sink()
        await node.deploy(built(text), handler=sink)
        with pytest.raises(LimitExceeded):
            await node.offer("A", Envelope("m1", data=b"x" * DATA_INLINE_BYTES_MAX))
        await node.offer("A", Envelope("m2", data=b"x" * (PACKED_BYTES_MAX - 100)))
        assert await sink.until(1) == ["m2"]


# -- draining


async def test_a_durable_worker_is_drained_when_all_that_is_stored_is_confirmed() -> None:
    """Also what the sender has not read yet, because its window is full or because it has just begun."""
    store = MemoryStore()
    store.commit([Unit((Append(STREAM_A, envelope),)) for envelope in messages(25)])
    async with local(store) as node:
        sink = Sink()
        await node.deploy(built(DURABLE), handler=sink)
        async with asyncio.timeout(scaled(30)):
            await node.drained("A")
            await node.drained("B")
        assert sink.ids == [envelope.id for envelope in messages(25)]
        assert node.astray == 0, "the receiver was there before the sender began"


# -- closing


async def test_closing_fails_the_offers_that_wait() -> None:
    store = ScriptedStore()
    performer = await Performer(store).start()
    node = PipeNode("here", performer, TcpTransport("here", insecure=True))
    await node.deploy(built(DURABLE), here={"A"}, nodes={"B": "there"})
    store.gate.clear()
    offers = [asyncio.create_task(node.offer("A", envelope)) for envelope in messages(3)]
    assert await asyncio.to_thread(store.under_way)
    await performer.close(timeout_s=0.05)
    async with asyncio.timeout(scaled(30)):
        found = await asyncio.gather(*offers, return_exceptions=True)
    store.gate.set()

    assert [type(error) for error in found] == [StoreUnavailable] * 3
    assert "may or may not be stored" in str(found[0])


async def test_closing_fails_whoever_waits_for_room_or_for_the_end() -> None:
    async with alone(queue_max=2) as node:
        await node.offer_all("A", messages(2))
        waiting = [asyncio.create_task(node.offer("A", Envelope("m3"))), asyncio.create_task(node.drained("A"))]
        await turns()
        await node.performer.close()
        async with asyncio.timeout(scaled(30)):
            found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [StoreUnavailable] * 2
        with pytest.raises(StoreUnavailable):
            await node.offer("A", Envelope("m4"))


async def test_an_offer_that_nobody_awaits_any_more_harms_nobody() -> None:
    store = ScriptedStore()
    async with alone(DURABLE, store) as node:
        store.gate.clear()
        offering = asyncio.create_task(node.offer("A", Envelope("m1")))
        assert await asyncio.to_thread(store.under_way)
        offering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await offering
        store.gate.set()
        await node.offer("A", Envelope("m2"))
        assert ids(store, STREAM_A) == ["m1", "m2"]


# -- parcels that cannot be


def wire(onward: tuple[str, ...], back: tuple[str, ...] = ("0#B",), *bodies: Any) -> Parcel:
    return Parcel(onward, back, bodies)


@pytest.mark.parametrize(
    ("parcel", "reason"),
    [
        (wire(("0#nobody",)), "no worker named nobody"),
        (wire(("1#nowhere", "0#A")), "no connected node named nowhere"),
        (wire(("1#127.0.0.1:80", "0#A")), "no connected node"),
        (wire(("7#A",)), "unknown kind"),
        (wire(("0#",)), "empty"),
        (wire(()), "ends before"),
        (wire(("0#A",), ("9#B",)), "unknown kind"),
        (wire(("0#A",), ("0#" + "B" * 300,)), "300 characters"),
        (wire(("0#A", *["0#B"] * 30), ("0#B",)), "over 32 addresses"),
        (wire(("0#A",), ("0#app",), HopMessage("m1", Envelope("x"), 0)), "there does not speak for app"),
        (wire(("0#A",), ("0#A",), Confirm(("x/1",))), "went astray"),
    ],
)
async def test_a_parcel_that_names_nobody_is_counted_and_logged(
    parcel: Parcel, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with alone() as node:
        if "went astray" in reason:
            node._ports["A"].routes["A"] = ("0#A",)  # a worker of this node: nobody outside may use its name
        tcp = node._tcp
        assert tcp is not None
        node.received(tcp, "there", parcel)
        await turns()

        assert node.astray == 1
        assert reason in caplog.text
        assert tcp._tasks == set(), "nothing was dialled"
        assert stage(node, "A").inlets[0].meter.counts.total() == 0


async def test_a_node_speaks_only_for_workers_that_it_leads_to() -> None:
    async with alone() as node:
        await node.offer("A", Envelope("m1"))
        resend = stage(node, "A").outlets[0].resend
        assert resend is not None
        confirmed = wire(("0#A",), ("0#B",), Confirm(tuple(resend.unconfirmed())))
        assert node._tcp is not None

        node.received(node._tcp, "elsewhere", confirmed)
        assert stage(node, "A").unconfirmed == 1
        assert node.astray == 1

        node.received(node._tcp, "there", confirmed)
        assert stage(node, "A").unconfirmed == 0


async def test_a_forged_word_of_the_application_stores_and_answers_nothing() -> None:
    store = ScriptedStore()
    async with alone(DURABLE, store) as node:
        store.gate.clear()
        offering = asyncio.create_task(node.offer("A", Envelope("m1")))
        assert await asyncio.to_thread(store.under_way)
        assert node._tcp is not None
        node.received(node._tcp, "there", wire(("0#A",), ("0#app",), HopMessage("m1", Envelope("forged"), 0)))
        store.gate.set()
        await offering
        assert ids(store, STREAM_A) == ["m1"]


async def test_a_bare_message_is_logged_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with alone() as node:
        assert node._tcp is not None
        node.received(node._tcp, "there", Confirm(("x",)))
        assert "sent a bare Confirm" in caplog.text


async def test_a_link_that_is_down_is_not_a_parcel_gone_astray(caplog: pytest.LogCaptureFixture) -> None:
    async with alone() as node:
        await node.offer_all("A", messages(5))
        await turns()
        assert node._tcp is not None
        assert node._tcp.dropped > 0
        assert node.astray == 0
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_what_strangers_call_themselves_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LEARNED_MAX", 10)
    async with alone() as node:
        assert node._tcp is not None
        for number in range(50):
            node.received(node._tcp, "there", wire(("0#A",), (f"0#stranger{number}",), Confirm(("x",))))
        assert list(node._ports["A"]._learned) == [f"stranger{number}" for number in range(40, 50)]


# -- what goes into a parcel


def parcels(bodies: list[Any], most: int = 256) -> list[bytes]:
    return [encode(Parcel(("0#B",), ("0#A",), part)) for part in ports.parts(bodies, most)]


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope("x" * 255, subject="\N{SNOWMAN}" * 1024, session="\N{SNOWMAN}" * 255),
        Envelope("x", headers={f"x{number}": "\N{SNOWMAN}" * 500 for number in range(30)}),
        Envelope("x", data=b"x" * 50_000),
        Envelope("x", data=b"x" * DATA_INLINE_BYTES_MAX),
    ],
)
def test_every_parcel_fits_into_a_frame(envelope: Envelope) -> None:
    bodies = [HopMessage(f"run/{number}", envelope, number) for number in range(300)]
    made = parcels(bodies)
    assert max(map(len, made)) < FRAME_BYTES_MAX
    assert sum(map(len, ports.parts(bodies, 256))) == 300


def test_confirms_of_any_number_fit_into_frames() -> None:
    deliveries = [f"pipe/path/{'A' * 100}/1/{number}" for number in range(20_000)]
    made = list(ports.confirms_in_parts(deliveries))
    assert [delivery for each in made for delivery in each.deliveries] == deliveries
    assert max(map(len, parcels(list(made)))) < FRAME_BYTES_MAX


def test_small_messages_share_a_parcel() -> None:
    bodies = [HopMessage(f"run/{number}", Envelope(f"m{number}"), number) for number in range(100)]
    assert [len(part) for part in ports.parts(bodies, 256)] == [100]
    assert [len(part) for part in ports.parts(bodies, 1)] == [1] * 100


# -- meters


async def test_meters_are_written_to_the_ledger() -> None:
    store = MemoryStore()
    async with local(store) as node:
        sink = Sink()
        await node.deploy(built("A -[retries=inf,window=10,dedup=id]-> B", report_s=0.01), handler=sink)
        await node.offer_all("A", messages(40))
        await sink.until(40)
        await node.drained("A")

        def counted(kind: Kind, hop: str) -> int:
            entries = store.ledger(START, 1000)
            return sum(entry.event.n for entry in entries if (entry.event.kind, entry.event.hop) == (kind, hop))

        await until(lambda: counted(Kind.CONFIRMED, "A>B") == 40)
        await until(lambda: counted(Kind.HANDLED, "B>handler") == 40)
        assert counted(Kind.ACCEPTED, "app>A") == counted(Kind.SENT, "A>B") == counted(Kind.ACCEPTED, "A>B") == 40


def handled_at_b(store: MemoryStore) -> int:
    return sum(entry.event.n for entry in store.ledger(START, 1000) if entry.event.kind is Kind.HANDLED)


async def test_meters_are_written_by_default_and_without_folds() -> None:
    store = MemoryStore()
    async with local(store) as node:
        await node.deploy(built("A -[retries=inf,window=10,dedup=id]-> B"), handler=Sink(), report_s=0.01)
        await node.offer_all("A", messages(4))
        await until(lambda: handled_at_b(store) == 4)
        assert {entry.event.fold for entry in store.ledger(START, 1000)} == {None}
    async with local() as node:
        await node.deploy(built("A -> B"), handler=Sink())
        assert stage(node, "A").config.report_s == 1.0


async def test_meters_can_be_switched_off() -> None:
    async with local() as node:
        await node.deploy(built("A -> B"), handler=Sink(), report_s=None)
        assert stage(node, "A").config.report_s is None


async def test_what_was_confirmed_before_its_handler_failed_is_in_the_ledger() -> None:
    def fails(item: Any) -> None:
        raise ValueError(f"no {item.envelope.id}")

    store = MemoryStore()
    async with local(store) as node:
        await node.deploy(built("A -[retries=inf]-> B"), handler=fails)
        await node.offer("A", Envelope("m1"))
        await until(lambda: bool(store.ledger(START, 10)))
    (event,) = [entry.event for entry in store.ledger(START, 10) if entry.event.kind is Kind.FAILED]
    assert (event.hop, event.message) == ("B>handler", "m1")
    assert "no m1" in (event.cause or "")


# -- waiting for the end


@pytest.mark.parametrize("dedup", ["id", "strict"])
async def test_the_last_worker_is_drained_when_its_handlers_have_run(dedup: str) -> None:
    gate, handled = threading.Event(), []

    def slow(item: Any) -> None:
        gate.wait(scaled(30))
        handled.append(item.envelope.id)

    async with local() as node:
        await node.deploy(built(f"A -[retries=inf,window=10,dedup={dedup}]-> B"), handler=slow)
        await node.offer_all("A", messages(3))
        await node.drained("A")
        drained = asyncio.create_task(node.drained("B"))
        await turns()
        assert not drained.done()
        gate.set()
        async with asyncio.timeout(scaled(30)):
            await drained
        assert sorted(handled) == ["m1", "m2", "m3"]


@pytest.mark.parametrize(
    "middle",
    [
        "P1 -[retries=inf,durable=yes]-> P2",
        "P1 -[retries=inf]-> X -[retries=inf,durable=yes]-> P2",
        "P1 -[retries=inf,durable=yes]-> X -> P2",
    ],
)
@pytest.mark.parametrize("dedup", ["id", "strict"])
async def test_a_pipe_goes_through_a_durable_middle(middle: str, dedup: str) -> None:
    async with local() as node:
        sink = Sink()
        path = f"A -> ({middle}){{retries=inf,window=4,dedup={dedup}}} -> B"
        await node.deploy(built(path), handler=sink)
        await node.offer_all("A", messages(20))
        assert await sink.until(20) == [each.id for each in messages(20)]
        async with asyncio.timeout(scaled(30)):
            for worker in ("P1", "P2~in"):
                await node.drained(worker)


# -- the order of the producer


async def test_what_has_no_place_in_its_producers_order_is_refused() -> None:
    async with local() as node:
        sink = Sink()
        await node.deploy(built("A -[retries=inf,dedup=session,durable=yes]-> B"), handler=sink)
        for given in ({}, {"session": "s"}, {"index": 1}, {"session": "s", "index": 0}):
            bad = Envelope("m1", **given)
            for offer in (lambda bad=bad: node.offer("A", bad), lambda bad=bad: node.offer_all("A", [bad])):
                with pytest.raises(InputError, match="the order that B keeps") as refused:
                    await offer()
                assert "set session and index" in refused.value.fix
        await node.offer("A", Envelope("m2", session="s", index=1))
        assert await sink.until(1) == ["m2"]


# -- deploying


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (VOLATILE, {}, "B is where the path ends, and has no handler"),
        (VOLATILE, {"here": {"A"}}, "nobody says where B is"),
        (VOLATILE, {"here": {"A"}, "nodes": {"B": "there"}}, "has no transport"),
    ],
)
async def test_what_cannot_be_deployed_is_refused_before_anything_is_begun(
    text: str, options: dict[str, Any], words: str
) -> None:
    async with local() as node:
        with pytest.raises(ConfigError, match=words):
            await node.deploy(built(text), **options)
        sink = Sink()
        await node.deploy(built(text), handler=sink)
        await node.offer("A", Envelope("m1"))
        assert await sink.until(1) == ["m1"]


async def test_a_name_is_given_once() -> None:
    async with local() as node:
        await node.deploy(built("A -> (P1 -> X -> P2){retries=1} -> B"), handler=Sink())
        for text in ("A -> C", "Q -> X", "Q -> (R -> A -> S){retries=1} -> T"):
            with pytest.raises(ConfigError, match="already"):
                await node.deploy(built(text), handler=Sink())


async def test_a_pipe_and_its_own_workers_are_at_one_place() -> None:
    text = "A -> (P1 -[retries=3]-> X -[retries=3]-> P2){retries=inf,dedup=id} -> B"
    async with local(tcp=TcpTransport("here", insecure=True)) as node:
        nodes = {"X": "there", "P2": "there", "B": "there", "P1~out": "there"}
        with pytest.raises(ConfigError, match="P1~out is not where P1 is"):
            await node.deploy(built(text), here={"A", "P1"}, nodes=nodes)
        del nodes["P1~out"]
        await node.deploy(built(text), here={"A", "P1"}, nodes=nodes)
        assert set(node._ports) == {"A", "P1", "P1~out"}


async def test_a_worker_that_cannot_be_built_leaves_its_name_free(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScriptedStore()
    async with local(store) as node:
        with monkeypatch.context() as patch:
            patch.setattr(store, "cursor", lambda name: (_ for _ in ()).throw(StoreUnavailable("away", fix="")))
            with pytest.raises(StoreUnavailable):
                await node.deploy(built(DURABLE), handler=Sink())
        sink = Sink()
        await node.deploy(built(DURABLE), handler=sink)
        await node.offer("A", Envelope("m1"))
        assert await sink.until(1) == ["m1"]


async def test_settings_that_cannot_be_are_refused() -> None:
    async with Performer(MemoryStore()) as performer:
        with pytest.raises(ConfigError, match="its transport other"):
            PipeNode("here", performer, TcpTransport("other", insecure=True))
        with pytest.raises(ConfigError, match="parcel_bodies is 0"):
            PipeNode("here", performer, parcel_bodies=0)


async def test_notes_about_others_do_not_touch_an_offer() -> None:
    store = ScriptedStore()
    async with alone(DURABLE, store) as node:
        store.gate.clear()
        offering = asyncio.create_task(node.offer("A", Envelope("m1")))
        assert await asyncio.to_thread(store.under_way)
        node._observed("another", Notify("rejected", "", "m1"))
        node._observed("A", Notify("rejected", "", "m2"))
        node._observed("A", Notify("suspended", "", "m1"))
        store.gate.set()
        await offering
