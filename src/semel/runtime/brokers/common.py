"""What the brokers have in common: a delivery as an arrival, and who is asked to install what."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from semel.errors import ConfigError, InputError
from semel.inbox.broker_messages import ForeignMessage, excerpt, read_message
from semel.inbox.sources import BrokerSource
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX
from semel.runtime.inbox.entrance import Arrival, Unreadable

CONNECT_S = 10.0
CONFIRM_S = 10.0
"""How long a broker may take to say that it has a message."""


def arrival_of(message: ForeignMessage, source: BrokerSource) -> Arrival:
    try:
        return read_message(message, source)
    except InputError as error:
        fix = f" ({error.fix})" if error.fix else ""
        return Unreadable(excerpt(message.data), f"from {source}, {message.subject!r}: {error.message}{fix}")


def is_cut(message: ForeignMessage) -> bool:
    return len(message.data) > DATA_INLINE_BYTES_MAX


def client_of(module: str, extra: str) -> ModuleType:
    """The client library of a broker, which only those install who use it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise ConfigError(
            f"a broker is to be used and {module.partition('.')[0]} is not installed",
            fix=f'install it: pip install "semel[{extra}]"',
        ) from None


def shown(url: str) -> str:
    """The address of a broker without user and password."""
    addresses = []
    for each in url.split(","):
        parts = urlsplit(each)
        addresses.append(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")
    return ",".join(addresses)


def said(error: BaseException) -> str:
    """Some errors of the clients have no text."""
    text: Any = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
