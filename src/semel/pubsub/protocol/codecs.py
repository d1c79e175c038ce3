"""Which codec speaks a subprotocol."""

from __future__ import annotations

from functools import cache, lru_cache

from semel.pubsub.protocol.frames import NAMES_KEPT, Codec, subprotocol_of
from semel.pubsub.protocol.frames_simple import SimpleCodec


@lru_cache(NAMES_KEPT)
def codec_for(subprotocol: str | None) -> Codec | SimpleCodec:
    """What speaks this subprotocol: one for JSON, one for protobuf, one for simple clients.

    The last can only encode: the session knows what the frames of a simple client mean.
    """
    known = subprotocol_of(subprotocol)
    return _codec(None if known is None else known.partition(".")[0])


@cache
def _codec(encoding: str | None) -> Codec | SimpleCodec:
    # each is loaded when it is needed: protobuf takes its time, and who speaks JSON can do without the package
    if encoding == "json":
        from semel.pubsub.protocol.frames_json import JsonCodec

        return JsonCodec()
    if encoding == "protobuf":
        from semel.pubsub.protocol.frames_protobuf import ProtobufCodec

        return ProtobufCodec()
    return SimpleCodec()
