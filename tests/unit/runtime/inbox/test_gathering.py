"""What comes while a commit is under way is stored by the next one, each request whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from semel.errors import InputError, LimitExceeded, StoreRefused, StoreUnavailable
from semel.kernel.envelope import Envelope
from semel.runtime.inbox import gathering as module
from semel.runtime.inbox.definition import Verdict
from semel.runtime.inbox.gathering import Gathering
from semel.testing.limits import scaled


class Storing:
    """A store that waits until it is let go, and refuses what is called `bad`."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.began, self.go = threading.Event(), threading.Event()
        self.error: Exception = InputError("bad", fix="be good")

    def receive(self, envelopes: Sequence[Envelope]) -> list[Verdict]:
        ids = [envelope.id for envelope in envelopes]
        self.groups.append(ids)
        self.began.set()
        assert self.go.wait(scaled(30))
        if "bad" in ids:
            raise self.error
        return [Verdict.DUPLICATE if id == "again" else Verdict.STORED for id in ids]


@pytest.fixture
def storing() -> Storing:
    return Storing()


@pytest.fixture
def gathering(storing: Storing) -> Iterator[Gathering]:
    found = Gathering("orders", storing.receive)
    yield found
    storing.go.set()
    found.close()


def some(*ids: str) -> tuple[Envelope, ...]:
    return tuple(Envelope(id) for id in ids)


def begin(gathering: Gathering, storing: Storing) -> None:
    gathering.put(some("first"))
    assert storing.began.wait(scaled(30))


def test_what_waits_is_one_commit_and_each_request_hears_of_its_own(gathering: Gathering, storing: Storing) -> None:
    begin(gathering, storing)
    answers = [gathering.put(some("a", "again")), gathering.put(some("b")), gathering.put(())]
    storing.go.set()
    assert [answer.result(scaled(30)) for answer in answers] == [
        [Verdict.STORED, Verdict.DUPLICATE], [Verdict.STORED], [],
    ]  # fmt: skip
    assert storing.groups == [["first"], ["a", "again", "b"]]


@pytest.mark.parametrize("error", [InputError("bad", fix="x"), StoreRefused("bad", fix="x")])
def test_one_that_is_refused_takes_no_other_with_it(gathering: Gathering, storing: Storing, error: Exception) -> None:
    storing.error = error
    begin(gathering, storing)
    good, bad, after = (gathering.put(some(*ids)) for ids in (("a",), ("b", "bad"), ("c",)))
    storing.go.set()
    assert good.result(scaled(30)) == after.result(scaled(30)) == [Verdict.STORED]
    assert isinstance(bad.exception(scaled(30)), type(error))
    assert storing.groups[-3:] == [["a"], ["b", "bad"], ["c"]], "whole or not at all"


def test_a_store_that_is_away_is_told_to_all_and_it_goes_on(gathering: Gathering, storing: Storing) -> None:
    storing.error = StoreUnavailable("away")
    begin(gathering, storing)
    answers = [gathering.put(some("a")), gathering.put(some("bad"))]
    storing.go.set()
    assert all(isinstance(answer.exception(scaled(30)), StoreUnavailable) for answer in answers)
    assert storing.groups[1:] == [["a", "bad"]], "asked once"
    assert gathering.put(some("b")).result(scaled(30)) == [Verdict.STORED]


def test_a_commit_takes_no_more_than_its_rows_and_one_large_request_alone(
    gathering: Gathering, storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 2)
    begin(gathering, storing)
    last = [gathering.put(some(*ids)) for ids in (("a",), ("b", "c", "d"), ("e",), ("f",))][-1]
    storing.go.set()
    last.result(scaled(30))
    assert storing.groups[1:] == [["a"], ["b", "c", "d"], ["e", "f"]]


def test_a_store_that_hangs_does_not_fill_the_memory(
    gathering: Gathering, storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", 10)
    begin(gathering, storing)
    with pytest.raises(LimitExceeded):
        gathering.put((Envelope("large", data=b"x" * 11),))
    waiting = gathering.put(some("a", "b"))
    with pytest.raises(LimitExceeded):
        gathering.put(some("c"))
    storing.go.set()
    waiting.result(scaled(30))
    assert gathering.put(some("c")).result(scaled(30)) == [Verdict.STORED]


def test_whom_nobody_waits_for_any_more_is_left_out(gathering: Gathering, storing: Storing) -> None:
    begin(gathering, storing)
    gone, there = gathering.put(some("a")), gathering.put(some("b"))
    assert gone.cancel()
    storing.go.set()
    assert there.result(scaled(30)) == [Verdict.STORED]
    assert storing.groups == [["first"], ["b"]]
