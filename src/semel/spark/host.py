"""How much of this machine a process may use: what the machine has, less what the operating system withholds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class HostResources:
    """Cores and bytes of memory that are free for us."""

    cores: int
    memory: int


def this_machine(root: Path = Path("/")) -> HostResources:
    """What this process may use. `root` is where /proc and /sys are."""
    quotas = [quota for group in _groups(root) if (quota := _cpu_quota(group)) is not None]
    cores = min([_cores_allowed(), *quotas])
    rooms = [room for group in _groups(root) if (room := _memory_room(group)) is not None]
    return HostResources(max(1, int(cores)), min([_memory_available(root), *rooms]))


def _cores_allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_available(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _groups(root: Path) -> Iterator[Path]:
    """The control groups (version 2) that this process is in, from the innermost to the outermost."""
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::/"):
            group = top / line.removeprefix("0::/")
            yield from [group, *(parent for parent in group.parents if parent.is_relative_to(top))]


def _cpu_quota(group: Path) -> float | None:
    quota, _, period = _text(group / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() else None


def _memory_room(group: Path) -> int | None:
    limit, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
    return max(0, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
