"""Limit processor and memory of a host by control groups, version 1 or 2.

Groups are made inside the caller's group where the system allows it, so that limits on the caller
also bind the hosts; version 2 forbids that for a group with processes in it, and the nearest
enclosing group is used. A process joins its group before it starts anything, and its children
inherit it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import LaunchError
from phalanx.wire.deadline import Deadline

CONTROLLERS = ("cpu", "memory")
# Short, so that a slow host is evenly slow instead of pausing for a tenth of a second at a time.
_PERIOD_US = 20_000
# Much more than the default weight of 1024 (version 2: 100), so that other work on this machine
# does not take a host's share; per core, so that hosts degrade alike if cores are overcommitted.
_SHARES_PER_CORE, _MAX_SHARES = 64 * 1024, 1 << 18
_WEIGHT_PER_CORE, _MAX_WEIGHT = 6400, 10_000
_EMPTY_S = 20.0


@dataclass(frozen=True)
class Mount:
    """Mount point of control groups."""

    point: Path
    version: int
    controllers: frozenset[str]
    """Controllers of version 1; version 2 has them all in one hierarchy."""


def read_mounts(root: Path = Path("/")) -> list[Mount]:
    """Return the mounted control groups that are writable.

    Args:
        root: Root of `proc` and of the mount points.
    """
    found = []
    for line in (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        point = root / left.split()[4].lstrip("/")
        kind, _, options = right.split()[:3]
        if kind == "cgroup":
            found.append(Mount(point, 1, frozenset(options.split(","))))
        elif kind == "cgroup2":
            found.append(Mount(point, 2, frozenset()))
    return found


def make_group(
    name: str, *, cores: float, memory_bytes: int | None, root: Path = Path("/")
) -> list[Path]:
    """Create a group with its limits; return its folders, one per mount in use.

    Raises:
        LaunchError: No writable controller can limit processor or memory here.
    """
    mounts = read_mounts(root)
    folders: dict[Path, None] = {}
    for controller in CONTROLLERS:
        parent, version = _parent(controller, mounts, root)
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            _limit(folder, controller, version, cores, memory_bytes)
        except OSError as error:
            raise LaunchError(
                f"the control group {folder} cannot be made: {error.strerror}; an emulated cluster "
                "needs to write control groups, which containers often forbid"
            ) from error
        folders[folder] = None
    return list(folders)


def find_groups(prefix: str, root: Path = Path("/")) -> list[Path]:
    """Return every group whose name begins with the prefix, in all mounts."""
    return [
        Path(folder) / name
        for mount in read_mounts(root)
        for folder, names, _ in os.walk(mount.point)
        for name in names
        if name.startswith(f"{prefix}-")
    ]


def members(folder: Path) -> list[int]:
    """Return the processes in a group; none if it is gone."""
    try:
        return [int(word) for word in (folder / "cgroup.procs").read_text().split()]
    except (FileNotFoundError, OSError):
        return []


def memory_used(folder: Path) -> int | None:
    """Return the memory use of a group, or None if this folder does not account for it."""
    for name in ("memory.current", "memory.usage_in_bytes"):
        with contextlib.suppress(OSError):
            return int((folder / name).read_text())
    return None


def end_all(folders: Sequence[Path], others: Sequence[int] = ()) -> None:
    """Kill every process in the groups, wait for their end, and remove the groups.

    Args:
        folders: The groups; missing ones are ignored.
        others: Further processes to kill.

    Raises:
        TimeoutExpired: A process does not die.
    """
    deadline = Deadline.after(_EMPTY_S, "the processes of the emulated hosts to end")
    pause = threading.Event()
    for pid in others:
        _kill(pid)
    # A process may fork while its group is read, so repeat until the group stays empty.
    while left := [pid for folder in folders for pid in members(folder)]:
        for pid in left:
            _kill(pid)
        deadline.check()
        pause.wait(0.01)
    for folder in folders:
        while folder.is_dir():
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            deadline.check()
            pause.wait(0.01)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _parent(controller: str, mounts: Sequence[Mount], root: Path) -> tuple[Path, int]:
    for mount in mounts:
        if controller in mount.controllers:
            own = mount.point / _own_path(controller, root)
            return (own if own.is_dir() else mount.point), 1
    for mount in mounts:
        if mount.version == 2:
            for folder in _upwards(mount.point, mount.point / _own_path("", root)):
                if _enable(folder):
                    return folder, 2
    raise LaunchError(
        f"no control group here can limit {controller}; an emulated cluster needs version 1 or 2 "
        "of them, writable, which containers often forbid"
    )


def _own_path(controller: str, root: Path) -> str:
    for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        number, names, path = line.split(":", 2)
        if (controller in names.split(",")) if controller else number == "0":
            return path.lstrip("/")
    return ""


def _upwards(top: Path, folder: Path) -> Iterator[Path]:
    while folder != top:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield top


def _enable(folder: Path) -> bool:
    """Enable limits for groups inside this one if need be; return whether they can be limited."""
    control = folder / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        if not set(CONTROLLERS) <= set(control.read_text().split()):
            control.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        return set(CONTROLLERS) <= set(control.read_text().split())
    return False


def _limit(
    folder: Path, controller: str, version: int, cores: float, memory_bytes: int | None
) -> None:
    quota = max(1000, round(cores * _PERIOD_US))
    if (controller, version) == ("cpu", 1):
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
        shares = min(_MAX_SHARES, round(_SHARES_PER_CORE * cores))
        (folder / "cpu.shares").write_text(str(shares))
    elif (controller, version) == ("cpu", 2):
        (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        weight = min(_MAX_WEIGHT, round(_WEIGHT_PER_CORE * cores))
        (folder / "cpu.weight").write_text(str(weight))
    elif memory_bytes is not None and version == 1:
        (folder / "memory.limit_in_bytes").write_text(str(memory_bytes))
    elif memory_bytes is not None:
        (folder / "memory.max").write_text(str(memory_bytes))
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap has no such file
            (folder / "memory.swap.max").write_text("0")
