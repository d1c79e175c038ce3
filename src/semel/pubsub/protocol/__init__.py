"""Azure Web PubSub on the wire: handshake, frames, names, permissions and filters."""
