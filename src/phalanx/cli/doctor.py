"""Implement `phalanx doctor`: check this machine, and advise on what it lacks.

`observe` measures the facts; the wording is here. A warning comes with advice; nothing is fatal,
since every machine can train alone.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.cli import output
from phalanx.cli.options import DataOption, FormatOption, JsonOption, RunsOption, examples, wanted
from phalanx.cli.settings import data_root, runs_root
from phalanx.report.document import Block, Column, Table, Value, line, text
from phalanx.report.format import count_noun, format_bytes

if TYPE_CHECKING:
    from phalanx.observe.machine import Machine

EXAMPLES = examples("phalanx doctor", "phalanx doctor --json")

# Importing torch and two seconds of measurement; far more means that the machine is overloaded.
_PROBE_LIMIT_S = 120.0
_GIB = 1 << 30
# A worker with torch loaded takes about 0.3 GiB before its model and data.
_LEAST_MEMORY_BYTES = _GIB
_LEAST_DISK_BYTES = _GIB
# Each worker holds a few sockets to every other one; 256 suffices for a few dozen workers.
_LEAST_OPEN_FILES = 256
_WATCH_S = 0.5
# Per cent of a core.
_WORTH_NAMING = 20.0
_SHOWN_INTERFACES = 4
# Made by container software and virtual machines; no other machine is reached over them.
_LINK_LOCAL = ("169.254.", "fe80:")
_VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel")
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


def doctor(
    runs: RunsOption = None,
    data: DataOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Check this machine: processor, memory, disk, network, versions and data sets."""
    from phalanx.observe.machine import inspect_machine

    machine = inspect_machine(runs_root(runs))
    findings = assess_machine(machine)
    findings.insert(4, assess_precision(machine))
    findings.insert(3, assess_load(machine.usable_cores, watch_load()))
    findings.append(assess_data(data_root(data)))
    output.show(
        lambda: finding_blocks(findings),
        facts=lambda: {"machine": machine, "findings": findings},
        form=wanted(form, as_json),
    )


def assess_machine(machine: Machine) -> list[Finding]:
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


class Load(msgspec.Struct, kw_only=True):
    """Use of the processor by everything that runs, over half a second."""

    waiting: float
    """Processes that want a core, in the mean of the last minute."""
    busy_cores: float
    busiest: list[str]
    """Programs that use most, such as `python (97 %)`."""


def watch_load() -> Load:
    """Watch this machine for half a second."""
    import os
    import time

    import psutil

    processes = [one for one in psutil.process_iter() if one.pid != os.getpid()]
    for one in processes:
        with contextlib.suppress(psutil.Error):
            one.cpu_percent()
    psutil.cpu_percent()
    time.sleep(_WATCH_S)
    busy = psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1)
    used: dict[str, float] = {}
    for one in processes:
        with contextlib.suppress(psutil.Error):
            used[one.name()] = used.get(one.name(), 0.0) + one.cpu_percent()
    most = sorted(used, key=used.__getitem__, reverse=True)[:3]
    busiest = [f"{name} ({used[name]:.0f} %)" for name in most if used[name] >= _WORTH_NAMING]
    return Load(waiting=os.getloadavg()[0], busy_cores=busy, busiest=busiest)


def assess_load(num_cores: int, load: Load) -> Finding:
    """Find whether other programs leave the cores to a run."""
    found = f"{load.busy_cores:.1f} of {num_cores} cores busy, load {load.waiting:.1f}"
    if load.busiest:
        found += f": {', '.join(load.busiest)}"
    advice = None
    if max(load.busy_cores, load.waiting) > num_cores / 2:
        advice = (
            "other programs use this machine: runs are slower beside them, and times of runs "
            "cannot be compared"
        )
    return Finding(topic="load", found=found, advice=advice)


def assess_precision(machine: Machine) -> Finding:
    """Find what `precision: auto` would choose here; measures only if the CPU has bf16."""
    from phalanx.observe.machine import BF16_FEATURES

    if not set(machine.isa) & set(BF16_FEATURES):
        return Finding(topic="precision", found="fp32: this CPU has no bf16 instructions")
    return Finding(topic="precision", found=_measured_precision())


def assess_data(root: Path) -> Finding:
    """Find which data sets are present."""
    from phalanx.data.catalogue import CATALOGUE
    from phalanx.data.directory import is_present

    present: list[str] = []
    absent: list[str] = []
    for name, entry in CATALOGUE.items():
        here = not entry.needs_files or is_present(entry, root) is not None
        (present if here else absent).append(name)
    found = f"{', '.join(present)} in {root}"
    if absent:
        found += f"; not here: {', '.join(absent)} (`phalanx data fetch NAME`)"
    return Finding(topic="data sets", found=found)


def _measured_precision() -> str:
    import subprocess
    import sys

    try:
        done = subprocess.run(
            [sys.executable, "-m", "phalanx.worker.precision_probe"],
            capture_output=True,
            timeout=_PROBE_LIMIT_S,
            check=True,
        )
        choice = msgspec.json.decode(done.stdout, type=dict[str, str | float | None])
    except (subprocess.SubprocessError, OSError, msgspec.DecodeError) as error:
        return f"could not be measured: {error}"
    return f"auto chooses {choice['name']}: {choice['reason']}"


def finding_blocks(findings: list[Finding]) -> list[Block]:
    """Describe each topic in one row, with its advice below it."""
    rows = []
    for one in findings:
        mark = Value("ok", True, "good") if one.ok else Value("! ", False, "doubt")
        rows.append([mark, Value(one.topic, one.topic, "weak"), text(one.found)])
        if one.advice is not None:
            rows.append([Value(""), Value(""), Value(f"→ {one.advice}", one.advice, "doubt")])
    columns = [
        Column("ok", "", is_text=True),
        Column("topic", "topic", is_text=True),
        Column("found", "found", is_text=True, wraps=True),
    ]
    table = Table(id="findings", caption="", columns=columns, rows=rows, has_header=False)
    warnings = sum(not one.ok for one in findings)
    if warnings:
        end = f"{warnings} of {len(findings)} topics need attention (marked !)"
    else:
        end = "all is well; try `phalanx demo`"
    return [table, line(end)]


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
    from phalanx.observe.machine import BF16_FEATURES

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
    useful = [
        one
        for one in machine.interfaces
        if not one.name.startswith(_VIRTUAL) and not one.addresses[0].startswith(_LINK_LOCAL)
    ]
    for one in useful[:_SHOWN_INTERFACES]:
        speed = f" at {one.speed_bits_per_s / 1e9:g} Gbit/s" if one.speed_bits_per_s else ""
        parts.append(f"{one.name} {one.addresses[0]}{speed}")
    others = len(machine.interfaces) - len(parts)
    if parts and others:
        parts.append(f"{others} more")
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
