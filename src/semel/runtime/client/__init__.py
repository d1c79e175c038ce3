"""The client library: WebPubSubClient over real sockets, with its outbox."""
