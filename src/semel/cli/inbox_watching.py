"""What `semel inbox run` lets others see: figures for Prometheus, and its log. Processes that it starts do as it was
told, by a variable of the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from semel.errors import ConfigError

if TYPE_CHECKING:
    from semel.runtime.inbox.app import App

VARIABLE = "SEMEL_INBOX_RUN"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class WatchOptions(msgspec.Struct, frozen=True):
    """Figures at the first free one of `ports`, if there are any."""

    log_format: LogFormat = LogFormat.TEXT
    host: str = ""
    ports: tuple[int, ...] = ()

    @staticmethod
    def asked(metrics: str | None, open_metrics: bool, log_format: LogFormat, processes: int) -> WatchOptions:
        """What was said on the command line, or to the process that has started this one."""
        if VARIABLE in os.environ:
            return msgspec.json.decode(os.environ[VARIABLE].encode(), type=WatchOptions)
        if metrics is None:
            if open_metrics:
                raise ConfigError("--open-metrics has nothing to open", fix="say where: --metrics 0.0.0.0:9464")
            return WatchOptions(log_format)
        from semel.runtime.inbox.metrics_server import PORT_MAX, parse_address

        host, port = parse_address(metrics, open_to_all=open_metrics)
        if port and port + processes - 1 > PORT_MAX:
            raise ConfigError(
                f"{processes} processes need the ports {port} to {port + processes - 1}", fix="begin with a lower port"
            )
        return WatchOptions(log_format, host, tuple(range(port, port + processes)) if port else (0,))

    @contextmanager
    def applied(self, app: App, *, is_one: bool) -> Iterator[None]:
        """While the process runs."""
        from semel.cli.log_lines import keep_log

        keep_log(as_json=self.log_format is LogFormat.JSON)
        if not is_one or not self.ports:
            yield
            return
        from semel.runtime.inbox.metrics_server import MetricsServer

        server = MetricsServer(app.metrics().text, self.host, self.ports)
        server.start()
        log = logging.getLogger("semel.inbox")
        log.setLevel(logging.INFO)
        log.info("figures are at http://%s:%d/metrics", self.host, server.port)
        try:
            yield
        finally:
            server.close()

    def announce(self, lines: Sequence[str], note: Callable[[str], None]) -> None:
        """What is about to run: for people, or as lines of a log that machines read."""
        if self.log_format is LogFormat.TEXT:
            note("\n".join(lines))
            return
        log = logging.getLogger("semel.inbox")
        log.setLevel(logging.INFO)
        for line in lines:
            log.info("%s", line)

    @contextmanager
    def passed_on(self) -> Iterator[None]:
        """While others are started, who do as this one was told."""
        os.environ[VARIABLE] = msgspec.json.encode(self).decode()
        try:
            yield
        finally:
            del os.environ[VARIABLE]
