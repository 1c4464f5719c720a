"""Read the limits and the use of this process's control group (container, batch system).

Both versions of the interface are read. A limit holds for a group and all groups inside it, so
every level from this process up to the root is read and the smallest limit counts. Sent to machines
with the agent: imports the standard library alone, and parses on Python 3.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Version 1 encodes "no limit" as the largest number of pages; no machine has this much memory.
_UNLIMITED_BYTES = 1 << 60


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU quota in cores, or None if there is no limit."""
    found = [_quota_v2(folder) for folder in _folders(root, "")]
    found += [_quota_v1(folder) for folder in _folders(root, "cpu")]
    return min((quota for quota in found if quota is not None), default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the memory limit in bytes, or None if there is none."""
    found = [_number(folder / "memory.max") for folder in _folders(root, "")]
    found += [_number(folder / "memory.limit_in_bytes") for folder in _folders(root, "memory")]
    return min(
        (limit for limit in found if limit is not None and 0 < limit < _UNLIMITED_BYTES),
        default=None,
    )


def cpu_used(root: Path = Path("/")) -> float | None:
    """Return the processor seconds used by this process's group, or None if not accounted."""
    for folder in _folders(root, ""):
        for line in read_text(folder / "cpu.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value) / 1e6
    for folder in _folders(root, "cpuacct"):
        used_ns = _number(folder / "cpuacct.usage")
        if used_ns is not None:
            return used_ns / 1e9
    return None


def memory_used(root: Path = Path("/")) -> int | None:
    """Return the memory used by this process's group, page cache included, or None if unknown."""
    found = [_number(folder / "memory.current") for folder in _folders(root, "")]
    found += [_number(folder / "memory.usage_in_bytes") for folder in _folders(root, "memory")]
    return next((used for used in found if used is not None), None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the group of this process and all parents; `controller` is empty for version 2."""
    top = root / "sys/fs/cgroup" / controller
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(",") and (controller or number == "0"):
            folder = top / path.lstrip("/")
            while folder != top:
                yield folder
                folder = folder.parent
    # Inside a container the path may be the host's; the mount root then is its group.
    yield top


def _quota_v2(folder: Path) -> float | None:
    words = read_text(folder / "cpu.max").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _quota_v1(folder: Path) -> float | None:
    quota = _number(folder / "cpu.cfs_quota_us")
    period = _number(folder / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0:
        return None
    return quota / period


def _number(path: Path) -> int | None:
    text = read_text(path)
    try:
        return int(text)
    except ValueError:
        return None


def read_text(path: Path) -> str:
    """Return the text of a file of the kernel; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
