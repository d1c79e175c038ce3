"""The same paths, by adding up the probability of every case: (copies delivered, confirmed?) -> probability."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from semel.calculus.elements import Crash, Element, LinkElement, ParallelElement, PipeElement, Series

Cases = dict[tuple[int, bool], Fraction]

NOTHING: Cases = {(0, False): Fraction(1)}
DELIVERED: Cases = {(1, True): Fraction(1)}


def _mix(*parts: tuple[float | Fraction, Cases]) -> Cases:
    mixed: Cases = defaultdict(Fraction)
    for weight, cases in parts:
        for case, probability in cases.items():
            mixed[case] += Fraction(weight) * probability
    return {case: probability for case, probability in mixed.items() if probability}


def _both(left: Cases, right: Cases) -> Cases:
    both: Cases = defaultdict(Fraction)
    for (copies, confirmed), probability in left.items():
        for (more, again), other in right.items():
            both[copies + more, confirmed or again] += probability * other
    return dict(both)


def cases(element: Element, after: Cases = DELIVERED) -> Cases:
    """What can become of one copy. Finite attempts, no memory; a pipe stands in no other pipe."""
    match element:
        case LinkElement():
            return _link(element, after)
        case Crash(probability=probability):
            return _mix((probability, NOTHING), (1 - Fraction(probability), after))
        case Series(elements=elements):
            for part in reversed(elements):
                after = cases(part, after)
            return after
        case ParallelElement(branches=branches):
            joint: Cases = NOTHING
            for branch in branches:
                joint = _both(joint, cases(branch, after))
            return joint
        case PipeElement(cascade=cascade):
            return _pipe(
                element, after if cascade else _mix(*((p, {(k, True): Fraction(1)}) for (k, _), p in after.items()))
            )
    raise AssertionError(element)


def _link(link: LinkElement, after: Cases) -> Cases:
    unheard = {(copies, False): Fraction(0) for copies, _ in after}
    for (copies, _), probability in after.items():
        unheard[copies, False] += probability
    copy = _mix((1 - Fraction(link.confirm_loss), after), (link.confirm_loss, unheard))
    twice = Fraction(link.duplicate)
    arrives = 1 - Fraction(link.loss)
    once = _mix((link.loss, NOTHING), (arrives * (1 - twice), copy), (arrives * twice, _both(copy, copy)))
    sent = once
    for _ in range(link.repeats):
        sent = _both(sent, once)
    return sent


def _pipe(pipe: PipeElement, after: Cases) -> Cases:
    assert pipe.attempts is not None
    assert not pipe.dedup
    attempt = cases(pipe.inner, after)
    result: Cases = NOTHING
    for _ in range(pipe.attempts):
        ended = {case: p for case, p in result.items() if case[1]}
        going = {case: p for case, p in result.items() if not case[1]}
        result = _mix((1, ended), (1, _both(going, attempt)))
    return result
