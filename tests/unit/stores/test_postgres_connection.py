"""What is said of a PostgreSQL store, and what is not."""

from __future__ import annotations

import pytest

from semel.stores.postgres_connection import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:hidden@db/semel", "postgresql://ann:***@db/semel"),
        ("postgresql://db/semel?password=hidden&sslmode=require", "postgresql://db/semel?password=***&sslmode=require"),
        ("postgresql://db/semel?sslkey=k.pem&sslpassword=hidden", "postgresql://db/semel?sslkey=k.pem&sslpassword=***"),
        ("postgresql://db/semel?oauth_client_secret=hidden", "postgresql://db/semel?oauth_client_secret=***"),
        ('cannot reach "postgresql://ann:hid:den@db/semel"', 'cannot reach "postgresql://ann:***@db/semel"'),
    ],
)
def test_no_password_is_shown(text: str, shown: str) -> None:
    assert redact(text) == shown
