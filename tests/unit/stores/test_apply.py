"""What `apply` asks of an engine: in which order, how often, and with how many rows at a time.

What it decides is the contract suite's business; this is about locks and round trips.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError, StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event, Kind, fold_ids
from semel.kernel.ops import (
    Advance,
    Advanced,
    Append,
    Applied,
    Claim,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Put,
    PutBlob,
    Refused,
    Renew,
    Skipped,
    Trim,
    Unit,
    WorkState,
)
from semel.kernel.position import OFFSET_MAX, Position
from semel.stores.apply import apply
from semel.stores.memory import MemoryEngine, _Data


class Spy:
    """A memory engine that notes what it is asked."""

    def __init__(self, data: _Data | None = None) -> None:
        self._engine = MemoryEngine(data or _Data(), now=1_000_000, node="n")
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if not callable(found):
            return found

        def call(*args: Any) -> Any:
            self.calls.append((name, args))
            return found(*args)

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def asked(self, name: str) -> list[Any]:
        return [args[0] for called, args in self.calls if called == name]


def message(id: str) -> Envelope:
    return Envelope(id=id)


def units(*ops: Op) -> list[Unit]:
    return [Unit((op,)) for op in ops]


@pytest.mark.parametrize(
    ("due", "delay_s", "expected"), [(None, None, 1_000_000), (7, None, 7), (None, 2.5, 3_500_000), (7, 2.5, 3_500_000)]
)
def test_a_retry_is_due_at_a_time_or_after_a_delay_by_the_engines_clock(
    due: int | None, delay_s: float | None, expected: int
) -> None:
    spy = Spy()
    apply(spy, units(Enqueue("q", "a", message("a"))))
    apply(spy, units(Finish("q", "a", WorkState.SCHEDULED, due=due, delay_s=delay_s)))
    [[move]] = spy.asked("move_work")
    assert move.due == expected


def test_a_delay_without_an_end_is_refused() -> None:
    with pytest.raises(InputError):
        apply(Spy(), units(Finish("q", "a", WorkState.SCHEDULED, delay_s=float("inf"))))


def test_a_deleted_key_keeps_its_count_under_a_negative_version() -> None:
    spy = Spy()
    apply(spy, units(Put("k", b"1"), Put("k", None), Put("k", None)))
    assert spy.asked("put_states") == [[("k", b"1", 1), ("k", None, -2)]]
    [outcome] = apply(spy, units(Put("k", b"2", expected=0)))
    assert outcome.results == (Advanced(version=3),)


def test_deleting_a_key_that_never_was_writes_nothing() -> None:
    spy = Spy()
    apply(spy, units(Put("k", None, expected=0)))
    assert "put_states" not in spy.names()


def test_locks_are_taken_in_one_order_and_sorted() -> None:
    spy = Spy()
    ops: list[Op] = [
        Append("hub/z", message("z")),
        Advance("c2", Position("hub/b", 1, 0)),
        Put("k2", b"v"),
        Put("k1", b"v", guard=Guard("q", "z", 1)),
        Finish("q", "b", WorkState.DONE),
        Renew("q", "a", 1),
        Advance("c1", Position("hub/a", 1, 0)),
        Append("hub/a", message("a")),
    ]
    apply(spy, units(*ops))
    locks = [(name, list(args[0])) for name, args in spy.calls if name.startswith("lock")]
    assert locks == [
        ("lock_work", [("q", "a"), ("q", "b"), ("q", "z")]),
        ("lock_states", ["k1", "k2"]),
        ("lock_cursors", ["c1", "c2"]),
        ("lock_streams", ["hub/a", "hub/z"]),
    ]


def test_the_heads_of_streams_are_locked_last() -> None:
    spy = Spy()
    ops: list[Op] = [
        Append("hub/a", message("a")),
        Put("k", b"v"),
        Enqueue("q", "w", message("w")),
        Claim("q", "me"),
        PutBlob("b", 0, b"x"),
    ]
    apply(spy, units(*ops))
    after = spy.names()[spy.names().index("lock_streams") + 1 :]
    assert set(after) <= {"known", "add_records", "set_heads", "add_ledger"}


def test_many_commits_are_few_statements() -> None:
    spy = Spy()
    template = Event(Kind.ACCEPTED, "a>b")
    appends = [Append("hub/a", message(f"m{n}"), identity=f"m{n}", on_fresh=template) for n in range(100)]
    puts = [Put(f"k{n}", b"v") for n in range(100)]
    works = [Enqueue("q", f"w{n}", message("w")) for n in range(100)]
    apply(spy, units(*appends, *puts, *works))
    assert spy.names() == [
        "lock_states",
        "put_states",
        "add_work",
        "lock_streams",
        "known",
        "add_records",
        "set_heads",
        "add_ledger",
    ]
    assert [len(spy.asked(name)[0]) for name in ("put_states", "add_work", "add_records", "add_ledger")] == [
        100,
        100,
        100,
        1,
    ]


def test_templates_that_take_turns_become_one_range_each() -> None:
    """Two objects of equal value are one template; a third of another value is its own."""
    spy = Spy()
    mine, alike, other = Event(Kind.SENT, "a>b"), Event(Kind.SENT, "a>b"), Event(Kind.SENT, "a>c")
    templates = [mine, other, alike, mine, other, alike]
    ops = [Append("hub/a", message(f"m{at}"), on_fresh=event) for at, event in enumerate(templates)]
    apply(spy, units(*ops))
    [events] = spy.asked("add_ledger")
    assert {event.hop: (event.first, event.last, event.n) for event in events} == {"a>b": (1, 6, 4), "a>c": (2, 5, 2)}
    assert {event.hop: event.fold for event in events} == {
        "a>b": fold_ids(["m0", "m2", "m3", "m5"]),
        "a>c": fold_ids(["m1", "m4"]),
    }


def test_a_message_twice_in_one_group_is_fresh_once() -> None:
    spy = Spy()
    op = Append("hub/a", message("m"), identity="m")
    there = Position("hub/a", 1, 1)
    assert apply(spy, units(op, op)) == [Applied((Fresh(there),)), Applied((Duplicate(there),))]


def test_nothing_is_asked_for_nothing() -> None:
    spy = Spy()
    assert apply(spy, []) == []
    assert apply(spy, [Unit(())]) == [Applied(())]
    assert spy.calls == []


def test_a_commit_that_is_refused_altogether_writes_nothing() -> None:
    spy = Spy()
    outcome = apply(spy, [Unit((Put("k", b"v", expected=3), Append("hub/a", message("a")), Log(_event())))])
    assert isinstance(outcome[0], Refused)
    assert spy.names() == ["lock_states"]


def test_malformed_input_is_refused_before_anything_is_locked() -> None:
    spy = Spy()
    with pytest.raises(InputError):
        apply(spy, units(Put("good", b"v"), Put("bad\x00", b"v")))
    assert spy.calls == []


def test_appends_without_an_identity_ask_for_none() -> None:
    spy = Spy()
    apply(spy, units(*(Append("hub/a", message("m")) for _ in range(5))))
    assert "known" not in spy.names()


def test_the_last_offset_of_a_stream_is_the_last() -> None:
    data = _Data()
    apply(MemoryEngine(data, 0, "n"), units(Append("hub/a", message("a"))))
    data.streams["hub/a"].head = OFFSET_MAX - 1
    outcomes = apply(MemoryEngine(data, 0, "n"), units(Append("hub/a", message("b"))))
    assert outcomes == [Applied((Fresh(Position("hub/a", 1, OFFSET_MAX)),))]
    with pytest.raises(StoreRefused):
        apply(MemoryEngine(data, 0, "n"), units(Append("hub/a", message("c"))))


def test_an_undone_unit_gives_back_what_it_took() -> None:
    """The second unit sees the row as the first found it, not as the refused first would have left it."""
    data = _Data()
    engine = MemoryEngine(data, 0, "n")
    apply(engine, units(Enqueue("q", "w", message("w")), Put("k", b"v")))
    finish = Finish("q", "w", WorkState.PARKED)
    outcomes = apply(
        engine,
        [
            Unit((finish, Put("k", None), Put("other", b"v", expected=7))),
            Unit((finish, Put("k", b"w", expected=1))),
        ],
    )
    assert [type(outcome) for outcome in outcomes] == [Refused, Applied]
    assert data.states["k"].version == 2


values = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 3), st.booleans()), max_size=12)


@given(values, st.lists(st.sampled_from(["x", "y", None]), min_size=12, max_size=12), st.integers(1, 12))
def test_grouping_changes_nothing_but_the_speed(
    puts: list[tuple[str, int | None, bool]], chains: list[str | None], size: int
) -> None:
    """The same units one by one, or in groups of any size, end alike while no chain is broken across a border."""
    all_units = [Unit((Put(key, None if deletes else b"v", expected),), None) for key, expected, deletes in puts]
    alone, grouped = _Data(), _Data()
    one_by_one = [apply(MemoryEngine(alone, 0, "n"), [unit])[0] for unit in all_units]
    together = []
    for start in range(0, len(all_units), size):
        together += apply(MemoryEngine(grouped, 0, "n"), all_units[start : start + size])
    assert together == one_by_one
    assert grouped.states == alone.states


@given(values, st.lists(st.sampled_from(["x", "y", None]), min_size=12, max_size=12))
def test_in_a_chain_nothing_lands_after_a_refusal(
    puts: list[tuple[str, int | None, bool]], chains: list[str | None]
) -> None:
    all_units = [
        Unit((Put(key, b"v", expected),), chain) for (key, expected, _), chain in zip(puts, chains, strict=False)
    ]
    outcomes = apply(MemoryEngine(_Data(), 0, "n"), all_units)
    broken: set[str] = set()
    for unit, outcome in zip(all_units, outcomes, strict=True):
        if unit.chain in broken:
            assert outcome == Refused((Skipped(),))
        elif isinstance(outcome, Refused) and unit.chain is not None:
            broken.add(unit.chain)


def _event() -> Event:
    return Event(Kind.SENT, "a>b", message="m")


def test_trims_come_after_appends() -> None:
    spy = Spy()
    apply(spy, units(Trim("hub/a", 2), Append("hub/a", message("a")), Append("hub/a", message("b"))))
    assert spy.names().index("trim") > spy.names().index("set_heads")
