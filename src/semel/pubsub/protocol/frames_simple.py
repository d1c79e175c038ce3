"""Frames for clients without a subprotocol: the data of messages, and nothing of the protocol around it."""

from __future__ import annotations

from semel.errors import LocalProtocolError
from semel.pubsub.protocol.frames import Frame, OneByOne
from semel.pubsub.protocol.messages import DataType, GroupMessage, Response, ServerMessage


class SimpleCodec(OneByOne):
    """Encodes only. What a simple client's frame means depends on how it has connected: the session decides."""

    def encode(self, response: Response) -> Frame | None:
        """Text and JSON as a text frame, binary and protobuf as a binary one. None: this client is not told."""
        if not isinstance(response, GroupMessage | ServerMessage) or response.data is None:
            return None
        data = response.data
        if data.type is DataType.BINARY or data.type is DataType.PROTOBUF:
            return data.body
        try:
            return data.body.decode()
        except UnicodeDecodeError as error:
            raise LocalProtocolError(f"the {data.type} is not UTF-8: {error}", fix="send it as binary") from None
