"""Assess a machine for training: facts in, one finding per topic out; no I/O.

`observe` measures the facts; the wording is here. A warning comes with advice; nothing is fatal,
since every machine can train alone.
"""

from __future__ import annotations

import msgspec

from phalanx.observe.machine import BF16_FEATURES, Machine
from phalanx.report.format import count_noun, format_bytes

_GIB = 1 << 30
# A worker with torch loaded takes about 0.3 GiB before its model and data.
_LEAST_MEMORY_BYTES = _GIB
_LEAST_DISK_BYTES = _GIB
# Each worker holds a few sockets to every other one; 256 suffices for a few dozen workers.
_LEAST_OPEN_FILES = 256
# Reading these takes microseconds, which the timing of every step would show.
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "pit")


class Finding(msgspec.Struct, kw_only=True):
    """The assessment of one topic."""

    topic: str
    found: str
    advice: str | None = None
    """What to do; None if nothing needs doing."""

    @property
    def ok(self) -> bool:
        """Whether the topic needs no action."""
        return self.advice is None


def judge_machine(machine: Machine) -> list[Finding]:
    """Assess a machine: one finding per topic, in the order to show them."""
    return [
        Finding(topic="system", found=f"{machine.system}, kernel {machine.kernel}"),
        Finding(topic="processor", found=machine.cpu),
        _cores(machine),
        _instructions(machine),
        _memory(machine),
        _disk(machine),
        _network(machine),
        _versions(machine),
        _open_files(machine),
        _clock(machine),
    ]


def _cores(machine: Machine) -> Finding:
    found = (
        f"{machine.physical_cores} physical, {machine.logical_cores} logical, "
        f"{machine.usable_cores} usable"
    )
    advice = None
    if machine.quota_cores is not None:
        found += f", quota of {machine.quota_cores:g}"
        if machine.quota_cores < machine.usable_cores:
            advice = (
                "threads beyond the quota are throttled; keep workers x threads at or below "
                f"{max(1, int(machine.quota_cores))} with `--set threads=...`"
            )
    elif machine.usable_cores == 1:
        advice = "several workers would share one core: they train the same, but not faster"
    return Finding(topic="cores", found=found, advice=advice)


def _instructions(machine: Machine) -> Finding:
    found = ", ".join(machine.isa) or "none that matter"
    if not set(machine.isa) & set(BF16_FEATURES):
        found += "; no bf16"
    advice = None
    if "avx2" not in machine.isa and "asimd" not in machine.isa:
        advice = "no vector instructions were found, so training will be slow on this machine"
    return Finding(topic="instructions", found=found, advice=advice)


def _memory(machine: Machine) -> Finding:
    total, free = format_bytes(machine.memory_total_bytes), format_bytes(machine.memory_free_bytes)
    found = f"{total}, {free} free"
    usable = machine.memory_free_bytes
    if machine.memory_limit_bytes is not None:
        found += f", limit of {format_bytes(machine.memory_limit_bytes)}"
        usable = min(usable, machine.memory_limit_bytes)
    advice = None
    if usable < _LEAST_MEMORY_BYTES:
        advice = "under 1 GiB is free and a worker takes about 0.3 GiB; use few workers"
    return Finding(topic="memory", found=found, advice=advice)


def _disk(machine: Machine) -> Finding:
    advice = None
    if machine.disk_free_bytes < _LEAST_DISK_BYTES:
        advice = "checkpoints may not fit; free some space or choose another disk with --runs"
    found = f"{format_bytes(machine.disk_free_bytes)} free at {machine.disk_path}"
    return Finding(topic="disk", found=found, advice=advice)


def _network(machine: Machine) -> Finding:
    parts = []
    for one in machine.interfaces:
        speed = f" at {one.speed_bits_per_s / 1e9:g} Gbit/s" if one.speed_bits_per_s else ""
        parts.append(f"{one.name} {one.addresses[0]}{speed}")
    advice = None
    if not machine.loopback_works:
        advice = "127.0.0.1 does not answer, and local workers speak over it; bring `lo` up"
    return Finding(topic="network", found=", ".join(parts) or "no interface is up", advice=advice)


def _versions(machine: Machine) -> Finding:
    present = [f"{name} {version}" for name, version in machine.packages.items() if version]
    missing = [name for name, version in machine.packages.items() if not version]
    advice = f"install {', '.join(missing)}: `make setup` does" if missing else None
    found = ", ".join([f"Python {machine.python}", *present])
    return Finding(topic="versions", found=found, advice=advice)


def _open_files(machine: Machine) -> Finding:
    advice = None
    # -1 means no limit.
    if 0 <= machine.open_files_limit < _LEAST_OPEN_FILES:
        advice = "many workers need more; raise it with `ulimit -n 4096`"
    found = "unlimited" if machine.open_files_limit < 0 else ""
    return Finding(
        topic="open files",
        found=found or f"{count_noun(machine.open_files_limit, 'file')} per process",
        advice=advice,
    )


def _clock(machine: Machine) -> Finding:
    advice = None
    if machine.clock_source in _SLOW_CLOCKS:
        advice = "reading this clock is slow; if you may, boot with `clocksource=tsc`"
    return Finding(topic="clock", found=machine.clock_source, advice=advice)
