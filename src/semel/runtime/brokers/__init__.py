"""Brokers as transports of an inbox and as destinations of an outbox. Their clients are imported when they are used."""
