from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from semel.errors import InputError, StoreRefused, StoreUnavailable
from semel.kernel.effects import (
    CancelTimer,
    Close,
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Deliver,
    Effect,
    Event,
    Load,
    Loaded,
    LoadFailed,
    LookForWork,
    Notify,
    Read,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Send,
    SetTimer,
    TimerFired,
    Wake,
)
from semel.kernel.envelope import Envelope
from semel.kernel.group import CommitGroup, GroupLimits
from semel.kernel.interpreter import Interpreter, Seat
from semel.kernel.ops import Advanced, Applied, Claim, Outcome, Put, Refused, Stale
from semel.kernel.position import Position
from semel.kernel.store import Record, Records, State, Trimmed

AT = Position("hub/x", 1, 1)
RECORD = Record(AT, Envelope(id="m"), at=0)
DOWN = StoreUnavailable("gone", fix="wait")


class Script:
    """A machine that answers each event as the test says, and remembers what it heard."""

    def __init__(self, name: str, *start: Effect, answer: Callable[[Event], Sequence[Effect]] | None = None) -> None:
        self.name = name
        self._start = start
        self._answer = answer or (lambda event: ())
        self.heard: list[Event] = []
        self.deadline: float | None = None
        self.timers = 0

    def start(self, now: float) -> Sequence[Effect]:
        return self._start

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        self.heard.append(event)
        return self._answer(event)

    def next_deadline(self) -> float | None:
        return self.deadline

    def on_timer(self, now: float) -> Sequence[Effect]:
        self.deadline = None
        self.timers += 1
        return (Notify("timer", str(now)),)


class ToyDriver:
    """Notes every call; the test reports the results."""

    def __init__(self) -> None:
        self.groups: list[CommitGroup] = []
        self.reads: list[tuple[Seat, Read]] = []
        self.loads: list[tuple[Seat, Load]] = []
        self.sends: list[Send] = []
        self.deliveries: list[Deliver] = []
        self.notes: list[Notify] = []
        self.closes: list[Close] = []

    def commit(self, group: CommitGroup) -> None:
        self.groups.append(group)

    def read(self, seat: Seat, effect: Read) -> None:
        self.reads.append((seat, effect))

    def load(self, seat: Seat, effect: Load) -> None:
        self.loads.append((seat, effect))

    def send(self, seat: Seat, effect: Send) -> None:
        self.sends.append(effect)

    def deliver(self, seat: Seat, effect: Deliver) -> None:
        self.deliveries.append(effect)

    def notify(self, seat: Seat, effect: Notify) -> None:
        self.notes.append(effect)

    def closed(self, seat: Seat, effect: Close) -> None:
        self.closes.append(effect)


@pytest.fixture
def driver() -> ToyDriver:
    return ToyDriver()


@pytest.fixture
def interpreter(driver: ToyDriver) -> Interpreter:
    return Interpreter(driver, lambda: 100.0)


def commit(token: int, chain: str | None = "") -> Commit:
    return Commit((Put(f"k{token}", b"v"),), token, chain)


def applied(group: CommitGroup) -> list[Outcome]:
    return [Applied((Advanced(version=1),)) for _ in group.members]


def test_each_effect_reaches_the_driver(driver: ToyDriver, interpreter: Interpreter) -> None:
    effects = (
        Read("hub/x", None, 10),
        Load("k"),
        Send("peer", "hello"),
        Deliver(RECORD, 7),
        Notify("topic", "detail"),
    )
    interpreter.add(Script("m", *effects))
    assert driver.reads[0][1] == effects[0]
    assert driver.loads[0][1] == effects[1]
    assert (driver.sends, driver.deliveries, driver.notes) == ([effects[2]], [effects[3]], [effects[4]])


def test_a_completion_reaches_the_machine_that_asked_and_no_other(driver: ToyDriver, interpreter: Interpreter) -> None:
    left, right = Script("left", commit(1)), Script("right", commit(2))
    interpreter.add(left)
    interpreter.add(right)
    interpreter.committed(driver.groups[0], applied(driver.groups[0]))
    interpreter.committed(driver.groups[1], applied(driver.groups[1]))
    assert left.heard == [Committed(1, (Advanced(version=1),))]
    assert right.heard == [Committed(2, (Advanced(version=1),))]


def test_commits_that_wait_share_the_next_transaction(driver: ToyDriver, interpreter: Interpreter) -> None:
    for number in range(4):
        interpreter.add(Script(f"m{number}", commit(number)))
    assert [len(group.members) for group in driver.groups] == [1]
    interpreter.committed(driver.groups[0], applied(driver.groups[0]))
    assert [len(group.members) for group in driver.groups] == [1, 3]


def test_chains_of_different_machines_are_different(driver: ToyDriver, interpreter: Interpreter) -> None:
    interpreter.add(Script("a", commit(1), commit(2, chain="s"), commit(3, chain=None)))
    interpreter.add(Script("b", commit(1)))
    interpreter.committed(driver.groups[0], applied(driver.groups[0]))
    chains = [unit.chain for group in driver.groups for unit in group.units]
    assert chains == ["a/", "a/s", None, "b/"]


def test_an_ack_can_only_follow_its_commit(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m", commit(1), answer=lambda event: (Send("peer", "ack"),) if type(event) is Committed else ())
    interpreter.add(machine)
    assert driver.sends == []
    interpreter.committed(driver.groups[0], applied(driver.groups[0]))
    assert driver.sends == [Send("peer", "ack")]


def test_a_refused_commit_is_heard_as_failed(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m", commit(1), commit(2))
    interpreter.add(machine)
    interpreter.committed(driver.groups[0], [Refused((Stale(5),)), Refused((Stale(5),))])
    assert machine.heard == [CommitFailed(1, (Stale(5),)), CommitFailed(2, (Stale(5),))]


def test_bad_data_is_halved(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m", commit(1, chain=None), commit(2, chain=None))
    error = StoreRefused("bad", fix="fix it")
    interpreter.add(machine)
    interpreter.refused(driver.groups[0], error)
    interpreter.refused(driver.groups[1], error)
    interpreter.committed(driver.groups[2], applied(driver.groups[2]))
    assert machine.heard == [CommitFailed(1, error=error), Committed(2, (Advanced(version=1),))]


def test_a_store_that_is_down(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m", commit(1))
    interpreter.add(machine)
    interpreter.failed(driver.groups[0], DOWN)
    assert machine.heard == [CommitFailed(1, error=DOWN)]


def test_a_doubt_is_resolved_before_anything_is_heard(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m", commit(1))
    interpreter.add(machine)
    interpreter.resolved(driver.groups[0], None)
    assert machine.heard == []
    interpreter.resolved(driver.groups[1], applied(driver.groups[1]))
    assert machine.heard == [Committed(1, (Advanced(version=1),))]


def test_a_doubt_that_stays_is_heard_as_unknown(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m", commit(1))
    interpreter.add(machine)
    interpreter.unknown(driver.groups[0])
    assert machine.heard == [CommitUnknown(1)]


def test_a_replaced_machine_hears_nothing_of_its_predecessor(driver: ToyDriver, interpreter: Interpreter) -> None:
    old, new = Script("m", commit(1), Read("hub/x", None, 1)), Script("m")
    seat = interpreter.add(old)
    interpreter.add(new)
    interpreter.committed(driver.groups[0], applied(driver.groups[0]))
    interpreter.read_done(seat, driver.reads[0][1], Records((RECORD,)))
    interpreter.wake()
    assert old.heard == []
    assert new.heard == [Wake()]


def test_a_removed_machine_hears_nothing(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m", commit(1))
    interpreter.add(machine)
    interpreter.remove("m")
    interpreter.committed(driver.groups[0], applied(driver.groups[0]))
    interpreter.wake()
    assert machine.heard == []
    assert interpreter.seat("m") is None
    interpreter.remove("m")


def test_reads_answer_with_records_or_with_the_trim_mark(driver: ToyDriver, interpreter: Interpreter) -> None:
    effect = Read("hub/x", None, 1)
    machine = Script("m", effect, effect, effect)
    seat = interpreter.add(machine)
    interpreter.read_done(seat, effect, Records((RECORD,)))
    interpreter.read_done(seat, effect, Trimmed(AT))
    interpreter.read_failed(seat, effect, DOWN)
    assert machine.heard == [
        ReadDone("hub/x", (RECORD,), None, 1),
        ReadTrimmed("hub/x", AT, None, 1),
        ReadFailed("hub/x", DOWN, None, 1),
    ]


def test_an_empty_read_waits_for_the_next_commit(driver: ToyDriver, interpreter: Interpreter) -> None:
    effect = Read("hub/x", None, 1)
    machine = Script("m", effect)
    seat = interpreter.add(machine)
    interpreter.read_done(seat, effect, Records(()))
    assert machine.heard == []
    interpreter.wake()
    assert driver.reads == [(seat, effect), (seat, effect)]
    assert machine.heard == [Wake()]
    interpreter.wake()
    assert len(driver.reads) == 2, "it is read again once, not for ever"


def test_a_commit_during_an_empty_read_is_not_missed(driver: ToyDriver, interpreter: Interpreter) -> None:
    """The record may have been committed after the read looked: nothing would wake it again, so it looks again."""
    effect = Read("hub/x", None, 1)
    seat = interpreter.add(Script("m", effect))
    interpreter.wake()
    interpreter.read_done(seat, effect, Records(()))
    assert driver.reads == [(seat, effect), (seat, effect)]
    interpreter.read_done(seat, effect, Records(()))
    assert len(driver.reads) == 2


def test_loads_answer_with_the_state_or_the_error(driver: ToyDriver, interpreter: Interpreter) -> None:
    effect = Load("k")
    machine = Script("m", effect)
    seat = interpreter.add(machine)
    interpreter.load_done(seat, effect, State(b"v", 1))
    interpreter.load_done(seat, effect, None)
    interpreter.load_failed(seat, effect, DOWN)
    assert machine.heard == [Loaded("k", State(b"v", 1)), Loaded("k", None), LoadFailed("k", DOWN)]


def test_timers_fire_once_when_they_are_due(driver: ToyDriver) -> None:
    now = [100.0]
    interpreter = Interpreter(driver, lambda: now[0])
    machine = Script("m", SetTimer("a", 110.0), SetTimer("b", 105.0), SetTimer("c", 105.0), CancelTimer("c"))
    interpreter.add(machine)
    assert interpreter.next_deadline() == 105.0
    interpreter.run_timers()
    assert machine.heard == []
    now[0] = 105.0
    interpreter.run_timers()
    interpreter.run_timers()
    assert machine.heard == [TimerFired("b")]
    now[0] = 200.0
    interpreter.run_timers()
    assert machine.heard == [TimerFired("b"), TimerFired("a")]
    assert interpreter.next_deadline() is None


def test_a_timer_set_again_moves(driver: ToyDriver) -> None:
    now = [100.0]
    interpreter = Interpreter(driver, lambda: now[0])
    machine = Script("m", SetTimer("a", 105.0), SetTimer("a", 120.0))
    interpreter.add(machine)
    now[0] = 110.0
    interpreter.run_timers()
    assert machine.heard == []
    assert interpreter.next_deadline() == 120.0


def test_a_machines_own_deadline(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m")
    interpreter.add(machine)
    machine.deadline = 101.0
    interpreter.run_timers()
    assert (machine.timers, interpreter.next_deadline()) == (0, 101.0)
    machine.deadline = 100.0
    interpreter.run_timers()
    assert machine.timers == 1
    assert driver.notes == [Notify("timer", "100.0")]


def test_a_closed_machine_is_gone_and_its_host_hears_why(driver: ToyDriver, interpreter: Interpreter) -> None:
    machine = Script("m", answer=lambda event: (Notify("last", "words"), Close("reload")))
    seat = interpreter.add(machine)
    interpreter.feed(seat, Wake())
    interpreter.feed(seat, Wake())
    assert machine.heard == [Wake()]
    assert (driver.notes, driver.closes) == ([Notify("last", "words")], [Close("reload")])
    assert interpreter.seat("m") is None


def test_events_are_handled_one_after_the_other(driver: ToyDriver, interpreter: Interpreter) -> None:
    """An event fed while another is handled waits for its turn, however deep the call."""
    seats: list[Seat] = []
    depth: list[int] = []

    def answer(event: Event) -> Sequence[Effect]:
        depth.append(1)
        assert sum(depth) == 1
        if len(machine.heard) < 5:
            interpreter.feed(seats[0], Wake())
        depth.pop()
        return ()

    machine = Script("m", answer=answer)
    seats.append(interpreter.add(machine))
    interpreter.feed(seats[0], Wake())
    assert machine.heard == [Wake()] * 5


def test_a_driver_that_answers_at_once_does_not_jump_the_queue(interpreter: Interpreter) -> None:
    """The effects of one answer are performed completely before the next event is handled."""
    driver = ToyDriver()
    eager = Interpreter(driver, lambda: 100.0)

    def load_at_once(seat: Seat, effect: Load) -> None:
        eager.load_done(seat, effect, None)

    driver.load = load_at_once  # type: ignore[method-assign]
    machine = Script("m", Load("k"), commit(1), answer=lambda event: (commit(2),) if type(event) is Loaded else ())
    eager.add(machine)
    while driver.groups:
        group = driver.groups.pop(0)
        eager.committed(group, applied(group))
    assert [event.token for event in machine.heard if type(event) is Committed] == [1, 2]


def test_a_machine_that_raises_leaves_the_interpreter_usable(driver: ToyDriver, interpreter: Interpreter) -> None:
    def explode(event: Event) -> Sequence[Effect]:
        raise InputError("broken", fix="fix it")

    seat = interpreter.add(Script("bad", answer=explode))
    good = Script("good")
    good_seat = interpreter.add(good)
    with pytest.raises(InputError):
        interpreter.feed(seat, Wake())
    interpreter.feed(good_seat, Wake())
    assert good.heard == [Wake()]


def test_back_pressure_is_visible(driver: ToyDriver) -> None:
    interpreter = Interpreter(driver, lambda: 0.0, GroupLimits(rows=1, waiting_rows=2))
    interpreter.add(Script("m", commit(1), commit(2), commit(3), commit(4)))
    assert interpreter.queue.is_full
    interpreter.committed(driver.groups[0], applied(driver.groups[0]))
    interpreter.committed(driver.groups[1], applied(driver.groups[1]))
    assert not interpreter.queue.is_full


def raising(event: Event) -> Sequence[Effect]:
    raise ZeroDivisionError("oops")


def test_a_defect_stops_one_machine_and_no_other(driver: ToyDriver) -> None:
    def on_defect(seat: Seat, error: Exception) -> Sequence[Effect]:
        return Notify("failed", f"{seat.machine.name}: {error}"), Close("reload")

    interpreter = Interpreter(driver, lambda: 100.0, on_defect=on_defect)
    broken, fine = Script("broken", answer=raising), Script("fine")
    interpreter.add(broken)
    interpreter.add(fine)
    interpreter.wake()
    interpreter.wake()
    assert driver.notes == [Notify("failed", "broken: oops")]
    assert driver.closes == [Close("reload")]
    assert (len(broken.heard), len(fine.heard), interpreter.seat("broken")) == (1, 2, None)


def test_a_defect_is_seen_by_who_does_not_say_what_happens_then(interpreter: Interpreter) -> None:
    seat = interpreter.add(Script("broken", answer=raising))
    with pytest.raises(ZeroDivisionError):
        interpreter.feed(seat, Wake(False))


def test_a_machine_that_rests_finishes_but_begins_nothing(driver: ToyDriver, interpreter: Interpreter) -> None:
    claim = Commit((Claim("q", "w"),), 1, None)
    asked = (claim, Read("hub/x", None, 1), Load("k"), LookForWork("q"), commit(2), Send("peer", "bye"))
    seat = interpreter.add(Script("m", answer=lambda event: asked))
    seat.is_resting = True
    interpreter.feed(seat, Wake(False))
    assert [[member.token for member in group.members] for group in driver.groups] == [[2]]
    assert (driver.reads, driver.loads, driver.sends) == ([], [], [Send("peer", "bye")])
