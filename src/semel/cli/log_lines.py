"""How a command writes its log: lines for people, or JSON for machines."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

import msgspec

from semel.kernel.text import clean_cause
from semel.runtime.host.log_fields import FIELDS

CAUSE_CHARS = 1000


class JsonLines(logging.Formatter):
    """One object in one line. Of an exception it has class and text, and where it was raised: no values of variables,
    and nothing of a message but its id."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["error"] = type(error).__qualname__
            line["cause"] = clean_cause(str(error))[:CAUSE_CHARS]
            line["at"] = _where(error)
        return msgspec.json.encode(line).decode()


def _where(error: BaseException) -> str:
    """The last place that it passed: file, line and function."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code = trace.tb_frame.f_code
    return f"{code.co_filename}:{trace.tb_lineno} {code.co_qualname}"


def text_lines() -> logging.Formatter:
    lines = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    lines.converter = time.gmtime
    return lines


def keep_log(*, as_json: bool) -> None:
    """On stderr. A program that has set up a log of its own keeps it, unless JSON is asked for."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else text_lines())
    logging.basicConfig(handlers=[handler], force=as_json)
    # what the driver complains of is told by the store, in our words
    logging.getLogger("psycopg").setLevel(logging.ERROR)
