"""An outbox: what is put into it is there for the next process, in order, until it is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from semel.errors import CommitInDoubt, SemelError, StaleFence, StoreError, StoreFull, StoreUnavailable
from semel.kernel.ops import Outcome, Unit
from semel.kernel.position import Position
from semel.kernel.store import Records, Store
from semel.pubsub.client.events import Abort, ClientOutbox, Event, Kept, NotKept, OutboxEntry
from semel.pubsub.protocol.messages import Data, DataType, SendToGroup
from semel.runtime.client import outbox as client_outbox
from semel.runtime.client.outbox import OutboxWriter, StoreOutbox, open_outbox
from semel.stores.memory import MemoryStore
from semel.stores.open import open_store


def entry(id: str, *, body: bytes = b"x", sent_at: float | None = None) -> OutboxEntry:
    request = SendToGroup("g", Data(DataType.BINARY, body), no_echo=True, ttl_s=7, metadata={"semel-id": id})
    return OutboxEntry(id, request, 1.5, sent_at)


def ids(outbox: StoreOutbox) -> list[str]:
    return [each.id for each in outbox.pending()]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = MemoryStore() if request.param == "memory" else open_store(f"sqlite:///{tmp_path}/outbox.db")
    yield made
    made.close()


def test_the_next_process_finds_what_was_left_as_it_was_and_in_order(store: Store) -> None:
    outbox = StoreOutbox(store, "a")
    kept = [entry("one"), entry("two", body=b"y" * 700_000), entry("three", sent_at=2.5)]
    outbox.write(kept[:2], {}, ())
    outbox.write(kept[2:], {}, ())
    assert StoreOutbox(store, "a").pending() == kept
    assert StoreOutbox(store, "b").pending() == []


def test_what_is_removed_is_gone_also_out_of_order_and_what_was_marked_is_known(store: Store) -> None:
    outbox = StoreOutbox(store, "a")
    outbox.write([entry(id) for id in "abcd"], {}, ())
    outbox.write((), {"a": 3.0, "c": 4.0}, ["b", "d"])
    assert [(each.id, each.sent_at) for each in StoreOutbox(store, "a").pending()] == [("a", 3.0), ("c", 4.0)]


def test_who_was_replaced_can_write_nothing_any_more(store: Store) -> None:
    first, second = StoreOutbox(store, "a"), StoreOutbox(store, "a")
    with pytest.raises(StaleFence, match="another process") as error:
        first.write([entry("lost")], {}, ())
    assert error.value.fix
    second.write([entry("kept")], {}, ())
    assert ids(StoreOutbox(store, "a")) == ["kept"]


def test_a_store_stays_small_however_much_goes_through_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_outbox, "SWEEP_EVERY", 10)
    outbox = StoreOutbox(store, "a")
    for turn in range(30):
        sent = [f"{turn} {number}" for number in range(5)]
        outbox.write([entry(id) for id in sent], {}, ())
        outbox.write((), dict.fromkeys(sent, 1.0), sent)
    assert ids(StoreOutbox(store, "a")) == []
    assert store.status().sweepable < 20
    state = store.state("client-outbox/a")
    assert state is not None
    assert len(state.value) < 20


def test_one_that_stays_does_not_make_the_next_process_send_what_was_taken_after_it(store: Store) -> None:
    outbox = StoreOutbox(store, "a")
    outbox.write([entry("stuck")], {}, ())
    for number in range(10):
        outbox.write([entry(f"m{number}")], {}, ())
        outbox.write((), {}, [f"m{number}"])
    outbox = StoreOutbox(store, "a")
    assert ids(outbox) == ["stuck"]
    outbox.write((), {}, ["stuck"])
    assert ids(StoreOutbox(store, "a")) == []


def test_a_url_opens_a_store_that_is_closed_with_its_outbox(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/outbox.db"
    outbox, kept = open_outbox(url, "a")
    assert kept == []
    outbox.write([entry("one")], {}, ())
    outbox.close()
    with pytest.raises(SemelError):
        outbox.write([entry("two")], {}, ())
    outbox, kept = open_outbox(url, "a")
    assert [each.id for each in kept] == ["one"]
    outbox.close()


def test_a_store_of_the_callers_stays_open() -> None:
    store = MemoryStore()
    outbox, _ = open_outbox(store, "a")
    outbox.close()
    StoreOutbox(store, "a").write([entry("one")], {}, ())


class Doubtful(MemoryStore):
    """The connection breaks in the middle of commits. `happens` says which of them happen all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: list[bool] = []
        self.silent = 0
        self._last: list[Outcome] | None = None

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        if not self.happens:
            return super().commit(units)
        self._last = super().commit(units) if self.happens.pop(0) else None
        raise CommitInDoubt("it broke", marker="m")

    def resolve(self, marker: str) -> list[Outcome] | None:
        if self.silent:
            self.silent -= 1
            raise StoreUnavailable("not now")
        return self._last


def test_a_commit_in_doubt_is_found_out_and_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_outbox.time, "sleep", lambda seconds: None)
    store = Doubtful()
    outbox = StoreOutbox(store, "a")
    store.happens, store.silent = [False, True], 3
    outbox.write([entry("one")], {}, ())
    assert ids(StoreOutbox(store, "a")) == ["one"]


def test_when_nobody_can_say_that_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_outbox.time, "sleep", lambda seconds: None)
    store = Doubtful()
    outbox = StoreOutbox(store, "a")
    store.happens, store.silent = [True], 1000
    with pytest.raises(CommitInDoubt):
        outbox.write([entry("one")], {}, ())


class OutboxModel(RuleBasedStateMachine):
    """Whatever happens, also restarts and restores, an outbox holds what a list would."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.outbox = StoreOutbox(self.store, "a")
        self.waiting: dict[str, OutboxEntry] = {}
        self.count = 0

    @rule(count=st.integers(0, 3), data=st.data())
    def write(self, count: int, data: st.DataObject) -> None:
        removed = data.draw(st.lists(st.sampled_from([*self.waiting, "unknown"]), unique=True))
        marked = data.draw(st.lists(st.sampled_from([*self.waiting, "unknown"]), unique=True))
        new = [entry(f"m{self.count + number}") for number in range(count)]
        self.count += count
        self.outbox.write(new, {id: float(self.count) for id in marked}, removed)
        for id in marked:
            if id in self.waiting:
                self.waiting[id] = msgspec.structs.replace(self.waiting[id], sent_at=float(self.count))
        for id in removed:
            self.waiting.pop(id, None)
        self.waiting.update({each.id: each for each in new})

    @rule()
    def restart(self) -> None:
        self.outbox = StoreOutbox(self.store, "a")
        assert list(self.outbox.pending()) == list(self.waiting.values())

    @rule()
    def restore(self) -> None:
        self.store.raise_epoch("restored")
        self.restart()

    @rule()
    def sweep(self) -> None:
        self.store.sweep(1 << 50)

    @invariant()
    def nothing_done_is_read_again(self) -> None:
        info = next((each for each in self.store.status().streams if each.name == "client-outbox/a"), None)
        if info is not None and not self.waiting:
            after = Position(info.name, info.epoch, info.first - 1)
            assert self.store.read(info.name, after) == Records(())


TestOutboxModel = OutboxModel.TestCase
TestOutboxModel.settings = settings(max_examples=60, stateful_step_count=20)


# -- the writer


class Scripted(ClientOutbox):
    """Fails when it is told to. Every write is noted."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.writes: list[tuple[list[str], dict[str, float], list[str]]] = []
        self.is_closed = False

    def write(self, put: Sequence[OutboxEntry], sent: Mapping[str, float], removed: Collection[str]) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.writes.append(([each.id for each in put], dict(sent), list(removed)))

    def pending(self) -> Sequence[OutboxEntry]:
        return ()

    def close(self) -> None:
        self.is_closed = True


async def finished(outbox: Scripted, ask: Callable[[OutboxWriter], object]) -> list[Event]:
    told: list[Event] = []
    writer = OutboxWriter(outbox, told.append)
    ask(writer)
    await writer.close()
    assert outbox.is_closed
    return told


async def test_what_is_asked_in_one_tick_is_one_commit() -> None:
    outbox = Scripted()
    marks: list[asyncio.Future[None]] = []

    def ask(writer: OutboxWriter) -> None:
        writer.keep(entry("a"))
        writer.keep(entry("b"))
        marks.append(writer.mark(["z"], 2.0))
        writer.remove("y")

    assert await finished(outbox, ask) == [Kept(["a", "b"])]
    assert outbox.writes == [(["a", "b"], {"z": 2.0}, ["y"])]
    assert marks[0].done()


async def test_what_cannot_be_kept_is_told_and_what_was_to_be_removed_is_removed_later() -> None:
    full = StoreFull("full")
    outbox = Scripted(full)

    def ask(writer: OutboxWriter) -> None:
        writer.keep(entry("a"))
        writer.remove("y")

    assert await finished(outbox, ask) == [NotKept(["a"], full)]
    assert outbox.writes == [([], {}, ["y"])]


async def test_an_outbox_of_which_nobody_knows_ends_the_client() -> None:
    doubt, stale = CommitInDoubt("?", marker="m"), StaleFence("replaced")
    assert await finished(Scripted(doubt), lambda writer: writer.keep(entry("a"))) == [Abort(doubt)]
    told = await finished(Scripted(stale), lambda writer: writer.keep(entry("a")))
    assert told == [NotKept(["a"], stale), Abort(stale)]


async def test_a_mark_that_cannot_be_written_lets_nothing_out() -> None:
    full = StoreFull("full")
    marks: list[asyncio.Future[None]] = []
    assert await finished(Scripted(full), lambda writer: marks.append(writer.mark(["a"], 1.0))) == [Abort(full)]
    assert not marks[0].done()


async def test_an_error_of_another_kind_ends_the_client(caplog: pytest.LogCaptureFixture) -> None:
    [told] = await finished(Scripted(KeyError("odd")), lambda writer: writer.keep(entry("a")))
    assert isinstance(told, Abort)
    assert isinstance(told.error, StoreError)
    assert "does not know" in caplog.text
