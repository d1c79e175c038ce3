"""What Microsoft's tests need of their package of this name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.credentials import AzureKeyCredential


class AzureRecordedTestCase:
    is_live = True

    def is_playback(self) -> bool:
        return False

    def get_credential(self, client: type, **_: object) -> AzureKeyCredential:
        """The access key, where they have an identity of Entra."""
        return AzureKeyCredential(os.environ["WEBPUBSUB_ACCESS_KEY"])

    def create_client_from_credential(self, client: type, credential: object, **more: object) -> Any:
        return client(credential=credential, **more)


def PowerShellPreparer(folder: str, **needs: str) -> Callable[..., Any]:
    """Hands a test those of the variables that it asks for, as they are in the environment."""
    values = {name: os.environ[name.upper()] for name in needs}

    def prepare(test: Callable[..., Any]) -> Callable[..., Any]:
        asked = inspect.signature(test).parameters.values()
        takes_all = any(each.kind is each.VAR_KEYWORD for each in asked)
        names = {each.name for each in asked}
        given = {name: value for name, value in values.items() if takes_all or name in names}

        # without the arguments, which pytest would take for fixtures
        def plain(self: Any) -> Any:
            return test(self, **given)

        async def coroutine(self: Any) -> Any:
            return await test(self, **given)

        prepared = coroutine if inspect.iscoroutinefunction(test) else plain
        prepared.__name__ = test.__name__
        return prepared

    return prepare


def recorded_by_proxy(test: Callable[..., Any]) -> Callable[..., Any]:
    return test


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """There is none."""


def add_general_regex_sanitizer(**_: str) -> None:
    """Nothing is recorded."""
