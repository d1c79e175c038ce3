"""Whoever waits for the demo sees what it waits for, with a bar or without."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from semel.demo import proof, story
from semel.demo.story import Story, can_draw, progress_on
from semel.testing import limits


def console(*, draws: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=draws, width=80, color_system=None)


def shown(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def test_the_text_of_the_bar_says_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    on = console(draws=True)
    with progress_on(on) as progress:
        told = Story(progress, "starting", 10)
        told.now("waiting for an answer", 10)
        progress.refresh()
        asyncio.run(told.print_notes())  # ends at once: the bar says it
    assert "waiting for an answer" in shown(on)
    assert "10/10" in shown(on)


@pytest.mark.parametrize("kind", ["dumb", "no terminal"])
async def test_without_a_bar_a_line_says_what_takes_long_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(story, "LOOK_S", 0.001)
    monkeypatch.setattr(story, "LONG_S", 0.0)
    on = console(draws=kind == "dumb")
    assert not can_draw(on)
    with progress_on(on) as progress:
        told = Story(progress, "starting", 10)
        notes = asyncio.create_task(told.print_notes())
        for what in ("waiting for an answer", "waiting for an answer", "ending"):
            told.now(what, 3)
            await asyncio.to_thread(limits.wait_until, lambda what=what: what in shown(on), what)
        notes.cancel()
    assert shown(on).split("\n")[:3] == ["waiting for an answer …", "ending …", ""]


async def test_what_is_quick_needs_no_line() -> None:
    on = console(draws=False)
    with progress_on(on) as progress:
        told = Story(progress, "starting", 10)
        notes = asyncio.create_task(told.print_notes())
        await asyncio.sleep(0)
        told.now("ending")
        notes.cancel()
    assert shown(on).strip() == ""


def test_without_spark_it_says_how_to_get_it_with_all_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "is_possible", lambda: False)
    console = Console(file=io.StringIO(), width=100)
    assert proof.audit((), None, console) is None
    assert isinstance(console.file, io.StringIO)
    assert "pip install 'semel[spark]'" in console.file.getvalue()
