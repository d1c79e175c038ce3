"""A hub as source and sink: what a query writes reaches the clients of a running server, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

from semel.auth.keys import AccessKeys
from semel.pubsub.client.data import Message
from semel.pubsub.protocol.client_tokens import client_token
from semel.runtime.client.sync import SyncWebPubSubClient
from semel.runtime.export.exporter import DATASETS, export
from semel.spark import runner
from semel.spark.audit.run import AuditOptions, audit
from semel.spark.pipeline import Input, Pipeline
from semel.stores.open import open_store
from semel.testing.limits import scaled
from semel.testing.serve_process import KEY, ServeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROLES = ("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup")
WAIT_S = 30.0


class Server:
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'hub.db'}"
        self.lake = folder / "lake"
        with closing(open_store(self.url)) as store:
            # from now on nothing is trimmed that is not exported
            for dataset in DATASETS:
                export(store, self.lake, dataset)
        self.process = ServeProcess(self.url, folder / "serve.log")

    def client(self, user: str) -> SyncWebPubSubClient:
        path = f"127.0.0.1:{self.process.port}/client/hubs/chat"
        token = client_token(AccessKeys(KEY), f"http://{path}", now=time.time(), user_id=user, roles=ROLES)
        return SyncWebPubSubClient(f"ws://{path}?access_token={token}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    with asyncio.Runner() as runner:
        runner.run(made.process.start())
        yield made
        assert runner.run(made.process.stop()) == 0


class Heard:
    """What a client hears, in order."""

    def __init__(self, client: SyncWebPubSubClient) -> None:
        self._messages: Queue[Message] = Queue()
        client.on_message(self._messages.put)

    def next(self, count: int) -> list[tuple[str | None, Any]]:
        found = [self._messages.get(timeout=scaled(WAIT_S)) for _ in range(count)]
        return [(message.group, message.data) for message in found]


def test_clients_and_queries_talk_over_a_hub(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    rows = [(f"row-{n}", f"news {n}", "text/plain", "g/red" if n else "") for n in range(4)]
    frame = spark.createDataFrame(rows, "id string, data string, datacontenttype string, target string").coalesce(1)
    frame = frame.orderBy("id")
    sink = {"store": server.url, "pipeline": "news", "to": "hub/chat"}
    with server.client("ann") as ann, server.client("bob") as bob:
        to_ann, to_bob = Heard(ann), Heard(bob)
        ann.join_group("red")
        for _ in range(2):  # a job that is run again finds everything there
            frame.write.format("semel").options(**sink).mode("append").save()
        assert bob.send_to_group("red", {"from": "bob"}, id="mine")
        assert to_ann.next(5) == [
            (None, "news 0"),
            *(("red", f"news {n}") for n in (1, 2, 3)),
            ("red", {"from": "bob"}),
        ]
        assert to_bob.next(1) == [(None, "news 0")]

        # what others published is read as messages only, and goes back to those it is for
        pipeline = Pipeline("loud", (Input(server.url, "hub/chat"),), server.url, to="hub/loud")
        with closing(open_store(server.url)) as store:
            options = runner.RunOptions(checkpoint=str(tmp_path / "place"), once=True)
            assert runner.run(spark, pipeline, store, options).rows == 5
            assert store.cursor("spark/loud/hub/chat") is not None
        loud = spark.read.format("semel").options(store=server.url, stream="hub/loud").load()
        found = [tuple(row) for row in loud.orderBy("offset").select("id", "target", "source").collect()]
        assert [row[:2] for row in found] == [
            ("row-0", ""), ("row-1", "g/red"), ("row-2", "g/red"), ("row-3", "g/red"), ("mine", "g/red")
        ]  # fmt: skip
        assert found[-1][2] == bob.connection_id

    with closing(open_store(server.url)) as store:
        for dataset in DATASETS:
            export(store, server.lake, dataset)
    result = audit(spark, [server.lake], AuditOptions(deadline_s=0))
    assert (result.gaps, result.examples) == (0, ())
    [heard] = [cell for cell in result.totals if cell.hop == "hub/chat>sub"]
    assert (heard.sent, heard.accepted, heard.given_up, heard.in_flight) == (6, 6, 0, 0)
    [sent] = [cell for cell in result.totals if cell.hop == "spark/news>hub/chat"]
    assert (sent.sent, sent.accepted_unique) == (4, 4)
