"""Who may ask for the write lock next: tickets, signs of life, and files that are not as they should be."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from semel.stores import sqlite_turns
from semel.stores.sqlite_session import Sqlite3Session
from semel.stores.sqlite_turns import (
    AWAKE_S,
    BEAT_S,
    IN_PLACE_S,
    LOOK_S,
    PATIENCE_S,
    PLACES,
    SILENT_S,
    STEP_S,
    TICKET_MAX,
    BeatWatch,
    Place,
    Turn,
    Turns,
    at_once,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "semel.db-semel-turns"


@pytest.fixture
def turns(path: Path) -> Turns:
    return Turns(path)


class Clock:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def wait(self, *turns: Turn, seconds: float, step: float = STEP_S) -> None:
        """Everybody who waits looks again and again, the way they do."""
        until = self.now + seconds
        while self.now < until:
            self.now += step
            for turn in turns:
                turn.is_ours(self.now)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def queued(turns: Turns, clock: Clock) -> Turn:
    """Somebody who has waited for long enough to have a ticket."""
    turn = turns.waiting()
    turn.is_ours(clock.now)
    clock.wait(turn, seconds=PATIENCE_S)
    assert turns.read(clock.now)
    return turn


class TestOrder:
    def test_alone_it_is_always_ours(self, turns: Turns, clock: Clock) -> None:
        with turns.waiting() as turn:
            assert turn.is_ours(clock.now)

    def test_who_waits_for_a_moment_only_draws_no_ticket(self, turns: Turns, clock: Clock) -> None:
        turn = turns.waiting()
        turn.is_ours(clock.now)
        clock.wait(turn, seconds=PATIENCE_S - 2 * STEP_S)
        assert turn.is_ours(clock.now)
        assert turns.read(clock.now) == {}

    def test_nobody_passes_one_with_a_ticket(self, turns: Turns, clock: Clock) -> None:
        waiting = queued(turns, clock)
        fresh = turns.waiting()
        assert not fresh.is_ours(clock.now)
        assert not fresh.is_ours(clock.now + STEP_S)
        assert waiting.is_ours(clock.now)

    def test_they_are_served_in_the_order_of_their_tickets(self, turns: Turns, clock: Clock) -> None:
        waiting = []
        for _ in range(5):
            waiting.append(queued(turns, clock))
            clock.wait(*waiting, seconds=0.01)
        for at, first in enumerate(waiting):
            assert [turn.is_ours(clock.now) for turn in waiting[at:]] == [True] + [False] * (4 - at)
            first.__exit__()
        assert turns.read(clock.now) == {}

    def test_who_stands_further_behind_looks_more_rarely(self, turns: Turns, clock: Clock) -> None:
        waiting = [queued(turns, clock) for _ in range(3)]
        clock.wait(*waiting, seconds=STEP_S)
        assert [turn.step_s for turn in waiting] == [STEP_S, 2 * STEP_S, 3 * STEP_S]

    def test_the_same_ticket_twice_is_still_an_order(self, turns: Turns, clock: Clock) -> None:
        turns.nobody_waits(clock.now)
        turns.write(3, Place(TICKET_MAX, 1, 1))
        waiting = queued(turns, clock)
        assert sorted(place.ticket for place in turns.read(clock.now).values()) == [TICKET_MAX, TICKET_MAX]
        assert not waiting.is_ours(clock.now), "its number is drawn by chance and above 1"

    def test_two_at_one_place_both_get_one(self, turns: Turns, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_turns.os, "urandom", _Draws(7, 7 + PLACES))
        first = queued(turns, clock)
        [(number, place)] = turns.read(clock.now).items()
        turns.free(number, place.owner)  # as the second one saw it
        second = queued(turns, clock)
        clock.wait(first, second, seconds=STEP_S)
        assert {place.owner for place in turns.read(clock.now).values()} == {7, 7 + PLACES}

    def test_when_all_places_are_taken_one_waits_for_a_place(self, turns: Turns, clock: Clock) -> None:
        waiting = [queued(turns, clock) for _ in range(PLACES)]
        last = turns.waiting()
        last.is_ours(clock.now)
        clock.wait(*waiting, last, seconds=2 * PATIENCE_S)
        assert not last.is_ours(clock.now)
        waiting[30].__exit__()
        clock.wait(last, seconds=STEP_S)
        assert len(turns.read(clock.now)) == PLACES

    def test_who_draws_no_tickets_lets_the_others_go_first(self, turns: Turns, clock: Clock) -> None:
        waiting = queued(turns, clock)
        polite = turns.waiting(draws=False)
        polite.is_ours(clock.now)
        clock.wait(waiting, polite, seconds=1.0)
        assert not polite.is_ours(clock.now)
        assert len(turns.read(clock.now)) == 1
        waiting.__exit__()
        assert polite.is_ours(clock.now)

    def test_who_saw_nobody_does_not_look_again_at_once(self, path: Path, clock: Clock) -> None:
        mine, others = Turns(path), Turns(path)
        assert mine.nobody_waits(clock.now)
        others.nobody_waits(clock.now)
        others.write(0, Place(1, 1, 1))
        assert mine.nobody_waits(clock.now + LOOK_S / 2)
        assert not mine.nobody_waits(clock.now + LOOK_S)
        assert LOOK_S < PATIENCE_S


class _Draws:
    def __init__(self, *numbers: int) -> None:
        self._numbers = iter(numbers)

    def __call__(self, size: int) -> bytes:
        return next(self._numbers).to_bytes(size)


class TestSignsOfLife:
    def test_a_silent_one_is_passed_over_and_not_before(self, turns: Turns, clock: Clock) -> None:
        dead = queued(turns, clock)
        waiting = queued(turns, clock)
        clock.wait(waiting, seconds=SILENT_S - BEAT_S)
        assert not waiting.is_ours(clock.now)
        clock.wait(waiting, seconds=2 * BEAT_S)
        assert waiting.is_ours(clock.now)
        assert len(turns.read(clock.now)) == 1, "its place is free for others"
        dead.__exit__()
        assert len(turns.read(clock.now)) == 1, "who was passed over frees nobody else's place"

    def test_many_dead_ones_are_passed_over_together(self, turns: Turns, clock: Clock) -> None:
        for _ in range(10):
            queued(turns, clock)
        waiting = queued(turns, clock)
        clock.wait(waiting, seconds=SILENT_S + BEAT_S)
        assert waiting.is_ours(clock.now)

    def test_one_that_was_stopped_comes_back_to_its_turn(self, turns: Turns, clock: Clock) -> None:
        stopped = queued(turns, clock)
        waiting = queued(turns, clock)
        clock.wait(waiting, seconds=SILENT_S + BEAT_S)
        assert waiting.is_ours(clock.now)
        assert stopped.is_ours(clock.now), "it has the older ticket"
        assert not waiting.is_ours(clock.now)

    def test_who_lives_is_never_passed_over(self, turns: Turns, clock: Clock) -> None:
        first = queued(turns, clock)
        second = queued(turns, clock)
        clock.wait(first, second, seconds=10.0, step=BEAT_S / 2)
        assert first.is_ours(clock.now)
        assert not second.is_ours(clock.now)

    def test_a_sign_is_given_now_and_then(self, turns: Turns, clock: Clock) -> None:
        waiting = queued(turns, clock)
        [before] = turns.read(clock.now).values()
        clock.wait(waiting, seconds=10 * BEAT_S)
        [after] = turns.read(clock.now).values()
        assert 8 <= after.beat - before.beat <= 11

    def test_time_in_which_the_watcher_did_not_run_does_not_count(self) -> None:
        watch = BeatWatch()
        places = {0: Place(1, 1, 1)}
        assert watch.silent(places, 0.0) == []
        assert watch.silent(places, 3600.0) == []
        steps = int(SILENT_S / AWAKE_S) + 1
        assert [watch.silent(places, 3600.0 + n * AWAKE_S) for n in range(steps)][-1] == [0]

    def test_any_change_is_a_sign(self) -> None:
        watch = BeatWatch()
        for n in range(100):
            assert watch.silent({0: Place(1, 1, n)}, n * AWAKE_S) == []


class TestTheFile:
    def test_it_is_for_its_owner(self, turns: Turns, path: Path, clock: Clock) -> None:
        assert turns.nobody_waits(clock.now)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_it_does_not_grow(self, turns: Turns, path: Path, clock: Clock) -> None:
        turns.nobody_waits(clock.now)
        size = path.stat().st_size
        for _ in range(PLACES):
            queued(turns, clock)
        assert path.stat().st_size == size == 2048

    def test_without_a_path_nobody_waits(self, clock: Clock) -> None:
        turns = Turns(None)
        turn = turns.waiting()
        turn.is_ours(clock.now)
        clock.wait(turn, seconds=1.0)
        assert turn.is_ours(clock.now)
        assert turns.nobody_waits(clock.now)

    @pytest.mark.parametrize("remove", [os.unlink, lambda path: os.replace(path, f"{path}.old")])
    def test_one_that_is_gone_is_made_again(self, turns: Turns, path: Path, clock: Clock, remove) -> None:
        waiting = queued(turns, clock)
        remove(path)
        clock.wait(waiting, seconds=IN_PLACE_S + STEP_S)
        assert waiting.is_ours(clock.now)
        assert not Turns(path).nobody_waits(clock.now)

    def test_one_that_was_emptied_is_filled_again(self, turns: Turns, path: Path, clock: Clock) -> None:
        waiting = queued(turns, clock)
        os.truncate(path, 0)
        clock.wait(waiting, seconds=STEP_S)
        assert len(turns.read(clock.now)) == 1
        assert waiting.is_ours(clock.now)
        waiting.__exit__()
        assert Turns(path).nobody_waits(clock.now)
        assert path.read_bytes().startswith(b"semel-turns-1\n")

    def test_somebody_elses_file_is_left_alone(self, turns: Turns, path: Path, clock: Clock) -> None:
        path.write_bytes(b"a shopping list\n" * 500)
        turn = turns.waiting()
        turn.is_ours(clock.now)
        clock.wait(turn, seconds=1.0)
        assert turn.is_ours(clock.now)
        turn.__exit__()
        assert path.read_bytes() == b"a shopping list\n" * 500

    def test_a_folder_in_its_place_is_done_without(self, turns: Turns, path: Path, clock: Clock) -> None:
        path.mkdir()
        turn = turns.waiting()
        assert turn.is_ours(clock.now)
        clock.wait(turn, seconds=1.0)
        assert turn.is_ours(clock.now)

    def test_tickets_of_a_file_that_was_left_behind_hold_up_once(self, turns: Turns, path: Path, clock: Clock) -> None:
        queued(turns, clock)
        turns.close()
        again = Turns(path)
        turn = again.waiting()
        assert not turn.is_ours(clock.now)
        clock.wait(turn, seconds=SILENT_S + BEAT_S)
        assert turn.is_ours(clock.now)
        turn.__exit__()
        assert again.nobody_waits(clock.now)

    def test_it_is_closed_when_nobody_uses_it(self, turns: Turns, clock: Clock) -> None:
        turns.nobody_waits(clock.now)
        file = turns._file
        assert file is not None
        turns.close()
        os.fstat(file.fd)
        fd = file.fd
        del file
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


FORKING = """
import os, sys, time
from pathlib import Path
from semel.stores.sqlite_session import Sqlite3Session
from semel.stores.sqlite_turns import Turns

def wait(turn):
    for n in range(100):
        turn.is_ours(n / 1000)

turns = Turns(Path(sys.argv[1]))
turn = turns.waiting()
wait(turn)
child = os.fork()
if child == 0:
    with turns.waiting() as mine:
        wait(mine)
        assert not mine.is_ours(1.0)
        assert len(turns.read(1.0)) == 2
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(turns.read(1.0)) == 1
assert turn.is_ours(1.0)
"""


def test_after_a_fork_each_waits_for_itself(path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKING, str(path)], check=True)


class TestAtOnce:
    def test_sqlite_does_not_wait_inside_and_does_so_again_afterwards(self, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "x.db", timeout=7)
        connection.row_factory = lambda cursor, row: {"names": cursor.description}
        with suppress(ZeroDivisionError), at_once(Sqlite3Session(connection)):
            assert _timeout(connection) == 0
            raise ZeroDivisionError
        assert _timeout(connection) == 7000
        connection.close()


def _timeout(connection: sqlite3.Connection) -> int:
    [(value,)] = sqlite3.Cursor(connection).execute("PRAGMA busy_timeout").fetchall()
    return int(value)
