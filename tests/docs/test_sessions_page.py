"""The page about sessions shows the table that the code goes by."""

from __future__ import annotations

from pathlib import Path

from tests.tools.session_diagram import diagram, table

from semel.pubsub.hub.session_phase import SessionPhase

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sessions.md").read_text()


def test_the_page_shows_the_tables_transitions() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE, (
        "print(diagram()) of tests/tools/session_diagram.py says what it should be"
    )
    assert table() in PAGE, "print(table()) of tests/tools/session_diagram.py says what it should be"


def test_the_page_explains_every_phase() -> None:
    for phase in SessionPhase:
        assert f"\n| {phase.value} | " in PAGE
