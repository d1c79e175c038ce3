"""`semel serve`: what it refuses before it listens. That it serves is for the tests in tests/interop."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.conftest import Semel

from semel.cli.serve import _keys
from semel.errors import ConfigError
from semel.pubsub.keys import DEV_KEY


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SEMEL_ACCESS_KEY", raising=False)
    monkeypatch.delenv("SEMEL_ACCESS_KEY_SECONDARY", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--dev", "--host", "0.0.0.0"], "everybody knows"),
        (["--dev", "--keys", "semel.keys"], "--dev has its own key"),
        (["--recovery", "soon"], "is not a duration"),
        (["--tls-cert", "nowhere.pem"], "cannot be used"),
        (["--endpoint", "ftp://x"], "endpoint"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_fix(args: list[str], message: str, semel: Semel) -> None:
    ran = semel("serve", *args, "--port", "0")
    assert ran.exit_code == 2
    assert message in ran.err
    assert "fix:" in ran.err


def test_keys_come_from_the_environment_a_file_or_the_first_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _keys(True, None).all == (DEV_KEY,)
    made = _keys(False, None)
    assert (tmp_path / "semel.keys").exists()
    assert _keys(False, None) == made
    monkeypatch.setenv("SEMEL_ACCESS_KEY_SECONDARY", "s" * 32)
    with pytest.raises(ConfigError, match="without SEMEL_ACCESS_KEY"):
        _keys(False, None)
    monkeypatch.setenv("SEMEL_ACCESS_KEY", "p" * 32)
    assert _keys(False, None).all == ("p" * 32, "s" * 32)
    for given in ((True, None), (False, Path("semel.keys"))):
        with pytest.raises(ConfigError, match="given"):
            _keys(*given)
