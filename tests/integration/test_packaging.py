"""The package's papers agree with each other."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import semel

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def pins(path: Path) -> set[tuple[str, str]]:
    """Names and versions. One name may have two, for different Pythons."""
    return set(re.findall(r"^([a-z0-9-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_version_is_the_same_everywhere() -> None:
    assert semel.__version__ == PROJECT["project"]["version"]


def test_every_group_has_a_lock() -> None:
    """Two extras have locks of their own: the demo needs no more than spark, and only `make bench` needs bench."""
    assert {path.stem for path in LOCKS} == {"main", "bench", "spark", "constraints", *PROJECT["dependency-groups"]}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_locks_agree_and_name_no_host(path: Path) -> None:
    assert pins(path) <= pins(ROOT / "requirements" / "constraints.txt")
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    if path.stem != "constraints":
        assert text.count("==") - text.count("== '") == len(pins(path))
        assert text.count("--hash=sha256:") >= len(pins(path))


def test_every_dependency_is_explained() -> None:
    explained = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = PROJECT["dependency-groups"].values()
    asked = [line for lines in (PROJECT["project"]["dependencies"], *extras, *groups) for line in lines]
    names = {re.split(r"[\[><=]", line)[0] for line in asked} - {"semel"}
    assert [name for name in sorted(names) if f"**{name}**" not in explained] == []


# numpy comes with pandas, and pamqp with aiormq
@pytest.mark.parametrize(
    ("folder", "extras", "allowed"),
    [("testing", ["testing"], set()), ("bench", ["bench", "spark"], {"numpy", "pamqp"})],
)
def test_what_a_user_may_run_has_an_extra_with_all_that_it_imports(
    folder: str, extras: list[str], allowed: set[str]
) -> None:
    lines = [*PROJECT["project"]["dependencies"]]
    for extra in extras:
        lines += PROJECT["project"]["optional-dependencies"][extra]
    promised = {re.split(r"[\[><=;]", line)[0].strip().lower() for line in lines}
    provides = packages_distributions()
    missing = {
        name
        for path in (ROOT / "src" / "semel" / folder).rglob("*.py")
        for name in imported(path) - sys.stdlib_module_names - {"semel"}
        if not promised & {name, f"{name}-mqtt", *(each.lower() for each in provides.get(name, []))}
    }
    assert missing - {"cqrs"} == allowed  # which is python-cqrs, as only who has it can tell


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found
