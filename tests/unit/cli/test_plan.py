"""`semel plan`: where the path comes from, what is said about it, and how a mistake is shown."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cli.conftest import Semel

from semel.sim import pipes as sim_pipes

EXAMPLE = "A -[loss=0.1,confirm_loss=0.05,retries=5]-> B -[dedup=id]-> C"


def typed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


# -- what it finds out


def test_the_result_has_the_figures_of_the_path_and_of_every_hop(semel: Semel) -> None:
    ran = semel("plan", EXAMPLE, "--json")
    assert (ran.exit_code, ran.err) == (0, "")
    assert ran.result["reliability"] == pytest.approx(1 - 1e-6)
    assert ran.result["uniqueness"] == 1
    assert [(hop["name"], hop["mode"]) for hop in ran.result["hops"]] == [
        ("A>B", "tends to at least once"), ("B>C", "exactly once"),
    ]  # fmt: skip
    assert ran.result["product"]["uniqueness"] < 1


def test_a_person_sees_the_path_the_figures_and_the_notes(semel: Semel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = semel("plan", "A -> (P1 -[loss=.1,confirm_loss=.2]-> X -> P2){retries=3} -> B")
    assert (ran.exit_code, ran.err) == (0, "")
    assert "╭ pipe retries=3" in ran.out
    assert "A to B: reliability 0.9999, uniqueness 0.80" in ran.out
    assert "  P1>X" in ran.out
    assert "the product rule gives" in ran.out
    assert "dedup=id at B would lift uniqueness" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_reliability_close_to_one_is_shown_by_what_it_lacks(semel: Semel) -> None:
    assert "reliability 1-1.0e-10," in semel("plan", "A -[loss=.1,retries=9]-> B").out


def test_a_path_without_a_way_is_refused(semel: Semel, tmp_path: Path) -> None:
    for given, words in (("A", "has one point and no way"), (str(tmp_path), "is a folder")):
        ran = semel("plan", given)
        assert ran.exit_code == 2
        assert words in ran.err
    assert "cannot read" in semel("plan", "orders.TOML").err


def test_a_seed_needs_a_simulation(semel: Semel) -> None:
    ran = semel("plan", "A -> B", "--seed", "3")
    assert ran.exit_code == 2
    assert "add --simulate" in ran.err


@pytest.mark.parametrize("args", [("-> B",), ("--", "-> B"), ("-> B", "--want-rate", "5"), ("--debug", "-> B")])
def test_a_path_that_begins_with_its_arrow_is_read_as_a_path(semel: Semel, args: tuple[str, ...]) -> None:
    ran = semel("plan", *args)
    assert ran.exit_code == 2
    assert ran.err.splitlines()[:3] == [
        "error: line 1, column 1: the arrow comes from nowhere", "    -> B", "    ^^",
    ]  # fmt: skip


def test_options_behind_such_a_path_are_still_options(semel: Semel) -> None:
    assert semel("plan", "-[loss=.1]-> B", "--json").error["code"] == "path-syntax"
    assert "No such option: --want" in semel("plan", "-> B", "--want", "1").err


def test_a_file_may_begin_with_a_dash(semel: Semel) -> None:
    Path("-orders.path").write_text("A -[loss=50%]-> B")
    assert semel("plan", "--json", "--", "-orders.path").result["reliability"] == 0.5


@pytest.mark.parametrize("text", ["A -[timeout=1e-300,retries=1]-> B", "A -[delay=1e308s]-> B"])
def test_times_have_limits(semel: Semel, text: str) -> None:
    ran = semel("plan", text)
    assert ran.exit_code == 2
    assert " is too " in ran.err


def test_what_no_worker_could_do_is_refused(semel: Semel) -> None:
    ran = semel("plan", "A{durable=yes} -[repeats=1]-> B")
    assert ran.exit_code == 2
    assert "leave repeats out" in ran.err


# -- where the path comes from


def test_a_file_of_text_or_toml(semel: Semel) -> None:
    Path("orders.path").write_text("A -[loss=50%]-> B // half\n")
    Path("orders.toml").write_text('[[hop]]\nfrom = "A"\nto = "B"\nloss = 0.5\n')
    for file in ("orders.path", "orders.toml"):
        assert semel("plan", file, "--json").result["reliability"] == 0.5


@pytest.mark.parametrize("text", ["A -[loss=.5]-> B", 'path = "A -[loss=.5]-> B"', "\ufeffA -[loss=.5]-> B"])
def test_stdin_in_either_form(text: str, semel: Semel, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, text.encode())
    assert semel("plan", "-", "--json").result["reliability"] == 0.5


def test_a_file_that_cannot_be_read_says_so(semel: Semel) -> None:
    ran = semel("plan", "nowhere.toml", "--json")
    assert (ran.exit_code, ran.error["code"]) == (2, "config")
    assert "nowhere.toml" in ran.error["message"]
    Path("latin.path").write_bytes(b"\xe4 -> B")
    assert "not UTF-8 at byte 0" in semel("plan", "latin.path", "--json").error["message"]


# -- mistakes


def test_a_mistake_is_shown_with_a_caret(semel: Semel) -> None:
    ran = semel("plan", "A -[los=0.1]-> B")
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.splitlines()[:3] == [
        "error: line 1, column 5: a hop has no option 'los'",
        "    A -[los=0.1]-> B",
        "        ^^^",
    ]
    assert "did you mean loss?" in ran.err
    answer = semel("plan", "A -[los=0.1]-> B", "--json")
    assert (answer.exit_code, answer.error["code"]) == (2, "path-syntax")
    assert "\n        ^^^" in answer.error["message"]


def test_a_mistake_in_a_file_names_its_line(semel: Semel) -> None:
    Path("orders.toml").write_text('[[hop]]\nfrom = "A"\nto = "B"\nlos = 0.5\n')
    assert semel("plan", "orders.toml", "--json").error["message"].startswith("line 4, column 1: ")


# -- wishes


def test_a_wish_is_answered_with_changes(semel: Semel) -> None:
    wish = ("plan", "A -[loss=.1]-> B", "--want-reliability", "0.999", "--want-uniqueness", "0.99")
    solution = semel(*wish, "--json").result["solution"]
    assert solution["reached"]
    assert [(change["where"], change["option"], change["new"]) for change in solution["changes"]] == [
        ("A>B", "retries", "2")
    ]
    assert "A>B: retries=2 (was none)" in semel(*wish).out


def test_a_wish_that_is_true_already(semel: Semel) -> None:
    assert "reaches what is wanted as it is" in semel("plan", EXAMPLE, "--want-reliability", "0.9").out


def test_a_wish_out_of_reach_says_why(semel: Semel) -> None:
    ran = semel("plan", "A -> X{crash=.1} -> B", "--want-reliability", "0.999")
    assert ran.exit_code == 1
    assert "cannot be had: reliability 0.999 is out of reach: 0.9 is the best" in ran.out


def test_a_wish_outside_of_0_to_1_is_a_mistake(semel: Semel) -> None:
    assert semel("plan", "A -> B", "--want-uniqueness", "2").exit_code == 2


# -- simulation


def test_predicted_and_measured_stand_side_by_side(semel: Semel) -> None:
    ran = semel("plan", EXAMPLE, "--simulate", "300", "--seed", "7")
    assert (ran.exit_code, ran.err) == (0, "")
    assert "300 messages simulated, seed 7" in ran.out
    assert ran.out.count("agrees") == 3
    simulation = semel("plan", EXAMPLE, "--simulate", "300", "--seed", "7", "--json").result["simulation"]
    assert simulation["agrees"]
    assert [figure["figure"] for figure in simulation["figures"]] == [
        "reliability", "uniqueness", "copies", "transmissions",
    ]  # fmt: skip


def test_a_simulation_that_differs_is_a_false_claim(semel: Semel, monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(path: Any, *, messages: int, seed: int, spacing_s: float | None) -> Any:
        return SimpleNamespace(
            sent=messages, unique=messages // 2, received=messages, sum_of_squares=2 * messages, transmissions=messages,
            hops={},
        )  # fmt: skip

    monkeypatch.setattr(sim_pipes, "simulate", worse)
    ran = semel("plan", "A -[loss=.1]-> B", "--simulate", "1000", "--json")
    assert (ran.exit_code, ran.error["code"]) == (1, "claim-false")
    assert "reliability and uniqueness" in ran.error["message"]
    assert not ran.result["simulation"]["agrees"]


def test_a_timeout_below_the_round_trip_is_simulated_in_its_own_time(semel: Semel) -> None:
    ran = semel("plan", "A -[loss=.1,retries=3,delay=10ms,timeout=5ms]-> B", "--simulate", "500", "--json")
    assert ran.exit_code == 0
    assert ran.result["copies"] == pytest.approx(3.6)


# -- plots


@pytest.mark.parametrize("file", ["plan.png", "plan.html"])
def test_a_plot_is_written(file: str, semel: Semel) -> None:
    pytest.importorskip("matplotlib")
    assert semel("plan", EXAMPLE, "--plot", file, "--json").result["plot"] == file
    data = Path(file).read_bytes()
    if file.endswith(".png"):
        assert data.startswith(b"\x89PNG")
    else:
        page = data.decode()
        assert page.count("<svg") == 2
        assert "src=" not in page
        assert 'href="http' not in page
        assert "reliability R" in page or "A to C" in page


def test_the_same_path_gives_the_same_page(semel: Semel) -> None:
    pytest.importorskip("matplotlib")
    for file in ("one.html", "two.html"):
        semel("plan", EXAMPLE, "--plot", file)
    assert Path("one.html").read_bytes() == Path("two.html").read_bytes()


def test_a_plot_without_matplotlib_says_what_to_install(semel: Semel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = semel("plan", EXAMPLE, "--plot", "plan.png", "--json")
    assert (ran.exit_code, ran.error["message"]) == (2, "--plot needs the matplotlib package")
    assert "semel[plot]" in ran.error["fix"]


def test_a_plot_of_another_kind_or_place_is_refused(semel: Semel) -> None:
    assert "neither PNG nor HTML" in semel("plan", EXAMPLE, "--plot", "plan.gif", "--json").error["message"]
    assert "no folder" in semel("plan", EXAMPLE, "--plot", "away/plan.png", "--json").error["message"]


def test_a_late_confirm_inside_a_branch_lets_time_decide(semel: Semel) -> None:
    ran = semel("plan", "A ( -[delay=800ms,confirm_loss=.3,retries=2]-> X -> | -> ) B", "--simulate", "500", "--json")
    assert ran.exit_code == 0
    assert ran.result["simulation"]["exact"]
