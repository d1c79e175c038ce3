"""The root of the command line: help, version, and how errors become messages and exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import typer
from tests.unit.cli.conftest import Semel

from semel import __version__, errors
from semel.cli import doctor
from semel.cli.main import EXIT_INTERNAL, app, command_name
from semel.kernel.envelope import from_json, unpack

ROOT = typer.main.get_command(app)
COMMANDS = [
    "demo", "doctor", "serve", "token", "pubsub", "inbox", "plan", "store", "pipeline", "audit", "sim", "bench",
    "inbox init", "inbox run", "inbox send", "inbox status", "inbox pause", "inbox resume", "inbox adopt",
    "inbox follow", "inbox dead-letters",
    "pubsub hubs",
    "pubsub connections", "pubsub groups", "pubsub send", "pubsub close", "pubsub tail", "store init", "store status",
    "store migrate", "store sweep", "store export", "store ledger", "store new-epoch", "bench store", "bench inbox",
    "bench pipes",
    "bench turns", "bench spark", "bench pubsub", "pipeline run", "pipeline list", "pipeline status", "pipeline stop",
]  # fmt: skip


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let `semel doctor` raise an error."""

    def arrange(error: BaseException) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(doctor, "_answer", fail)
        monkeypatch.setattr(doctor, "_MACHINE", ())

    return arrange


# -- help and version


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help_with_an_example_that_begins_with_it(command: str, semel: Semel) -> None:
    ran = semel(*command.split(), "--help")
    assert (ran.exit_code, ran.err) == (0, "")
    assert "Examples:\n" in ran.out
    assert f"    semel {command}".rstrip() in ran.out
    assert "--json" in ran.out
    assert "--debug" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_commands_are_listed_in_the_order_in_which_one_meets_them(semel: Semel) -> None:
    listed = semel("--help").out.split("Commands:\n")[1]
    assert [line.split()[0] for line in listed.splitlines()] == [
        "demo", "doctor", "serve", "token", "pubsub", "inbox", "plan", "store", "pipeline", "audit", "sim", "bench",
    ]  # fmt: skip


def test_nothing_lies_in_the_command_tree_that_is_not_tested_here() -> None:
    groups = {name: getattr(command, "commands", {}) for name, command in ROOT.commands.items()}  # type: ignore[attr-defined]
    assert sorted(COMMANDS) == sorted([*groups, *(f"{group} {name}" for group, of in groups.items() for name in of)])


def test_the_version(semel: Semel) -> None:
    assert semel("--version").out == f"semel {__version__}\n"
    ran = semel("--version", "--json")
    assert ran.json == {"ok": True, "command": "version", "result": {"version": __version__}, "error": None}


# -- usage


@pytest.mark.parametrize(
    ("args", "command", "message"),
    [
        (("stor",), "", "No such command 'stor'. Did you mean 'store'"),
        (("store", "statsu"), "store", "No such command 'statsu'. Did you mean 'status'"),
        (("store", "status", "--stroe", "x"), "store status", "No such option: --stroe"),
        (("sim", "--seeds", "many"), "sim", "Invalid value for '--seeds'"),
        (("sim", "--seeds", "0"), "sim", "Invalid value for '--seeds'"),
        (("store", "status", "--store"), "store status", "'--store' requires an argument"),
        (("store", "status", "extra"), "store status", "unexpected extra argument"),
    ],
)
def test_a_mistake_in_the_command_line_is_answered_with_2_and_where_to_look(
    args: tuple[str, ...], command: str, message: str, semel: Semel
) -> None:
    plain = semel(*args)
    assert (plain.exit_code, plain.out) == (2, "")
    assert message in plain.err
    assert f"fix: see: semel {command}".rstrip() in plain.err
    ran = semel("--json", *args)
    assert ran.exit_code == 2
    assert ran.json["command"] == command
    assert ran.error["code"] == "usage"
    assert message in ran.error["message"]


def test_no_command_shows_the_help(semel: Semel) -> None:
    for args in ((), ("store",), ("bench",)):
        ran = semel(*args)
        assert ran.exit_code == 2
        assert "Commands:" in ran.err + ran.out
        ran = semel(*args, "--json")
        assert ran.error["message"].rstrip(".") in ("a command is missing", "Missing command")


def test_the_name_of_a_command_is_the_words_that_lead_to_it() -> None:
    assert command_name(ROOT, ["store", "status", "--store", "sim"]) == "store status"
    assert command_name(ROOT, ["--debug", "store", "init", "sim"]) == "store init"
    assert command_name(ROOT, ["nonsense", "sim"]) == ""


# -- errors


def _all_errors() -> Iterator[errors.SemelError]:
    pending = [errors.SemelError]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        needs = {
            "EpochChanged": {"current": 2},
            "CommitInDoubt": {"marker": "m"},
            "StreamBroken": {"name": "Cancelled"},
        }
        extra = needs.get(kind.__name__, {})
        yield kind("it went wrong", fix="do this next", **extra)


@pytest.mark.parametrize("error", list(_all_errors()), ids=lambda error: type(error).__name__)
def test_every_error_is_shown_with_its_fix_and_its_exit_code(
    error: errors.SemelError, semel: Semel, failing: Callable[[BaseException], None]
) -> None:
    failing(error)
    plain = semel("doctor")
    assert (plain.exit_code, plain.out) == (error.exit_code, "")
    assert plain.err == "error: it went wrong\n  fix: do this next\n"
    ran = semel("doctor", "--json")
    assert (ran.exit_code, ran.err) == (error.exit_code, "")
    assert ran.error == {"code": error.code, "message": "it went wrong", "fix": "do this next"}
    assert ran.json["command"] == "doctor"


@pytest.mark.parametrize(
    ("read", "frame", "code"),
    [
        (from_json, b'{"specversion": "1.0", "id": 7}', "input"),
        (from_json, b"\xff not even text", "input"),
        (from_json, b'{"specversion": "1.0", "id": "m", "source": "s", "type": "' + b"t" * 2000 + b'"}', "limit"),
        (unpack, b"\x93\x01", "input"),
        (unpack, b"x" * 1_000_000, "limit"),
    ],
)
def test_a_malformed_or_oversized_envelope_is_an_error_of_usage(
    read: Callable[[bytes], object], frame: bytes, code: str, semel: Semel, failing: Callable[[BaseException], None]
) -> None:
    with pytest.raises(errors.InputError) as caught:
        read(frame)
    failing(caught.value)
    assert semel("doctor").exit_code == 2
    ran = semel("doctor", "--json")
    assert (ran.exit_code, ran.error["code"]) == (2, code)
    assert ran.error["fix"]


def test_markup_in_an_error_is_text(semel: Semel, failing: Callable[[BaseException], None]) -> None:
    failing(errors.ConfigError("section [red]x[/red] :smile:", fix="[bold]"))
    assert semel("doctor").err == "error: section [red]x[/red] :smile:\n  fix: [bold]\n"


def test_a_fault_of_our_own_is_told_in_short_and_at_length_on_demand(
    semel: Semel, failing: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(KeyError("lost"))
    ran = semel("doctor")
    assert (ran.exit_code, ran.out) == (EXIT_INTERNAL, "")
    assert ran.err.startswith("error: unexpected KeyError: 'lost'\n  fix: this is a fault in Semel")
    assert "Traceback" not in ran.err
    assert "Traceback" in semel("doctor", "--debug").err
    assert "Traceback" in semel("--debug", "doctor").err
    monkeypatch.setenv("SEMEL_DEBUG", "1")
    ran = semel("doctor", "--json")
    assert "Traceback" in ran.err
    assert ran.error["code"] == "internal"
    monkeypatch.setenv("SEMEL_DEBUG", "0")
    assert "Traceback" not in semel("doctor").err


def test_ctrl_c_is_no_drama(semel: Semel, failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    assert (semel("doctor").exit_code, semel("doctor").err) == (130, "error: stopped\n")
    assert semel("doctor", "--json").error["code"] == "interrupted"
