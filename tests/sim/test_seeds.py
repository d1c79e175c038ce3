"""Worlds in which every promise holds, and proof that not all days in them were sunny. `make sim` runs many more."""

from __future__ import annotations

from collections import Counter

import pytest

from semel.sim import Sweep, run

pytestmark = pytest.mark.sim

SEEDS = 500
CHUNK = 50
SAMPLE = 250

FAULTS_AT_LEAST = {
    "link.lost": 200,
    "link.doubled": 200,
    "link.overtaken": 200,
    "link.straggler": 50,
    "link.cut": 200,
    "link.partition": 50,
    "link.arrived-after-cut": 50,
    "node.crash": 100,
    "node.pause": 100,
    "node.pause-at-work": 20,
    "store.crash": 100,
    "disk.torn": 2,
    "disk.unsynced-lost": 5,
    "disk.unsynced-kept": 5,
    "commit.cut-before": 10,
    "commit.cut-inside": 10,
    "commit.cut-after": 10,
    "commit.unavailable": 100,
    "commit.refused": 100,
    "commit.doubt-early": 30,
    "commit.doubt-lost": 30,
    "commit.doubt-landed": 30,
    "commit.resolved-landed": 30,
    "commit.resolved-lost": 30,
    "commit.unresolved": 30,
    "completion.committed": 10_000,
    "completion.refused": 100,
    "completion.stale": 10,
    "completion.failed": 100,
    "completion.chained": 10,
    "completion.halved": 50,
    "completion.unknown": 30,
    "handler.failed": 100,
    "handler.slow": 100,
    "hub.restored": 20,
    "hub.restored-lost": 100,
    "read.epoch-changed": 5,
    "read.failed": 50,
    "notice.suspended": 50,
    "notice.trimmed": 10,
    "notice.claim-lost": 20,
    "notice.gap-skipped": 2,
    "closed.reload": 100,
    "retention.swept": 500,
}

VARIANTS_AT_LEAST = {
    "id": 40,
    "strict": 20,
    "strict by hop": 20,
    "monotonic": 20,
    "monotonic by hop": 20,
    "stop-and-wait": 50,
    "windowed": 50,
    "gap wait": 20,
    "gap ask": 20,
    "gap skip": 20,
    "queue": 50,
    "stream": 50,
    "rivals": 10,
    "one hub node": 20,
    "two hub nodes": 50,
    "without sessions": 10,
    "late reader": 50,
    "dead_letter": 20,
    "park": 20,
    "discard": 20,
}


@pytest.mark.parametrize("first", range(SAMPLE, SEEDS, CHUNK))
def test_every_promise_holds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        report = run(seed)
        assert report.holds, str(report)


OTHER_WORLDS = {"pipes": 100, "hub": 300, "client": 300, "inbox": 100}
CHUNKS = [(world, first) for world, seeds in OTHER_WORLDS.items() for first in range(0, seeds, CHUNK)]


@pytest.mark.parametrize(("world", "first"), CHUNKS)
def test_every_promise_holds_in_the_other_worlds(world: str, first: int) -> None:
    for seed in range(first, min(first + CHUNK, OTHER_WORLDS[world])):
        report = run(seed, world=world)
        assert report.holds, str(report)


def test_the_weather_is_rough_enough() -> None:
    """Every fault strikes, every variant is drawn, and the messages arrive all the same."""
    sample = Sweep(run(seed) for seed in range(SAMPLE))
    assert sample.holds, str(sample.failed[0])
    seen = sample.seen
    drawn = Counter(variant for report in sample for variant in _variants(report.weather))
    assert not {fault: seen.get(fault, 0) for fault, least in FAULTS_AT_LEAST.items() if seen.get(fault, 0) < least}
    assert not {variant: drawn[variant] for variant, least in VARIANTS_AT_LEAST.items() if drawn[variant] < least}
    figures = sample.figures
    assert figures["sent"] > 15 * SAMPLE
    assert figures["handled"] > figures["sent"]
    assert figures["duplicates"] > figures["sent"] / 2
    assert figures["resent"] > figures["sent"]
    assert figures["crashes"] > SAMPLE


def _variants(weather: dict) -> list[str]:
    hops = [weather["inbound"], *(sub["hop"] for sub in weather["subscriptions"])]
    variants = [hop["order"] + (" by hop" if hop["hop_index"] else "") for hop in hops]
    variants += ["stop-and-wait" if hop["policy"]["window"] == 1 else "windowed" for hop in hops]
    variants += [f"gap {hop['gap']['then']}" for hop in hops if hop["order"] == "strict"]
    variants += [sub["target"] for sub in weather["subscriptions"]]
    variants += ["rivals" for sub in weather["subscriptions"] if sub["rivals"]]
    variants += ["one hub node" if weather["hub_nodes"] == 1 else "two hub nodes", weather["handling"]["then"]]
    variants += ["late reader"] if weather["hub_reader"] == "late" else []
    variants += ["without sessions"] if weather["traffic"]["without_session"] else []
    return variants
