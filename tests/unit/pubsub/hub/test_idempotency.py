from __future__ import annotations

import msgspec
import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench

from semel.kernel.ops import Put
from semel.kernel.store import State
from semel.pubsub.hub.calls import Answer, Everybody, Outcome, Publish
from semel.pubsub.hub.idempotency import CLEAN_S, KEEP_S, PAGE, KeyRow, Keys, terms_of
from semel.pubsub.protocol.messages import Data, DataType


class Scene:
    def __init__(self) -> None:
        self.bench = Bench()
        self.keys = Keys(self.bench.context)
        self.answers: list[Answer] = []
        self.put = self.keys.put("order-7", b"digest", "m1", NOW)

    def compare(self, digest: bytes, value: bytes | None) -> Answer:
        self.keys.compare("order-7", digest, self.answers.append)
        self.bench.load(self.put.key, value)
        return self.answers[-1]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_key_is_written_only_if_it_is_new(scene: Scene) -> None:
    assert scene.put.expected == 0
    assert "order-7" not in scene.put.key


def test_the_same_call_is_done_already_and_the_ledger_knows_it(scene: Scene) -> None:
    assert scene.compare(b"digest", scene.put.value) == Answer(repeated=True)
    assert scene.bench.logged() == [("duplicate", None, None, 1)]


def test_another_call_under_the_key_is_refused(scene: Scene) -> None:
    assert scene.compare(b"other", scene.put.value).outcome is Outcome.CONFLICT


def test_a_key_that_cannot_be_found_is_asked_for_again(scene: Scene) -> None:
    assert scene.compare(b"digest", None).outcome is Outcome.FAILED


def test_old_keys_are_forgotten_page_by_page(scene: Scene) -> None:
    scene.keys.start(NOW)
    scene.keys.on_timer(NOW + 1)
    assert scene.bench.effects == []
    later = NOW + max(CLEAN_S, KEEP_S)
    scene.keys.on_timer(later)

    def row(number: int, at: float) -> tuple[str, State]:
        return f"key-{number:04}", State(msgspec.msgpack.encode(KeyRow(b"", "m", at)), 3)

    scene.bench.load_all([row(0, NOW), *(row(number, later) for number in range(1, PAGE))], later)
    assert scene.bench.ops() == [Put("key-0000", None, 3)]
    asked = scene.bench.load_all([], later)
    assert asked.after == f"key-{PAGE - 1:04}"


def test_the_order_of_names_makes_no_difference() -> None:
    data = Data(DataType.TEXT, b"")
    one = Publish(Everybody(), data, ("a", "b"), metadata={"x": "1", "y": "2"})
    two = Publish(Everybody(), data, ("b", "a"), metadata={"y": "2", "x": "1"})
    assert terms_of(one) == terms_of(two)
    assert terms_of(one) != terms_of(Publish(Everybody(), data, ("a",)))
