"""The end of the demo: the audit of all ledgers, as `semel audit` would do it. It needs Spark."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from semel.demo.story import can_draw, note

if TYPE_CHECKING:
    from semel.spark.audit.result import Audit

REPORT = "report.html"
MEMORY = "1g"


def is_possible() -> bool:
    return importlib.util.find_spec("pyspark") is not None


def audit(stores: tuple[str, ...], kept: Path | None, console: Console) -> Audit | None:
    """Audit the stores and show what came of it; with a folder that is kept, the report goes there. None where there
    is no Spark."""
    if not is_possible():
        note(console, "The audit of the ledgers needs Spark: pip install 'semel[spark]'")
        return None
    from semel.spark.audit.report_html import write_report
    from semel.spark.audit.run import AuditOptions, audit
    from semel.spark.audit.show import view
    from semel.spark.session import spark_session

    what = "auditing the ledgers with Spark, which takes some seconds to start"
    if not can_draw(console):
        note(console, what)
    with console.status(what):
        spark = spark_session(app="semel-demo", memory=MEMORY)
        # all is still: nobody sends any more, so nothing is on its way
        found = audit(spark, stores, AuditOptions(deadline_s=0.0))
    console.print()
    for part in view(found):
        console.print(part)
    if kept is not None:
        write_report(found, kept / REPORT)
        console.print(f"the report: {kept / REPORT}", style="dim", highlight=False, soft_wrap=True)
    return found
