"""What the demo found, for people and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from semel.demo.audit import DemoFigures
from semel.demo.hub import HubFigures
from semel.demo.options import DemoOptions
from semel.demo.shop import ShopFigures
from semel.errors import EXIT_CLAIM_FALSE, EXIT_HOLDS
from semel.testing.faults import Counts

if TYPE_CHECKING:
    from semel.spark.audit.result import Audit


@dataclass(frozen=True, slots=True)
class DemoResult:
    options: DemoOptions
    figures: DemoFigures
    link: Counts
    kills: tuple[str, ...]
    seconds: float
    folder: Path | None
    hub: HubFigures | None = None
    inbox: ShopFigures | None = None
    audit: Audit | None = None

    @property
    def holds(self) -> bool:
        """Nothing lost, nothing doubled, nothing out of order, between the two processes and for every client of the
        hub; every order charged once; and the audit, if there was one, says the same."""
        parts = (self.figures, self.hub, self.inbox, self.audit)
        return all(part.holds for part in parts if part is not None)

    @property
    def exit_code(self) -> int:
        return EXIT_HOLDS if self.holds else EXIT_CLAIM_FALSE

    def as_dict(self) -> dict[str, Any]:
        figures = self.figures
        options = asdict(self.options)
        return {
            "holds": self.holds,
            "seconds": round(self.seconds, 3),
            **asdict(figures),
            "before_dedup": {"R": figures.r_before, "UR": figures.ur_before},
            "after_dedup": {"R": figures.r_after, "UR": figures.ur_after},
            "link": asdict(self.link),
            "kills": list(self.kills),
            "options": options | {"folder": str(self.options.folder) if self.options.folder else None},
            "folder": str(self.folder) if self.folder else None,
            "hub": asdict(self.hub) if self.hub is not None else None,
            "inbox": asdict(self.inbox) if self.inbox is not None else None,
            "audit": self._audit_dict(),
        }

    def _audit_dict(self) -> dict[str, Any] | None:
        if self.audit is None:
            return None
        from semel.spark.audit.show import as_dict

        return as_dict(self.audit)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._counts()
        yield self._rates()
        yield self._verdict()
        if self.hub is not None:
            yield Text()
            yield _hub_counts(self.hub)
            yield _verdict(self.hub.holds, _found(self.hub))
        if self.inbox is not None:
            yield Text()
            yield _shop_counts(self.inbox)
            yield _shop_verdict(self.inbox)

    def _counts(self) -> Table:
        figures, link = self.figures, self.link
        table = Table(title="What happened", title_justify="left", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(style="dim")
        rows: list[tuple[str, int, str]] = [
            ("sent", figures.sent, "different messages in the sender's ledger"),
            ("acked", figures.acked, "orders that customers were told are placed"),
            ("sent again", figures.resent, "resends in the sender's ledger"),
            ("frames lost", link.lost, f"by the link, which passed {link.passed:,}"),
            ("frames doubled", link.doubled, "by the link"),
            ("frames delayed", link.delayed, "by the link, so that others overtook them"),
            ("connections cut", link.cut, "by the link"),
            ("kill -9", len(self.kills), ", ".join(self.kills) or "nobody"),
            ("arrived", figures.arrived, "accepted, duplicate or rejected, by the receiver"),
            ("duplicates dropped", figures.duplicates, "by the receiver"),
            ("accepted", figures.accepted, "messages in the receiver's ledger"),
        ]
        for name, number, note in rows:
            table.add_row(name, f"{number:,}", note)
        return table

    def _rates(self) -> Table:
        figures = self.figures
        table = Table(title="Reliability", title_justify="left")
        table.add_column("")
        table.add_column("R", justify="right")
        table.add_column("UR", justify="right")
        table.add_column("", style="dim")
        table.add_row(
            "before dedup",
            f"{figures.r_before:.4f}",
            f"{figures.ur_before:.4f}",
            "unique / sent, unique / arrived",
        )
        table.add_row(
            "after dedup", f"{figures.r_after:.4f}", f"{figures.ur_after:.4f}", "unique / sent, unique / accepted"
        )
        return table

    def _verdict(self) -> Text:
        figures = self.figures
        text = f"{_found(figures)} after {self.seconds:.1f} s"
        for number, name in (
            (figures.acked_lost, "acked but never accepted"),
            (figures.unknown, "accepted but never sent"),
            (figures.ledger_gaps, "ledger ranges that do not fit their records"),
        ):
            text += f", {number:,} {name}" if number else ""
        return _verdict(figures.holds, text)


def _count_table(title: str, rows: list[tuple[str, int, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, number, note in rows:
        table.add_row(name, f"{number:,}", note)
    return table


def _hub_counts(hub: HubFigures) -> Table:
    who = "ours and Microsoft's" if hub.with_microsoft else "ours; Microsoft's is not installed"
    rows: list[tuple[str, int, str]] = [
        ("clients", hub.clients, f"{who}, each in the same group"),
        ("published", hub.published, "messages that the server has acknowledged"),
        ("connections cut", hub.cuts, "between clients and server"),
        ("kill -9", hub.kills, "of the server, while all of them spoke"),
        ("due", hub.due, "each message to each client"),
        ("heard", hub.heard, "by all clients together"),
    ]
    return _count_table("Clients of a hub", rows)


def _shop_counts(shop: ShopFigures) -> Table:
    way = shop.way if shop.is_broker else f"{shop.way}; a broker is not installed"
    rows: list[tuple[str, int, str]] = [
        ("messages", shop.messages, f"different orders, over {way}"),
        ("sent again", shop.copies, "of them, as by a publisher that did not hear the ack"),
        ("delivered", shop.delivered, "accepted or duplicate, by the shop's inbox"),
        ("duplicates", shop.duplicates, "recognised by the inbox"),
        ("kill -9", shop.kills, "of handlers, between their write and their commit"),
        ("charges", shop.charges, "rows in the shop's own table"),
    ]
    return _count_table("A shop and its broker" if shop.is_broker else "A shop", rows)


def _shop_verdict(shop: ShopFigures) -> Text:
    text = f"{shop.lost:,} lost, {shop.doubled:,} doubled"
    text += f", {shop.unknown:,} charged but never ordered" if shop.unknown else ""
    return _verdict(shop.holds, text)


def _found(figures: DemoFigures | HubFigures) -> str:
    return f"{figures.lost:,} lost, {figures.doubled:,} doubled, {figures.disorder:,} out of order"


def _verdict(holds: bool, text: str) -> Text:
    if holds:
        return Text(f"Exactly once: {text}.", style="bold green")
    return Text(f"NOT exactly once: {text}.", style="bold red")
