"""What one look of `semel doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semel.errors import EXIT_USAGE

State = Literal["ok", "note", "missing", "bad"]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One finding. Only `bad` makes the doctor fail; `missing` is something that a part of Semel could use."""

    name: str
    state: State
    detail: str
    fix: str = ""
    exit_code: int = EXIT_USAGE
