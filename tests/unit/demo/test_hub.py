"""What is counted of the clients of a hub, and that each thing that can be wrong is found."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from semel.demo.hub import MICROSOFT, ClientReports, count, has_microsoft

CLIENTS = ("anna", "boris")


def heard(**by_client: list[str]) -> ClientReports:
    """`anna-1` and `anna-2`, `boris-1` are published; what is not given is heard as it should be."""
    published = ["anna-1", "boris-1", "anna-2"]
    found = ClientReports()
    found.receive({"published": published})
    for client in CLIENTS:
        ids = by_client.get(client, published)
        found.receive({"received": {client: [[number, id] for number, id in enumerate(ids, 1)]}})
    return found


def test_everybody_hears_everything_once() -> None:
    figures = count(CLIENTS, heard(), cuts=3, kills=2)
    assert figures.holds
    assert (figures.published, figures.due, figures.heard, figures.cuts, figures.kills) == (3, 6, 6, 3, 2)
    assert not figures.with_microsoft


@pytest.mark.parametrize(
    ("ids", "wrong"),
    [
        (["anna-1", "boris-1"], {"lost": 1}),
        (["anna-1", "anna-1", "boris-1", "anna-2"], {"doubled": 1}),
        (["anna-2", "boris-1", "anna-1"], {"disorder": 1}),
        (["anna-1", "boris-1", "anna-2", "boris-9"], {"unknown": 1}),
        ([], {"lost": 3}),
    ],
)
def test_each_thing_that_can_be_wrong_is_found(ids: list[str], wrong: dict[str, int]) -> None:
    figures = count(CLIENTS, heard(boris=ids), cuts=0, kills=0)
    names = ("lost", "doubled", "disorder", "unknown")
    assert {name: getattr(figures, name) for name in names if getattr(figures, name)} == wrong
    assert not figures.holds


def test_nothing_published_proves_nothing() -> None:
    assert not count(CLIENTS, ClientReports(), cuts=0, kills=0).holds


def test_microsofts_callbacks_are_judged_by_their_numbers() -> None:
    """They run in threads of their own, and one may come before the other."""
    found = ClientReports()
    found.receive({"published": ["anna-1", "anna-2"], "received": {MICROSOFT: [[2, "anna-2"], [1, "anna-1"]]}})
    assert count((MICROSOFT,), found, cuts=0, kills=0).holds
    found.by_client[MICROSOFT] = [(1, "anna-2"), (2, "anna-1")]
    assert count((MICROSOFT,), found, cuts=0, kills=0).disorder == 1


def test_without_microsofts_client_the_demo_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_microsoft()

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    assert not has_microsoft()


def test_the_demo_itself_needs_nothing_of_microsofts() -> None:
    """Only the process of that client imports it."""
    program = "import sys, semel.demo; sys.exit(any(name.startswith('azure.messaging') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
