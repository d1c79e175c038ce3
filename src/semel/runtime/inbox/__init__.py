"""Handlers that run once per message: the application, its endpoints, their workers and the relay of its outbox."""
