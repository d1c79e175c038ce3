"""What the performer asks of a transport, and what a transport may ask of the performer.

A transport promises nothing about arrival: the resend machine covers what gets lost. It promises that what does arrive
is whole, and that it comes from a peer that has shown who it is.
"""

from __future__ import annotations

from typing import Any, Protocol


class Inbox(Protocol):
    """Where a transport puts what it receives. Called on the loop."""

    @property
    def is_full(self) -> bool:
        """The store is slower than the peers: stop reading from them and await `room`."""
        ...

    async def room(self) -> None: ...

    def received(self, transport: Transport, peer: str, message: Any) -> None: ...

    def connected(self, transport: Transport, peer: str) -> None: ...

    def disconnected(self, transport: Transport, peer: str) -> None: ...


class Transport(Protocol):
    def bind(self, inbox: Inbox) -> None: ...

    def send(self, peer: str, message: Any) -> bool:
        """Put a message into the peer's buffer. False when there is no connection or no room: it is dropped."""
        ...

    def flush(self) -> None:
        """Write out what `send` has gathered."""
        ...

    def pause(self) -> None:
        """Take nothing more from peers. What is to be sent still goes out."""
        ...

    async def close(self) -> None: ...
