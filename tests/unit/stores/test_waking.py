from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from semel.errors import StoreUnavailable
from semel.stores.waking import Waking
from semel.testing.limits import scaled


class Version:
    """Stands for SQLite's data version; `looked` is set at each look."""

    def __init__(self) -> None:
        self.value = 0
        self.fails = False
        self.looked = threading.Event()

    def __call__(self) -> int:
        self.looked.set()
        if self.fails:
            raise StoreUnavailable("gone", fix="wait")
        return self.value


@pytest.fixture
def version() -> Version:
    return Version()


@pytest.fixture
def waking(version: Version) -> Iterator[Waking]:
    waking = Waking(version, every_s=0.001)
    yield waking
    waking.close()


def test_what_is_there_is_returned_without_waiting(waking: Waking) -> None:
    assert waking.until(lambda: 5, lambda found: found == 5, timeout_s=60) == 5


def test_the_time_runs_out(waking: Waking) -> None:
    assert waking.until(lambda: 0, bool, timeout_s=0.01) == 0


def test_a_commit_of_this_process_wakes_at_once(waking: Waking) -> None:
    found: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waking.until, lambda: len(found), bool, 60)
        found.append(1)
        waking.wake()
        assert waiting.result(scaled(30)) == 1


def test_a_commit_of_another_process_is_noticed(waking: Waking, version: Version) -> None:
    found: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waking.until, lambda: len(found), bool, 60)
        assert version.looked.wait(scaled(30))
        found.append(1)
        version.value += 1
        assert waiting.result(scaled(30)) == 1


def test_a_look_that_fails_is_made_again(waking: Waking, version: Version) -> None:
    version.fails = True
    woken = threading.Event()
    waking.listen(woken.set)
    assert version.looked.wait(scaled(30))
    version.fails = False
    assert woken.wait(scaled(30))


def test_nobody_looks_while_nobody_waits(waking: Waking, version: Version) -> None:
    waking.wake()
    assert not version.looked.is_set()


def test_a_listener_that_fails_does_not_silence_the_others(waking: Waking) -> None:
    heard = threading.Event()

    def fail() -> None:
        raise ValueError("no")

    waking.listen(fail)
    waking.listen(heard.set)
    waking.wake()
    assert heard.is_set()


def test_closing_ends_all_waits(version: Version) -> None:
    waking = Waking(version, every_s=0.001)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waking.until, lambda: 0, bool, 600)
        assert version.looked.wait(scaled(30))
        waking.close()
        assert waiting.result(scaled(30)) == 0


class Waits:
    """Stands for the event that ends the watcher: time that nobody has to wait for."""

    def __init__(self, version: Version, changes_at: float, until: float) -> None:
        self.version, self.changes_at, self.until = version, changes_at, until
        self.now, self.waits = 0.0, [0.0]

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.waits.append(seconds)
        self.version.value = int(self.now >= self.changes_at)
        return self.now >= self.until


def test_it_looks_less_often_when_nothing_has_happened_for_a_while(version: Version) -> None:
    waking = Waking(version, every_s=0.005)
    waking._listeners.append(lambda: None)
    waits = Waits(version, changes_at=3.0, until=5.0)
    waking._closed = waits  # type: ignore[assignment]
    waking._look()
    quick = sum(seconds for seconds in waits.waits if seconds == 0.005)
    assert set(waits.waits[1:]) == {0.005, 0.02}
    assert quick == pytest.approx(2.0, abs=0.1), "a second from the start, and one after the change"
