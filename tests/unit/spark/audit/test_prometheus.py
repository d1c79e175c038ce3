"""The metrics, read back by the grammar of the text format."""

from __future__ import annotations

import re
import stat
from collections import Counter
from pathlib import Path

from tests.unit.spark.audit import samples
from tests.unit.spark.audit.samples import HOSTILE, audit, cell

from semel.spark.audit.prometheus import metrics, write_metrics
from semel.spark.audit.result import Finding

_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\n"])*)"(?:,|\Z)')
_SAMPLE = re.compile(r"(semel_audit_[a-z_]+)(?:\{(.*)\})? (\S+)\Z")
_ESCAPED = re.compile(r"\\(.)")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    """Every line must be a comment or a sample of the family that was announced last."""
    found: Samples = {}
    family, helped = "", ""
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            helped = line.split(" ")[2]
        elif line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family == helped
            assert (kind == "counter") == family.endswith("_total")
        else:
            sample = _SAMPLE.match(line)
            assert sample is not None, line
            assert sample[1] == family
            labels = _labels(sample[2] or "")
            assert (sample[1], labels) not in found
            found[sample[1], labels] = float(sample[3])
    return found


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    labels = list(_LABEL.finditer(text))
    assert "".join(label[0] for label in labels) == text
    return tuple(
        (label[1], _ESCAPED.sub(lambda char: "\n" if char[1] == "n" else char[1], label[2])) for label in labels
    )


HOP = (("pipeline", "orders"), ("hop", "shop>office"), ("session_class", ""))


def test_counts_and_figures_of_a_hop() -> None:
    found = parsed(metrics(audit([cell(lost=10, stopped=30, resent=50, p50=20.0)])))
    assert found["semel_audit_sent_total", HOP] == 1000
    assert found["semel_audit_attempts_total", HOP] == 1050
    assert found["semel_audit_lost_total", HOP] == 10
    assert found["semel_audit_duplicates_total", HOP] == 30
    assert found["semel_audit_reliability", (*HOP, ("side", "delivery"))] == 0.99
    assert found["semel_audit_uniqueness", (*HOP, ("side", "pipe"))] == 990 / 1020
    assert found["semel_audit_latency_seconds", (*HOP, ("quantile", "0.5"))] == 0.02
    assert found["semel_audit_holds", ()] == 0


def test_chains_by_their_points() -> None:
    found = parsed(metrics(samples.bad()))
    chain = (("pipeline", "orders"), ("chain", "shop > office > archive"))
    assert found["semel_audit_chain_predicted", chain] == 0.99987
    assert found["semel_audit_chain_worker", chain] == 1.0


def test_what_cannot_be_told_has_no_sample() -> None:
    found = parsed(metrics(samples.in_flight()))
    names = Counter(name for name, _ in found)
    assert found["semel_audit_in_flight", HOP] == 40
    assert not names.keys() & {"semel_audit_holds", "semel_audit_reliability", "semel_audit_latency_seconds"}
    assert "semel_audit_sent_total" not in metrics(samples.empty())
    assert ("semel_audit_timestamp_seconds", ()) not in parsed(metrics(samples.empty()))


def test_every_metric_is_in_the_guide() -> None:
    guide = (Path(__file__).resolve().parents[4] / "docs" / "how-to" / "audit.md").read_text(encoding="utf-8")
    for name, _ in parsed(metrics(samples.bad())):
        assert f"`{name.removeprefix('semel_audit_')}`" in guide


def test_holds_follows_the_claim() -> None:
    made = audit([cell(lost=1)])
    assert parsed(metrics(made, [Finding.ORDER]))["semel_audit_holds", ()] == 1
    assert parsed(metrics(made, [Finding.LOST]))["semel_audit_holds", ()] == 0


def test_a_hostile_name_is_one_label_and_comes_back_as_it_was() -> None:
    evil = f'{HOSTILE}"}} 1\nsemel_audit_holds 1\\'
    found = parsed(metrics(audit([cell(f"{evil}>b", pipeline=evil)])))
    hop = (("pipeline", evil), ("hop", f"{evil}>b"), ("session_class", ""))
    assert found["semel_audit_sent_total", hop] == 1000


def test_the_file_appears_as_a_whole_and_others_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "semel.prom"
    write_metrics(samples.good(), file)
    assert file.read_text(encoding="utf-8") == metrics(samples.good())
    assert [path.name for path in tmp_path.iterdir()] == ["semel.prom"]
    (tmp_path / "plain").write_text("")
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
