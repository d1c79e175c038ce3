"""The page about sessions shows the table that the code goes by."""

from __future__ import annotations

from pathlib import Path

from semel.pubsub.hub.session_phase import SessionPhase, diagram, table

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sessions.md").read_text()


def test_the_page_shows_the_tables_transitions() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE, "print(diagram()) of session_phase says what it should be"
    assert table() in PAGE, "print(table()) of session_phase says what it should be"


def test_the_page_explains_every_phase() -> None:
    for phase in SessionPhase:
        assert f"\n| {phase.value} | " in PAGE
