"""Units and chains, state and cursors: what stands or falls together, and compare-and-set."""

from __future__ import annotations

import pytest

from semel.errors import StoreRefused
from semel.kernel.lease import Guard
from semel.kernel.ledger import Kind
from semel.kernel.ops import (
    Advance,
    Advanced,
    Append,
    Applied,
    Claim,
    Conflict,
    Enqueue,
    Finish,
    Log,
    Op,
    Put,
    PutBlob,
    Refused,
    Renew,
    Skipped,
    Stale,
    Trim,
    Unit,
    WorkRow,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.store import State, Store
from semel.testing.contract.base import (
    QUEUE,
    STREAM,
    StoreSuite,
    append,
    applied,
    claim_one,
    commit,
    commit_refused,
    enqueue,
    entries,
    logged,
    message,
    read_ids,
)


def _put(key: str, expected: int | None = None) -> Put:
    return Put(key, b"v", expected)


class UnitSuite(StoreSuite):
    """A unit is applied completely or not at all."""

    def test_nothing_of_a_refused_unit_remains(self, store: Store) -> None:
        row = _claimed_row(store)
        start = append(store, "before")[0]
        commit(store, Put("taken", b"1"))
        results = commit_refused(store, *_every_op(row.fence, start), _put("taken", expected=0))
        assert results[-1] == Conflict(1)
        assert set(results[:-1]) == {Skipped()}
        self._assert_untouched(store, row.fence)

    def test_the_place_of_the_refusal_in_the_unit_does_not_matter(self, store: Store) -> None:
        row = _claimed_row(store)
        start = append(store, "before")[0]
        commit(store, Put("taken", b"1"))
        ops = _every_op(row.fence, start)
        for at in range(len(ops) + 1):
            results = commit_refused(store, *ops[:at], _put("taken", expected=0), *ops[at:])
            assert results[at] == Conflict(1)
        self._assert_untouched(store, row.fence)

    @staticmethod
    def _assert_untouched(store: Store, fence: int) -> None:
        assert read_ids(store.read(STREAM)) == ["before"]
        assert store.head("hub/never").offset == 0
        assert store.state("fresh") is None
        assert store.cursor("c") is None
        assert store.work(QUEUE, "new") is None
        held = store.work(QUEUE, "held")
        assert held is not None
        assert (held.state, held.fence, held.attempts) == (WorkState.CLAIMED, fence, 1)
        assert entries(store) == []

    def test_a_duplicate_is_an_answer_and_the_unit_goes_on(self, store: Store) -> None:
        append(store, "a")
        commit(store, Append(STREAM, message("a"), identity="a"), _put("k", expected=0))
        assert store.state("k") == State(b"v", 1)

    def test_a_refused_unit_does_not_hurt_the_others(self, store: Store) -> None:
        units = [Unit((_put("a", 0),)), Unit((_put("b", 5),)), Unit((_put("c", 0),))]
        assert applied(store.commit(units)) == [True, False, True]
        assert (store.state("a"), store.state("b"), store.state("c")) == (State(b"v", 1), None, State(b"v", 1))

    def test_a_unit_sees_what_the_ones_before_it_did(self, store: Store) -> None:
        units = [Unit((_put("a", expected),)) for expected in (0, 1, 1, 2)]
        assert applied(store.commit(units)) == [True, True, False, True]
        assert store.state("a") == State(b"v", 3)

    def test_ops_of_a_unit_see_each_other(self, store: Store) -> None:
        assert commit(store, _put("a", 0), _put("a", 1)) == (Advanced(version=1), Advanced(version=2))

    def test_a_row_that_is_new_in_a_commit_is_finished_by_a_later_one(self, store: Store) -> None:
        """Whoever may finish a row has seen it, and nobody has seen this one yet. Nor is it there to be renewed or to
        guard a write. Its own unit is refused and leaves nothing; a unit beside it stands."""
        new = Enqueue(QUEUE, "a", message("a"))
        done = Finish(QUEUE, "a", WorkState.DONE)
        guarded = Put("k", b"v", guard=Guard(QUEUE, "a", 1))
        for op in (done, Renew(QUEUE, "a", 1), guarded):
            assert commit_refused(store, new, op) == (Skipped(), Stale(0))
        assert store.work(QUEUE, "a") is None
        outcomes = store.commit([Unit((new,)), Unit((done,))])
        assert isinstance(outcomes[0], Applied)
        assert outcomes[1] == Refused((Stale(0),))
        assert commit(store, done) == (Advanced(),)

    def test_a_row_that_was_there_is_finished_before_it_is_set_again(self, store: Store) -> None:
        """In whatever order the ops are given: so the row is open afterwards, with the new body."""
        enqueue(store, "a")
        again = Enqueue(QUEUE, "a", message("a", data=b"new"), replace=True)
        done = Finish(QUEUE, "a", WorkState.DONE)
        for ops in ((again, done), (done, again)):
            commit(store, *ops)
            row = store.work(QUEUE, "a")
            assert row is not None
            assert (row.state, row.envelope.data) == (WorkState.READY, b"new")

    def test_a_refused_unit_leaves_no_trace_for_the_next(self, store: Store) -> None:
        units = [Unit((_put("a", 0), _put("b", 7))), Unit((_put("a", 0),))]
        assert applied(store.commit(units)) == [False, True]

    def test_a_refusal_names_every_op_that_was_refused(self, store: Store) -> None:
        results = commit_refused(store, _put("a", 3), _put("b"), Renew(QUEUE, "none", 1))
        assert results == (Conflict(0), Skipped(), Stale(0))

    def test_data_that_the_store_refuses_undoes_the_whole_commit(self, store: Store) -> None:
        position = append(store, "a")[0]
        ahead = Position(STREAM, position.epoch, 99)
        with pytest.raises(StoreRefused):
            store.commit([Unit((_put("a", 0),)), Unit((Advance("c", ahead),)), Unit((_put("b", 0),))])
        assert store.state("a") is None
        assert store.state("b") is None


class ChainSuite(StoreSuite):
    """Units of one chain succeed in order: after a refusal the later ones are refused too."""

    def test_after_a_refusal_the_later_ones_of_the_chain_are_skipped(self, store: Store) -> None:
        units = [
            Unit((_put("a", 0),), chain="x"),
            Unit((_put("b", 9), _put("b2")), chain="x"),
            Unit((_put("c", 0),), chain="x"),
            Unit((_put("d", 0),), chain="y"),
            Unit((_put("e", 0),)),
            Unit((_put("f", 0),), chain="x"),
        ]
        outcomes = store.commit(units)
        assert applied(outcomes) == [True, False, False, True, True, False]
        assert outcomes[1] == Refused((Conflict(0), Skipped()))
        assert outcomes[2] == Refused((Skipped(),))
        assert [store.state(key) is not None for key in "abcdef"] == [True, False, False, True, True, False]

    def test_units_without_a_chain_stand_for_themselves(self, store: Store) -> None:
        units = [Unit((_put("a", 9),)), Unit((_put("b", 0),))]
        assert applied(store.commit(units)) == [False, True]

    def test_a_chain_is_whole_again_in_the_next_commit(self, store: Store) -> None:
        store.commit([Unit((_put("a", 9),), chain="x")])
        assert applied(store.commit([Unit((_put("a", 0),), chain="x")])) == [True]

    def test_appends_of_a_chain_keep_their_order(self, store: Store) -> None:
        units = [Unit((Append(STREAM, message(f"m{n}")),), chain="x") for n in range(20)]
        assert all(applied(store.commit(units)))
        assert read_ids(store.read(STREAM)) == [f"m{n}" for n in range(20)]


class StateSuite(StoreSuite):
    """Machine state: compare-and-set on a version."""

    def test_states_are_listed_by_prefix_in_the_order_of_their_bytes(self, store: Store) -> None:
        keys = ["a/1", "a/10", "a/2", "a/ä", "a/\U0001f600", "a/\ufb00", "a", "b/1", "a%", "A/1"]
        commit(store, *(Put(key, key.encode()) for key in [*keys, "a/gone"]))
        commit(store, Put("a/gone", None))
        under = sorted((key for key in keys if key.startswith("a/")), key=str.encode)
        assert [(key, state.value) for key, state in store.states("a/")] == [(key, key.encode()) for key in under]
        assert [key for key, _ in store.states("a/", limit=2)] == under[:2]
        assert [key for key, _ in store.states("a/", after=under[1], limit=2)] == under[2:4]
        assert [key for key, _ in store.states("")] == sorted(keys, key=str.encode)
        assert store.states("c") == []

    def test_a_state_that_does_not_exist(self, store: Store) -> None:
        assert store.state("k") is None

    def test_versions_count_the_writes(self, store: Store) -> None:
        assert commit(store, Put("k", b"one", expected=0)) == (Advanced(version=1),)
        assert commit(store, Put("k", b"two", expected=1)) == (Advanced(version=2),)
        assert store.state("k") == State(b"two", 2)

    @pytest.mark.parametrize("expected", [0, 1, 3])
    def test_another_version_is_a_conflict(self, store: Store, expected: int) -> None:
        commit(store, Put("k", b"1"), Put("k", b"2"))
        assert commit_refused(store, Put("k", b"x", expected)) == (Conflict(2),)
        assert store.state("k") == State(b"2", 2)

    def test_without_an_expected_version_the_last_write_wins(self, store: Store) -> None:
        commit(store, Put("k", b"1"))
        commit(store, Put("k", b"2"))
        assert store.state("k") == State(b"2", 2)

    def test_none_deletes(self, store: Store) -> None:
        commit(store, Put("k", b"1"))
        assert commit(store, Put("k", None, expected=1)) == (Advanced(version=0),)
        assert store.state("k") is None
        assert commit_refused(store, Put("k", b"2", expected=1)) == (Conflict(0),)

    def test_a_deleted_key_goes_on_counting_so_an_old_version_never_fits_again(self, store: Store) -> None:
        commit(store, Put("k", b"first life"))
        commit(store, Put("k", None))
        assert commit(store, Put("k", b"second life", expected=0)) == (Advanced(version=3),)
        assert commit_refused(store, Put("k", b"late", expected=1)) == (Conflict(3),)
        assert store.state("k") == State(b"second life", 3)

    def test_a_key_deleted_twice_is_deleted_once(self, store: Store) -> None:
        commit(store, Put("k", b"1"), Put("k", None), Put("k", None, expected=0))
        assert store.state("k") is None
        assert commit(store, Put("k", b"2")) == (Advanced(version=3),)

    def test_deleting_what_is_not_there(self, store: Store) -> None:
        assert commit(store, Put("k", None)) == (Advanced(version=0),)

    def test_delete_and_write_in_one_unit(self, store: Store) -> None:
        commit(store, Put("k", b"1"))
        [_, written] = commit(store, Put("k", None, expected=1), Put("k", b"2", expected=0))
        assert isinstance(written, Advanced)
        state = store.state("k")
        assert state is not None
        assert (state.value, state.version) == (b"2", written.version)
        assert state.version > 1

    @pytest.mark.parametrize("value", [b"", b"\x00" * 10, bytes(range(256)) * 4096])
    def test_any_bytes_come_back(self, store: Store, value: bytes) -> None:
        commit(store, Put("k", value))
        assert store.state("k") == State(value, 1)


class CursorSuite(StoreSuite):
    """Cursors only move forward, on their own stream, within the epoch."""

    def test_a_cursor_that_does_not_exist(self, store: Store) -> None:
        assert store.cursor("c") is None

    def test_a_cursor_moves_forward_and_never_back(self, store: Store) -> None:
        positions = append(store, "a", "b", "c")
        assert commit(store, Advance("c", positions[1])) == (Advanced(positions[1]),)
        assert commit(store, Advance("c", positions[0])) == (Advanced(positions[1]),)
        assert commit(store, Advance("c", positions[2])) == (Advanced(positions[2]),)
        assert store.cursor("c") == positions[2]

    def test_two_moves_in_one_commit(self, store: Store) -> None:
        positions = append(store, "a", "b", "c")
        commit(store, Advance("c", positions[2]), Advance("c", positions[1]))
        assert store.cursor("c") == positions[2]

    def test_a_cursor_may_start_before_the_first_record(self, store: Store) -> None:
        start = Position(STREAM, store.epoch, 0)
        append(store, "a")
        commit(store, Advance("c", start))
        assert store.cursor("c") == start

    def test_expected_makes_it_a_compare_and_set(self, store: Store) -> None:
        positions = append(store, "a", "b", "c")
        assert commit_refused(store, Advance("c", positions[0], expected=1)) == (Conflict(0),)
        commit(store, Advance("c", positions[0], expected=0))
        assert commit_refused(store, Advance("c", positions[2], expected=0)) == (Conflict(1),)
        commit(store, Advance("c", positions[1], expected=1))
        assert store.cursor("c") == positions[1]

    def test_a_position_of_another_epoch_is_a_conflict(self, store: Store) -> None:
        position = append(store, "a")[0]
        store.raise_epoch("restored")
        assert commit_refused(store, Advance("c", position)) == (Conflict(0),)
        assert store.cursor("c") is None

    def test_past_the_end_is_refused(self, store: Store) -> None:
        append(store, "a")
        with pytest.raises(StoreRefused):
            commit(store, Advance("c", Position(STREAM, store.epoch, 2)))
        with pytest.raises(StoreRefused):
            commit(store, Advance("c", Position("hub/none", store.epoch, 1)))

    def test_a_cursor_belongs_to_one_stream(self, store: Store) -> None:
        commit(store, Advance("c", append(store, "a")[0]))
        other = append(store, "a", stream="hub/other")[0]
        with pytest.raises(StoreRefused):
            commit(store, Advance("c", other))

    def test_cursors_are_listed_in_the_status(self, store: Store) -> None:
        position = append(store, "a")[0]
        commit(store, Advance("c", position), Advance("d", position, pins=False))
        assert {(info.name, info.position, info.pins) for info in store.status().cursors} == {
            ("c", position, True),
            ("d", position, False),
        }


class GuardSuite(StoreSuite):
    """A write that carries a guard lands only while its row is claimed under that fence."""

    def _guarded(self, guard: Guard, position: Position) -> list[Op]:
        return [
            Append(STREAM, message("guarded"), guard=guard),
            Advance("c", position, guard=guard),
            Put("k", b"v", guard=guard),
            Enqueue("outbox/x", "out", message("out"), guard=guard),
            Log(logged(Kind.SENT, "guarded"), guard=guard),
        ]

    def test_the_holder_may_write(self, store: Store) -> None:
        position = append(store, "a")[0]
        row = _claimed_row(store)
        for op in self._guarded(Guard(QUEUE, "held", row.fence), position):
            commit(store, op)
        assert read_ids(store.read(STREAM)) == ["a", "guarded"]

    def test_another_fence_may_not(self, store: Store) -> None:
        position = append(store, "a")[0]
        row = _claimed_row(store)
        for fence in (row.fence - 1, row.fence + 1, 0):
            for op in self._guarded(Guard(QUEUE, "held", fence), position):
                assert commit_refused(store, op) == (Stale(row.fence),)
        assert read_ids(store.read(STREAM)) == ["a"]
        assert entries(store) == []

    def test_nobody_may_write_after_the_row_is_finished(self, store: Store) -> None:
        position = append(store, "a")[0]
        row = _claimed_row(store)
        commit(store, Finish(QUEUE, "held", WorkState.DONE, fence=row.fence))
        for op in self._guarded(Guard(QUEUE, "held", row.fence), position):
            assert commit_refused(store, op) == (Stale(0),)

    def test_a_row_that_does_not_exist_guards_nothing(self, store: Store) -> None:
        assert commit_refused(store, Put("k", b"v", guard=Guard(QUEUE, "none", 1))) == (Stale(0),)

    def test_finish_and_guarded_writes_in_one_unit(self, store: Store) -> None:
        """Effect and completion belong together; the guard is judged where it stands in the unit."""
        row = _claimed_row(store)
        guard = Guard(QUEUE, "held", row.fence)
        finish = Finish(QUEUE, "held", WorkState.DONE, fence=row.fence)
        commit(store, Append(STREAM, message("effect"), guard=guard), finish)
        assert read_ids(store.read(STREAM)) == ["effect"]
        assert commit_refused(store, Append(STREAM, message("effect"), guard=guard)) == (Stale(0),)

    def test_two_finishes_in_one_commit_are_one(self, store: Store) -> None:
        row = _claimed_row(store)
        finish = Finish(QUEUE, "held", WorkState.DONE, fence=row.fence)
        units = [Unit((finish, Append(STREAM, message("effect")))) for _ in range(2)]
        assert [type(outcome) for outcome in store.commit(units)] == [Applied, Refused]
        assert read_ids(store.read(STREAM)) == ["effect"]


def _claimed_row(store: Store) -> WorkRow:
    enqueue(store, "held")
    return claim_one(store)


def _every_op(fence: int, position: Position) -> list[Op]:
    """One op of each sort, each of which would land on its own."""
    return [
        Append(STREAM, message("new"), identity="new", on_fresh=logged(Kind.ACCEPTED, "new")),
        Append("hub/never", message("new")),
        Advance("c", position),
        _put("fresh", 0),
        Enqueue(QUEUE, "new", message("new"), on_fresh=logged(Kind.ACCEPTED, "new")),
        Claim(QUEUE, "w"),
        Renew(QUEUE, "held", fence),
        Finish(QUEUE, "held", WorkState.DONE, fence=fence),
        Log(logged(Kind.HANDLED, "held")),
        PutBlob("blob", 0, b"chunk"),
        Trim(STREAM, 2),
    ]
