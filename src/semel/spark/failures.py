"""What went wrong in Spark, in our words: an error of ours crosses two processes and a JVM as text."""

from __future__ import annotations

import re

from semel import errors
from semel.errors import EpochChanged, SemelError

_OUR_ERROR = re.compile(r"semel\.errors\.(\w+): (.+?)(?:\n\s+fix: (.+?))?(?:\n|\Z)")


def ours_in(text: str) -> SemelError | None:
    """The first error of ours in what Spark said, made again."""
    for found in _OUR_ERROR.finditer(text):
        kind = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, SemelError):
            return _again(kind, found[2], found[3] or "")
    return None


def _again(kind: type[SemelError], message: str, fix: str) -> SemelError:
    if issubclass(kind, EpochChanged):
        named = re.findall(r"epoch (\d+)", message)
        return kind(message, current=int(named[-1]) if named else 0, fix=fix)
    try:
        return kind(message, fix=fix)
    except TypeError:
        # some kinds want more than a message; what they say is what matters here
        return errors.StoreError(message, fix=fix)


def first_line(text: str) -> str:
    """The bridge to the JVM puts a line of its own in front."""
    lines = [line.strip(" :\t") for line in text.splitlines() if line.strip()]
    found = [line for line in lines if not line.startswith("An error occurred while calling")]
    return found[0][:300] if found else "no reason was given"
