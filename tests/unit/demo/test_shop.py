"""What is counted of the shop behind a broker, and that each thing that can be wrong is found."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from semel.demo import shop_ways
from semel.demo.options import DemoOptions
from semel.demo.shop import ShopCount, ShopFigures, ShopShow, count, orders_of
from semel.demo.shop_ways import NatsWay, nats_server
from semel.errors import PeerUnavailable


def counted(charged: list[str], sent: tuple[str, ...] = ("a", "b", "c", "b")) -> ShopFigures:
    found = ShopCount(sent, charged, accepted=3, duplicates=2)
    return count(found, NatsWay("nats-server", Path()), kills=1)


def test_each_order_is_charged_once_however_often_it_came() -> None:
    figures = counted(["c", "a", "b"])
    assert figures.holds
    assert (figures.messages, figures.copies, figures.delivered, figures.duplicates) == (3, 1, 5, 2)
    assert (figures.kills, figures.charges, figures.lost, figures.doubled) == (1, 3, 0, 0)


@pytest.mark.parametrize(
    ("charged", "wrong"),
    [
        (["a", "b"], {"lost": 1}),
        (["a", "b", "b", "b", "c"], {"doubled": 2}),
        (["a", "b", "b"], {"lost": 1, "doubled": 1}),
        (["a", "b", "c", "z"], {"unknown": 1}),
        ([], {"lost": 3}),
    ],
)
def test_each_thing_that_can_be_wrong_is_found(charged: list[str], wrong: dict[str, int]) -> None:
    figures = counted(charged)
    assert {name: number for name in ("lost", "doubled", "unknown") if (number := getattr(figures, name))} == wrong
    assert not figures.holds


def test_nothing_sent_proves_nothing() -> None:
    assert not counted([], sent=()).holds


def test_there_is_an_order_to_be_killed_at_for_each_kill() -> None:
    assert orders_of(DemoOptions(messages=2000)) == 250
    assert orders_of(DemoOptions(messages=1, kills=20)) == 21
    assert orders_of(DemoOptions(messages=1_000_000)) == 300


def test_without_its_client_or_its_server_there_is_no_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert nats_server() is not None
    monkeypatch.setattr(shop_ways.importlib.util, "find_spec", lambda name: None)
    assert nats_server() is None
    monkeypatch.undo()
    monkeypatch.setattr(shop_ways.shutil, "which", lambda name, path: None)
    assert nats_server() is None
    assert not ShopShow(DemoOptions(inbox=True), tmp_path).way.is_broker


@pytest.mark.parametrize("module", ["semel.demo", "semel.demo.shop_worker"])
def test_the_demo_itself_needs_nothing_of_nats(module: str) -> None:
    program = f"import sys, {module}; sys.exit('nats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_token_of_the_broker_is_for_its_owner_only(tmp_path: Path) -> None:
    way = NatsWay("false", tmp_path)
    with pytest.raises(PeerUnavailable, match="NATS server ended by itself with code 1"):
        asyncio.run(way.start())
    assert (tmp_path / "nats.conf").stat().st_mode & 0o077 == 0
