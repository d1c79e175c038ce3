"""Idempotent handlers: who a message is, how an endpoint takes it, what follows a failure, what goes out. Pure."""
