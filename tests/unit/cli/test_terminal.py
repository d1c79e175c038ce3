"""What goes where."""

from __future__ import annotations

import json
import sys

import pytest
from rich.console import Console

from semel.cli.terminal import CommandResult, Terminal, human_bytes


def test_a_result_goes_to_stdout_and_a_note_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.note("by the way")
    terminal.note("by the way")
    assert terminal.show("x", CommandResult({"n": 1}, ["one [bold]line[/bold]", "two"], 4)) == 4
    printed = capsys.readouterr()
    assert printed.out == "one [bold]line[/bold]\ntwo\n"
    assert printed.err == "by the way\n"


def test_for_a_machine_there_is_one_object_and_silence(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(json=True)
    terminal.note("by the way")
    terminal.live.print("drawing")
    terminal.story.print("telling")
    with terminal.progress("working", 3) as update:
        update(1)
    error = {"code": "c", "message": "m", "fix": "f"}
    assert terminal.show("a b", CommandResult({"n": 1}, ["text"], 1, error)) == 1
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    assert json.loads(printed.out) == {"ok": False, "command": "a b", "result": {"n": 1}, "error": error}
    assert printed.err == ""


def test_an_answer_that_is_not_well_says_why_after_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().show("x", CommandResult({}, ["found"], 1, {"code": "c", "message": "not well", "fix": "rest"}))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("found\n", "error: not well\n  fix: rest\n")


def test_a_progress_bar_is_drawn_for_people_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with terminal.progress("working", 3) as update:
        update(1, "still working", 4)
    assert capsys.readouterr() == ("", "")
    terminal.__dict__["err"] = Console(stderr=True, force_terminal=True, width=80)
    with terminal.progress("working", 3) as update:
        update(2, "nearly there", 4)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "nearly there" in printed.err
    assert "2/4" in printed.err


def test_a_terminal_that_cannot_draw_is_told_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    terminal.__dict__["err"] = Console(stderr=True, force_terminal=True, width=80, color_system=None)
    with terminal.progress("working", 3) as update:
        update(1)
        update(2, "nearly there")
        update(3, "nearly there")
    assert capsys.readouterr().err.splitlines() == ["working", "nearly there"]


def test_a_long_line_is_not_broken_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().show("x", CommandResult({}, ["word " * 200]))
    assert capsys.readouterr().out.count("\n") == 1


def test_whoever_closes_the_pipe_is_not_told_that_a_claim_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        encoding = "utf-8"

        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        Terminal().show("x", CommandResult({}, ["text"]))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (2_500_000, "2.5 MB"),
        (3e9, "3.0 GB"),
        (5e15, "5,000.0 TB"),
    ],
)
def test_sizes_are_for_people(size: float, text: str) -> None:
    assert human_bytes(size) == text
