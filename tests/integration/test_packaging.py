"""The package's papers agree with each other."""

import re
import tomllib
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
    """Spark is an extra of the package, and has a lock of its own because the demo needs no more than that."""
    assert {path.stem for path in LOCKS} == {"main", "spark", "constraints", *PROJECT["dependency-groups"]}


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
