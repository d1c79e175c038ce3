"""The client without asyncio has all that the other has, under the same names, with the same parameters and words."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import pytest

from semel.runtime.client.client import WebPubSubClient
from semel.runtime.client.streams import OutgoingStream
from semel.runtime.client.sync import SyncOutgoingStream, SyncWebPubSubClient, Waiting, looking, waiting

PAIRS = [
    (WebPubSubClient, SyncWebPubSubClient),
    (OutgoingStream, SyncOutgoingStream),
]
FOR_THE_OTHER_CLIENT = {"end", "raise_error"}
"""What a client does for the one that waits."""


def public(of: type) -> dict[str, Any]:
    return {name: each for name, each in vars(of).items() if not name.startswith("_") and inspect.isfunction(each)}


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS, ids=["client", "outgoing"])
def test_the_same_methods_take_the_same(asynchronous: type, synchronous: type) -> None:
    theirs = public(asynchronous)
    if asynchronous is WebPubSubClient:
        theirs = {name: each for name, each in theirs.items() if name not in FOR_THE_OTHER_CLIENT}
    ours = public(synchronous)
    assert sorted(theirs) == sorted(ours)
    for name, method in theirs.items():
        assert list(inspect.signature(method).parameters.values()) == list(
            inspect.signature(ours[name]).parameters.values()
        ) or name.startswith("on_")  # handlers are functions there and coroutines here
        assert not inspect.iscoroutinefunction(ours[name])


class Counter:
    def __init__(self) -> None:
        self.count = 0

    async def add(self, n: int, *, twice: bool = False) -> int:
        """Add a number."""
        self.count += 2 * n if twice else n
        return self.count

    def seen(self, *, more: int = 0) -> int:
        """Look at the count."""
        return self.count + more


class SyncCounter(Waiting[Counter]):
    def __init__(self) -> None:
        self._async = Counter()

    def _call(self, asked: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(asked)

    add = waiting(Counter.add)
    seen = looking(Counter.seen)


def test_a_method_is_called_with_what_it_is_given_and_waited_for() -> None:
    counter = SyncCounter()
    assert counter.add(1) == 1
    assert counter.add(2, twice=True) == 5
    assert counter.seen(more=2) == 7
    assert SyncCounter.add.__doc__ == "Add a number."
    assert SyncCounter.seen.__doc__ == "Look at the count."
