from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError, LimitExceeded
from semel.kernel.envelope import Envelope
from semel.kernel.hop import AskForGap, Confirm, HopMessage, Wire
from semel.runtime.transports.frames import (
    HEADER_BYTES,
    Challenge,
    FrameBuffer,
    Hello,
    Refusal,
    Welcome,
    decode,
    decode_greeting,
    encode,
    prove,
)

WIRES: list[Wire] = [
    HopMessage(
        "outbox/a/1/7", Envelope(id="m", data=b"\x00\xff", session="s", index=3, headers={"a": "b"}), 7, attempt=2
    ),
    Confirm(("outbox/a/1/7", "outbox/a/1/8")),
    AskForGap("s", 3, 5),
]
CHALLENGE = Challenge(1, "listener", b"n" * 16)


def payload(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:HEADER_BYTES], "big") == len(frame) - HEADER_BYTES
    return frame[HEADER_BYTES:]


@pytest.mark.parametrize("wire", WIRES)
def test_a_message_comes_back_as_it_was(wire: Wire) -> None:
    assert decode(payload(encode(wire))) == wire


@pytest.mark.parametrize("greeting", [CHALLENGE, Hello(1, "me", b"n", b"p"), Welcome(b"p"), Refusal("no")])
def test_a_greeting_is_no_message_and_no_message_is_a_greeting(greeting: Challenge | Hello | Welcome | Refusal) -> None:
    assert decode_greeting(payload(encode(greeting))) == greeting
    with pytest.raises(InputError):
        decode(payload(encode(greeting)))
    with pytest.raises(InputError):
        decode_greeting(payload(encode(WIRES[1])))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_input_error(data: bytes) -> None:
    for read in (decode, decode_greeting):
        with suppress(InputError):
            read(data)


@pytest.mark.parametrize(
    "envelope",
    [{"id": ""}, {"id": "a\x00b"}, {"id": "a" * 300}, {"id": "a", "index": -1}, {"id": "a", "data": b"x" * 300_000}],
)
def test_an_envelope_that_could_not_be_built_here_is_refused(envelope: dict[str, object]) -> None:
    hostile = msgspec.msgpack.encode({"type": "message", "delivery": "d", "envelope": envelope, "index": 1})
    with pytest.raises(InputError):
        decode(hostile)


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 7))
def test_bytes_in_any_portions_give_the_same_frames(payloads: list[bytes], portion: int) -> None:
    stream = b"".join(len(one).to_bytes(HEADER_BYTES, "big") + one for one in payloads)
    buffer = FrameBuffer(1000)
    found = [one for at in range(0, len(stream), portion) for one in buffer.feed(stream[at : at + portion])]

    assert found == payloads
    assert FrameBuffer(1000).feed(stream) == payloads


def test_a_frame_above_the_limit_is_refused_by_its_header_alone() -> None:
    buffer = FrameBuffer(100)
    assert buffer.feed((100).to_bytes(HEADER_BYTES, "big")) == []
    with pytest.raises(LimitExceeded, match="101"):
        FrameBuffer(100).feed((101).to_bytes(HEADER_BYTES, "big"))


def test_a_proof_depends_on_all_that_was_said() -> None:
    proofs = {
        prove(b"secret", "dialler", CHALLENGE, "me", b"nonce"),
        prove(b"other", "dialler", CHALLENGE, "me", b"nonce"),
        prove(b"secret", "listener", CHALLENGE, "me", b"nonce"),
        prove(b"secret", "dialler", Challenge(1, "listener", b"m" * 16), "me", b"nonce"),
        prove(b"secret", "dialler", Challenge(1, "else", b"n" * 16), "me", b"nonce"),
        prove(b"secret", "dialler", CHALLENGE, "you", b"nonce"),
        prove(b"secret", "dialler", CHALLENGE, "me", b"other"),
    }
    assert len(proofs) == 7
