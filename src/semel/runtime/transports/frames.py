"""Frames between Semel's own processes: four bytes of length, big endian, then msgpack.

A connection begins with a handshake. The side that listens speaks first:

    listener → dialler   Challenge   its version, name and nonce
    dialler → listener   Hello       its version, name, nonce and proof
    listener → dialler   Welcome     its proof, or Refusal with a reason

A proof is an HMAC over both nonces and both names under the shared secret, so neither side gives the secret away, an
old proof is worthless, and one side's proof cannot be played back as the other's.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from semel.errors import InputError, LimitExceeded, SemelError
from semel.kernel.hop import AskForGap, Confirm, HopMessage, Wire
from semel.pipes.services.channel import ChannelWire
from semel.pipes.services.storage import StorageWire
from semel.pipes.workers.route import Parcel

VERSION = 1
NONCE_BYTES = 16
HEADER_BYTES = 4


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    version: int
    name: str
    nonce: bytes


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    version: int
    name: str
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    proof: bytes


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    reason: str


class WireParcel(Parcel, frozen=True, tag="parcel"):
    """What a parcel may hold when it comes from another process."""

    bodies: tuple[Wire | ChannelWire | StorageWire, ...]


Greeting = Challenge | Hello | Welcome | Refusal

_encoder = msgspec.msgpack.Encoder()
_wire = msgspec.msgpack.Decoder(HopMessage | Confirm | AskForGap | WireParcel)
_greeting = msgspec.msgpack.Decoder(Greeting)


def encode(frame: Wire | Parcel | Greeting) -> bytes:
    payload = _encoder.encode(frame)
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def decode(payload: bytes) -> Wire | Parcel:
    """A message of a peer that has been welcomed. A malformed one raises InputError and nothing else."""
    try:
        return _wire.decode(payload)
    except SemelError as error:
        raise InputError(f"malformed message: {error.message}", fix="check the peer") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"malformed frame: {error}", fix="check that the peer speaks Semel's frames") from None


def decode_greeting(payload: bytes) -> Greeting:
    try:
        return _greeting.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"malformed greeting: {error}", fix="check that the peer speaks Semel's frames") from None


class FrameBuffer:
    """Cuts a stream of bytes into payloads. A frame above the limit raises LimitExceeded before it is gathered."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._bytes += data
        payloads: list[bytes] = []
        at = 0
        while len(self._bytes) - at >= HEADER_BYTES:
            size = int.from_bytes(self._bytes[at : at + HEADER_BYTES], "big")
            if size > self.frame_bytes_max:
                raise LimitExceeded(
                    f"frame of {size:,} bytes, the limit is {self.frame_bytes_max:,}", fix="send large bodies in chunks"
                )
            end = at + HEADER_BYTES + size
            if end > len(self._bytes):
                break
            payloads.append(bytes(self._bytes[at + HEADER_BYTES : end]))
            at = end
        del self._bytes[:at]
        return payloads


def prove(secret: bytes, role: str, challenge: Challenge, name: str, nonce: bytes) -> bytes:
    """The proof of one side. `name` and `nonce` are the dialler's."""
    signed = msgspec.msgpack.encode([role, VERSION, challenge.name, challenge.nonce, name, nonce])
    return hmac.new(secret, signed, hashlib.sha256).digest()
