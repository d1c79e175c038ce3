"""The rule for secrets, in all of `src`: what proves who somebody is, is compared by `hmac.compare_digest`.

`==` ends at the first byte that differs, so the time that it takes tells an attacker how much of a guess is right. A
name says what a value is, so the rule goes by names: what an HMAC makes is called a proof or a signature, and nothing
of such a name stands beside `==`, `!=`, `in` or `not in`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
SECRET = re.compile(r"(?i)(^|_)(prove|proofs?|signature|secret|password|access_key)$")
MAKES_PROOFS = {"digest", "new", "hexdigest"}
COMPARES = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
TEACHES = "compare it with hmac.compare_digest: the time that this takes tells how much of a guess is right"
NAMES = "call what makes a proof `..._proof` or `..._signature`, so that this rule sees where it is compared"


def trouble_in(source: str) -> Iterator[tuple[int, str]]:
    """The lines that break the rule, and what to do about each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, COMPARES) for op in node.ops):
            if any(is_secret(each) for each in (node.left, *node.comparators)):
                yield node.lineno, TEACHES
        elif is_nameless_maker(node):
            yield node.lineno, NAMES


def is_secret(node: ast.expr) -> bool:
    """By its name: a variable, an attribute, what a function returns, a part of any of them, or a proof made there."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if not name.isupper():
            return SECRET.search(name) is not None
        case ast.Subscript(value=whole, slice=part):
            return is_secret(whole) or any("PROOF" in getattr(each, "id", "") for each in ast.walk(part))
        case ast.Call(func=called):
            return is_hmac(node) or is_secret(called)
    return False


def is_hmac(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="hmac"), attr=name)):
            return name in MAKES_PROOFS
        case ast.Call(func=ast.Attribute(value=inner, attr=name)):
            return name in MAKES_PROOFS and is_hmac(inner)
    return False


def is_nameless_maker(node: ast.AST) -> bool:
    """A function that returns a proof, and does not say so."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or SECRET.search(node.name):
        return False
    returns = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
    return any(is_hmac(each) for value in returns for each in ast.walk(value))


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: str(path.relative_to(SRC)))
def test_secrets_are_compared_in_constant_time(path: Path) -> None:
    found = [f"{path.name}:{line}: {fix}" for line, fix in trouble_in(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "right += proof == expected",
        "right += expected == proof",
        "if hello.proof != self._proof(challenge): refuse()",
        "if whole[:_PROOF_BYTES] == made: go_on()",
        "is_known = proof in proofs",
        "is_known = made in self._proofs",
        "if token.signature == hmac.digest(key, body, 'sha256'): go_on()",
        "if given == hmac.new(key, body, sha256).hexdigest(): go_on()",
        "if password == given: go_on()",
        "def _seal(key, body):\n    return hmac.digest(key, body, 'sha256')",
        "def _seal(key, body):\n    return encode(hmac.new(key, body, sha256).digest())",
    ],
)
def test_the_rule_sees(code: str) -> None:
    assert list(trouble_in(code))


@pytest.mark.parametrize(
    "code",
    [
        "right += hmac.compare_digest(proof, expected)",
        "if len(proof) == PROOF_BYTES: go_on()",
        "if proof is None: refuse()",
        "if token == self._token: go_on()",
        "if sha256(content).hexdigest() == segment.sha256: go_on()",
        "def _proof(key, body):\n    return hmac.digest(key, body, 'sha256')",
        "if access_keys == (): refuse()",
    ],
)
def test_the_rule_leaves_alone(code: str) -> None:
    assert not list(trouble_in(code))
