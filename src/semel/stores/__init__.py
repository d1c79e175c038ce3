"""Where messages are kept: memory for tests and the simulator, SQLite inside the process, PostgreSQL between nodes."""

from semel.stores.open import open_store

__all__ = ["open_store"]
