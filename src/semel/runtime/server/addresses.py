"""Hosts as people write them."""

from __future__ import annotations

THIS_MACHINE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to find here what listens on every address."""


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
