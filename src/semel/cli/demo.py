"""`semel demo`: see it work."""

from __future__ import annotations

import typer

from semel.cli.terminal import Answer


def demo(context: typer.Context) -> Answer:
    """x"""
    return Answer({})
