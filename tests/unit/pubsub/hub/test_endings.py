from __future__ import annotations

from tests.unit.pubsub.hub.parts import live

from semel.kernel.effects import CommitFailed
from semel.kernel.ledger import Kind
from semel.pubsub.hub.endings import Endings


def test_one_whose_end_failed_waits_to_be_tried_again() -> None:
    endings, alice = Endings(), live()
    endings.begin(alice, Kind.CANCELLED, "enough", None)
    assert endings.is_under_way("alice")
    assert endings.to_retry() == []
    assert endings.failed(alice) == []
    assert not endings.is_under_way("alice")
    assert [(each, end.reason) for each, end in endings.to_retry()] == [(alice, "enough")]
    endings.begin(alice, Kind.CANCELLED, "another reason", None)
    assert (endings.is_under_way("alice"), endings.find(alice).reason) == (True, "enough")


def test_those_who_asked_are_kept_until_they_are_answered() -> None:
    endings, alice = Endings(), live()
    heard: list[object] = []
    endings.begin(alice, Kind.CANCELLED, "enough", heard.append)
    failure = CommitFailed(1)
    for then in endings.failed(alice):
        then(failure)
    assert heard == [failure]
    assert endings.done(alice).asked == []
    assert len(endings) == len(endings.sessions) == 0


def test_only_a_later_record_says_that_another_node_has_it() -> None:
    endings, alice = Endings(), live()
    alice.opened = 5
    endings.begin(alice, Kind.CANCELLED, "enough", None)
    endings.mark_taken("alice", 5)
    assert not endings.find(alice).is_taken
    endings.mark_taken("alice", 6)
    assert endings.find(alice).is_taken
    endings.mark_taken("nobody", 6)
