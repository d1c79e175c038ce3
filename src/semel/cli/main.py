"""`semel`: the root of the command line, and the one place where errors become messages and exit codes.

Each command imports what it needs when it runs, so that `semel --help` is there at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from semel import __version__
from semel.cli import audit, bench, demo, doctor, inbox, pipeline, plan, pubsub, serve, sim, store, token
from semel.cli.options import bundled, option
from semel.cli.terminal import CommandResult, Terminal
from semel.errors import EXIT_USAGE, SemelError

EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class _Ordered(typer.core.TyperGroup):
    """Commands in the order in which one meets them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [
            "demo",
            "doctor",
            "serve",
            "token",
            "pubsub",
            "inbox",
            "plan",
            "store",
            "pipeline",
            "audit",
            "sim",
            "bench",
        ]


app = typer.Typer(
    name="semel",
    cls=_Ordered,
    help="""\
    Semel: exactly-once messaging.

    \b
    Examples:
      semel demo                             see it work
      semel doctor                           what is present, what is missing
      semel serve --dev                      the pub/sub server, for developers
      semel pubsub tail chat                 what goes on in a hub of it
      semel inbox run shop:app               handlers that run once per message
      semel store init sqlite:///semel.db    create a store
      semel store status --json              look into it
      semel sim --seeds 1000                 look for a seed that breaks a promise

    \b
    Exit codes:
      0 all is well           1 a claim is false       2 usage or configuration
      3 store or peer unreachable                      4 no settled data
      5 a commit is in doubt
    """,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command("doctor")(doctor.doctor)
app.command("serve")(serve.serve)
app.command("token")(token.token)
app.add_typer(pubsub.app, name="pubsub")
app.add_typer(inbox.app, name="inbox")
app.add_typer(store.app, name="store")
app.command("plan", cls=plan.PlanCommand)(plan.plan)
app.add_typer(pipeline.app, name="pipeline")
app.command("audit")(audit.audit)
app.command("sim")(sim.sim)
app.add_typer(bench.app, name="bench")
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        raise _Answered("version", CommandResult({"version": __version__}, [f"semel {__version__}"]))


@app.callback()
@bundled
def root(
    version: Annotated[
        bool, option("--version", "Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What comes before the command."""


class _Answered(Exception):
    """An option that is a command of its own has answered."""

    def __init__(self, command: str, answer: CommandResult) -> None:
        self.command = command
        self.answer = answer


def main() -> None:
    """The entry point of the `semel` script."""
    if "_SEMEL_COMPLETE" in os.environ:
        app(prog_name="semel")
    raise SystemExit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. Nothing but `SystemExit` from a signal leaves here."""
    terminal = Terminal(json="--json" in args, debug="--debug" in args or _is_set("SEMEL_DEBUG"))
    command = typer.main.get_command(app)
    try:
        return _run(command, args, terminal)
    except BrokenPipeError:
        # whoever read our output has gone; what is still buffered must not complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _run(command: Any, args: Sequence[str], terminal: Terminal) -> int:
    name = command_name(command, args)
    try:
        with command.make_context("semel", list(args), obj=terminal) as context:
            answer = command.invoke(context)
        return terminal.show(name, answer) if isinstance(answer, CommandResult) else 0
    except _Answered as answered:
        return terminal.show(answered.command, answered.answer)
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return terminal.fail(name, {"code": "interrupted", "message": "stopped", "fix": ""}, EXIT_INTERRUPTED)
    except SemelError as error:
        return terminal.fail(name, error.as_dict(), error.exit_code)
    except BrokenPipeError:
        raise
    except Exception as error:
        if hasattr(error, "format_message"):
            return _fail_usage(name, error, terminal)
        message = f"unexpected {type(error).__name__}: {error}"
        fix = "this is a fault in Semel: run it again with --debug and report what it prints"
        return terminal.fail(name, {"code": "internal", "message": message, "fix": fix}, EXIT_INTERNAL)


def _fail_usage(name: str, error: Any, terminal: Terminal) -> int:
    """The parser's own complaint. A group without a command is one too, but its help is the better answer."""
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError" and not terminal.json:
        if message:
            terminal.err.print(message)
        return EXIT_USAGE
    if type(error).__name__ == "NoArgsIsHelpError":
        message = "a command is missing"
    fix = f"see: {' '.join(['semel', *name.split()])} --help"
    return terminal.fail(name, {"code": "usage", "message": message, "fix": fix}, EXIT_USAGE)


def command_name(command: Any, args: Sequence[str]) -> str:
    """The words of the command line that name the command, as far as they do: "store status"."""
    words: list[str] = []
    for arg in args:
        children = getattr(command, "commands", {})
        if arg in children:
            words.append(arg)
            command = children[arg]
        elif not arg.startswith("-"):
            break
    return " ".join(words)


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "") not in ("", "0")
