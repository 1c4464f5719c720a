"""Describe this machine: cores, memory, disk, versions, addresses; find ports and test connections.

Part of the agent, which cannot import `observe` with its packages.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from phalanx.cgroup import cpu_quota, memory_limit, memory_used, read_text

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "avx512_vnni", "asimd", "sve", "bf16")
_CONNECT_S = 4.0
_SIOCGIFADDR = 0x8915


def introduce() -> dict[str, Any]:
    """Return the facts that the session needs before its first order."""
    connection = _connection()
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "home": str(Path.home()),
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "cpus": sorted(os.sched_getaffinity(0)),
        "came_from": connection[0] if connection else "",
    }


def _connection() -> list[str]:
    """Return address and port of the controller and of this machine, as sshd or `dial` says."""
    said = os.environ.get("PHALANX_CALL") or os.environ.get("SSH_CONNECTION", "")  # noqa: TID251
    return said.split()


def describe(workdir: str, quick: bool) -> dict[str, object]:
    """Return the facts of this machine; if quick, without importing torch or using the disk."""
    present = set(_cpu_line("flags", "features").split())
    affinity = len(os.sched_getaffinity(0))
    total_bytes, free_bytes = _memory()
    place = Path(workdir).expanduser()
    while not place.is_dir():
        place = place.parent
    torch = _version("torch")
    return {
        "host": socket.gethostname(),
        "system": _system(),
        "kernel": platform.release(),
        "cpu": _cpu_line("model name") or platform.processor() or platform.machine(),
        "flags": [flag for flag in FLAGS if flag in present],
        "logical_cores": os.cpu_count() or 1,
        "usable_cores": affinity,
        "quota_cores": cpu_quota(),
        "memory_total_bytes": total_bytes,
        "memory_free_bytes": free_bytes,
        "memory_limit_bytes": memory_limit(),
        "disk_free_bytes": shutil.disk_usage(place).free,
        "disk_write_bytes_per_s": None if quick else _disk_speed(place),
        "python": platform.python_version(),
        "torch": torch,
        "phalanx": _version("phalanx"),
        "gpus": None if quick else _gpus(torch is not None),
        "load_1min": os.getloadavg()[0],
        "addresses": _addresses(),
    }


def numeric_address(address: str) -> str:
    """Resolve an address of this machine; raise OSError if it belongs to another one."""
    found = socket.gethostbyname(address)
    with socket.socket() as probe:
        probe.bind((found, 0))
    return found


def free_ports(address: str, count: int) -> list[int]:
    """Return ports that are free at this address now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((address, 0))
        return [probe.getsockname()[1] for probe in probes]


def reach(targets: list[list[Any]]) -> dict[str, str]:
    """Connect to every (name, address, port) in parallel; return the failure reasons by name."""
    reasons: dict[str, str] = {}

    def attempt(name: str, address: str, port: int) -> None:
        try:
            socket.create_connection((address, port), timeout=_CONNECT_S).close()
        except OSError as error:
            reasons[name] = error.strerror or str(error)

    threads = [threading.Thread(target=attempt, args=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reasons


def free_memory() -> int:
    """Return the bytes of memory that a new process may take, within the limits of this login."""
    return _memory()[1]


def _cpu_line(*names: str) -> str:
    for line in read_text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in names:
            return value.strip()
    return ""


def _memory() -> tuple[int, int]:
    rows = {}
    for line in read_text(Path("/proc/meminfo")).splitlines():
        name, _, value = line.partition(":")
        rows[name] = int(value.split()[0]) * 1024
    free_bytes = rows.get("MemAvailable", rows["MemFree"])
    limit, used = memory_limit(), memory_used()
    if limit is not None and used is not None:
        free_bytes = min(free_bytes, max(0, limit - used))
    return rows["MemTotal"], free_bytes


def _disk_speed(place: Path) -> float | None:
    """Return the bytes per second of writing 16 MiB to disk; None: not writable."""
    size_bytes = 1 << 24
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".phalanx-probe-") as file:
            begin = time.perf_counter()
            file.write(os.urandom(size_bytes))
            file.flush()
            os.fsync(file.fileno())
            return size_bytes / (time.perf_counter() - begin)
    except OSError:
        return None


def _gpus(has_torch: bool) -> list[str]:
    """Return the graphics cards usable by torch or, without torch, listed by the driver."""
    if has_torch:
        import torch

        if not torch.cuda.is_available():
            return []
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.decode().splitlines() if line.strip()]


def _addresses() -> list[str]:
    """Return the IPv4 addresses of this machine for others, that of the ssh connection first."""
    found = []
    came_to = _connection()
    if len(came_to) == 4:
        found.append(came_to[2])
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            request = struct.pack("256s", name[:15].encode())
            answer = fcntl.ioctl(one.fileno(), _SIOCGIFADDR, request)
            found.append(socket.inet_ntoa(answer[20:24]))
    usable = [one for one in found if not one.startswith("127.") and one != "::1"]
    return list(dict.fromkeys(usable))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _system() -> str:
    for line in read_text(Path("/etc/os-release")).splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()
