"""`semel audit` over real stores and real exports: the commands of the how-to, and what was planted is found."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.cli.main import run
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Log, Unit
from semel.stores.open import open_store

pytestmark = pytest.mark.usefixtures("spark")

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "audit.md").read_text(encoding="utf-8")
FIRST, SECOND = "shop>office", "office>depot"
MESSAGES = 60


def events(
    hop: str, kinds: tuple[Kind, ...], *, without: Collection[int] = (), twice: Collection[int] = ()
) -> Iterator[Event]:
    for number in range(MESSAGES):
        for _ in range((number not in without) * (1 + (number in twice))):
            for kind in kinds:
                yield Event(
                    kind, hop, pipeline="orders", message=f"m{number:02}", session=f"eu-{number % 4}", idx=number // 4
                )


def url(name: str) -> str:
    """In full: the workers of a session that was there before are in another folder."""
    return f"sqlite:///{Path(f'{name}.db').absolute()}"


def fill(name: str, *logged: Iterator[Event]) -> None:
    store = open_store(url(name), create=True)
    try:
        store.commit([Unit(tuple(Log(event) for of in logged for event in of))])
    finally:
        store.close()


def stores(*, lost: Collection[int] = (), doubled: Collection[int] = (), inside: Collection[int] = ()) -> None:
    """The shop sends, the office accepts and sends on, the depot accepts; the office keeps the ledger of the depot.
    `lost` and `doubled` on the first hop; `inside` are forwarded by the office, as it says, and never sent on."""
    fill("shop", events(FIRST, (Kind.SENT,)))
    fill(
        "office",
        events(FIRST, (Kind.ACCEPTED,), without=lost, twice=doubled),
        events(FIRST, (Kind.FORWARDED,), without=lost, twice=doubled),
        events(SECOND, (Kind.SENT,), without=(*lost, *inside)),
        events(SECOND, (Kind.ACCEPTED, Kind.HANDLED), without=(*lost, *inside)),
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def semel(*args: str) -> int:
    return run(args)


def export(*names: str) -> None:
    for name in names:
        assert semel("store", "export", "--store", url(name), "--to", "lake") == 0


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    exit_code = semel(*args, "--json")
    return exit_code, json.loads(capsys.readouterr().out)


def test_what_was_planted_is_found_and_shown_everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores(lost=[7], doubled=[20], inside=[31])
    export("office")
    args = ("audit", "lake", url("shop"), "--deadline", "0s")
    written = ("--out", "report.html", "--prometheus", "semel.prom", "--tables", "tables")
    exit_code, said = answer(capsys, *args, *written, "--from", FIRST, "--to", SECOND)
    assert (exit_code, said["error"]["code"]) == (1, "claim-false"), said["error"]
    result = said["result"]
    assert result["verdict"]["failing"][:2] == ["lost", "duplicate"]
    found = {(example["finding"], example["hop"], example["message"]) for example in result["examples"]}
    assert {("lost", FIRST, "m07"), ("lost", FIRST, "m31"), ("duplicate", FIRST, "m20")} <= found
    [inside] = [example for example in result["examples"] if example["message"] == "m31"]
    assert inside["detail"] == f"between {FIRST} and {SECOND}"
    assert result["verdict"]["found"]["lost"] == 2
    [chain] = result["chains"]
    assert (chain["sent"], chain["arrived"]) == (MESSAGES, MESSAGES - 2)
    assert chain["worker"] < 1
    assert chain["inside"] == 1
    assert result["comparison"]["missing_ids"] == ["m07", "m31"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(message in page for message in ("m07", "m20", "m31"))
    metrics = (folder / "semel.prom").read_text(encoding="utf-8")
    assert f'semel_audit_lost_total{{pipeline="orders",hop="{FIRST}",session_class=""}} 1\n' in metrics
    assert f'semel_audit_inside_lost_total{{pipeline="orders",hop="{FIRST}"}} 1\n' in metrics
    [program] = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    capsys.readouterr()
    exec(compile(program, "audit.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert f"lost {FIRST} m07" in printed
    assert f"duplicate {FIRST} m20" in printed


def test_what_is_in_order_holds_in_an_export_compacted_or_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores()
    export("shop", "office")
    plain_code, plain = answer(capsys, "audit", "lake", "--deadline", "0s", "--class-by", "^([a-z]+)-")
    assert (plain_code, plain["error"]) == (0, None)
    assert [(total["hop"], total["session_class"], total["sent"]) for total in plain["result"]["totals"]] == [
        (SECOND, "eu", MESSAGES), (FIRST, "eu", MESSAGES),
    ]  # fmt: skip
    exit_code, compacted = answer(capsys, "audit", "lake", "--deadline", "0s", "--class-by", "^([a-z]+)-", "--compact")
    assert exit_code == 0
    assert compacted["result"]["compacted"][0]["rows"] == compacted["result"]["events"] == plain["result"]["events"]
    assert compacted["result"]["totals"] == plain["result"]["totals"]


def test_nothing_sent_is_nothing_to_judge_by(capsys: pytest.CaptureFixture[str]) -> None:
    fill("shop")
    exit_code, said = answer(capsys, "audit", url("shop"))
    assert (exit_code, said["error"]["code"]) == (4, "no-data"), said["error"]
    export("shop")
    exit_code, said = answer(capsys, "audit", "lake", "--out", "report.html")
    assert (exit_code, said["result"]["now"], said["result"]["events"]) == (4, None, 0)
    assert "no events" in said["error"]["message"]
    assert "1970" not in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "exit_code", "words"),
    [
        ("nowhere", 2, "nowhere does not exist"),
        ("sqlite:///nowhere.db", 3, "nowhere.db"),
        ("notes.txt", 2, "notes.txt is not a folder"),
    ],
)
def test_a_source_that_is_none_is_named(
    source: str, exit_code: int, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "notes.txt").write_text("")
    code, said = answer(capsys, "audit", source, "--out", "report.html")
    assert code == exit_code
    assert words in said["error"]["message"]
    assert not (folder / "report.html").exists()
