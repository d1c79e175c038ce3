"""Which codec speaks a subprotocol."""

from __future__ import annotations

from functools import cache, lru_cache

from semel.errors import LocalProtocolError
from semel.pubsub.protocol.frames import NAMES_KEPT, Codec, Frame, OneByOne, subprotocol_of
from semel.pubsub.protocol.messages import DataType, GroupMessage, Response, ServerMessage


class SimpleCodec(OneByOne):
    """Encodes only. What a simple client's frame means depends on how it has connected: the session decides."""

    def encode(self, response: Response) -> Frame | None:
        """Text and JSON as a text frame, binary and protobuf as a binary one. None: this client gets nothing."""
        if not isinstance(response, GroupMessage | ServerMessage) or response.data is None:
            return None
        data = response.data
        if data.type is DataType.BINARY or data.type is DataType.PROTOBUF:
            return data.body
        try:
            return data.body.decode()
        except UnicodeDecodeError as error:
            raise LocalProtocolError(f"the {data.type} is not UTF-8: {error}", fix="send it as binary") from None


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
