"""What the calculus says of a path and what its production machines do agree, over a grid of paths.

Everything here is predicted from the text of the path and measured on the machines that the same text builds. The seeds
are fixed. A comparison beyond four standard deviations means that one of the two is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations, product
from zlib import crc32

import pytest

import semel.sim.plants.pipes  # noqa: F401  (adds the plants of pipes to the others)
from semel.calculus.figures import sigma
from semel.pipes.language.notation import parse_path
from semel.pipes.language.options import ConfirmOn
from semel.pipes.language.path import Hop, Parallel, Path, Pipe
from semel.pipes.plan.elements import durable_points, stretches
from semel.pipes.plan.plan import Plan, StretchPlan, plan
from semel.sim.pipes import Simulated, simulate
from semel.sim.plants import planted

MESSAGES = 1500
DURABLE_MESSAGES = 400
TIMED_MESSAGES = 400
FAR_APART_S = 200.0
NEVER_MEET_S = 100_000.0
SIGMAS = 4.0
TINY = 1e-9


def _hop(loss: float = 0.0, back: float = 0.0, twice: float = 0.0, more: str = "") -> str:
    return f"-[loss={loss},confirm_loss={back},duplicate={twice}{',' + more if more else ''}]->"


def finite() -> Iterator[str]:
    for loss, back, retries in product((0.0, 0.1, 0.4), (0.0, 0.3, 0.7), (0, 2, 5)):
        yield f"A {_hop(loss, back, 0.15 if loss else 0.0, f'retries={retries}')} B"


def infinite() -> Iterator[str]:
    for loss, back, twice in product((0.0, 0.2, 0.5, 0.8), (0.0, 0.3, 0.6), (0.0, 0.25)):
        yield f"A {_hop(loss, back, twice, 'retries=inf')} B"


def blind() -> Iterator[str]:
    for loss, twice, repeats in product((0.0, 0.3, 0.6), (0.0, 0.2), (0, 1, 4)):
        yield f"A {_hop(loss, 0, twice, f'repeats={repeats}')} B"
    yield f"A {_hop(0.3, 0, 0.2, 'repeats=2')} B {_hop(0.4, 0, 0.1, 'repeats=1')} C"
    yield f"A {_hop(1.0, 0, 0, 'repeats=2')} B"


def dedup_at_the_end() -> Iterator[str]:
    for kind, (loss, back), retries in product(("id", "index", "strict"), ((0.1, 0.3), (0.4, 0.5)), ("1", "4", "inf")):
        yield f"A {_hop(loss, back, 0.2, f'retries={retries},dedup={kind}')} B"
    for kind in ("id", "index", "strict"):
        yield f"A {_hop(0.3, 0, 0.2, f'repeats=2,dedup={kind}')} B"
        yield f"A {_hop(0.3, 0, 0.2, f'dedup={kind}')} B"


def dedup_between() -> Iterator[str]:
    doubles = _hop(0.2, 0.4, 0.1, "retries=2")
    for places in product(("none", "id", "index"), repeat=2):
        first, second = (_hop(0.2, 0.4, 0.1, f"retries=2,dedup={place}") for place in places)
        yield f"A {first} B {second} C"
        third, fourth = _hop(0.3, 0, 0.2, f"dedup={places[0]}"), _hop(0.1, 0.3, 0, f"retries=1,dedup={places[1]}")
        yield f"A {doubles} B {third} C {fourth} D"
    for kind in ("none", "id"):
        yield f"A {_hop(0.3, 0, 0, 'repeats=2')} B {_hop(0.3, 0, 0, 'repeats=1,dedup=' + kind)} C {doubles} D"


def order_of_hops() -> Iterator[str]:
    hops = (_hop(0.3), _hop(0.2, 0.5, 0.0, "retries=3"), _hop(0.1, 0.0, 0.3), _hop(0.4, 0, 0, "repeats=1"))
    for first, second, third, fourth in permutations(hops):
        yield f"A {first} B {second} C {third} D {fourth} E"


def cascade() -> Iterator[str]:
    for depth, retries, (loss, back), twice in product((1, 2, 3, 4), ("2", "inf"), ((0.1, 0.2), (0.3, 0.1)), (0, 0.2)):
        onward = " ".join(f"P{at} {_hop(loss, back, twice)}" for at in range(1, depth))
        yield f"A {_hop(loss, back, twice, f'retries={retries},confirm=cascade')} {onward} Z"


def cascade_with_memory() -> Iterator[str]:
    for kind, retries, twice in product(("id", "index"), ("2", "inf"), (0.0, 0.4)):
        waits, onward = f"retries={retries},confirm=cascade", _hop(0.2, 0.3, twice)
        yield f"A {_hop(0.2, 0.3, twice, f'{waits},dedup={kind}')} B {onward} C"
        yield f"A {_hop(0.2, 0.3, twice, waits)} B {_hop(0.2, 0.3, twice, f'dedup={kind}')} C"
    for retries in ("1", "3", "inf"):
        yield f"A {_hop(0.2, 0.3, 0.1, f'retries={retries},confirm=processing')} B"
        yield f"A {_hop(0.2, 0.3, 0.1, f'retries={retries},confirm=processing,dedup=id')} B"


def cascade_over_retries() -> Iterator[str]:
    """The onward hop has confirms of its own, and these are what the cascade waits for."""
    for outer, inner, twice in product(("2", "inf"), ("0", "2", "inf"), (0.0, 0.15)):
        first = _hop(0.2, 0.3, twice, f"retries={outer},confirm=cascade")
        second = _hop(0.3, 0.2, twice, f"retries={inner}")
        yield f"A {first} B {second} C {_hop(0.2)} D"
        yield f"A {first} B {_hop(0.1, 0.2, twice)} C {second} D"
    both = _hop(0.2, 0.3, 0.1, "retries=2,confirm=cascade")
    yield f"A {both} B {both} C {_hop(0.2, 0.2)} D"
    for kind, inner in product(("id", "index", "strict"), ("1", "inf")):
        remembers = _hop(0.2, 0.3, 0.4, f"retries={inner},dedup={kind}")
        yield f"A {both} B {remembers} C{{crash=0.2}} {_hop(0.2, 0.2)} D"


def pipes_around_bare_links() -> Iterator[str]:
    one, two = _hop(0.1, 0.2), _hop(0.2, 0.1, 0.2)
    for retries, options in product(("0", "3", "inf"), ("", ",dedup=id", ",dedup=index", ",confirm=cascade")):
        yield f"A -> (P1 {one} X {two} P2){{retries={retries}{options}}} {_hop(0.1, 0.2)} B"
    often = _hop(0.1, 0.5, 0.9)
    for retries in ("2", "inf"):
        again = _hop(0.1, 0.3, 0, "retries=1")
        yield f"A {_hop(0.2)} (P1 {one} X{{crash=0.2}} {two} Y {one} P2){{retries={retries}}} {again} B"
        yield f"(P1 {often} X {often} P2){{retries={retries}}}"
        yield f"(P1 {often} X {often} P2){{retries={retries},confirm=cascade,dedup=id}} {often} B"
        yield f"(P1 {one} X {two} P2){{retries={retries}}} -> (Q1 {two} Y {one} Q2){{retries={retries},dedup=id}}"
        yield f"A {_hop(0.1, 0.1, 0, 'retries=2,confirm=cascade')} (P1 {one} X {two} P2){{retries={retries}}} -> B"


def pipes_around_promises() -> Iterator[str]:
    middles = (
        f"P1 {_hop(0.3, 0.2, 0.0, 'retries=1')} X {_hop(0.2, 0.1)} P2",
        f"P1 {_hop(0.2, 0.3, 0.1, 'retries=inf,dedup=id')} X {_hop(0.2, 0.1)} P2",
        f"P1 {_hop(0.3, 0.0, 0.0, 'repeats=1')} X {_hop(0.2, 0.2, 0.2, 'dedup=index')} P2",
        f"P1 {_hop(0.2, 0.2, 0.0, 'retries=2,confirm=cascade')} X {_hop(0.2, 0.2)} P2",
        f"P1 -> (Q1 {_hop(0.2, 0.1)} Y {_hop(0.2, 0.2)} Q2){{retries=1}} {_hop(0.1, 0.1)} P2",
        f"(Q1 {_hop(0.2, 0.1)} Y {_hop(0.2, 0.2)} Q2){{retries=1}} {_hop(0.1, 0.1)} P2",
        f"P1 ( {_hop(0.4)} X {_hop(0.1)} | {_hop(0.5)} ) P2",
    )
    for middle, options in product(middles, ("retries=2", "retries=inf", "retries=3,dedup=id")):
        yield f"A -> ({middle}){{{options}}} {_hop(0.1)} B"


def parallel() -> Iterator[str]:
    branches = (
        f"{_hop(0.3)}",
        f"{_hop(0.4, 0.2, 0.1, 'retries=1')}",
        f"{_hop(0.2, 0, 0.3)} X {_hop(0.3, 0.2, 0, 'retries=2')}",
        f"{_hop(0.2, 0, 0, 'repeats=1')} X{{crash=0.2}} {_hop(0.2)}",
        f"{_hop(0.3, 0.3, 0.0, 'retries=inf,dedup=id')} X {_hop(0.4)}",
    )
    for first, second in product(branches, branches):
        yield f"A ( {first} | {second.replace('X', 'Y')} ) B"
    yield f"A ( {branches[0]} | {branches[1]} | {branches[2]} ) B {_hop(0.1, 0, 0, 'dedup=id')} C"
    for retries in ("2", "inf"):
        waits, other = _hop(0.2, 0.2, 0, f"retries={retries},confirm=cascade"), _hop(0.4, 0.3)
        yield f"A {waits} B ( {_hop(0.3, 0.2)} X {_hop(0.2, 0.1)} | {other} ) C"
        yield f"A {waits} B ( {_hop(0.3, 0.2)} | {other} ) C"
        yield f"A {waits} B ( {_hop(0.5, 0.2, 0, 'retries=1')} X -> | {other} ) C"


def crash() -> Iterator[str]:
    for options in (
        "retries=2", "retries=2,dedup=id", "retries=inf,dedup=id", "retries=2,dedup=index", "retries=2,dedup=strict",
        "retries=2,confirm=cascade", "retries=inf,confirm=cascade", "retries=2,confirm=cascade,dedup=id",
        "retries=inf,confirm=cascade,dedup=index", "repeats=2,dedup=id", "dedup=id",
    ):  # fmt: skip
        yield f"A {_hop(0.3, 0.4, 0.2, options)} B{{crash=0.25}} {_hop(0.2, 0.1)} C"
        yield f"A {_hop(0.3, 0.4, 0.2, options)} B{{crash=0.25}} {_hop(0.2, 0.3, 0, 'retries=3')} C{{crash=0.1}} -> D"
    yield f"A{{crash=0.3}} {_hop(0.1, 0.2, 0, 'retries=2')} B"
    yield f"A {_hop(0.2, 0.3, 0.2, 'retries=2,confirm=processing')} B{{crash=0.3}}"
    yield f"A {_hop(0.2, 0.3, 0.2, 'retries=inf,confirm=processing,dedup=id')} B{{crash=0.3}}"


def durable() -> Iterator[str]:
    for retries, died, confirm in product(("inf", "2"), (0.0, 0.3), ("receipt", "cascade")):
        into = _hop(0.3, 0.3, 0.2, f"retries={retries},confirm={confirm}")
        yield f"A {into} S{{durable=yes,crash={died}}} {_hop(0.3, 0.3, 0.1, 'retries=inf')} B"
        yield f"A {into} S{{durable=yes,crash={died}}} {_hop(0.3, 0.3, 0.1, 'retries=1,dedup=id')} B {_hop(0.2)} C"
    yield f"A {_hop(0.2, 0, 0.3)} S{{durable=yes,crash=0.2}} {_hop(0.2, 0.3)} B"
    yield f"A {_hop(0.3, 0.2, 0.2, 'retries=inf,durable=yes')} B"
    yield f"A {_hop(0.2, 0.2, 0.1, 'retries=inf,durable=yes')} B {_hop(0.2, 0.3, 0.1, 'retries=inf,durable=yes')} C"
    yield f"A {_hop(0.2, 0.2, 0.1, 'retries=inf,dedup=strict')} S{{durable=yes,crash=0.2}} -> B"
    yield f"A {_hop(0.2, 0.2, 0.1, 'retries=3,confirm=processing')} S{{durable=yes,crash=0.2}}"


def slow_links() -> Iterator[str]:
    """A confirm comes after the timeout: attempts are under way that nobody needed. Here time decides."""
    for delay, retries, dedup in product((0.8, 1.3), ("1", "4", "inf"), ("none", "id")):
        options = f"delay={delay},timeout=1,retries={retries},dedup={dedup}"
        yield f"A {_hop(0.3, 0.3, 0.2, options)} B"


GROUPS = (
    finite, infinite, blind, dedup_at_the_end, dedup_between, order_of_hops, cascade, cascade_with_memory,
    cascade_over_retries, pipes_around_bare_links, pipes_around_promises, parallel, crash, durable, slow_links,
)  # fmt: skip


@pytest.mark.sim
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_prediction_and_measurement_agree(group: object) -> None:
    assert callable(group)
    wrong = [line for text in group() for line in _differences(text)]
    assert not wrong, "\n".join(wrong)


def test_what_is_called_exact_is_so_in_real_time_too() -> None:
    """Without a spacing the simulation lets no timeout end while anything is under way. Here time decides, and messages
    are so far apart that they do not meet."""
    wrong: list[str] = []
    exact = 0
    for text in (text for group in GROUPS for text in group()):
        predicted = plan(parse_path(text))
        if predicted.exact:
            exact += 1
            seed = crc32(text.encode())
            measured = simulate(predicted.path, messages=TIMED_MESSAGES, seed=seed, spacing_s=NEVER_MEET_S)
            wrong += [f"{text}: {line}" for line in _compare(predicted, measured)]
    assert not wrong, "\n".join(wrong)
    assert exact >= 200


def test_the_grid_is_large_enough() -> None:
    paths = [text for group in GROUPS for text in group()]
    assert len(set(paths)) == len(paths) >= 200


@pytest.mark.parametrize("mistake", ["pipe-cascade-confirms-early", "pipe-dedup-swallows-resend"])
def test_a_mistake_in_the_machines_shows(mistake: str) -> None:
    text = f"A {_hop(0.2, 0.3, 0.0, 'retries=3,confirm=cascade,dedup=id')} B {_hop(0.3, 0.2)} C"
    assert not _differences(text)
    with planted(mistake):
        assert any(": R measured" in line for line in _differences(text))


def test_the_product_rule_is_a_lower_bound_of_every_path_in_series() -> None:
    """With equality where no duplicates meet a loss: nothing is doubled before, or nothing is lost behind."""
    equal = bounded = 0
    for path in map(parse_path, _texts_in_series()):
        found = plan(path)
        assert found.product.reliability <= found.reliability + TINY, str(path)
        assert found.product.uniqueness <= found.uniqueness + TINY, str(path)
        bounded += 1
        if _product_is_exact(found):
            equal += 1
            assert found.product.reliability == pytest.approx(found.reliability), str(path)
            assert found.product.uniqueness == pytest.approx(found.uniqueness), str(path)
    assert bounded >= 100
    assert 20 <= equal < bounded


def _texts_in_series() -> Iterator[str]:
    for group in GROUPS:
        for text in group():
            path = parse_path(text)
            if not any(isinstance(step, Parallel) for step in path.steps) and not _cascades(path):
                yield text


def _cascades(path: Path) -> bool:
    parts = [step for step in path.steps if isinstance(step, Hop | Pipe)]
    return any(part.options.confirm is ConfirmOn.CASCADE for part in parts)


def _product_is_exact(found: Plan) -> bool:
    """Whether at every point nothing was doubled before it, or nothing is lost and nothing is dropped behind it."""
    crashes = any(point.crash for point in found.path.points())
    drops = "durable" in str(found.path) or any("dedup" in hop.text for hop in found.hops[1:])
    doubled = False
    for hop in found.hops:
        if doubled and (hop.alone.reliability < 1 or drops or crashes):
            return False
        doubled = doubled or hop.alone.uniqueness < 1
    return not crashes and "durable" not in str(found.path)


# -- one path


def _differences(text: str) -> list[str]:
    """None where the plan says that it does not calculate what copies that arrive together do to each other."""
    path = parse_path(text)
    messages = DURABLE_MESSAGES if "durable" in text else MESSAGES
    spacing_s = FAR_APART_S if "delay" in text else None
    predicted = plan(path)
    if any("arrive together" in doubt for doubt in predicted.doubts):
        return []
    measured = simulate(path, messages=messages, seed=crc32(text.encode()), spacing_s=spacing_s)
    return [f"{text}: {line}" for line in _compare(predicted, measured)]


def _compare(predicted: Plan, measured: Simulated) -> Iterator[str]:
    spread = sigma(predicted.element, measured.sent)
    figures = predicted.end
    yield from _far("R", measured.unique / measured.sent, figures.reliability, spread.reliability)
    yield from _far("copies", measured.received / measured.sent, figures.copies, spread.copies)
    if measured.received:
        yield from _far("UR", measured.unique / measured.received, figures.uniqueness, spread.uniqueness)
    for hop in predicted.hops:
        counts = measured.hops.get(hop.name)
        if counts is not None and counts.attempts is not None and hop.name in _resending(predicted.path):
            wide = _attempts_sigma(predicted.path, hop, counts.entered)
            yield from _far(f"attempts at {hop.name}", counts.attempts, hop.alone.attempts, wide)


def _far(what: str, measured: float, predicted: float, sigma: float) -> Iterator[str]:
    if abs(measured - predicted) > SIGMAS * sigma + TINY:
        far = abs(measured - predicted) / sigma if sigma else math.inf
        yield f"{what} measured {measured:.4f}, predicted {predicted:.4f}, {far:.1f} sigma"


def _resending(path: Path) -> dict[str, int | None]:
    """The attempts that each resending hop or pipe of the path makes at most, by its name."""
    found: dict[str, int | None] = {}
    for stretch in stretches(path)[1]:
        if stretch.options is not None and stretch.resends:
            endless = stretch.start in durable_points(path)
            found[stretch.name] = None if endless else stretch.options.attempts
    return found


def _attempts_sigma(path: Path, hop: StretchPlan, entered: int) -> float:
    """Attempts end with each at the same chance: the chance from the mean, the spread from the chance."""
    most = _resending(path)[hop.name]
    goes_on = _chance_to_go_on(hop.alone.attempts, most)
    terms = 2000 if most is None else most
    chances = [goes_on ** (n - 1) * (1 - goes_on if most is None or n < most else 1.0) for n in range(1, terms + 1)]
    mean = math.fsum(n * chance for n, chance in enumerate(chances, 1))
    square = math.fsum(n * n * chance for n, chance in enumerate(chances, 1))
    return math.sqrt(max(0.0, square - mean * mean) / entered)


def _chance_to_go_on(attempts: float, most: int | None) -> float:
    if most is None:
        return 1 - 1 / attempts
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if math.fsum(middle**n for n in range(most)) < attempts:
            low = middle
        else:
            high = middle
    return (low + high) / 2
