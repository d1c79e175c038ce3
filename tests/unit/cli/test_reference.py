"""The reference says what the program does: every command, option, setting and column has its place in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from semel.cli import main
from semel.config import (
    LATER_SECTIONS,
    AuthSection,
    HandlerSection,
    HubSection,
    LedgerSection,
    OrderSection,
    PipelineSection,
    PubSubSection,
    ServerSection,
    SparkSection,
    StoreSection,
)
from semel.kernel.ledger import Kind
from semel.runtime.export.exporter import DATASETS, dataset_schema

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"
CLI = (REFERENCE / "cli.md").read_text()
CONFIGURATION = (REFERENCE / "configuration.md").read_text()
LEDGER = (REFERENCE / "ledger.md").read_text()
SECTIONS = {
    "## `[store]`": StoreSection,
    "## `[ledger]`": LedgerSection,
    "## `[spark]`": SparkSection,
    "## `[[pipeline]]`": PipelineSection,
    "`order` as a table:": OrderSection,
    "## `[server]`": ServerSection,
    "## `[auth]`": AuthSection,
    "## `[pubsub]`": PubSubSection,
    "## `[[pubsub.hub]]`": HubSection,
    "## `[[pubsub.hub.handler]]`": HandlerSection,
}


def commands(command: Any, path: str = "semel") -> dict[str, Any]:
    found = {path: command}
    for name, child in getattr(command, "commands", {}).items():
        found |= commands(child, f"{path} {name}")
    return found


COMMANDS = commands(typer.main.get_command(main.app))


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_every_command_and_option_is_in_the_reference(path: str) -> None:
    assert f"`{path}" in CLI or path == "semel bench"
    for option in COMMANDS[path].params:
        if option.param_type_name == "option" and "completion" not in option.opts[0]:
            assert any(re.search(rf"`{name}\b", CLI) for name in option.opts) or option.opts == ["--version"], (
                option.opts
            )


def test_every_option_in_the_reference_exists() -> None:
    known = {name for command in COMMANDS.values() for option in command.params for name in option.opts}
    assert set(re.findall(r"`(--[a-z-]+)", CLI)) <= known | {"--help"}


def test_every_exit_code_is_in_the_reference() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", CLI, re.MULTILINE)}
    assert codes == {0, 1, 2, 3, 4, 5, main.EXIT_INTERNAL, main.EXIT_INTERRUPTED, main.EXIT_BROKEN_PIPE}


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    shown = {"url": "sqlite:///semel.db", "order": False, "target": '""'}
    for heading, section in SECTIONS.items():
        [text] = re.findall(
            rf"^{re.escape(heading)}$(.*?)(?=^## |^`order`|\Z)", CONFIGURATION, re.MULTILINE | re.DOTALL
        )
        rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))
        assert list(rows) == [field.alias or name for name, field in section.model_fields.items()]
        for name, field in section.model_fields.items():
            default = shown.get(name, field.default) if field.default != () else []
            expected = "required" if field.is_required() else "none" if default is None else f"`{default}`"
            assert rows[field.alias or name] == expected
    for section_name in LATER_SECTIONS:
        assert f"[{section_name}]" in CONFIGURATION


def test_every_column_and_kind_is_in_the_reference() -> None:
    for dataset in DATASETS:
        for column in dataset_schema(dataset):
            assert f"`{column.name}`" in LEDGER
            assert str(column.type).split("[")[0] in LEDGER
    for kind in Kind:
        assert f"| {kind.value} | {kind.name.lower()} |" in LEDGER


def test_the_way_to_read_the_export_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from semel.kernel.ledger import Event, fold_ids
    from semel.kernel.ops import Log, Unit
    from semel.runtime.export.exporter import export
    from semel.stores.memory import MemoryStore

    monkeypatch.chdir(tmp_path)
    store = MemoryStore(clock=lambda: 0)
    store.commit([Unit((Log(Event(Kind.SENT, "a>b", message="m")),))])
    export(store, Path("lake"), "ledger")
    reading, folding = re.findall(r"```python\n(.*?)```", LEDGER, re.DOTALL)
    exec(compile(reading, "ledger.md", "exec"), {})
    assert capsys.readouterr().out == "1970-01-01 1 1\n"
    names: dict[str, Any] = {}
    exec(compile(folding, "ledger.md", "exec"), names)
    assert names["fold"](["order-1", "\u00e9"]) == fold_ids(["order-1", "\u00e9"])
