"""What cannot share a commit is refused before the first message."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from semel import App
from semel.errors import ConfigError


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path}/shop.db")


def test_an_effect_outside_the_transaction_cannot_share(app: App) -> None:
    @app.endpoint("orders", share_commit=20).on("order", outside=True)
    def handle(order: dict, db: sqlite3.Connection) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(ConfigError, match="no transaction takes back"):
        _ = app.handlers


def test_a_handler_without_a_transaction_cannot_share(app: App) -> None:
    @app.endpoint("orders", share_commit=20).on("order")
    def handle(order: dict) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(ConfigError, match="no transaction takes back") as error:
        _ = app.handlers
    assert "share_commit" in (error.value.fix or "")


def test_a_coroutine_cannot_share(app: App) -> None:
    @app.endpoint("orders", share_commit=20).on("order")
    async def handle(order: dict, db: sqlite3.Connection) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(ConfigError, match="coroutine function"):
        _ = app.handlers


@pytest.mark.parametrize("count", [0, 51])
def test_so_many_to_a_commit_and_no_more(app: App, count: int) -> None:
    with pytest.raises(ConfigError, match="share_commit"):
        app.endpoint("orders", share_commit=count)


def test_only_stored_messages_share(app: App) -> None:
    with pytest.raises(ConfigError, match="has share_commit"):
        app.endpoint("orders", mode="inline", share_commit=20)
