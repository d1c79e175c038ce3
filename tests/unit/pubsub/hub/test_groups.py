from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import HUB, NOW, Bench, live

from semel.kernel.ops import Append, Put
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.session_commits import SessionCommits
from semel.pubsub.hub.session_rows import read_session, session_key


class Scene:
    def __init__(self) -> None:
        self.bench = Bench()
        self.bench.tail.listener = Mock()
        self.events = Mock(spec=Events)
        self.events.on_join.return_value = self.events.on_leave.return_value = []
        commits = SessionCommits(self.bench.context, self.bench.tail)
        commits.on_refused = Mock()
        self.groups = Groups(self.bench.context, self.bench.tail, commits, self.events)
        self.alice = live(groups=["old"])
        self.rows: list[Put] = []
        self.failures: list[Failure] = []

    def change(self, group: str, kind: RecordKind) -> None:
        self.groups.change(self.alice, group, kind, NOW, self.rows.extend, self.failures.append)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_join_is_a_record_and_then_a_row_with_its_offset(scene: Scene) -> None:
    scene.change("g", RecordKind.JOIN)
    record, row = scene.bench.ops()
    assert isinstance(record, Append)
    assert isinstance(row, Put)
    assert (record.kind, record.target) == (RecordKind.JOIN, "g/g")
    assert row.value is not None
    assert read_session(row.value).groups == {"old": 0}, "nobody was promised anything yet"
    assert scene.rows == []
    scene.bench.complete()
    [second] = scene.rows
    assert second.key == session_key(HUB, "alice")
    assert second.value is not None
    assert read_session(second.value).groups == {"old": 0, "g": 1}
    scene.events.claim_next.assert_called_once_with("alice")


def test_a_leave_ends_the_stay(scene: Scene) -> None:
    scene.change("old", RecordKind.LEAVE)
    assert not scene.alice.memberships.is_settled("old", True)
    scene.bench.complete()
    assert scene.alice.memberships.is_settled("old", False)


def test_what_the_store_did_not_take_has_not_happened(scene: Scene) -> None:
    scene.change("g", RecordKind.JOIN)
    scene.bench.fail()
    assert (len(scene.failures), scene.rows) == (1, [])
    assert scene.alice.memberships.is_settled("g", False)
    assert scene.alice.versions.owes_row
