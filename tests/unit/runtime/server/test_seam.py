"""A protocol is plugged into the server, and nothing of the server knows it."""

from __future__ import annotations

import re
from pathlib import Path

import semel

SOURCE = Path(semel.__file__).parent
OF_PUBSUB = re.compile(r"(client_sockets|pubsub\w*|webhook\w*)\.py")
"""The modules of `runtime/server` that make up the part for pub/sub."""


def generic_modules() -> list[Path]:
    server = [file for file in (SOURCE / "runtime/server").glob("*.py") if not OF_PUBSUB.fullmatch(file.name)]
    others = [file for folder in ("host", "export") for file in (SOURCE / "runtime" / folder).glob("*.py")]
    return [*server, *others, SOURCE / "runtime/transports/websocket.py", SOURCE / "http.py", SOURCE / "websocket.py"]


def test_what_serves_every_protocol_imports_none() -> None:
    found = [file for file in generic_modules() if re.search(r"(from|import) semel\.pubsub", file.read_text())]
    assert found == []
    assert len(generic_modules()) > 25
