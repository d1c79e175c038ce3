"""Group commit: who shares a transaction, and who hears what when it fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import StoreRefused, StoreUnavailable
from semel.kernel.effects import CommitFailed, Committed, CommitUnknown
from semel.kernel.envelope import Envelope
from semel.kernel.group import CommitGroup, CommitQueue, Completion, GroupLimits, in_words, weigh
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import (
    Advanced,
    Append,
    Applied,
    Conflict,
    Enqueue,
    Log,
    Op,
    Outcome,
    Put,
    PutBlob,
    Refused,
    Remember,
    Skipped,
    Trim,
)

REFUSED = StoreRefused("bad data", fix="correct it")
DOWN = StoreUnavailable("gone", fix="wait")


def put(key: str) -> tuple[Op, ...]:
    return (Put(key, b"v"),)


class Heard:
    """Collects completions by token."""

    def __init__(self) -> None:
        self.by_token: dict[int, Completion] = {}
        self.order: list[int] = []

    def __call__(self, completion: Completion) -> None:
        assert completion.token not in self.by_token, "each commit hears back once"
        self.by_token[completion.token] = completion
        self.order.append(completion.token)

    def kinds(self) -> dict[int, type[Completion]]:
        return {token: type(completion) for token, completion in self.by_token.items()}


@pytest.fixture
def heard() -> Heard:
    return Heard()


def queue_of(heard: Heard, chains: str, limits: GroupLimits | None = None) -> CommitQueue:
    """One commit per letter: the letter is its chain, "." means none."""
    queue = CommitQueue(limits or GroupLimits())
    for token, letter in enumerate(chains):
        queue.submit(put(f"k{token}"), None if letter == "." else letter, token, heard)
    return queue


def take(queue: CommitQueue) -> CommitGroup:
    group = queue.next_group()
    assert group is not None
    return group


def tokens(group: CommitGroup) -> list[int]:
    return [member.token for member in group.members]


def all_applied(group: CommitGroup) -> list[Outcome]:
    return [Applied((Advanced(version=1),)) for _ in group.members]


def test_all_that_wait_share_a_transaction(heard: Heard) -> None:
    queue = queue_of(heard, "a.b.")
    group = take(queue)
    assert tokens(group) == [0, 1, 2, 3]
    assert [unit.chain for unit in group.units] == ["a", None, "b", None]
    queue.committed(group, all_applied(group))
    assert heard.order == [0, 1, 2, 3]
    assert len(queue) == 0
    assert queue.next_group() is None


def test_one_transaction_at_a_time(heard: Heard) -> None:
    queue = queue_of(heard, "..")
    group = take(queue)
    queue.submit(put("late"), None, 2, heard)
    assert queue.next_group() is None
    assert len(queue) == 3
    queue.committed(group, all_applied(group))
    assert tokens(take(queue)) == [2]


def test_a_transaction_is_bounded_in_rows(heard: Heard) -> None:
    queue = CommitQueue(GroupLimits(rows=5))
    for token, size in enumerate([2, 2, 2, 9, 1]):
        queue.submit(put("k") * size, None, token, heard)
    sizes = []
    while (group := queue.next_group()) is not None:
        sizes.append(tokens(group))
        queue.committed(group, all_applied(group))
    assert sizes == [[0, 1], [2], [3], [4]], "one that is too large alone still goes, by itself"


def test_a_transaction_is_bounded_in_bytes(heard: Heard) -> None:
    queue = CommitQueue(GroupLimits(bytes=3000))
    for token in range(4):
        queue.submit((Append("hub/x", Envelope(id="m", data=b"x" * 1000)),), None, token, heard)
    assert tokens(take(queue)) == [0, 1]


def test_producers_are_held_back_by_rows_and_by_bytes(heard: Heard) -> None:
    queue = CommitQueue(GroupLimits(waiting_rows=3, waiting_bytes=2000))
    queue.submit(put("k") * 2, None, 0, heard)
    assert not queue.is_full
    queue.submit(put("k"), None, 1, heard)
    assert queue.is_full
    take(queue)
    assert not queue.is_full
    queue.submit((PutBlob("b", 0, b"x" * 2000),), None, 2, heard)
    assert queue.is_full


def test_a_refused_unit_hears_its_refusal_and_its_neighbours_their_success(heard: Heard) -> None:
    queue = queue_of(heard, "a.")
    group = take(queue)
    queue.committed(group, [Refused((Conflict(3),)), Applied((Advanced(version=1),))])
    assert heard.by_token == {0: CommitFailed(0, (Conflict(3),)), 1: Committed(1, (Advanced(version=1),))}


def test_a_refusal_takes_the_later_ones_of_its_chain_with_it(heard: Heard) -> None:
    queue = queue_of(heard, "ab", GroupLimits(rows=1))
    first = take(queue)
    for token, chain in enumerate("ab.a", start=2):
        queue.submit(put("k"), None if chain == "." else chain, token, heard)
    queue.committed(first, [Refused((Conflict(3),))])
    assert heard.kinds() == {0: CommitFailed, 2: CommitFailed, 5: CommitFailed}
    assert heard.by_token[2] == CommitFailed(2), "it was never tried"


def test_what_is_submitted_on_hearing_of_a_failure_does_not_fall_with_it() -> None:
    queue = CommitQueue(GroupLimits(rows=1))
    later: list[Completion] = []

    def start_again(completion: Completion) -> None:
        queue.submit(put("again"), "a", 9, later.append)

    queue.submit(put("k"), "a", 0, start_again)
    queue.submit(put("k"), "a", 1, lambda _: None)
    queue.failed(take(queue), DOWN)
    assert later == []
    group = take(queue)
    assert tokens(group) == [9]
    queue.committed(group, all_applied(group))
    assert [type(completion) for completion in later] == [Committed]


def test_halving_finds_the_guilty_one(heard: Heard) -> None:
    queue = queue_of(heard, "........")
    tried = []
    while (group := queue.next_group()) is not None:
        tried.append(tokens(group))
        if 5 in tokens(group):
            queue.refused(group, REFUSED)
        else:
            queue.committed(group, all_applied(group))
    assert heard.kinds() == {token: CommitFailed if token == 5 else Committed for token in range(8)}
    assert heard.by_token[5] == CommitFailed(5, error=REFUSED)
    assert heard.order == list(range(8)), "order is kept while halving"
    assert tried[1:3] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_guilty_one_takes_the_rest_of_its_chain_with_it(heard: Heard) -> None:
    queue = queue_of(heard, "aabaab")
    while (group := queue.next_group()) is not None:
        if 1 in tokens(group):
            queue.refused(group, REFUSED)
        else:
            queue.committed(group, all_applied(group))
    failed = {token for token, kind in heard.kinds().items() if kind is CommitFailed}
    assert failed == {1, 3, 4}


def test_a_store_that_is_down_fails_the_group_and_what_is_chained(heard: Heard) -> None:
    queue = queue_of(heard, "a.a.", GroupLimits(rows=2))
    queue.failed(take(queue), DOWN)
    assert heard.kinds() == {0: CommitFailed, 1: CommitFailed, 2: CommitFailed}
    assert tokens(take(queue)) == [3]


def test_a_doubt_that_turns_out_well(heard: Heard) -> None:
    queue = queue_of(heard, "a.")
    group = take(queue)
    queue.resolved(group, all_applied(group))
    assert heard.kinds() == {0: Committed, 1: Committed}


def test_a_doubt_that_turns_out_never_to_have_happened_is_tried_again_first(heard: Heard) -> None:
    queue = queue_of(heard, "aaa", GroupLimits(rows=1))
    group = take(queue)
    queue.resolved(group, None)
    assert heard.order == []
    assert tokens(take(queue)) == [0]


def test_a_doubt_that_stays_breaks_the_chains(heard: Heard) -> None:
    queue = queue_of(heard, "a.a.", GroupLimits(rows=2))
    queue.unknown(take(queue))
    assert heard.kinds() == {0: CommitUnknown, 1: CommitUnknown, 2: CommitFailed}


def test_a_group_ends_once(heard: Heard) -> None:
    queue = queue_of(heard, ".")
    group = take(queue)
    queue.failed(group, DOWN)
    with pytest.raises(AssertionError):
        queue.failed(group, DOWN)


def test_weights_follow_the_bytes_that_are_written() -> None:
    body = Envelope(id="m", data=b"x" * 1000)
    heavy: list[Op] = [Append("hub/x", body), Enqueue("inbox/x", "i", body), PutBlob("b", 0, body.data)]
    heavy += [Put("k", body.data), Remember("inbox/x", "i", result=body.data)]
    assert all(1000 <= weigh([op]) <= 1300 for op in heavy)
    light: list[Op] = [Put("k", b"v"), Log(Event(Kind.SENT, "a>b", message="m")), Trim("hub/x", 1)]
    assert all(0 < weigh([op]) <= 300 for op in light)
    assert weigh([*heavy, *light]) == sum(weigh([op]) for op in [*heavy, *light])


commits = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["fine", "refused unit", "bad data"])), max_size=12
)
troubles = st.lists(st.sampled_from(["down", "unknown", "never happened", "resolved", "submit more", ""]), max_size=8)


class Store:
    """What a store does, as far as the queue can tell: whole groups, chains in order, bad data refuses all of it."""

    def __init__(self, bad: set[int], stale: set[int]) -> None:
        self.bad, self.stale = bad, stale
        self.landed: list[tuple[int, str | None]] = []

    def commit(self, group: CommitGroup) -> list[Outcome]:
        if self.bad & set(tokens(group)):
            raise REFUSED
        outcomes: list[Outcome] = []
        broken: set[str] = set()
        for member in group.members:
            chain = member.unit.chain
            if chain in broken:
                outcomes.append(Refused((Skipped(),)))
            elif member.token in self.stale:
                broken |= {chain} if chain is not None else set()
                outcomes.append(Refused((Conflict(1),)))
            else:
                self.landed.append((member.token, chain))
                outcomes.append(Applied((Advanced(version=1),)))
        return outcomes


def _drive(queue: CommitQueue, store: Store, group: CommitGroup, trouble: str) -> None:
    if trouble == "down":
        queue.failed(group, DOWN)
    elif trouble == "unknown":
        queue.unknown(group)
    elif trouble == "never happened":
        queue.resolved(group, None)
    else:
        try:
            outcomes = store.commit(group)
        except StoreRefused as error:
            queue.refused(group, error)
        else:
            report: Callable[[CommitGroup, list[Outcome]], None] = (
                queue.resolved if trouble == "resolved" else queue.committed  # type: ignore[assignment]
            )
            report(group, outcomes)


@given(commits, commits, troubles, st.integers(1, 6))
def test_whatever_happens_each_hears_once_and_chains_hold(
    first: list[tuple[str | None, str]],
    later: list[tuple[str | None, str]],
    troubles: list[str],
    rows: int,
) -> None:
    heard = Heard()
    everything = [*first, *later]
    store = Store(
        bad={token for token, (_, fate) in enumerate(everything) if fate == "bad data"},
        stale={token for token, (_, fate) in enumerate(everything) if fate == "refused unit"},
    )
    queue = CommitQueue(GroupLimits(rows=rows))
    for token, (chain, _) in enumerate(first):
        queue.submit(put("k"), chain, token, heard)
    waiting_at: dict[int, int] = dict.fromkeys(range(len(first)), 0)
    fates = iter(troubles)
    while (group := queue.next_group()) is not None:
        trouble = next(fates, "")
        if trouble == "submit more":
            for token in range(len(waiting_at), len(everything)):
                waiting_at[token] = len(heard.order)
                queue.submit(put("k"), everything[token][0], token, heard)
        _drive(queue, store, group, trouble)

    assert sorted(heard.order) == sorted(waiting_at), "each commit hears back exactly once"
    committed = {token for token, kind in heard.kinds().items() if kind is Committed}
    assert Counter(token for token, _ in store.landed) == Counter(committed), (
        "Committed is said if and only if it landed"
    )
    assert not committed & (store.bad | store.stale)
    _assert_chains_hold(heard, store, waiting_at, everything)
    if not {"down", "unknown"} & set(troubles):
        _assert_only_the_guilty_fail(heard, store, everything)


def _assert_chains_hold(
    heard: Heard, store: Store, waiting_at: dict[int, int], everything: list[tuple[str | None, str]]
) -> None:
    """After a failure nothing lands of its chain that was already waiting when it failed."""
    for at, token in enumerate(heard.order):
        chain = everything[token][0]
        if chain is None or isinstance(heard.by_token[token], Committed):
            continue
        for landed, landed_chain in store.landed:
            assert not (landed_chain == chain and landed > token and waiting_at[landed] <= at)
    for chain in "ab":
        landed_in_order = [token for token, of in store.landed if of == chain]
        assert landed_in_order == sorted(landed_in_order)


def _assert_only_the_guilty_fail(heard: Heard, store: Store, everything: list[tuple[str | None, str]]) -> None:
    guilty = store.bad | store.stale
    for token, kind in heard.kinds().items():
        chain = everything[token][0]
        chained = chain is not None and any(other < token and everything[other][0] == chain for other in guilty)
        if kind is not Committed:
            assert token in guilty or chained


def test_what_commits_were_about_is_said_with_the_ids_of_their_messages(heard: Heard) -> None:
    queue = CommitQueue()
    for token, id in enumerate(("b", "a")):
        queue.submit((Append("hub/chat", Envelope(id)), Put("k", b"v")), None, token, heard)
    queue.submit((Enqueue("outbox/x", "1", Envelope("c")),), None, 2, heard)
    queue.submit(put("k"), None, 3, heard)
    queue.submit((Remember("inbox/x", "d"),), None, 4, heard)
    assert in_words(take(queue).members) == "5 commits: hub/chat b, a; inbox/x d; outbox/x c; 1 without a message"


def test_of_many_messages_some_are_named(heard: Heard) -> None:
    queue = CommitQueue()
    queue.submit(tuple(Append("hub/chat", Envelope(f"m{number}")) for number in range(23)), None, 1, heard)
    words = in_words(take(queue).members)
    assert words.startswith("1 commit: hub/chat m0, m1, ")
    assert words.endswith("m19 and 3 more")
