"""Semel: exactly-once messaging that can prove it.

What a first program needs is here. The rest is where it is made: `semel.kernel`, `semel.stores`, `semel.runtime`.
"""

from typing import TYPE_CHECKING, Any

from semel import errors
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import (
    Advance,
    Append,
    Attempts,
    Claim,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Put,
    Remember,
    Unit,
    WorkState,
)
from semel.kernel.position import Position
from semel.kernel.store import Tx
from semel.stores.open import open_store
from semel.version import __version__

if TYPE_CHECKING:
    from semel.inbox.breaker import BreakerOptions
    from semel.inbox.endpoint import StylePolicy
    from semel.inbox.failure import exponential, on, retry
    from semel.inbox.settle import DeliveryEnd
    from semel.kernel.retry import RetryPolicy
    from semel.kernel.work import Worker, WorkerConfig
    from semel.pipes.language.path import Pipe
    from semel.pubsub.client.events import ClientOptions
    from semel.runtime.client.client import WebPubSubClient
    from semel.runtime.client.sync import SyncWebPubSubClient
    from semel.runtime.host.committer import Committer
    from semel.runtime.host.performer import Performer
    from semel.runtime.inbox.app import App
    from semel.runtime.inbox.definition import Verdict
    from semel.runtime.inbox.outbox import Outbox
    from semel.runtime.inbox.providers import django_transaction
    from semel.runtime.pipes.node import PipeNode

__all__ = [
    "Advance",
    "App",
    "Append",
    "Attempts",
    "BreakerOptions",
    "Claim",
    "ClientOptions",
    "Committer",
    "DeliveryEnd",
    "Duplicate",
    "Enqueue",
    "Envelope",
    "Event",
    "Finish",
    "Fresh",
    "Kind",
    "Log",
    "Outbox",
    "Performer",
    "Pipe",
    "PipeNode",
    "Position",
    "Put",
    "Remember",
    "RetryPolicy",
    "StylePolicy",
    "SyncWebPubSubClient",
    "Tx",
    "Unit",
    "Verdict",
    "WebPubSubClient",
    "WorkState",
    "Worker",
    "WorkerConfig",
    "__version__",
    "django_transaction",
    "errors",
    "exponential",
    "on",
    "open_store",
    "retry",
]

# asyncio and the machines are loaded when they are asked for: a command line starts without them
_LATER = {
    "App": "semel.runtime.inbox.app",
    "BreakerOptions": "semel.inbox.breaker",
    "ClientOptions": "semel.pubsub.client.events",
    "Committer": "semel.runtime.host.committer",
    "DeliveryEnd": "semel.inbox.settle",
    "Performer": "semel.runtime.host.performer",
    "Pipe": "semel.pipes.language.path",
    "Outbox": "semel.runtime.inbox.outbox",
    "PipeNode": "semel.runtime.pipes.node",
    "RetryPolicy": "semel.kernel.retry",
    "StylePolicy": "semel.inbox.endpoint",
    "SyncWebPubSubClient": "semel.runtime.client.sync",
    "Verdict": "semel.runtime.inbox.definition",
    "WebPubSubClient": "semel.runtime.client.client",
    "Worker": "semel.kernel.work",
    "WorkerConfig": "semel.kernel.work",
    "django_transaction": "semel.runtime.inbox.providers",
    "exponential": "semel.inbox.failure",
    "on": "semel.inbox.failure",
    "retry": "semel.inbox.failure",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'semel' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
