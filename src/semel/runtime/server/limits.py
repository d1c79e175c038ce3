"""What a listener allows its clients: how much, and how often."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from semel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What one server allows. Behind a proxy all connections come from one address: raise `connections_per_address`,
    and `connection_rate` and `request_rate`, or make them 0, which is no limit.

    The rates are connections and requests in a second from one address; what ten seconds allow may come at once. They
    are not for who is on this machine.

    `bodies_bytes` is for all requests together that are not answered yet: nobody knows who they are before they are
    whole.

    A WebSocket is full above `full_bytes` that it has not taken, has room again below `room_bytes`, and is reported as
    stalled above `stalled_bytes`. It is pinged when nothing came for `ping_s` and given up after `dead_s`; also when
    it is full and takes less than `room_bytes` in that time. Times are looked at every `sweep_s`.
    """

    connections: int = 100_000
    connections_per_address: int = 20_000
    connection_rate: float = 1_000.0
    request_rate: float = 5_000.0
    head_bytes: int = 32 * 1024
    headers: int = 100
    body_bytes: int = 2 * 1024 * 1024
    bodies_bytes: int = 256 * 1024 * 1024
    head_s: float = 10.0
    body_s: float = 60.0
    idle_s: float = 75.0
    upgrade_s: float = 30.0
    frame_bytes: int = 1024 * 1024
    full_bytes: int = 1024 * 1024
    room_bytes: int = 256 * 1024
    stalled_bytes: int = 16 * 1024 * 1024
    ping_s: float = 20.0
    dead_s: float = 60.0
    close_s: float = 5.0
    stop_s: float = 5.0
    sweep_s: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            least_is_zero = name in ("connection_rate", "request_rate")
            if not (getattr(self, name) > 0 or (least_is_zero and getattr(self, name) == 0)):
                raise ConfigError(f"{name} is {getattr(self, name)}", fix=f"give {name} a positive number")
        if not self.room_bytes <= self.full_bytes <= self.stalled_bytes:
            raise ConfigError(
                "a socket must be full before it is stalled", fix="room_bytes <= full_bytes <= stalled_bytes"
            )
        if self.ping_s >= self.dead_s:
            raise ConfigError("a peer is given up before it is pinged", fix="make ping_s smaller than dead_s")


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
    """`per_s` times a second, and up to what `burst_s` seconds allow at once. 0: as often as one likes.

    For each source a single number is kept, the time at which all that it has asked for is paid off. Who has paid all
    off needs none, so memory is for those who came lately, and bounded.
    """

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
        """Removes up to two of the sources that were seen longest ago, if they owe nothing any more. Above the maximum
        they are removed even if they do: such a source may then exceed its rate, but nobody is refused wrongly."""
        for _ in range(2):
            oldest = next(iter(self._paid_at))
            if self._paid_at[oldest] > now and len(self._paid_at) <= self._known_max:
                return
            del self._paid_at[oldest]
            if not self._paid_at:
                return
