"""What a process may use of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semel.spark.host import GIB, HostResources, this_machine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    put(tmp_path, "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable:  {16 * GIB // 1024} kB\n")
    put(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_without_limits_it_is_the_cores_allowed_and_the_memory_available(root: Path) -> None:
    assert this_machine(root) == HostResources(4, 16 * GIB)


def test_the_tightest_group_counts_wherever_it_is(root: Path) -> None:
    put(root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    put(root, "sys/fs/cgroup/a/cpu.max", "250000 100000\n")
    put(root, "sys/fs/cgroup/memory.max", f"{4 * GIB}\n")
    put(root, "sys/fs/cgroup/memory.current", f"{GIB}\n")
    put(root, "sys/fs/cgroup/a/memory.max", "max\n")
    assert this_machine(root) == HostResources(2, 3 * GIB)


def test_less_than_one_core_is_one_and_a_full_group_has_no_room(root: Path) -> None:
    put(root, "sys/fs/cgroup/a/b/cpu.max", "50000 100000\n")
    put(root, "sys/fs/cgroup/a/b/memory.max", "5\n")
    put(root, "sys/fs/cgroup/a/b/memory.current", "9\n")
    assert this_machine(root) == HostResources(1, 0)


def test_a_system_without_proc_is_asked_in_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert this_machine(tmp_path) == HostResources(1, 2_048_000)
