from __future__ import annotations

from semel.pubsub.hub.tail import PendingReads


def test_who_asks_while_an_answer_is_on_its_way_gets_another_read() -> None:
    asked: list[str] = []
    reads = PendingReads[str, str](asked.append)
    for who in ("first", "second", "third"):
        reads.ask("key", who)
    assert asked == ["key"]
    assert reads.answered("key") == ["first"]
    assert asked == ["key", "key"]
    assert reads.answered("key") == ["second", "third"]
    assert (reads.answered("key"), len(reads), asked) == ([], 0, ["key", "key"])


def test_reads_of_different_keys_do_not_wait_for_each_other() -> None:
    asked: list[str] = []
    reads = PendingReads[str, str](asked.append)
    reads.ask("a", "first")
    reads.ask("b", "second")
    assert (asked, list(reads)) == (["a", "b"], ["a", "b"])
    assert reads.answered("b") == ["second"]
