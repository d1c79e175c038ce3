"""The page about paths says what the program does."""

from __future__ import annotations

import re
from pathlib import Path as File

import pytest

from semel.errors import PathSyntaxError
from semel.pipes.language.notation import parse_path
from semel.pipes.language.options import (
    HOP_OPTIONS,
    PIPE_OPTIONS,
    POINT_OPTIONS,
    ConfirmOn,
    DedupBy,
    Options,
    show_option,
)
from semel.pipes.language.tables import parse_tables
from semel.pipes.plan.plan import plan

PAGE = (File(__file__).resolve().parents[4] / "docs" / "reference" / "paths.md").read_text()


def test_every_option_is_there_with_its_default() -> None:
    for name in HOP_OPTIONS:
        [(star, default)] = re.findall(
            rf"^\| `{name}`( \*)? \| .*? \| ([^|]*) \|$", PAGE.split("A point has these options:")[0], re.M
        )
        assert bool(star) == (name in PIPE_OPTIONS)
        value = getattr(Options(), name)
        assert value is None or default.strip("`") == show_option(name, value)
    for name in POINT_OPTIONS:
        assert f"| `{name}` |" in PAGE.split("A point has these options:")[1]
    for kind in (*DedupBy, *ConfirmOn):
        assert f"| `{kind.value}` |" in PAGE


def test_the_tables_and_the_program_on_the_page_work(capsys: pytest.CaptureFixture[str]) -> None:
    text, graph = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert parse_tables(text) == parse_path("A -[loss=.1,retries=5]-> B")
    expected = "A -> (P1{crash=.05} -[loss=.1,confirm_loss=.05]-> P2){retries=inf,dedup=id} -> B"
    assert parse_tables(graph) == parse_path(expected)
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "paths.md", "exec"), {})
    path, reliability = capsys.readouterr().out.splitlines()
    assert path == "A -> (P1 -[loss=0.1]-> X -[loss=0.2]-> P2){retries=inf,dedup=id} -> B"
    assert float(reliability) == pytest.approx(0.97)


def test_the_forms_and_the_mistake_on_the_page_are_real() -> None:
    forms = re.findall(r"^\| `(.*?)` \| ", PAGE.split("## Options")[0], re.MULTILINE)
    for form in forms:
        parse_path(f"Z -> {form.removeprefix('// words') or 'Y'}".replace("\\|", "|").replace("Z -> A", "A"))
    assert len(forms) > 8
    [shown] = re.findall(r"error: (line.*?)\n  fix", PAGE, re.DOTALL)
    with pytest.raises(PathSyntaxError) as caught:
        parse_path("A -[los=0.1]-> B")
    assert caught.value.message == shown


def test_the_first_example_is_planned() -> None:
    [example] = re.findall(r"```text\n(A.*?)\n```", PAGE)
    assert plan(parse_path(example)).uniqueness == 1
