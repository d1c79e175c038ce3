"""How long a delivery that goes back to its broker stays away: longer each time, for each message by itself."""

from __future__ import annotations

from collections import OrderedDict

from semel.kernel.retry import RetryPolicy

AGAIN = RetryPolicy(interval_s=0.1, factor=2.0, interval_max_s=60.0, jitter=0.2)
REMEMBERED_MAX = 10_000


class GiveBackDelays:
    """Not every broker counts deliveries, so they are counted here as well, for as many messages as fit. One that is
    forgotten only begins with a short wait again."""

    def __init__(self, policy: RetryPolicy = AGAIN, remembered_max: int = REMEMBERED_MAX) -> None:
        self._policy = policy
        self._max = remembered_max
        self._times: OrderedDict[str, int] = OrderedDict()

    def given_back(self, id: str, attempt: int, chance: float) -> float:
        """The wait for a message that goes back after delivery number `attempt`, as far as the broker counts."""
        times = max(self._times.pop(id, 0) + 1, attempt)
        self._times[id] = times
        if len(self._times) > self._max:
            self._times.popitem(last=False)
        return self._policy.wait_s(times, chance)

    def ended(self, id: str) -> None:
        self._times.pop(id, None)

    def __len__(self) -> int:
        return len(self._times)
