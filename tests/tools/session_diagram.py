"""The table of a session's phases as `docs/reference/sessions.md` shows it."""

from __future__ import annotations

from semel.pubsub.hub.session_phase import TRANSITIONS, SessionPhase


def diagram() -> str:
    """The table as a Mermaid diagram, without what changes nothing (`docs/reference/sessions.md` shows it)."""
    lines = ["stateDiagram-v2", f"    [*] --> {_id(SessionPhase.NEW)}"]
    for phase, changes in TRANSITIONS.items():
        for change, then in changes.items():
            if then is not phase:
                lines.append(f"    {_id(phase)} --> {_id(then)}: {change.value}")
    lines.append(f"    {_id(SessionPhase.GONE)} --> [*]")
    return "\n".join(lines)


def table() -> str:
    """All of it, as a Markdown table."""
    rows = [
        f"| {phase.value} | {change.value} | {'' if then is phase else then.value} |"
        for phase, changes in TRANSITIONS.items()
        for change, then in changes.items()
    ]
    return "\n".join(["| phase | what happens | phase after it, if another |", "|---|---|---|", *rows])


def _id(phase: SessionPhase) -> str:
    return phase.value.replace(" ", "_")
