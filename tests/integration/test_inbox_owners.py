"""Two applications on one store: an endpoint belongs to one of them, and the other one hears it before it does harm."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.inbox_shop import Order

from semel import App
from semel.errors import ConfigError
from semel.inbox.messages import envelope_of
from semel.inbox.owner import owner_key
from semel.runtime.inbox.service import InboxService
from semel.testing.limits import scaled

pytestmark = pytest.mark.connected


class Place:
    """A database, and applications on it that are closed at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.apps: list[App] = []

    def app(self, name: str, *endpoints: str) -> App:
        made = App(self.url, name=name)
        for each in endpoints:
            made.endpoint(each, lease_s=scaled(0.5)).on(Order)(lambda order: None)
        self.apps.append(made)
        return made

    def connect(self) -> Any:
        path = self.url.removeprefix("sqlite:///")
        return sqlite3.connect(path) if self.url.startswith("sqlite:") else psycopg.connect(self.url)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Place(url)
    yield made
    for each in made.apps:
        each.close()


def test_the_endpoint_of_another_application_is_refused_at_start(place: Place) -> None:
    place.app("shop", "orders").send(Order("a"), to="orders", id="a")
    office = place.app("office", "mail", "orders")
    with pytest.raises(ConfigError, match="belongs to the application 'shop', not to 'office'") as refused:
        office.drain(scaled(30))
    assert "semel inbox adopt" in refused.value.fix
    assert office.store.state(owner_key("mail")) is None, "all or none"
    with pytest.raises(ConfigError):
        office.send(Order("b"), to="orders", id="b")
    assert place.app("shop", "orders").drain(scaled(30)) == 1, "its other processes are the same application"


def test_of_two_that_begin_at_once_one_has_the_endpoint(place: Place) -> None:
    apps = [place.app(f"app{at}", "orders") for at in range(4)]
    for app in apps:
        assert app.store
    begin, owners = threading.Barrier(len(apps)), []

    def claim(app: App) -> None:
        begin.wait()
        with suppress(ConfigError):
            app.claim_endpoints()
            owners.append(app.name)

    threads = [threading.Thread(target=claim, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(owners) == 1


def test_who_only_asks_first_owns_its_endpoint_too(place: Place) -> None:
    """The queue knows a message by its identity alone: without an owner the second application would be told that its
    own first message is a duplicate."""
    shop, office = place.app("shop"), place.app("office")
    assert shop.store
    with closing(place.connect()) as db:
        assert shop.first(db, "orders", "a")
        db.rollback()
    with closing(place.connect()) as db:
        assert shop.first(db, "orders", "a"), "what was rolled back has not happened"
        assert shop.first(db, "orders", "b")
        db.commit()
    with closing(place.connect()) as db, pytest.raises(ConfigError, match="belongs to the application 'shop'"):
        office.first(db, "orders", "a")


def test_an_endpoint_that_changes_hands_keeps_its_messages(place: Place) -> None:
    old, new = place.app("shop", "orders"), place.app("store", "orders")
    old.send(Order("a"), to="orders", id="a")
    assert old.drain(scaled(30)) == 1
    old.send(Order("b"), to="orders", id="b")
    assert new.adopt("orders") == "shop"
    assert new.receive("orders", [envelope_of(Order("a"), "a")]) == ["duplicate"], "under the name it was handled by"
    assert new.drain(scaled(30)) == 1
    with pytest.raises(ConfigError, match="belongs to the application 'store'"):
        assert place.app("shop", "orders").handlers


@pytest.mark.asyncio
async def test_a_process_that_still_runs_takes_nothing_more_once_it_was_taken_over(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = place.app("shop", "orders"), place.app("store", "orders")
    async with InboxService(old), asyncio.timeout(scaled(60)):
        new.adopt("orders")
        while not old.gate("orders").takes_nothing(old.clock()):  # noqa: ASYNC110 - it looks by itself
            await asyncio.sleep(0.02)
        new.send(Order("a"), to="orders", id="a")
        assert await asyncio.to_thread(new.drain, scaled(30)) == 1
    assert "was taken over by another application" in caplog.text
