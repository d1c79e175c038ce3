"""What a listener allows its clients."""

from __future__ import annotations

from dataclasses import dataclass

from semel.errors import ConfigError
from semel.pubsub.protocol.frames import FRAME_BYTES_MAX


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
    frame_bytes: int = FRAME_BYTES_MAX
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
