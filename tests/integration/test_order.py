"""Messages that are sent one behind the other while the store takes some and not others, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from semel import ClientOptions, WebPubSubClient
from semel.auth.keys import DEV_KEY, AccessKeys
from semel.errors import StoreBusy
from semel.kernel.ops import Append, Outcome, Unit
from semel.kernel.store import Records
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.protocol.client_tokens import client_token
from semel.pubsub.protocol.frames import Subprotocol
from semel.runtime.server.part import ServerSettings
from semel.runtime.server.pubsub import PubSub
from semel.runtime.server.server import serving
from semel.stores.memory import MemoryStore

pytestmark = pytest.mark.timeout(120)

KEYS = AccessKeys(DEV_KEY)
COUNT = 300


class Moody(MemoryStore):
    """Does not take the first and third commit with messages. What it does takes a while, so that more come in
    behind."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        appends = [op for unit in units for op in unit.ops if isinstance(op, Append)]
        if any(op.kind == RecordKind.MESSAGE for op in appends):
            time.sleep(0.01)
            self.asked += 1
            if self.asked in (1, 3):
                raise StoreBusy("not now")
        return super().commit(units)


@pytest.mark.parametrize("subprotocol", [Subprotocol.JSON_RELIABLE, Subprotocol.PROTOBUF])
async def test_what_was_refused_is_published_before_what_was_sent_behind_it(subprotocol: Subprotocol) -> None:
    store = Moody()
    async with serving(store, ServerSettings(KEYS, port=0), [PubSub]) as place:
        path = f"{place.endpoint}/client/hubs/chat"
        token = client_token(KEYS, path, now=time.time(), roles=("webpubsub.sendToGroup",))
        url = f"ws{path.removeprefix('http')}?access_token={token}"
        options = ClientOptions(subprotocol)
        async with WebPubSubClient(url, options=options) as client, asyncio.TaskGroup() as sending:
            for number in range(COUNT):
                sending.create_task(client.send_to_group("g", number))
                await asyncio.sleep(0)
    assert store.asked > 1
    found = store.read("hub/chat", None, 10_000)
    assert isinstance(found, Records)
    published = [int(record.envelope.data) for record in found.records if record.kind == RecordKind.MESSAGE]
    assert published == list(range(COUNT))
