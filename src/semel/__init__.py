"""Semel: exactly-once messaging."""

__version__ = "0.1.0"
