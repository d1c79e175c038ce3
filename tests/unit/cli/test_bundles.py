"""A bundle is one parameter of a command and several options on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from semel.cli.options import bundled

ColourOption = Annotated[str, typer.Option("--colour", help="Which colour.")]


@dataclass(frozen=True)
class Paint:
    colour: ColourOption = "red"
    coats: Annotated[int, typer.Option("--coats", min=1)] = 1


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.fixture
def app(seen: list[Any]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @bundled
    def brush(context: typer.Context, paint: Paint, wall: str, quick: bool = False) -> None:
        """Paint a wall."""
        seen.append((context.info_name, paint, wall, quick))

    return app


def test_the_options_of_a_bundle_come_together(app: typer.Typer, seen: list[Any]) -> None:
    done = CliRunner().invoke(app, ["north", "--coats", "2", "--quick", "--json"])
    assert done.exit_code == 0, done.output
    assert seen == [("brush", Paint("red", 2), "north", True)]


def test_what_typer_checks_it_checks_in_a_bundle(app: typer.Typer, seen: list[Any]) -> None:
    assert CliRunner().invoke(app, ["north", "--coats", "0"]).exit_code == 2
    assert seen == []


def test_own_options_come_first_and_those_of_every_command_last(app: typer.Typer) -> None:
    shown = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, ["--help"]).output
    places = [shown.index(option) for option in ("--quick", "--colour", "--coats", "--json", "--debug")]
    assert places == sorted(places)
    assert "Paint a wall." in shown
    assert "Which colour." in shown
