"""How often somebody may come: so many times a second, and what a few seconds allow at once.

For each one a single number is kept, the time at which all that it has asked for is paid off. Who has paid all off
needs none, so memory is for those who came lately, and bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

BURST_S = 10.0
KNOWN_MAX = 65_536


@lru_cache(maxsize=4096)
def source_of(address: str) -> str:
    """Who is taken for one. In IPv6 that is a /64: whoever has one address there has all of them."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        if not found.is_loopback:
            return f"{IPv6Address(int(found) >> 64 << 64)}/64"
    return str(found)


@lru_cache(maxsize=4096)
def is_loopback(source: str) -> bool:
    """Who is on this machine: programs of its own, or a proxy that brings everybody."""
    try:
        return ip_address(source).is_loopback
    except ValueError:
        return not source


class Rate:
    """`per_s` times a second, and up to what `burst_s` seconds allow at once. 0: as often as one likes."""

    def __init__(self, per_s: float, burst_s: float = BURST_S, known_max: int = KNOWN_MAX) -> None:
        self._cost_s = 1 / per_s if per_s else 0.0
        self._burst_s, self._known_max = max(burst_s, self._cost_s), known_max
        self._paid_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._paid_at)

    def wait_s(self, source: str, now: float) -> float:
        """0: it may come, and that counts. Otherwise how long it has to wait until it may."""
        if not self._cost_s:
            return 0.0
        paid_at = max(now, self._paid_at.get(source, now)) + self._cost_s
        if paid_at > now + self._burst_s:
            return paid_at - now - self._burst_s
        self._paid_at[source] = paid_at
        self._paid_at.move_to_end(source)
        self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        """Those who came longest ago, two for each that comes, as far as they have paid; more if there are too many:
        then one of them may come too often, and nobody too seldom."""
        for _ in range(2):
            oldest = next(iter(self._paid_at))
            if self._paid_at[oldest] > now and len(self._paid_at) <= self._known_max:
                return
            del self._paid_at[oldest]
            if not self._paid_at:
                return
