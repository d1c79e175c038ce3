"""The world of the inbox: rough enough, and each of its checkers fires when there is something to find."""

from __future__ import annotations

from collections import Counter

import pytest

from semel.sim import Sweep, run

pytestmark = pytest.mark.sim

SAMPLE = 60
AT_LEAST = {
    "broker.again": 300,
    "broker.doubled": 80,
    "broker.given-back": 100,
    "broker.ack-lost": 50,
    "node.crash": 50,
    "node.pause": 80,
    "node.pause-at-work": 40,
    "store.crash": 10,
    "commit.unavailable": 100,
    "commit.doubt-landed": 40,
    "commit.doubt-lost": 40,
    "completion.stale": 40,
    "direct.unavailable": 20,
    "direct.stale": 10,
    "handler.failed": 300,
    "handler.slow": 150,
    "handler.poison": 10,
    "handler.store-trouble": 10,
    "handler.doubt-landed": 2,
    "handler.doubt-lost": 2,
    "mark.later": 2,
    "operator.replay": 10,
    "operator.discard": 2,
    "retention.swept": 500,
    "remote.away": 30,
    "remote.unanswered": 30,
    "remote.duplicate": 30,
    "breaker.opened": 60,
    "breaker.closed": 10,
    "breaker.refused": 30,
    "buffer.again": 100,
    "buffer.full": 5,
    "buffer.lost": 15,
    "handler.cancels": 60,
    "caller.cancels": 120,
    "caller.store-trouble": 10,
    "periodic.not-now": 30,
}


def test_the_weather_is_rough_enough() -> None:
    sample = Sweep(run(seed, world="inbox") for seed in range(SAMPLE))
    assert sample.holds, [str(report) for report in sample.failed]
    assert not {what: sample.seen.get(what, 0) for what, least in AT_LEAST.items() if sample.seen.get(what, 0) < least}
    drawn = Counter(
        f"{plan['name']} {plan[what]}"
        for report in sample
        for plan in report.weather["endpoints"]
        for what in ("style", "on_crash", "ways", "end", "failed_head")
    )
    for variant in ("sms retry", "sms drop", "sms park", "stock eager", "stock optimistic", "orders blocks"):
        assert drawn[variant] > 5, variant
    assert sample.figures["handled"] > 10 * SAMPLE
    assert sample.figures["dead_lettered"] > 5
    assert sample.figures["cancelled"] > SAMPLE


FINDS = [
    ("was acked and the store has no row of it", "inbox-flag-before-commit"),
    ("took effect 2 times", "no-dedup"),
    ("happened 2 times and may at most once", "inbox-ambiguous-runs"),
    ("took effect after", "inbox-retry-loses-turn"),
    ("was accepted and is lost", "inbox-placeholder-committed-first"),
    ("is not ended and open", "inbox-requeue-through-dedup"),
    ("under another id", "inbox-outgoing-ids-minted"),
    ("never sent", "inbox-relay-takes-silence-for-yes"),
    ("before its time", "inbox-scheduled-on-two-paths"),
    ("never forgotten", "inbox-keep-forgotten"),
    ("only reserved", "inbox-discard-leaves-row"),
    ("no worker looks for it", "inbox-row-unclaimable"),
    ("not drained", "inbox-poison-for-ever"),
    ("taken back and sent all the same", "inbox-cancel-also-sends"),
    ("outbox/shop: accepted and replayed is not ended and open", "inbox-cancel-in-words-only"),
    ("times at its receiver", "inbox-periodic-per-process"),
    ("begun while the breaker was open", "inbox-breaker-lets-all-in"),
    ("news: m", "inbox-buffer-counts-as-durable"),
]


@pytest.mark.parametrize(("violation", "plant"), FINDS)
def test_a_checker_fires_with_a_plant_and_not_without_it(violation: str, plant: str) -> None:
    found = (
        seed for seed in range(200) if any(violation in each for each in run(seed, plant, world="inbox").violations)
    )
    assert run(next(found), world="inbox").holds
