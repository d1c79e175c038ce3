"""A bucket of sessions decides as one kernel machine per session does, whatever the batches and restarts between."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel import __version__
from semel.errors import ConfigError, InputError, LimitExceeded, SchemaTooNew
from semel.kernel.dedup import GapPolicy, GapSkipped, MonotonicIndex, OnGap, Passed, Repeated, StrictIndex
from semel.spark.ordering import STATE_VERSION, Bucket, Decided, Gap, Order, RowVerdict, Rules
from semel.spark.rows import RowOutcome

SKIP = GapPolicy(OnGap.SKIP, 3.0)

Arrival = tuple[str, int]


@st.composite
def regional_copies(draw: st.DrawFn) -> list[list[Arrival]]:
    """Batches of two copies of the same sessions, each with losses, duplicates and disorder of its own."""
    lengths = draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, 8), min_size=1))
    messages = [(session, index) for session, length in lengths.items() for index in range(1, length + 1)]
    copies = [copy for message in messages for copy in [message] * draw(st.integers(0, 3))]
    arrivals = draw(st.permutations(copies))
    cuts = sorted(draw(st.lists(st.integers(0, len(arrivals)), max_size=5)))
    return [arrivals[start:end] for start, end in zip([0, *cuts], [*cuts, len(arrivals)], strict=True)]


@dataclass
class Keeper:
    """Holds rows for a bucket as a processor does: by number within one life, as bytes in between."""

    bucket: Bucket
    rows: list[Arrival] = field(default_factory=list)

    def offer(self, arrivals: list[Arrival], now: float) -> tuple[list[Arrival], Decided]:
        decided = Decided()
        for session, index in arrivals:
            self.rows.append((session, index))
            self.bucket.offer(session, (index,), (len(self.rows) - 1,), now, decided)
        return self.out(decided), decided

    def on_timer(self, now: float) -> tuple[list[Arrival], Decided]:
        decided = self.bucket.on_timer(now)
        return self.out(decided), decided

    def out(self, decided: Decided) -> list[Arrival]:
        return [self.rows[row] for row in decided.passed]

    def restarted(self, now: float) -> Keeper:
        data = self.bucket.encode(lambda rows: msgspec.json.encode([self.rows[row] for row in rows]))
        bucket, kept = Bucket.decode(data, self.bucket.rules, now)
        return Keeper(bucket, msgspec.json.decode(kept, type=list[Arrival]) if kept else [])


class OneMachineEach:
    """The kernel alone: one machine per session."""

    def __init__(self, order: Order, gap: GapPolicy) -> None:
        self.order, self.gap = order, gap
        self.machines: dict[str, StrictIndex[int] | MonotonicIndex] = {}

    def offer(self, arrivals: list[Arrival], now: float) -> dict[str, list[int]]:
        passed: dict[str, list[int]] = {}
        for session, index in arrivals:
            machine = self.machines[session] if session in self.machines else self._made(session)
            if isinstance(machine, MonotonicIndex):
                passed.setdefault(session, []).extend([index] if machine.is_new(index) else [])
                continue
            outcome = machine.offer(index, index, now)
            assert isinstance(outcome, Passed | Repeated) or len(machine)
            passed.setdefault(session, []).extend(i for i, _ in (outcome.items if isinstance(outcome, Passed) else ()))
        return passed

    def on_timer(self, now: float) -> dict[str, list[int]]:
        passed: dict[str, list[int]] = {}
        for session, machine in self.machines.items():
            outcome = machine.on_timer(now) if isinstance(machine, StrictIndex) else None
            if isinstance(outcome, GapSkipped):
                passed[session] = [index for index, _ in outcome.items]
        return passed

    def _made(self, session: str) -> StrictIndex[int] | MonotonicIndex:
        made = MonotonicIndex() if self.order == "monotonic" else StrictIndex(gap=self.gap)
        self.machines[session] = made
        return made


def by_session(passed: list[Arrival]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for session, index in passed:
        found.setdefault(session, []).append(index)
    return found


def without_empty(passed: dict[str, list[int]]) -> dict[str, list[int]]:
    return {session: indexes for session, indexes in passed.items() if indexes}


@given(regional_copies(), st.sampled_from(["strict", "monotonic"]), st.sampled_from([GapPolicy(), SKIP]))
def test_a_bucket_passes_what_one_machine_per_session_passes(
    batches: list[list[Arrival]], order: Order, gap: GapPolicy
) -> None:
    kernel, keeper = OneMachineEach(order, gap), Keeper(Bucket(Rules(order, gap)))
    for now, batch in enumerate(batches):
        passed, _ = keeper.offer(batch, float(now))
        assert by_session(passed) == without_empty(kernel.offer(batch, float(now)))
        passed, _ = keeper.on_timer(float(now))
        assert by_session(passed) == without_empty(kernel.on_timer(float(now)))


@given(
    regional_copies(),
    st.sampled_from(["strict", "monotonic"]),
    st.sampled_from([GapPolicy(), SKIP]),
    st.sets(st.integers(0, 6)),
)
def test_a_restart_between_batches_changes_nothing(
    batches: list[list[Arrival]], order: Order, gap: GapPolicy, restarts: set[int]
) -> None:
    rules = Rules(order, gap, forget_s=2.0)
    steady, restarted = Keeper(Bucket(rules)), Keeper(Bucket(rules))
    for now, batch in enumerate(batches):
        if now in restarts:
            restarted = restarted.restarted(float(now))
        for step in ("offer", "on_timer"):
            given = (batch, float(now)) if step == "offer" else (float(now),)
            (one, told), (other, told_after) = (getattr(each, step)(*given) for each in (steady, restarted))
            assert by_session(one) == by_session(other)
            assert sorted((v.outcome.value, v.cause) for v in told.verdicts) == sorted(
                (v.outcome.value, v.cause) for v in told_after.verdicts
            )
            assert sorted(told.gaps, key=repr) == sorted(told_after.gaps, key=repr)
            assert steady.bucket.next_deadline() == restarted.bucket.next_deadline()


@given(regional_copies())
def test_a_skipping_bucket_accounts_for_every_index_once(batches: list[list[Arrival]]) -> None:
    keeper = Keeper(Bucket(Rules(gap=SKIP)))
    passed: list[Arrival] = []
    told: list[Decided] = []
    for now, batch in enumerate(batches):
        for out, decided in (keeper.offer(batch, float(now)), keeper.on_timer(float(now))):
            passed += out
            told.append(decided)
    last = keeper.bucket.finish()
    passed += keeper.out(last)
    skipped = [(gap.session, i) for each in [*told, last] for gap in each.gaps for i in range(gap.first, gap.last + 1)]
    came = {arrival for batch in batches for arrival in batch}
    late = {keeper.rows[v.row] for each in told for v in each.verdicts if v.outcome is RowOutcome.DEAD}
    highest = {session: max(i for s, i in came if s == session) for session, _ in came}
    assert sorted(passed + skipped) == [(s, i) for s in sorted(highest) for i in range(1, highest[s] + 1)]
    assert set(passed) | late == came
    assert len(passed) + sum(len(each.verdicts) for each in told) == sum(map(len, batches))


def offered(bucket: Bucket, session: str, indexes: list[int | None], now: float = 0.0) -> Decided:
    decided = Decided()
    bucket.offer(session, indexes, range(len(indexes)), now, decided)
    return decided


def test_a_copy_is_named_with_its_index() -> None:
    decided = offered(Bucket(Rules()), "s", [1, 2, 3, 3, 5, 5])
    assert decided.passed == [0, 1, 2]
    assert decided.verdicts == [
        RowVerdict(3, RowOutcome.DUPLICATE, "index 3 came again"),
        RowVerdict(5, RowOutcome.DUPLICATE, "index 5 came again"),
    ]


@pytest.mark.parametrize("order", ["strict", "monotonic"])
@pytest.mark.parametrize("unplaced", [RowOutcome.REJECTED, RowOutcome.DEAD])
def test_a_row_without_a_place_gets_its_outcome_and_the_rest_passes(order: Order, unplaced: RowOutcome) -> None:
    decided = offered(Bucket(Rules(order, unplaced=unplaced)), "s", [None, 0, 1, None, 2])
    assert decided.passed == [2, 4]
    assert [(v.row, v.outcome) for v in decided.verdicts] == [(row, unplaced) for row in (0, 1, 3)]
    said = [verdict.cause.partition(",")[0] for verdict in decided.verdicts]
    assert said == ["it has no index", "its index is 0", "it has no index"]


def test_what_comes_after_its_place_was_given_up_is_no_duplicate() -> None:
    bucket = Bucket(Rules(gap=SKIP))
    offered(bucket, "s", [3])
    assert bucket.on_timer(3.0).gaps == [Gap("s", 1, 2)]
    assert [v.outcome for v in offered(bucket, "s", [2, 2], now=4.0).verdicts] == [
        RowOutcome.DEAD,
        RowOutcome.DUPLICATE,
    ]


def test_a_full_buffer_gives_up_the_gap_at_once_where_gaps_are_skipped() -> None:
    decided = offered(Bucket(Rules(gap=SKIP, buffer=2)), "s", [3, 5, 9])
    assert decided.gaps == [Gap("s", 1, 2)]
    assert decided.passed == [0]


def test_a_row_that_finds_the_buffer_full_is_not_itself_given_up() -> None:
    decided = offered(Bucket(Rules(gap=SKIP, buffer=1)), "s", [7, 4])
    assert decided.gaps == [Gap("s", 1, 3)]
    assert decided.passed == [1]
    assert not decided.verdicts


def test_a_full_buffer_stops_the_query_where_gaps_are_waited_for() -> None:
    with pytest.raises(LimitExceeded, match=r"session 'order-7' waits for index 2, and 3 rows") as caught:
        offered(Bucket(Rules(buffer=3)), "order-7", [1, 3, 4, 5, 6])
    assert "gap='skip'" in caught.value.fix
    assert "buffer=3 now" in caught.value.fix


def test_the_end_of_a_batch_skips_gaps_or_names_the_first() -> None:
    skipping, waiting = Bucket(Rules(gap=SKIP)), Bucket(Rules())
    for bucket in (skipping, waiting):
        offered(bucket, "s", [2, 3, 6])
    assert skipping.finish() == Decided([0, 1, 2], [], [Gap("s", 1, 1), Gap("s", 4, 5)])
    with pytest.raises(InputError, match="index 1 of session 's' is missing, and 3 rows"):
        waiting.finish()


def test_a_quiet_session_is_forgotten_and_one_that_waits_is_not() -> None:
    bucket = Bucket(Rules(gap=GapPolicy(OnGap.SKIP, 1000.0), forget_s=100.0))
    offered(bucket, "done", [1, 2], now=0.0)
    offered(bucket, "waits", [1, 3], now=0.0)
    offered(bucket, "busy", [1], now=50.0)
    assert bucket.next_deadline() == 100.0
    bucket.on_timer(100.0)
    assert len(bucket) == 2
    assert bucket.next_deadline() == 150.0
    assert offered(bucket, "waits", [2], now=101.0).passed == [0, 1]
    assert offered(bucket, "done", [1], now=101.0).passed == [0]


def test_a_session_whose_gaps_are_waited_for_goes_on_where_it_was_however_quiet() -> None:
    bucket = Bucket(Rules(forget_s=100.0))
    offered(bucket, "s", [1, 2], now=0.0)
    assert bucket.next_deadline() is None
    bucket.on_timer(1e9)
    bucket, _ = Bucket.decode(bucket.encode(lambda rows: b""), bucket.rules, 1e9)
    decided = offered(bucket, "s", [2, 3], now=1e9)
    assert decided.passed == [1]
    assert [verdict.outcome for verdict in decided.verdicts] == [RowOutcome.DUPLICATE]


def test_what_a_session_gave_up_before_its_gaps_were_waited_for_is_forgotten_without_its_place() -> None:
    skipping = Keeper(Bucket(Rules(gap=SKIP, forget_s=100.0)))
    skipping.offer([("s", 3)], 0.0)
    skipping.on_timer(3.0)
    skipping.bucket.rules = Rules(forget_s=100.0)
    waiting = skipping.restarted(now=10.0)
    assert waiting.bucket.next_deadline() == 100.0
    waiting.on_timer(100.0)
    assert waiting.bucket.next_deadline() is None
    passed, decided = waiting.offer([("s", 2), ("s", 4)], 101.0)
    assert passed == [("s", 4)]
    assert [verdict.outcome for verdict in decided.verdicts] == [RowOutcome.DUPLICATE]


def test_a_bucket_that_never_forgets_has_no_deadline() -> None:
    bucket = Bucket(Rules("monotonic", forget_s=None))
    offered(bucket, "s", [1])
    assert bucket.next_deadline() is None
    bucket.on_timer(1e12)
    assert len(bucket) == 1


def test_rows_without_a_session_are_told_apart_by_id_where_it_is_asked() -> None:
    for rules, passed in ((Rules(), [0, 1, 2]), (Rules(ids=10), [0, 1])):
        bucket, decided = Bucket(rules), Decided()
        assert not bucket
        bucket.offer_ids(["a", "b", "a"], [0, 1, 2], 0.0, decided)
        assert decided.passed == passed
        assert bool(bucket) == bool(rules.ids)
        bucket, _ = Bucket.decode(bucket.encode(lambda rows: b""), rules, 1.0)
        again = Decided()
        bucket.offer_ids(["b"], [0], 1.0, again)
        assert again.passed == ([] if rules.ids else [0])


def test_the_policy_may_change_between_runs() -> None:
    waiting = Keeper(Bucket(Rules()))
    waiting.offer([("s", 3)], 0.0)
    waiting.bucket.rules = Rules(gap=SKIP)
    skipping = waiting.restarted(now=10.0)
    assert skipping.bucket.next_deadline() == 13.0
    assert skipping.on_timer(13.0)[0] == [("s", 3)]


V1 = bytes.fromhex(
    "8aa17601a26279a5302e312e30a56f72646572a6737472696374a873657373696f6e7393a164a177a167a46e657874930702"
    "05a47365656e93cb4059000000000000cb405c000000000000cb405e000000000000a777616974696e6781a17782a2617492"
    "0406a8646561646c696e65cb405e800000000000a8676976656e5f757081a16791920304a369647381a16ecb409388000000"
    "0000a4726f7773c406726f7773210a"
)
"""A state of version 1 as it was first written. It must be readable for ever: it lies in people's checkpoints."""


def test_a_state_of_version_1_is_read() -> None:
    bucket, rows = Bucket.decode(V1, Rules(gap=GapPolicy(OnGap.SKIP, 10.0), ids=5), now=0.0)
    assert rows == b"rows!\n"
    assert len(bucket) == 3
    assert bucket.next_deadline() == 122.0
    assert offered(bucket, "d", [6, 7]).passed == [1]
    assert [v.outcome for v in offered(bucket, "g", [3, 2]).verdicts] == [RowOutcome.DEAD, RowOutcome.DUPLICATE]
    assert bucket.on_timer(122.0).gaps == [Gap("w", 2, 3)]
    decided = Decided()
    bucket.offer_ids(["n", "m"], [0, 1], 1.0, decided)
    assert decided.passed == [1]


def test_a_state_from_a_newer_semel_says_who_wrote_it() -> None:
    data = msgspec.msgpack.encode({"v": STATE_VERSION + 1, "by": "9.8.7", "other": 1})
    with pytest.raises(SchemaTooNew, match=rf"written by Semel 9\.8\.7; this is Semel {__version__}") as caught:
        Bucket.decode(data, Rules(), 0.0)
    assert "9.8.7 or newer" in caught.value.fix


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"v": 1, "by": "x"})])
def test_a_state_that_is_not_ours_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="state of this query"):
        Bucket.decode(data, Rules(), 0.0)


def test_a_state_of_another_order_is_refused() -> None:
    data = Bucket(Rules("monotonic")).encode(lambda rows: b"")
    with pytest.raises(ConfigError, match="made for monotonic order"):
        Bucket.decode(data, Rules(), 0.0)


@pytest.mark.parametrize(
    "make",
    [lambda: Rules(buffer=0), lambda: Rules(forget_s=0.0), lambda: Rules(gap=GapPolicy(OnGap.ASK, 1.0))],
    ids=["buffer", "forget", "ask"],
)
def test_rules_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_however_many_gaps_are_given_up_a_late_row_is_never_taken_for_a_copy() -> None:
    bucket, even, odd = Bucket(Rules(order="monotonic")), range(2, 602, 2), range(1, 601, 2)
    for index in even:
        bucket.offer("s", [index], [index], 0.0, Decided())
    bucket, _ = Bucket.decode(bucket.encode(lambda rows: b""), bucket.rules, 0.0)
    late = Decided()
    for index in odd:
        bucket.offer("s", [index], [index], 0.0, late)
    assert [verdict.outcome for verdict in late.verdicts] == [RowOutcome.DEAD] * len(odd)
    assert not late.passed
