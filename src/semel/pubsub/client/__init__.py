"""The client library's machine: one session kept alive, each message published once and handed on once."""
