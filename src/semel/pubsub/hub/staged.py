"""What a session publishes with requests that came together, to become one commit."""

from __future__ import annotations

from semel.kernel.ops import Append, PutBlob
from semel.pubsub.hub.session_rows import ClientStream
from semel.pubsub.protocol.messages import Response


class StreamChanges:
    """What one commit says of the streams of a session: how they stand after it, None for one that is gone, and the
    replies to the client once it is durable. Of several acks for one stream the client gets the last."""

    __slots__ = ("replies", "streams")

    def __init__(self) -> None:
        self.streams: dict[str, ClientStream | None] = {}
        self.replies: dict[tuple[str, str], Response] = {}


class StagedPublishes:
    """Each record has an entry in `ack_ids`, None if its client asked for no answer. `chunks` are large bodies."""

    __slots__ = ("ack_ids", "appends", "chunks", "streams")

    def __init__(self) -> None:
        self.appends: list[Append] = []
        self.ack_ids: list[int | None] = []
        self.chunks: list[PutBlob] = []
        self.streams: StreamChanges | None = None

    def add(self, append: Append, ack_id: int | None) -> None:
        self.appends.append(append)
        self.ack_ids.append(ack_id)

    def stream_changes(self) -> StreamChanges:
        if self.streams is None:
            self.streams = StreamChanges()
        return self.streams
