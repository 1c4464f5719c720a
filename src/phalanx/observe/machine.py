"""Inspect this machine: processor, memory, disk, network, limits, versions.

Takes milliseconds, changes nothing and imports no framework: versions come from package metadata.
The facts are interpreted elsewhere. Called by `phalanx doctor`.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
from pathlib import Path

import msgspec
import psutil

from phalanx.cgroup import cpu_quota, memory_limit, read_text
from phalanx.records.manifest import cpu_model, package_version

ISA_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""Instruction sets that matter for speed, by their Linux names."""
BF16_FEATURES = ("avx512_bf16", "amx_bf16", "bf16")
"""Those that compute in bf16."""
PACKAGES = ("torch", "numpy", "pyzmq", "pyarrow", "pydantic", "safetensors")


class Interface(msgspec.Struct, kw_only=True):
    """A network interface that is up."""

    name: str
    addresses: list[str]
    loopback: bool
    speed_bits_per_s: int | None


class Machine(msgspec.Struct, kw_only=True):
    """Facts of one machine at one moment."""

    host: str
    system: str
    kernel: str
    cpu: str
    physical_cores: int
    logical_cores: int
    usable_cores: int
    quota_cores: float | None
    isa: list[str]
    memory_total_bytes: int
    memory_free_bytes: int
    memory_limit_bytes: int | None
    disk_path: str
    disk_free_bytes: int
    interfaces: list[Interface]
    loopback_works: bool
    python: str
    packages: dict[str, str | None]
    open_files_limit: int
    clock_source: str


def inspect_machine(disk_path: Path) -> Machine:
    """Inspect this machine; `disk_path` will hold the runs and need not exist yet."""
    memory = psutil.virtual_memory()
    logical = psutil.cpu_count() or 1
    place = _existing(disk_path)
    return Machine(
        host=platform.node(),
        system=_system(),
        kernel=platform.release(),
        cpu=cpu_model(),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=len(os.sched_getaffinity(0)),
        quota_cores=cpu_quota(),
        isa=_isa(),
        memory_total_bytes=memory.total,
        memory_free_bytes=memory.available,
        memory_limit_bytes=memory_limit(),
        disk_path=str(place),
        disk_free_bytes=shutil.disk_usage(place).free,
        interfaces=_interfaces(),
        loopback_works=_loopback_works(),
        python=platform.python_version(),
        packages={name: package_version(name) for name in PACKAGES},
        open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        clock_source=_clock_source(),
    )


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _isa() -> list[str]:
    lines = read_text(Path("/proc/cpuinfo")).splitlines()
    # x86 calls the list "flags", ARM calls it "Features".
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    present = set(flags.partition(":")[2].split())
    return [name for name in ISA_FEATURES if name in present]


def _existing(path: Path) -> Path:
    """Return the nearest existing parent directory."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def _interfaces() -> list[Interface]:
    states = psutil.net_if_stats()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        addresses = [
            entry.address.partition("%")[0]
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6)
        ]
        state = states.get(name)
        if addresses and state is not None and state.isup:
            found.append(
                Interface(
                    name=name,
                    addresses=addresses,
                    loopback="loopback" in state.flags.split(","),
                    # psutil gives Mbit/s, and 0 where the driver does not know.
                    speed_bits_per_s=state.speed * 1_000_000 or None,
                )
            )
    return found


def _loopback_works() -> bool:
    """Return whether two sockets of this machine can connect, as local workers do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=1.0) as client:
                client.sendall(b".")
                server.settimeout(1.0)
                with server.accept()[0] as accepted:
                    accepted.settimeout(1.0)
                    return accepted.recv(1) == b"."
    except OSError:
        return False


def _clock_source() -> str:
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return read_text(path) or "unknown"
