"""dedup=session: a durable worker goes by the producer's own numbers, whatever lies between has numbered again."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ConfigError
from semel.kernel.effects import Commit, Committed, Deliver, DeliverFailed, Load, Loaded, ReadDone, Received, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.ops import Append, Unit
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Records
from semel.pipes.language.options import ConfirmOn, DedupBy
from semel.pipes.workers.durable import DurableStage
from semel.pipes.workers.inlet import InletConfig
from semel.pipes.workers.stage import Stage, StageConfig
from semel.stores.memory import MemoryStore

INLET = InletConfig("P>B", ("P",), ConfirmOn.RECEIPT, DedupBy.SESSION)
CONFIG = StageConfig("b", "path", (INLET,), handles=True, handler_retry=RetryPolicy(interval_s=0.5))


class Bench:
    """A durable stage on a store, without clock and network."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.stage = DurableStage(CONFIG, store)
        self.confirmed: list[str] = []
        self._do(self.stage.start(0.0))

    def hear(self, delivery: str, index: int | None, hop_index: int, session: str | None = "s") -> list[str]:
        """One message; returns what is confirmed in answer."""
        envelope = Envelope(f"m-{session}-{index}", session=session, index=index)
        before = len(self.confirmed)
        self._do(self.stage.receive(Received("P", HopMessage(delivery, envelope, hop_index)), 0.0))
        return self.confirmed[before:]

    def _do(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Commit(ops=ops, token=token):
                    [outcome] = self.store.commit([Unit(ops)])
                    self._do(self.stage.receive(Committed(token, outcome.results), 0.0))
                case Load(key=key):
                    self._do(self.stage.receive(Loaded(key, self.store.state(key)), 0.0))
                case Send(peer="P", message=Confirm(deliveries=deliveries)):
                    self.confirmed += deliveries

    def stored(self) -> list[str]:
        found = self.store.read(CONFIG.stream)
        assert isinstance(found, Records)
        return [record.envelope.id for record in found.records]


def test_a_new_run_in_between_brings_nothing_twice() -> None:
    bench = Bench(MemoryStore())
    assert bench.hear("run1/1", 1, 1) == ["run1/1"]
    assert bench.hear("run1/2", 2, 2) == ["run1/2"]

    assert bench.hear("run2/1", 2, 1) == ["run2/1"], "it is confirmed, because it is there"
    assert bench.hear("run2/2", 3, 2) == ["run2/2"]
    assert bench.stored() == ["m-s-1", "m-s-2", "m-s-3"]


def test_early_ones_wait_for_their_turn_and_are_not_confirmed_before() -> None:
    bench = Bench(MemoryStore())
    assert bench.hear("run1/1", 2, 1) == []
    assert bench.hear("run2/1", 2, 1) == []
    assert bench.hear("run1/2", 1, 2) == ["run1/2", "run1/1"]
    assert bench.stored() == ["m-s-1", "m-s-2"]


def test_sessions_do_not_wait_for_each_other() -> None:
    bench = Bench(MemoryStore())
    assert bench.hear("run1/1", 2, 1, "s") == []
    assert bench.hear("run1/2", 1, 2, "t") == ["run1/2"]


def test_the_memory_survives_the_worker() -> None:
    store = MemoryStore()
    first = Bench(store)
    first.hear("run1/1", 1, 1)
    second = Bench(store)
    assert second.hear("run1/1", 1, 1) == ["run1/1"]
    assert second.hear("run3/1", 2, 1) == ["run3/1"]
    assert second.stored() == ["m-s-1", "m-s-2"]


@pytest.mark.parametrize(("session", "index"), [(None, None), ("s", None), ("s", 0)])
def test_a_message_without_a_place_is_neither_stored_nor_confirmed(session: str | None, index: int | None) -> None:
    bench = Bench(MemoryStore())
    assert bench.hear("run1/1", index, 1, session) == []
    assert bench.stored() == []


def test_a_volatile_worker_cannot_keep_that_promise() -> None:
    with pytest.raises(ConfigError, match="dedup=session needs a memory that survives"):
        Stage(CONFIG, "run")


# -- what waits for the handler


def with_records(count: int) -> MemoryStore:
    store = MemoryStore()
    store.commit([Unit((Append(CONFIG.stream, Envelope(f"m{number}")),)) for number in range(1, count + 1)])
    return store


def test_passed_is_where_the_store_says_that_the_handler_stands() -> None:
    assert DurableStage(CONFIG, with_records(3)).passed == 0
    assert DurableStage(StageConfig("b", "path", (INLET,)), with_records(3)).passed == 3, "nothing onward waits"


def test_a_failed_handler_gets_its_next_turn_when_the_configuration_says() -> None:
    store = with_records(1)
    stage = DurableStage(CONFIG, store)
    stage.start(10.0)
    found = store.read(CONFIG.stream)
    assert isinstance(found, Records)
    [deliver] = stage.receive(ReadDone(CONFIG.stream, found.records), 10.0)
    assert isinstance(deliver, Deliver)
    stage.receive(DeliverFailed(deliver.token, "not now"), 10.0)

    assert stage.next_deadline() == 10.5
    [again] = stage.on_timer(10.5)
    assert isinstance(again, Deliver)
    assert again.attempt == 2
