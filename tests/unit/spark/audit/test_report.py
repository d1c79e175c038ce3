"""What is said about an audit, and the page that says it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit.spark.audit import samples
from tests.unit.spark.audit.samples import HOSTILE, MINUTE, START, audit, cell

from semel.errors import ConfigError
from semel.spark.audit.files import check_place, write_whole
from semel.spark.audit.report import (
    BINS_MAX,
    AuditOutcome,
    Axis,
    HopHealth,
    advice,
    chain_name,
    count_in_words,
    duration,
    groups,
    health,
    hops,
    interval,
    judge,
    measures,
    merge,
    moment,
    ratio,
    spelled,
)
from semel.spark.audit.report_graph import compact, draw_graph
from semel.spark.audit.report_html import COURSES_MAX, page, write_report
from semel.spark.audit.result import Audit, CellFigures, Chain, Example, Finding, Latency, LostInside, WindowState

SAMPLES: dict[str, Callable[[], Audit]] = {
    "good": samples.good,
    "bad": samples.bad,
    "hostile": samples.hostile,
    "empty": samples.empty,
    "in flight": samples.in_flight,
    "one window": lambda: audit([cell()]),
    "10,000 windows": samples.many_windows,
    "200 hops": samples.many_hops,
    "200 leaves": lambda: samples.many_hops(200, "star"),
}


# -- the verdict


def test_the_verdict_is_one_sentence_for_each_state() -> None:
    assert judge(audit([cell(), cell("office>depot")])).sentence == (
        "It holds: nothing lost, doubled or out of order in 2,000 sends over 2 hops."
    )
    assert judge(audit([cell(lost=3, doubled=1), cell("office>depot")])).sentence == (
        "It does not hold: 3 lost and 1 doubled on 1 of 2 hops."
    )
    assert judge(samples.in_flight()).sentence.startswith("Too early to tell: 40 messages may still arrive, 5 min")
    young = judge(samples.arrived_and_young())
    assert (young.outcome, young.sentence) == (
        AuditOutcome.NO_DATA, "Too early to tell: in every window something was sent less than 5 min ago.",
    )  # fmt: skip
    assert judge(samples.empty()).sentence.startswith("Nothing to judge by: there are no events")
    assert judge(replace(samples.empty(), events=1)).sentence.startswith("Nothing to judge by: 1 event, but no message")


@pytest.mark.parametrize(
    ("finding", "figures"),
    [
        (Finding.LOST, cell(lost=1)),
        (Finding.DUPLICATE, cell(doubled=1)),
        (Finding.ORDER, cell(disorder=1)),
        (Finding.PHANTOM, cell(phantoms=1)),
        (Finding.UNBALANCED, cell(unbalanced=1)),
    ],
)
def test_each_finding_makes_the_claim_false_unless_it_is_no_part_of_it(finding: Finding, figures: CellFigures) -> None:
    found = judge(audit([figures]))
    assert (found.outcome, found.failing) == (AuditOutcome.FAILS, (finding,))
    others = judge(audit([figures]), set(Finding) - {finding})
    assert (others.outcome, others.failing) == (AuditOutcome.HOLDS, ())
    assert others.sentence.endswith(f"; not part of the claim: {count_in_words(finding, 1)}.")
    assert others.found[finding] == 1


def test_a_gap_in_the_evidence_fails_even_where_nothing_has_settled() -> None:
    gap = replace(samples.in_flight(), gaps=2)
    assert judge(gap).sentence == "It does not hold: 2 ledger gaps."
    assert judge(gap, [Finding.LOST]).outcome is AuditOutcome.NO_DATA


def test_a_claim_of_nothing_says_so() -> None:
    assert judge(audit([cell()]), []).sentence == "Nothing is claimed."
    assert judge(audit([cell()]), [Finding.LOST, Finding.GAP]).sentence.startswith(
        "It holds: nothing lost and no ledger gaps in 1,000 sends over 1 hop."
    )


# -- figures taken together


def test_counts_add_up_and_percentiles_become_bounds() -> None:
    first, second = cell(sent=100, lost=1, p50=10.0), cell(window=START + MINUTE, sent=300, stopped=7, p50=20.0)
    both = merge([first, second])
    assert (both.sent, both.lost, both.duplicates, both.arrivals) == (400, 1, 7, 99 + 307)
    assert both.latency.count == 399
    assert both.latency.p50 == pytest.approx((99 * 10 + 300 * 20) / 399)
    assert both.latency.p99 == second.latency.p99
    assert merge([first]) is first


def test_one_open_window_keeps_the_whole_open_and_empty_ones_do_not_count() -> None:
    of = {state: replace(cell(), state=state) for state in WindowState}
    assert merge([of[WindowState.SETTLED], of[WindowState.OPEN]]).state is WindowState.OPEN
    assert merge([of[WindowState.SETTLED], of[WindowState.EMPTY]]).state is WindowState.SETTLED
    assert merge([of[WindowState.EMPTY]] * 2).state is WindowState.EMPTY


def test_clock_skew_survives_where_no_latency_is_known() -> None:
    skewed = replace(cell(), latency=Latency(skewed=3, skew_ms=40.0))
    assert merge([skewed, replace(skewed, latency=Latency(skewed=1, skew_ms=90.0))]).latency == Latency(
        skewed=4, skew_ms=90.0
    )


def test_pipe_and_delivery_are_told_apart() -> None:
    pipe, delivery = measures(cell(sent=100_000, stopped=5_000))
    assert (pipe.reliability, delivery.reliability) == (1.0, 1.0)
    assert pipe.uniqueness == pytest.approx(100 / 105)
    assert delivery.uniqueness == 1.0
    assert (pipe.words, delivery.words) == ("tends to at least once", "tends to exactly once")


def test_counts_that_cannot_be_are_shown_as_such() -> None:
    impossible = replace(cell(), arrivals_unique=2000)
    pipe, delivery = measures(impossible)
    assert (pipe.reliability, pipe.words) == (None, "the counts do not fit each other")
    assert delivery.reliability == 1.0
    assert "the counts do not fit each other" not in page(audit([cell()]))
    assert page(audit([replace(cell(), accepted_unique=2000)])).count("the counts do not fit each other") == 1


def test_classes_of_a_hop_are_one_hop() -> None:
    [hop] = hops(audit([cell(session_class="vip", lost=1), cell(session_class="rest", sent=50)]))
    assert [figures.session_class for figures in hop.classes] == ["vip", "rest"]
    assert (hop.total.sent, hop.total.lost, hop.latency_is_bound) == (1050, 1, True)
    assert [figures.sent for figures in hop.windows] == [1050]


def test_hops_stand_in_the_order_of_the_path() -> None:
    names = ["b>c", "c>d", "y>x", "a>b", "b>a2", "x>y"]
    assert [hop.name for hop in hops(audit([cell(name) for name in names]))] == [
        "a>b", "b>c", "b>a2", "c>d", "y>x", "x>y",
    ]  # fmt: skip
    two = audit([cell("b>c", pipeline="one"), cell("z>b", pipeline="two"), cell("a>b", pipeline="one")])
    assert [(hop.pipeline, hop.name) for hop in hops(two)] == [("one", "a>b"), ("one", "b>c"), ("two", "z>b")]


def test_a_hop_whose_sender_is_unknown_is_told_where_to_look() -> None:
    lonely = replace(cell(sent=0), phantoms=7, arrivals=7)
    assert advice(audit([lonely])) == [
        "Nobody is on record as sending on orders: shop>office: add the store of shop as a source."
    ]
    assert advice(audit([cell(phantoms=7)])) == []


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        (cell(), HopHealth.GOOD),
        (cell(lost=1), HopHealth.BAD),
        (cell(sent=5, in_flight=5, state=WindowState.OPEN), HopHealth.OPEN),
        (cell(sent=5, in_flight=1, state=WindowState.OPEN), HopHealth.GOOD),
        (cell(sent=0, state=WindowState.EMPTY), HopHealth.NONE),
    ],
)
def test_how_a_cell_is_shown(figures: CellFigures, shown: HopHealth) -> None:
    assert health(figures) is shown


# -- time


def test_many_windows_are_taken_together_and_none_is_left_out() -> None:
    made = samples.many_windows(10_000)
    axis = Axis.of(made)
    assert axis is not None
    [hop] = hops(made)
    bins = axis.bins(hop)
    assert 60 < len(bins) <= BINS_MAX
    assert axis.windows_each == 84
    assert sum(each.figures.sent for each in bins) == sum(figures.sent for figures in made.windows)
    assert sum(each.figures.lost for each in bins) == 1


def test_a_time_without_windows_stays_empty() -> None:
    made = audit([cell(window=START), cell(window=START + 10 * MINUTE)])
    axis = Axis.of(made)
    assert axis is not None
    assert [each.start for each in axis.bins(hops(made)[0])] == [START, START + 10 * MINUTE]
    [course] = re.findall(r'<svg class="course".*?</svg>', page(made), re.DOTALL)
    assert 'class="line' not in course
    assert course.count('class="dot reliability delivery"') == 2


def test_without_windows_there_is_no_axis() -> None:
    assert Axis.of(samples.empty()) is None


# -- findings


def test_what_has_no_example_is_counted() -> None:
    [lost, doubled, order, *_] = [group for group in groups(samples.bad()) if group.hop == "shop>office"]
    assert [group.finding for group in (lost, doubled, order)] == [Finding.LOST, Finding.DUPLICATE, Finding.ORDER]
    assert (lost.count, [(spot.count, len(spot.examples)) for spot in lost.spots], lost.rest) == (
        12,
        [(3, 3), (9, 5)],
        0,
    )


def test_findings_in_very_many_windows_are_summed_up() -> None:
    cells = [cell(window=START + number * MINUTE, lost=2) for number in range(300)]
    late = START + 299 * MINUTE
    [group] = groups(audit(cells, examples=samples.examples_of(Finding.LOST, "shop>office", late, 1)))
    assert (group.count, len(group.spots), group.rest, group.rest_windows) == (600, 50, 500, 250)
    assert [(spot.window, len(spot.examples)) for spot in group.spots][-1] == (late, 1)


def test_a_gap_is_known_only_by_its_example() -> None:
    example = Example(Finding.GAP, "orders", "shop>office", None, "orders 5 to 9", detail="5 counted, 4 there")
    [group] = groups(audit([cell()], examples=[example], gaps=1))
    assert (group.finding, group.count, group.spots[0].window) == (Finding.GAP, 1, None)


# -- words


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (1.0, "1"), (0.5, "0.5"), (1 - 1e-9, "1−1.0e-09"), (0.999999, "0.999999"), (0.0, "0")],
)
def test_a_ratio_that_is_not_1_never_looks_like_1(value: float | None, text: str) -> None:
    assert ratio(value) == text


def test_an_interval_never_promises_too_much() -> None:
    assert interval((0.999_996, 0.999_996)) == "0.99999…1"
    assert interval((0.0, 1.0)) == "0…1"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(None, "–"), (0.0, "0 ms"), (12.34, "12.3 ms"), (1500, "1.5 s"), (90_000, "1.5 min"), (7_200_000, "2 h")],
)
def test_durations(milliseconds: float | None, text: str) -> None:
    assert duration(milliseconds) == text


def test_moments_are_utc_and_no_number_is_too_wild() -> None:
    assert moment(START) == "2026-01-15 10:00:00"
    assert moment(None) == "any time"
    assert moment(2**62) == f"{2**62} µs"


def test_text_that_would_do_something_is_spelled_out() -> None:
    assert spelled("order-7 é 漢") == "order-7 é 漢"
    assert spelled("a\x1b[31m\u202eb\n") == "a\\u{1b}[31m\\u{202e}b\\u{a}"


def test_the_name_of_a_chain() -> None:
    assert chain_name(Chain("", ("a>b", "b>c"), 1, 1, 1.0, 1.0)) == "a > b > c"
    assert chain_name(Chain("", ("a>b", "x>c"), 1, 1, 1.0, 1.0)) == "a>b, x>c"


@pytest.mark.parametrize(("count", "text"), [(9_999, "9,999"), (12_345, "12.3k"), (3_400_000, "3.4M"), (10**10, "10G")])
def test_counts_on_an_edge_are_short(count: int, text: str) -> None:
    assert compact(count) == text


# -- the page


class _Page(HTMLParser):
    """Checks that tags close in order, and keeps what matters: tags, ids, links, text."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for attribute, value in self.attributes if attribute == name]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_page_is_well_formed_and_needs_nothing_from_outside(name: str) -> None:
    text = page(SAMPLES[name]())
    parsed = _Page(text)
    assert not parsed.tags.keys() & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "form",
        "image",
        "use",
        "foreignobject",
    }
    assert not [value for value in parsed.values("href") if not value.startswith("#")]
    assert not parsed.values("src")
    assert not [attribute for attribute, _ in parsed.attributes if attribute.startswith("on")]
    ids = parsed.values("id")
    assert [count for count in Counter(ids).values() if count > 1] == []
    assert {value[1:] for value in parsed.values("href")} <= set(ids)
    assert set(" ".join(parsed.values("aria-labelledby")).split()) <= set(ids)
    assert "default-src 'none'" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "@import" not in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(svg)
        assert "nan" not in svg.lower().replace("unbalanced", "")
        assert "inf" not in re.sub(r"<title.*?</title>|<text.*?</text>|aria-label=\"[^\"]*\"", "", svg, flags=re.DOTALL)


@pytest.mark.parametrize(("name", "kilobytes"), [("10,000 windows", 150), ("200 hops", 900), ("200 leaves", 900)])
def test_a_large_audit_gives_a_page_that_a_browser_likes(name: str, kilobytes: int) -> None:
    text = page(SAMPLES[name]())
    assert len(text) < kilobytes * 1000
    assert text.count('<svg class="course"') <= COURSES_MAX


def test_hostile_names_and_ids_are_only_text() -> None:
    parsed = _Page(page(samples.hostile()))
    assert "script" not in parsed.tags
    words = "".join(parsed.text)
    assert spelled(HOSTILE) in words
    assert not {"\x1b", "\u202e"} & set(page(samples.hostile()))


def test_the_verdict_comes_first_and_in_its_colour() -> None:
    for name, style in (("good", "holds"), ("bad", "fails"), ("empty", "unknown"), ("in flight", "unknown")):
        made = SAMPLES[name]()
        text = page(made)
        assert f'<div class="verdict {style}"' in text
        assert text.index(judge(made).sentence) < text.index('<section id="path"')


def test_the_page_judges_by_what_was_claimed() -> None:
    text = page(audit([cell(lost=2)]), [Finding.ORDER])
    assert '<div class="verdict holds"' in text
    assert "not part of the claim: 2 lost" in text


def test_every_edge_has_its_figures_and_leads_to_its_row() -> None:
    text = page(samples.bad())
    [graph] = re.findall(r'<svg class="graph".*?</svg>', text, re.DOTALL)
    edges = re.findall(r'<a class="edge (\w+)" href="#(hop-\d)" aria-label="(.*?)"', graph)
    assert [(style, link) for style, link, _ in edges] == [
        ("bad", "hop-1"), ("bad", "hop-2"), ("good", "hop-3"), ("good", "hop-4"),
    ]  # fmt: skip
    assert edges[0][2].startswith("shop&gt;office: R 0.999863  UR 0.999989; ✗ 12 lost · 1 doubled; 4 disorder; p99 ")
    assert "✓ holds" in edges[2][2]
    for number in range(1, 5):
        assert f'<tr id="hop-{number}">' in text


def test_open_windows_are_hatched_and_settled_ones_are_not() -> None:
    assert 'class="open-hatch"' not in page(audit([cell()]))
    assert 'class="open-hatch"' in page(
        audit([cell(), cell(window=START + MINUTE, state=WindowState.OPEN, in_flight=4)])
    )


def test_the_drill_down_names_ids_and_counts_the_rest() -> None:
    text = page(samples.bad())
    findings = text[text.index('<section id="findings"') :]
    assert "order-541-0004" in findings
    assert "and 4 more in this window" in findings
    assert findings.index("12 lost") < findings.index("3 doubled") < findings.index("4 out of order")


def test_what_is_left_out_of_the_charts_is_said() -> None:
    assert "The figures of the other 188 over time" in page(samples.many_hops())


def test_chains_show_the_loss_inside_workers() -> None:
    chains = page(samples.bad()).split('<section id="chains"')[1].split("</section>")[0]
    assert "shop &gt; office &gt; spark/merge &gt; depot" in chains
    assert "<td class=bad>0.99992</td>" in chains
    assert "<td>1</td>" in chains


@pytest.mark.parametrize(
    "names",
    [
        ["a>b", "b>a"],
        ["a>a"],
        ["a>b", "b>c", "c>a", "a>c"],
        ["a>b", "a>b2", "b>c", "b2>c", "a>c"],
        ["lonely", ""],
        [f"p{number}>p{(number + 1) % 9}" for number in range(9)],
    ],
)
def test_any_set_of_hops_can_be_drawn(names: list[str]) -> None:
    numbered = list(enumerate(hops(audit([cell(name) for name in names])), 1))
    svg = draw_graph(numbered)
    root = ET.fromstring(svg)
    assert sum(1 for each in root.iter("a")) == len(names)
    assert len(re.findall(r'class="head"', svg)) == len(names)
    labels = [(float(each.get("x", "")), float(each.get("y", ""))) for each in root.iter("rect") if each.get("class")]
    assert len({(round(x), round(y)) for x, y in labels}) == len(names)
    width, height = (float(size) for size in root.get("viewBox", "").split()[2:])
    assert all(0 <= x <= width and 0 <= y <= height for x, y in labels)


# -- files


def test_a_report_replaces_the_former_one_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("old")
    write_report(samples.good(), file)
    assert file.read_text(encoding="utf-8") == page(samples.good())
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="cannot write"):
        write_whole(tmp_path / "taken", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_place_is_checked_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        check_place("--out", tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        check_place("--out", tmp_path / "missing" / "report.html")
    check_place("--out", tmp_path / "report.html")


# -- lost inside a worker


def test_what_was_lost_inside_a_worker_decides_and_is_listed_by_the_hop_that_brought_it() -> None:
    hop, example = "shop>office", Example(Finding.LOST, "orders", "shop>office", samples.START, "m1", detail="between")
    inside = LostInside("orders", hop, ("office>depot",), 3)
    made = replace(samples.audit([samples.cell(hop, lost=2)], examples=[example]), inside=(inside,))
    judgement = judge(made)
    assert (judgement.outcome, judgement.found[Finding.LOST]) == (AuditOutcome.FAILS, 5)
    assert judgement.sentence == "It does not hold: 5 lost on 1 hop, 3 of the lost inside workers."
    [group] = groups(made)
    assert (group.hop, group.count, [spot.count for spot in group.spots], group.rest) == (hop, 5, [2], 3)
    alone = replace(samples.audit([samples.cell(hop)], examples=[example]), inside=(inside,))
    assert judge(alone).sentence == "It does not hold: 3 lost, 3 of the lost inside workers."
    assert [(group.hop, group.count) for group in groups(alone)] == [(hop, 3)]
