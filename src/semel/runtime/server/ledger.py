"""The journey of a message for who may look: `GET /v1/ledger?message=order-7`, over all stores of this server.

It reads no more than `ROWS_MAX` rows of a store to find ranges, and says so if there are more (`whole` is false): then
`semel store ledger --message` looks through all of it. Stores that cannot be reached are named in `away`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from semel.auth.authority import READ
from semel.errors import StoreError
from semel.http import JSON, HttpRequest, HttpResponse, Query, bad_request, json_error, unavailable
from semel.kernel.store import Store
from semel.kernel.text import check_id
from semel.runtime.server.part import Mount, Part, Route, Routed, ServerContext
from semel.stores.journey import StoreJourney, journey_in, plain_step, timeline

log = logging.getLogger(__name__)

ROWS_MAX = 200_000
LOOKS_MAX = 4
"""At a time. Each has a thread, and reads."""
SERVER = "server"


class LedgerPart(Part):
    """`others` are stores beside the server's own, by name."""

    name = "ledger"

    def __init__(self, context: ServerContext, others: Mapping[str, Callable[[], Store]] | None = None) -> None:
        own = context.performer.store
        self._stores: dict[str, Callable[[], Store]] = {SERVER: lambda: own, **(others or {})}
        self._room = asyncio.Semaphore(LOOKS_MAX)
        routes = [Route("GET", "/v1/ledger", self._look, READ)]
        routed = Routed(routes, context.authority, clock=context.clock)
        self.mounts = (Mount("/v1/ledger/", routed, body_bytes=0, errors=json_error),)

    async def _look(self, request: HttpRequest, names: dict[str, str]) -> HttpResponse:
        message = Query(request.query).one("message")
        if not message:
            raise bad_request("no message is named", fix="ask for /v1/ledger?message=<id>", target="message")
        check_id("message", message)
        if self._room.locked():
            raise unavailable("others are looking through the ledger")
        async with self._room:
            found = await asyncio.to_thread(self._read_all, message)
        steps = timeline({store: each.entries for store, each in found.items() if each is not None})
        body = {
            "message": message,
            "stores": [store for store, each in found.items() if each is not None],
            "away": [store for store, each in found.items() if each is None],
            "whole": all(each is not None and each.is_whole for each in found.values()),
            "entries": [plain_step(step) for step in steps],
        }
        return HttpResponse(200, (("content-type", JSON), ("cache-control", "no-store")), msgspec.json.encode(body))

    def _read_all(self, message: str) -> dict[str, StoreJourney | None]:
        """None: it cannot be reached. Two names may lead to one database, which then tells of it once."""
        found: dict[str, StoreJourney | None] = {}
        seen: set[str] = set()
        for name, opened in self._stores.items():
            try:
                store = opened()
                if store.store_id not in seen:
                    found[name] = journey_in(store, message, rows_max=ROWS_MAX)
                    seen.add(store.store_id)
            except StoreError as error:
                log.warning("the ledger of %s cannot be read: %s", name, error)
                found[name] = None
        return found
