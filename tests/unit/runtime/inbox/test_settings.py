"""What [inbox] of semel.toml says, and where it wins over the code."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from semel import App, BreakerOptions
from semel.config import EndpointSection
from semel.errors import ConfigError
from semel.inbox.endpoint import EndpointMode, EndpointOptions, OnCrash, Style
from semel.kernel.ops import KEEP_S
from semel.stores.memory import MemoryStore
from semel.stores.sqlite import SqliteStore

KEY = "k" * 44
HUB = f"Endpoint=https://events.example.com;AccessKey={KEY};Version=1.0;"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "semel.toml").write_text(text)


def test_an_application_takes_what_its_code_does_not_say(folder: Path) -> None:
    write(folder, f'[inbox]\nstore = "sqlite:///shop.db"\nhub = "{HUB}"\nkeep_s = 60')
    app = App(name="shop")
    assert (app.url, app.keep_s) == ("sqlite:///shop.db", 60)
    assert app.hub is not None
    assert app.hub.endpoint == "https://events.example.com"
    said = App("sqlite:///own.db", keep_s=5, hub=HUB.replace("events", "other"))
    assert said.hub is not None
    assert (said.url, said.keep_s, said.hub.endpoint) == ("sqlite:///own.db", 5, "https://other.example.com")


def test_without_a_store_an_application_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no store") as refused:
        App()
    assert "[inbox]" in refused.value.fix
    assert App("memory:").keep_s == KEEP_S


def test_the_servers_file_is_refused_whoever_names_it(folder: Path) -> None:
    write(folder, '[store]\nurl = "sqlite:///srv.db"')
    (folder / "link.db").symlink_to("srv.db")
    for url in ("sqlite:///srv.db", f"sqlite:///{folder}/srv.db", "sqlite:///link.db"):
        with pytest.raises(ConfigError, match="which is the server's") as refused:
            App(url)
        assert "file of its own" in refused.value.fix
    assert App("sqlite:///shop.db").url == "sqlite:///shop.db"


def test_the_servers_file_may_be_named_by_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_STORE__URL", "sqlite:///srv.db")
    with pytest.raises(ConfigError, match="which is the server's"):
        App("sqlite:///srv.db")


def test_the_application_keeps_its_ledger_as_long_as_the_file_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ledger_keep_s(App("memory:")) is None
    write(folder, "[ledger]\nkeep_s = 3600")
    assert ledger_keep_s(App("memory:")) == 3600
    assert ledger_keep_s(App("sqlite:///shop.db")) == 3600
    (folder / "semel.toml").unlink()
    monkeypatch.setenv("SEMEL_LEDGER__KEEP_S", "7200")
    assert ledger_keep_s(App("memory:")) == 7200


def ledger_keep_s(app: App) -> float | None:
    store = app.store
    assert isinstance(store, MemoryStore | SqliteStore)
    app.close()
    return store.ledger_keep_s


def test_the_environment_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_INBOX__STORE", "sqlite:///env.db")
    monkeypatch.setenv("SEMEL_INBOX__HUB", HUB)
    assert App().url == "sqlite:///env.db"
    write(folder, '[inbox]\nstore = "sqlite:///shop.db"')
    app = App()
    assert app.url == "sqlite:///env.db"
    assert app.hub is not None


def test_the_options_of_an_endpoint_win_over_the_code(folder: Path) -> None:
    write(
        folder,
        """
[[inbox.endpoint]]
name = "sms"
mode = "inline"
parallel = 8
on_crash = "park"
breaker = { minimum = 3, pause_s = 5.0 }
""",
    )
    app = App("memory:")
    options = app.endpoint("sms", parallel=2, lease_s=7).options
    assert (options.mode, options.parallel, options.lease_s) == (EndpointMode.INLINE, 8, 7)
    assert (options.on_crash, options.breaker) == (OnCrash.PARK, BreakerOptions(minimum=3, pause_s=5.0))
    assert app.endpoint("other").options.parallel == 1


def test_a_style_alone_is_for_the_mode_that_the_code_says(folder: Path) -> None:
    write(folder, '[[inbox.endpoint]]\nname = "sms"\nstyle = "eager"')
    assert App("memory:").endpoint("sms", mode="inline").options.style is Style.EAGER
    with pytest.raises(ConfigError, match="style 'eager' is not for a durable endpoint"):
        App("memory:").endpoint("sms")


def test_every_option_that_a_file_can_set_has_a_key(folder: Path) -> None:
    in_code = {field.name for field in dataclasses.fields(EndpointOptions)}
    assert set(EndpointSection.model_fields) == in_code | {"follow", "listen"}, (
        "which are app.follow() and app.listen()"
    )


def test_a_transport_that_redelivers_for_longer_than_it_is_remembered_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder, '[[inbox.endpoint]]\nname = "sms"\nredelivery_s = 3600.0\nkeep_s = 60.0\nshare_commit = 20')
    assert App("memory:").endpoint("sms").options.share_commit == 20
    assert "'sms' remembers a message for 60 s" in caplog.text


def test_a_file_may_be_named(folder: Path) -> None:
    (folder / "shop.toml").write_text('[inbox]\nstore = "sqlite:///named.db"')
    assert App(config=folder / "shop.toml").url == "sqlite:///named.db"


def test_an_endpoint_that_is_only_in_the_file_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    write(folder, '[[inbox.endpoint]]\nname = "ordrs"')
    app = App("memory:", name="shop")
    app.endpoint("orders")
    app.drain()
    assert "endpoint 'ordrs', which shop has not" in caplog.text


@pytest.mark.parametrize(
    ("text", "line", "said", "fix"),
    [
        ('[inbox]\nstroe = "x"', 2, "no key 'stroe' in [inbox]", "'store'"),
        ('[[inbox.endpoint]]\nname = "a"\nparalel = 2', 3, "no key 'paralel' in [[inbox.endpoint]]", "'parallel'"),
        ('[[inbox.endpoint]]\nname = "a"\nmode = "fast"', 3, "inbox.endpoint.mode = 'fast'", "'durable'"),
        ('[[inbox.endpoint]]\nparallel = 2', 1, "[[inbox.endpoint]] has no 'name'", "the name of an endpoint"),
        ('[[inbox.endpoint]]\nname = "a"\n[inbox.endpoint.breaker]\nshare = 2', 4, "share = 2", "up to 1"),
        ('[[inbox.endpoint]]\nname = "a"\nmode = "durable"\nstyle = "eager"', 1, "for a durable", "leave style out"),
        ('[[inbox.endpoint]]\nname = "a"\n[[inbox.endpoint]]\nname = "a"', 4, "another endpoint 'a'", "of its own"),
        ('[inbox]\nhub = "Endpoint=https://a.example"', 2, "no AccessKey", "write it like"),
        ('[inbox]\nstore = "sqlite:///semel.db"', 2, "the server's", "a file of its own"),
        ('[store]\nurl = "sqlite:///x/../s.db"\n[inbox]\nstore = "sqlite:///s.db"', 4, "the server's", "its own"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(folder: Path, text: str, line: int, said: str, fix: str) -> None:
    write(folder, text)
    with pytest.raises(ConfigError) as refused:
        App("memory:")
    assert said in refused.value.message
    assert f"line {line}:" in refused.value.message
    assert fix in refused.value.fix
