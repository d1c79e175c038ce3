"""What a user may choose, and the names that the two sides agree on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semel.errors import ConfigError

SENDER = "sender"
RECEIVER = "receiver"
OUTBOX = "outbox/orders"
INBOX = "inbox/orders"
HOP = f"{OUTBOX}>{INBOX}"
HUB, HUB_GROUP = "demo", "orders"
HUB_HOP = f"client>hub/{HUB}"
SHOP, SHOP_ENDPOINT, SHOP_TYPE = "shop", "charges", "order.placed"
SHOP_HOP = f"inbox/{SHOP_ENDPOINT}>handler"
CUSTOMERS = 8
"""Orders of one customer form a session: they are numbered, and they must be accepted in that order."""

PLANTS = {
    "no-dedup": "the receiver takes every copy for a new message",
    "no-order": "the receiver accepts messages in the order in which they arrive",
    "confirm-early": "the receiver confirms what it has only in memory",
}
"""Mistakes that can be built in, to see that the verdict notices them."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`loss`, `doubling`, `delay` and `cuts` are chances per frame. `folder` keeps the data there; None uses a
    temporary folder, which is removed unless `keep` is set. With `hub` clients of the pub/sub server have their part,
    with `inbox` a shop that charges for orders from a broker.
    With `audit` it ends with an audit of all ledgers by Spark. It counts as hung when nothing has moved for `stall_s`,
    or when it has not come to its end after `timeout_s` and as long again for every 5,000 messages; a machine that is
    slow or busy is given longer."""

    messages: int = 2000
    loss: float = 0.05
    doubling: float = 0.05
    delay: float = 0.10
    cuts: float = 0.002
    kills: int = 2
    seed: int = 1
    keep: bool = False
    folder: Path | None = None
    plant: str | None = None
    audit: bool = False
    hub: bool = False
    inbox: bool = False
    stall_s: float = 30.0
    timeout_s: float = 300.0

    @property
    def limit_s(self) -> float:
        return self.timeout_s * (1 + self.messages / 5000)

    def __post_init__(self) -> None:
        if not 1 <= self.messages <= 1_000_000:
            raise ConfigError(f"messages is {self.messages}", fix="use 1 to 1,000,000")
        for name in ("loss", "doubling", "delay", "cuts"):
            if not 0 <= getattr(self, name) <= 0.9:
                raise ConfigError(f"{name} is {getattr(self, name)}", fix="use a share from 0 to 0.9, such as 0.05")
        if not 0 <= self.kills <= 20:
            raise ConfigError(f"kills is {self.kills}", fix="use 0 to 20")
        if self.plant is not None and self.plant not in PLANTS:
            raise ConfigError(f"there is no plant {self.plant!r}", fix=f"use one of: {', '.join(PLANTS)}")
        if self.folder is not None and self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigError(f"{self.folder} is not empty", fix="name a new folder: a demo counts from nothing")
