"""An audit on the terminal and as JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from io import StringIO

import pytest
from rich.console import Console
from tests.unit.spark.audit import samples
from tests.unit.spark.audit.samples import HOSTILE, audit, cell

from semel.cli.terminal import CommandResult, Terminal
from semel.spark.audit.result import Audit, CellFigures, Finding
from semel.spark.audit.show import GROUPS_MAX, HOPS_MAX, IDS_MAX, as_dict, view


@pytest.fixture(autouse=True)
def _nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)


def shown(made: Audit, capsys: pytest.CaptureFixture[str]) -> str:
    Terminal().show("audit", CommandResult(None, view(made)))
    return capsys.readouterr().out


def test_it_begins_with_the_verdict_and_names_the_first_ids(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(samples.bad(), capsys)
    assert (
        out.splitlines()[0] == "✗ It does not hold: 12 lost, 3 doubled, 4 out of order and 2 phantoms on 2 of 4 hops."
    )
    assert out.count("  order-54") == IDS_MAX + 1
    assert "12 lost on orders: shop>office (sent, given" in out
    assert "  and 7 more\n" in out
    assert "- The ledger of node east-2 ends at 11:20" in out
    assert "shop > office > spark/merge > depot" in out


def test_where_nobody_looks_there_is_no_colour_and_no_hop_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(samples.bad(), capsys)
    assert "\x1b" not in out
    assert "…" not in out
    for hop in ("shop>office", "office>spark/merge", "spark/merge>depot", "office>archive"):
        assert hop in out


def test_on_a_terminal_what_was_found_is_red() -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system="standard")
    for part in view(samples.bad()):
        console.print(part)
    assert "\x1b[1;31m" in screen.getvalue()


def test_a_holding_audit_shows_no_columns_for_what_nobody_found(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(samples.good(), capsys)
    assert out.startswith("✓ It holds: ")
    assert "phantoms" not in out
    assert "out of order" in out.splitlines()[2]


def test_nothing_to_show_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(samples.empty(), capsys)
    assert out.startswith("… Nothing to judge by: there are no events")
    assert "there is no time to judge at" in out
    assert "1970" not in out
    assert as_dict(samples.empty())["now"] is None
    out = shown(samples.in_flight(), capsys)
    assert "nothing has settled yet" in out


def test_what_came_back_too_late_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    made = replace(samples.good(), late=1200)
    assert "- 1,200 messages came back later than --keep" in shown(made, capsys)
    assert as_dict(made)["late"] == 1200
    assert as_dict(samples.good())["notes"] == []


def test_hostile_text_moves_no_cursor_and_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    made = samples.hostile()
    out = shown(replace(made, notes=("[red]note[/red]",)), capsys)
    assert not {"\x1b", "\u202e"} & set(out)
    assert "- [red]note[/red]\n" in out


def test_very_many_hops_and_findings_fit_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(samples.many_hops(), capsys)
    assert f"and {200 - HOPS_MAX} hops with fewer findings" in out
    assert "p149>p150" in out
    out = shown(audit([cell(f"a>b{number}", lost=1) for number in range(50)]), capsys)
    assert f"and {50 - GROUPS_MAX} more findings on other hops" in out


# -- JSON


def test_the_keys_are_stable() -> None:
    made = as_dict(samples.bad())
    assert list(made) == [
        "verdict", "sources", "now", "deadline_s", "window_s", "events", "settled", "seconds", "gaps", "late", "notes",
        "totals", "windows", "chains", "inside", "examples",
    ]  # fmt: skip
    assert list(made["verdict"]) == ["outcome", "sentence", "found", "fail_on", "failing"]
    assert made["verdict"]["found"] == {
        "lost": 12, "duplicate": 3, "order": 4, "phantom": 2, "unbalanced": 0, "gap": 0,
    }  # fmt: skip
    total = made["totals"][0]
    assert set(total) == {field.name for field in fields(CellFigures)} - {"latency"} | {
        "holds", "pipe", "delivery", "latency_ms",
    }  # fmt: skip
    assert list(total["delivery"]) == [
        "reliability", "reliability_interval", "uniqueness", "uniqueness_interval", "duplication_rate", "mode", "words",
    ]  # fmt: skip
    assert list(made["chains"][0]) == [
        "pipeline", "hops", "sent", "arrived", "predicted", "measured", "worker", "inside",
    ]  # fmt: skip
    assert list(made["examples"][0]) == [
        "finding", "pipeline", "hop", "window", "message", "session", "idx", "count", "detail",
    ]  # fmt: skip


def test_it_is_json_whatever_is_in_it() -> None:
    for made in (samples.bad(), samples.empty(), samples.hostile(), samples.in_flight()):
        again = json.loads(json.dumps(as_dict(made), allow_nan=False))
        assert again["events"] == made.events
    assert as_dict(samples.hostile())["examples"][0]["message"] == HOSTILE


def test_what_is_undefined_is_null() -> None:
    [total] = as_dict(samples.in_flight())["totals"]
    assert total["delivery"]["reliability"] is None
    assert total["delivery"]["mode"] is None
    assert total["latency_ms"]["p99"] is None


def test_the_claim_is_told_with_the_verdict() -> None:
    verdict = as_dict(audit([cell(lost=1)]), [Finding.ORDER])["verdict"]
    assert (verdict["outcome"], verdict["fail_on"], verdict["failing"]) == ("holds", ["order"], [])
    assert as_dict(audit([cell(lost=1)]))["verdict"]["failing"] == ["lost"]
