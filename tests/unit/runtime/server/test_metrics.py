"""Metrics: every family is there from the start, says what is so, and is in the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.pubsub.hub.world import World

from semel.kernel.effects import Close, Notify
from semel.pubsub.hub.context import HubCounts
from semel.runtime.host.outages import Outages
from semel.runtime.host.performer import CommitTimes, Performer
from semel.runtime.server.operating import MACHINE_FAILED, Metrics
from semel.runtime.server.part import Part
from semel.runtime.server.pubsub import TOPICS, Traffic, hub_metrics
from semel.runtime.server.server import StorePart
from semel.stores.memory import MemoryStore

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "how-to" / "operate-the-server.md").read_text()


class Hubs(Part):
    """Pub/sub with this traffic."""

    name = "pubsub"
    topics = TOPICS

    def __init__(self, *traffic: Traffic) -> None:
        self._traffic = traffic

    def metrics(self) -> Iterable[Metric]:
        return hub_metrics(self._traffic)


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def test_what_hubs_and_their_links_say() -> None:
    world = World()
    world.connect("ann", "Ann", groups=("news",))
    world.connect("bob", groups=("news",))
    world.drop("bob")
    world.publish("ann", "news", "four")
    counts = HubCounts()
    counts.accepted, counts.deliveries = 1, 2
    hub: Any = world.hub
    hub.counts = counts
    metrics = Metrics("n1", [Hubs(Traffic("chat", hub, 1, 7, 9, 3, 1), Traffic("new", None, 0, 0, 0))])
    found = samples(metrics)
    assert found["semel_hubs",] == 2
    assert found["semel_hub_connections", "chat"] == 1
    assert found["semel_hub_sessions_waiting", "chat"] == 1
    assert found["semel_hub_groups", "chat"] == 1
    assert found["semel_hub_backlog_messages", "chat"] == 2
    assert found["semel_hub_backlog_bytes", "chat"] == 8
    assert found["semel_hub_backlog_longest", "chat"] == 1
    assert found["semel_hub_frames_received_total", "chat"] == 7
    assert found["semel_hub_frames_sent_total", "chat"] == 9
    assert found["semel_hub_handler_requests_total", "chat"] == 3
    assert found["semel_hub_handler_failures_total", "chat"] == 1
    assert (found["semel_hub_accepted_total", "chat"], found["semel_hub_deliveries_total", "chat"]) == (1, 2)
    assert ("semel_hub_groups", "new") not in found


def test_how_long_commits_take() -> None:
    times = CommitTimes()
    for took_s, commits in ((0.0005, 1), (0.001, 20), (0.003, 300), (60.0, 1)):
        times.add(took_s, commits)
    performer = Mock(spec=Performer, store=MemoryStore(), commit_times=times, outages=Outages())
    found = samples(Metrics("n1", [StorePart(performer)]))
    assert found["semel_commits_total",] == 322
    assert found["semel_transaction_seconds_count",] == 4
    assert found["semel_transaction_seconds_sum",] == pytest.approx(60.0045)
    assert found["semel_transaction_seconds_bucket", "0.001"] == 2
    assert found["semel_transaction_seconds_bucket", "0.005"] == 3
    assert found["semel_transaction_seconds_bucket", "10.0"] == 3
    assert found["semel_transaction_seconds_bucket", "+Inf"] == 4


def test_what_is_reported_and_answered_is_counted() -> None:
    metrics = Metrics("n1", [Hubs()])
    metrics.observe("hub/chat", Notify("backlog", "c1 is closed"))
    metrics.observe("hub/chat", Notify("something new", ""))
    metrics.observe("hub/chat", Close("finished"))
    metrics.responded(202)
    found = samples(metrics)
    assert found["semel_notices_total", "backlog"] == 1
    assert found["semel_notices_total", "something new"] == 1
    assert found["semel_notices_total", "slow-client"] == 0
    assert found["semel_http_responses_total", "202"] == 1
    assert found["process_resident_memory_bytes",] > 0


def test_two_servers_in_one_process_do_not_mix() -> None:
    first, second = Metrics("a", []), Metrics("b", [])
    first.responded(200)
    assert ("semel_http_responses_total", "200") not in samples(second)


def test_every_metric_and_topic_is_documented() -> None:
    hub: Any = World().hub
    hub.counts = HubCounts()
    performer = Mock(spec=Performer, store=MemoryStore(), commit_times=CommitTimes(), outages=Outages())
    metrics = Metrics("n", [StorePart(performer), Hubs(Traffic("h", hub, 0, 0, 0))])
    metrics.responded(200)
    names = {re.sub("_(bucket|count|sum)$", "", name) for name, *_ in samples(metrics) if name.startswith("semel_")}
    documented = set(re.findall(r"^\| `(semel_\w+)", PAGE, re.MULTILINE))
    assert documented == names
    for topic in (*TOPICS, MACHINE_FAILED):
        assert f"`{topic}`" in PAGE


def test_every_topic_that_a_hub_reports_is_known() -> None:
    sources = (ROOT / "src" / "semel" / "pubsub").rglob("*.py")
    reported = {
        topic
        for source in sources
        for topic in re.findall(r'context\.(?:notify|report|report_once)\(\s*"([a-z-]+)"', source.read_text())
    }
    assert reported == set(TOPICS)
