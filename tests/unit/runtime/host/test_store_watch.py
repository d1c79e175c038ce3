"""When the store is taken to be in trouble, and when that is over."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from semel.errors import StoreUnavailable
from semel.kernel.effects import CommitFailed, Committed
from semel.kernel.ops import Put
from semel.kernel.store import Store
from semel.runtime.host import store_watch
from semel.runtime.host.outages import Outages, Use
from semel.runtime.host.performer import Performer
from semel.runtime.host.store_watch import StoreWatch
from semel.testing.limits import scaled

TROUBLE = StoreUnavailable("it is gone", fix="look")


class Watched:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slow_s = 100.0, 0.0
        self.store = Mock(spec=Store, node="n1")
        self.performer = Mock(spec=Performer, store=self.store, outages=Outages(), is_open=True)
        self.performer.loop = asyncio.get_running_loop()
        self.performer.under_way_s.side_effect = lambda: self.slow_s
        self.watch, self.outages = StoreWatch(self.performer), self.performer.outages
        self.checks: list[asyncio.Future[None]] = []
        monkeypatch.setattr(store_watch.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(store_watch, "run_in_thread", self._aside)

    def _aside(self, loop: asyncio.AbstractEventLoop, job: object) -> asyncio.Future[None]:
        assert job == self.store.check
        self.checks.append(loop.create_future())
        return self.checks[-1]

    def submitted(self) -> list[tuple[Put, ...]]:
        return [each.args[0] for each in self.performer.submit.mock_calls]


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def test_while_all_is_well_the_store_is_asked_now_and_then_and_nothing_is_written(watched: Watched) -> None:
    for now in (100.0, 101.0, 105.0, 105.1):
        watched.now = now
        watched.watch.look()
        watched.checks[-1].done() or watched.checks[-1].set_result(None)
        await asyncio.sleep(0)
    assert len(watched.checks) == 2
    assert (watched.submitted(), watched.outages.current) == ([], None)


async def test_a_check_that_fails_or_does_not_come_back_is_an_outage(watched: Watched) -> None:
    watched.watch.look()
    watched.checks[0].set_exception(TROUBLE)
    await asyncio.sleep(0)
    assert watched.outages.current is not None
    assert watched.outages.current.cause is TROUBLE


async def test_a_store_that_hangs_is_asked_once_and_reported(watched: Watched) -> None:
    watched.watch.look()
    watched.now += 2.5
    watched.watch.look()
    assert len(watched.checks) == 1
    assert watched.outages.current is not None
    assert "has not answered" in watched.outages.current.cause.message


async def test_a_commit_that_takes_too_long_is_an_outage_although_reads_work(watched: Watched) -> None:
    watched.slow_s = 3.0
    watched.watch.look()
    watched.checks[0].set_result(None)
    await asyncio.sleep(0)
    assert watched.outages.current is not None


async def test_in_an_outage_one_trial_at_a_time_and_one_in_a_second(watched: Watched) -> None:
    watched.outages.record(TROUBLE)
    watched.watch.look()
    watched.watch.look()
    ((trial,),) = watched.submitted()
    assert trial.value is not None
    assert len(trial.value) == 64 * 1024
    watched.performer.submit.call_args.args[2](Mock(spec=CommitFailed))
    watched.watch.look()
    assert len(watched.submitted()) == 1
    watched.now += 1.0
    watched.watch.look()
    assert len(watched.submitted()) == 2


async def test_a_trial_that_was_taken_is_removed_again(watched: Watched) -> None:
    watched.outages.record(TROUBLE)
    watched.watch.look()
    watched.performer.submit.call_args.args[2](Committed(0, ()))
    assert watched.submitted()[-1] == (Put("trial/n1", None),)


async def test_nothing_is_tried_where_only_a_restart_helps_or_when_all_is_closed(watched: Watched) -> None:
    watched.outages.record(TROUBLE)
    watched.performer.is_open = False
    watched.watch.look()
    assert watched.submitted() == []


async def test_at_the_end_reading_has_to_work_too_if_it_did_not(watched: Watched) -> None:
    watched.outages.record(TROUBLE, use=Use.READING)
    watched.performer.submit.side_effect = lambda ops, _, told: told(Committed(0, ()))
    watched.performer.try_reading.side_effect = lambda done: done()
    await watched.watch.look_again(scaled(60.0))
    watched.performer.try_reading.assert_called_once()


async def test_who_asks_for_health_in_an_outage_is_told_at_once(watched: Watched) -> None:
    watched.outages.record(TROUBLE)
    assert not await watched.watch.is_well()
    assert watched.checks == []
