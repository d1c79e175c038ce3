"""The inbox as a part of a server: `POST /v1/inbox/{endpoint}` stores CloudEvents at the endpoints of an application.

Handlers do not run here, but where the application runs: `semel inbox run`. So only durable endpoints are served.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from semel.http import HttpError, HttpRequest, HttpResponse, nothing_here, split_path
from semel.inbox.cloudevents_http import error_response
from semel.inbox.endpoint import EndpointMode
from semel.runtime.host.outages import public_message
from semel.runtime.inbox.http_entrance import BACKLOG_MAX, HttpEntrance, ReceivingApp
from semel.runtime.server.part import Health, Mount, Part, ServerContext

PREFIX = "/v1/inbox/"


@dataclass(frozen=True, slots=True)
class InboxPartSettings:
    origins: Sequence[str] = ("*",)
    backlog: int = BACKLOG_MAX


class InboxPart(Part):
    """The application and its store belong to whoever made it."""

    name = "inbox"

    def __init__(self, context: ServerContext, app: ReceivingApp, settings: InboxPartSettings | None = None) -> None:
        settings = settings or InboxPartSettings()
        self._app = app
        self._entrance = HttpEntrance(
            app,
            context.authority,
            origins=settings.origins,
            backlog=settings.backlog,
            modes=frozenset({EndpointMode.DURABLE}),
            clock=context.clock,
        )
        self.mounts = (Mount(PREFIX, self._handle, body_bytes=self._entrance.limits.body_bytes, errors=error_response),)

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        name = ""
        try:
            names = split_path(request.path)[2:]
            if len(names) != 1 or not names[0]:
                raise nothing_here()
            [name] = names
            return await self._entrance.respond(request, name)
        except HttpError as error:
            return self._entrance.refuse(error, name)

    def health(self) -> Health:
        """Its store may be another than the server's."""
        trouble = self._entrance.trouble
        return Health() if trouble is None else Health(f"the inbox: {public_message(trouble)}")

    async def ready(self) -> Health:
        """The hubs can be used without the inbox, and who sends to it is told when to come again."""
        return Health()

    def metrics(self) -> Iterator[Metric]:
        found = CounterMetricFamily(
            "semel_inbox_http", "What became of events that came by HTTP.", labels=("endpoint", "outcome")
        )
        for (endpoint, outcome), count in sorted(self._entrance.counts.items()):
            found.add_metric((endpoint, outcome), count)
        yield found

    async def overview(self) -> Mapping[str, Any]:
        durable = [name for name, each in self._app.endpoints.items() if each.options.mode is EndpointMode.DURABLE]
        return {"endpoints": sorted(durable)}

    def stop(self) -> None:
        self._entrance.close()
