from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from semel.errors import (
    CommitInDoubt,
    InputError,
    StaleFence,
    StoreError,
    StoreFull,
    StoreGone,
    StoreRefused,
    StoreUnavailable,
)
from semel.kernel.envelope import Envelope
from semel.kernel.group import GroupLimits
from semel.kernel.ops import Advanced, Append, Claim, Claimed, Duplicate, Enqueue, Finish, Fresh, Put, Unit, WorkState
from semel.runtime.host.committer import Committer
from semel.runtime.host.performer import Performer
from semel.testing.limits import scaled
from unit.runtime.stores import STREAM, ScriptedStore, append, ids


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
async def performer(store: ScriptedStore) -> AsyncIterator[Performer]:
    async with Performer(store, doubt_s=0.2) as performer:
        yield performer
        store.gate.set()


@pytest.fixture
async def committer(performer: Performer) -> Committer:
    return Committer(performer)


async def reached(store: ScriptedStore) -> None:
    assert await asyncio.to_thread(store.under_way)


async def test_results_come_back_in_the_order_of_the_ops(committer: Committer) -> None:
    first, second = await committer.commit([append("a"), Put("key", b"1", expected=0)])
    again = await committer.commit([append("a")])

    assert isinstance(first, Fresh)
    assert second == Advanced(version=1)
    assert again == (Duplicate(first.position),)


async def test_everybody_who_commits_in_one_tick_shares_a_transaction(
    store: ScriptedStore, committer: Committer
) -> None:
    await asyncio.gather(*(committer.commit([append(f"m{number}")]) for number in range(64)))

    assert [len(group) for group in store.groups] == [64]


async def test_commits_gather_while_one_is_under_way(store: ScriptedStore, committer: Committer) -> None:
    store.gate.clear()
    first = asyncio.create_task(committer.commit([append("first")]))
    await reached(store)
    rest = [asyncio.create_task(committer.commit([append(f"m{number}")])) for number in range(10)]
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(first, *rest)

    assert [len(group) for group in store.groups] == [1, 10]


async def test_producers_that_come_back_at_once_share_the_next_transaction(
    store: ScriptedStore, committer: Committer
) -> None:
    """The group begins after those who just heard have had their turn: otherwise they would go one by one."""

    async def produce(name: str) -> None:
        for number in range(20):
            await committer.commit([append(f"{name}-{number}")])

    await asyncio.gather(*(produce(f"p{number}") for number in range(16)))

    assert [len(group) for group in store.groups] == [16] * 20


async def test_a_refused_group_is_halved_until_only_the_guilty_fails(
    store: ScriptedStore, committer: Committer
) -> None:
    store.poison["m5"] = StoreRefused("no", fix="")
    results = await asyncio.gather(
        *(committer.commit([append(f"m{number}")]) for number in range(16)), return_exceptions=True
    )

    failed = [number for number, result in enumerate(results) if isinstance(result, BaseException)]
    assert failed == [5]
    assert isinstance(results[5], StoreRefused)
    assert sorted(ids(store)) == sorted(f"m{number}" for number in range(16) if number != 5)


@pytest.mark.parametrize("error", [InputError("bad name"), OverflowError("int too large"), ValueError("embedded null")])
async def test_an_error_that_is_not_the_stores_own_is_somebodys_data(
    store: ScriptedStore, committer: Committer, error: Exception
) -> None:
    store.poison["bad"] = error
    good, bad = await asyncio.gather(
        committer.commit([append("good")]), committer.commit([append("bad")]), return_exceptions=True
    )

    assert isinstance(good, tuple)
    assert isinstance(bad, InputError | StoreRefused)
    assert str(error) in str(bad)


async def test_an_error_that_nobody_knows_is_a_doubt_and_nothing_is_committed_again(
    store: ScriptedStore, committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    """It may come after COMMIT: here it does, and the appends have no identity."""

    def commit_then_break(units: Sequence[Unit]) -> None:
        store.commit_behind_the_back(units)
        raise RuntimeError("the disk is on fire")

    store.script.append(commit_then_break)
    results = await asyncio.gather(
        *(committer.commit([Append(STREAM, Envelope(id=f"m{number}"))]) for number in range(4)), return_exceptions=True
    )

    assert [type(result) for result in results] == [CommitInDoubt] * 4
    assert ids(store) == ["m0", "m1", "m2", "m3"]
    assert "the disk is on fire" in caplog.text
    assert len(await committer.commit([append("later")])) == 1


async def test_a_store_in_trouble_fails_the_whole_group_and_the_next_may_succeed(
    store: ScriptedStore, committer: Committer
) -> None:
    def full(units: Sequence[Unit]) -> None:
        raise StoreFull("no space left", fix="free some")

    store.script.append(full)
    results = await asyncio.gather(
        *(committer.commit([append(f"m{number}")]) for number in range(3)), return_exceptions=True
    )

    assert [type(result) for result in results] == [StoreFull] * 3
    assert ids(store) == []
    assert len(await committer.commit([append("later")])) == 1


async def test_a_failure_takes_the_later_ones_of_its_chain_with_it(store: ScriptedStore, committer: Committer) -> None:
    store.gate.clear()
    blocker = asyncio.create_task(committer.commit([append("blocker")]))
    await reached(store)
    store.poison["k"] = StoreRefused("no", fix="")
    chained = [asyncio.create_task(committer.commit([append(id)], chain="c")) for id in ("k", "k+1", "k+2")]
    other = asyncio.create_task(committer.commit([append("other")], chain="d"))
    await asyncio.sleep(0)
    store.gate.set()
    results = await asyncio.gather(blocker, *chained, other, return_exceptions=True)

    assert [type(result) for result in results[1:4]] == [StoreRefused, StoreError, StoreError]
    assert isinstance(results[4], tuple)
    assert sorted(ids(store)) == ["blocker", "other"]
    assert len(await committer.commit([append("k+1")], chain="c")) == 1


async def test_a_failed_chain_also_falls_where_it_is_held_back(store: ScriptedStore) -> None:
    """Held back by back-pressure or waiting in the queue: k fails, so k+1 must not land."""
    async with Performer(store, limits=GroupLimits(rows=1, waiting_rows=1)) as performer:
        committer = Committer(performer)
        store.poison["k"] = StoreRefused("no", fix="")
        chained = [committer.commit([append(id)], chain="c") for id in ("k", "k+1", "k+2", "k+3")]
        results = await asyncio.gather(*chained, committer.commit([append("other")]), return_exceptions=True)

    assert [type(result) for result in results[:4]] == [StoreRefused, StoreError, StoreError, StoreError]
    assert ids(store) == ["other"]


async def test_a_stale_fence_says_so(committer: Committer) -> None:
    await committer.commit([Enqueue("inbox/test", "w", Envelope(id="w"))])
    [claimed] = await committer.commit([Claim("inbox/test", "me")])
    assert isinstance(claimed, Claimed)
    fence = claimed.rows[0].fence

    with pytest.raises(StaleFence, match=f"fence {fence}"):
        await committer.commit([append("a"), Finish("inbox/test", "w", WorkState.DONE, fence=fence + 1)])
    await committer.commit([Finish("inbox/test", "w", WorkState.DONE, fence=fence)])


async def test_a_version_conflict_names_the_version(committer: Committer) -> None:
    await committer.commit([Put("key", b"1", expected=0)])

    with pytest.raises(StaleFence, match="version 1"):
        await committer.commit([Put("key", b"2", expected=0)])


async def test_a_commit_in_doubt_that_happened_is_answered_as_committed(
    store: ScriptedStore, committer: Committer
) -> None:
    def lost_answer(units: Sequence[Unit]) -> None:
        store.answers.append(StoreUnavailable("not yet", fix=""))
        store.answers.append(store.commit_behind_the_back(units))
        raise CommitInDoubt("the connection broke", marker="tx-1")

    store.script.append(lost_answer)
    [result] = await committer.commit([append("a")])

    assert isinstance(result, Fresh)
    assert store.resolved == ["tx-1", "tx-1"]
    assert ids(store) == ["a"]


async def test_a_commit_in_doubt_that_never_happened_is_tried_again(store: ScriptedStore, committer: Committer) -> None:
    def broken(units: Sequence[Unit]) -> None:
        store.answers.append(None)
        raise CommitInDoubt("the connection broke", marker="tx-1")

    store.script.append(broken)
    [result] = await committer.commit([append("a")])

    assert isinstance(result, Fresh)
    assert len(store.groups) == 2


async def test_a_doubt_that_only_a_restart_could_end_is_told_at_once(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down(units: Sequence[Unit]) -> None:
        raise CommitInDoubt("gone, inside a commit", marker="gone")

    store.script.append(break_down)
    store.answers.append(StoreGone("gone"))
    async with Performer(store, doubt_s=3600.0) as performer, asyncio.timeout(scaled(60)):
        with pytest.raises(CommitInDoubt):
            await Committer(performer).commit([append("a")])
        assert performer.outages.current is not None
        assert performer.outages.current.needs_restart
    assert sorted(caplog.messages) == [f"in doubt for good: 1 commit: {STREAM} a", "the store is in trouble: gone"]


async def test_a_doubt_that_stays_is_told_as_doubt_and_nothing_overtakes_it(
    store: ScriptedStore, committer: Committer
) -> None:
    def broken(units: Sequence[Unit]) -> None:
        store.answers.extend([StoreUnavailable("gone", fix="")] * 100)
        raise CommitInDoubt("the connection broke", marker="tx-1")

    store.script.append(broken)
    told: list[str] = []
    doubtful = asyncio.create_task(committer.commit([append("a")]))
    doubtful.add_done_callback(lambda _: told.append("a"))
    await reached(store)
    later = asyncio.create_task(committer.commit([append("b")]))
    later.add_done_callback(lambda _: told.append("b"))

    with pytest.raises(CommitInDoubt, match="nobody can say"):
        await doubtful
    await later
    assert told == ["a", "b"]
    assert store.groups == [[["a"]], [["b"]]]
    assert len(store.resolved) > 1


async def test_producers_are_held_back_in_order_when_the_store_is_slow(store: ScriptedStore) -> None:
    limits = GroupLimits(rows=4, waiting_rows=8)
    async with Performer(store, limits=limits) as performer:
        committer = Committer(performer)
        store.gate.clear()
        first = asyncio.create_task(committer.commit([append("first")]))
        await reached(store)
        order: list[int] = []

        async def produce(number: int) -> None:
            await committer.commit([append(f"m{number}")])
            order.append(number)

        rest = [asyncio.create_task(produce(number)) for number in range(40)]
        await asyncio.sleep(0)
        assert performer.is_full
        assert len(performer._queue) == 1 + 8
        store.gate.set()
        await asyncio.gather(first, *rest)

    assert order == sorted(order)
    assert [len(group) for group in store.groups] == [1] + [4] * 10


async def test_a_producer_that_is_cancelled_while_held_back_commits_nothing(store: ScriptedStore) -> None:
    async with Performer(store, limits=GroupLimits(rows=1, waiting_rows=1)) as performer:
        committer = Committer(performer)
        store.gate.clear()
        tasks = [asyncio.create_task(committer.commit([append(id)])) for id in ("under way", "waiting", "held", "last")]
        await reached(store)
        tasks[2].cancel()
        await asyncio.sleep(0)
        store.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(results[2], asyncio.CancelledError)
    assert ids(store) == ["under way", "waiting", "last"]


async def test_a_producer_that_is_cancelled_does_not_disturb_the_others(
    store: ScriptedStore, committer: Committer
) -> None:
    store.gate.clear()
    gone, stays = (asyncio.create_task(committer.commit([append(id)])) for id in ("gone", "stays"))
    await reached(store)
    gone.cancel()
    await asyncio.sleep(0)
    store.gate.set()

    assert len(await stays) == 1
    assert sorted(ids(store)) == ["gone", "stays"]


async def test_close_finishes_what_was_taken(store: ScriptedStore) -> None:
    performer = await Performer(store, limits=GroupLimits(rows=10, waiting_rows=20)).start()
    committer = Committer(performer)
    store.gate.clear()
    tasks = [asyncio.create_task(committer.commit([append(f"m{number}")])) for number in range(100)]
    await reached(store)
    closing = asyncio.create_task(performer.close())
    await asyncio.sleep(0)
    store.gate.set()
    await closing

    assert all(len(results) == 1 for results in await asyncio.gather(*tasks))
    assert len(ids(store)) == 100


async def test_a_closed_performer_takes_nothing(store: ScriptedStore) -> None:
    async with Performer(store) as performer:
        committer = Committer(performer)

    with pytest.raises(StoreUnavailable, match="closed"):
        await committer.commit([append("a")])
    assert ids(store) == []


async def test_close_does_not_wait_for_ever_for_a_store_that_hangs(store: ScriptedStore) -> None:
    performer = await Performer(store).start()
    committer = Committer(performer)
    store.gate.clear()
    under_way = asyncio.create_task(committer.commit([append("under way")]))
    await reached(store)
    waiting = asyncio.create_task(committer.commit([append("waiting")]))
    await asyncio.sleep(0)
    await performer.close(timeout_s=0.05)

    with pytest.raises(CommitInDoubt):
        await under_way
    with pytest.raises(StoreUnavailable):
        await waiting
    store.gate.set()


async def test_producers_that_are_held_back_hear_when_closing_gives_up(store: ScriptedStore) -> None:
    performer = await Performer(store, limits=GroupLimits(rows=1, waiting_rows=1)).start()
    committer = Committer(performer)
    store.gate.clear()
    tasks = [asyncio.create_task(committer.commit([append("under way")]))]
    await reached(store)
    tasks += [asyncio.create_task(committer.commit([append(f"m{number}")])) for number in range(3)]
    tasks.append(asyncio.create_task(committer.commit([append("chained")], chain="c")))
    await asyncio.sleep(0)
    assert len(committer._held) == 3
    await performer.close(timeout_s=0.05)

    async with asyncio.timeout(scaled(30)):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [CommitInDoubt] + [StoreUnavailable] * 4
    store.gate.set()


async def test_one_op_may_be_large_and_still_goes_alone(store: ScriptedStore) -> None:
    async with Performer(store, limits=GroupLimits(bytes=1000)) as performer:
        committer = Committer(performer)
        big = Append(STREAM, Envelope(id="big", data=b"x" * 5000), identity="big")
        await asyncio.gather(committer.commit([append("a")]), committer.commit([big]), committer.commit([append("b")]))

    assert store.groups == [[["a"]], [["big"]], [["b"]]]
