"""`semel bench`: how fast it is on this machine, beside what the machine can do at all."""

from __future__ import annotations

import typer

from semel.cli.terminal import Answer

app = typer.Typer(help="Measure.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure."""


@app.command("store")
def store(context: typer.Context) -> Answer:
    """x"""
    return Answer({})
