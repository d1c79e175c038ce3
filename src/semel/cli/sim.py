"""`semel sim`: run the production machines in a made-up world full of faults, one seed after the other."""

from __future__ import annotations

import typer

from semel.cli.options import DebugOption, JsonOption
from semel.cli.terminal import Answer


def sim(
    context: typer.Context,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> Answer:
    """x"""
    return Answer({})
