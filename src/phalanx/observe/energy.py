"""Meter the energy of this machine: by the processor's counters, or from declared watts.

RAPL (running average power limit) counters are in the processor packages of Intel since Sandy
Bridge and AMD since Zen; Linux shows them below /sys/class/powercap, mostly to root only. They
cover packages and memory, not disks, fans and power supply. The model covers whatever the declared
watts cover: P = idle + share x (full - idle), with share the busy part of all cores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from phalanx.cgroup import read_text
from phalanx.spec.observe import ObserveSpec

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter(ABC):
    """Cumulative energy since construction."""

    source: str
    """rapl, model, or empty."""
    reason: str
    """Why this meter was chosen, for people."""

    @abstractmethod
    def read(self, now_s: float, busy_s: float, total_s: float) -> float | None:
        """Return the joules since construction, or None if unknown.

        `busy_s` and `total_s` are seconds of all cores together since boot.
        """


def find_meter(spec: ObserveSpec, powercap: Path = POWERCAP) -> EnergyMeter:
    """Return the meter that a spec asks for, or the best available."""
    if spec.energy == "off":
        return NoMeter("switched off by observe.energy")
    domains = find_domains(powercap) if spec.energy in ("auto", "rapl") else []
    if domains:
        names = ", ".join(domain.name for domain in domains)
        return RaplMeter(domains, f"counters of {names} in {powercap}")
    idle, full = spec.watts_idle, spec.watts_full
    if spec.energy in ("auto", "model") and idle is not None and full is not None:
        return ModelMeter(idle, full)
    missing = f"no readable RAPL counter in {powercap}"
    return NoMeter(missing if spec.energy == "rapl" else f"{missing}, and no watts declared")


class NoMeter(EnergyMeter):
    """Meter without any source."""

    source = ""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    @override
    def read(self, now_s: float, busy_s: float, total_s: float) -> float | None:
        return None


class ModelMeter(EnergyMeter):
    """Model of energy from the declared watts of the machine and the busy share of all cores."""

    source = "model"

    def __init__(self, watts_idle: float, watts_full: float) -> None:
        self.reason = f"declared: {watts_idle:g} W idle, {watts_full:g} W with all cores busy"
        self._idle = watts_idle
        self._full = watts_full
        self._last: tuple[float, float, float] | None = None
        self._joules = 0.0

    @override
    def read(self, now_s: float, busy_s: float, total_s: float) -> float | None:
        if self._last is not None:
            then_s, busy_before_s, total_before_s = self._last
            # The system counts in hundredths of a second: no time may pass between two reads.
            if total_s <= total_before_s:
                return self._joules
            share = (busy_s - busy_before_s) / (total_s - total_before_s)
            share = min(1.0, max(0.0, share))
            watts = self._idle + share * (self._full - self._idle)
            self._joules += watts * (now_s - then_s)
        self._last = (now_s, busy_s, total_s)
        return self._joules


@dataclass
class Domain:
    """One energy counter of the processor."""

    name: str
    path: Path
    range_uj: int
    """The counter wraps to zero beyond this."""
    last_uj: int
    joules: float = 0.0

    def advance(self) -> float:
        """Read the counter; return the joules since construction."""
        found = _counter(self.path)
        if found is not None:
            # Sampled much more often than it wraps, which takes some minutes at least.
            passed = found - self.last_uj
            self.joules += (passed if passed >= 0 else passed + self.range_uj + 1) / 1e6
            self.last_uj = found
        return self.joules


class RaplMeter(EnergyMeter):
    """Meter of the processor's RAPL counters, which must be disjoint."""

    source = "rapl"

    def __init__(self, domains: list[Domain], reason: str) -> None:
        self._domains = domains
        self.reason = reason

    @override
    def read(self, now_s: float, busy_s: float, total_s: float) -> float | None:
        return sum(domain.advance() for domain in self._domains)


def find_domains(powercap: Path) -> list[Domain]:
    """Return readable, disjoint counters: packages, and memory beside them.

    `core` and `uncore` are parts of a package; `psys` is the whole board and contains all. The same
    domain may be shown twice, by two drivers of the kernel (`intel-rapl` and `intel-rapl-mmio`).
    """
    found: dict[str, Domain] = {}
    for folder in sorted(powercap.glob("intel-rapl:*")):
        name = read_text(folder / "name")
        counter = _counter(folder / "energy_uj")
        if not name.startswith(("package", "dram")) or counter is None:
            continue
        # dram is listed below its package, and there may be several packages.
        label = name if name.startswith("package") else f"{name} of {folder.name.split(':')[1]}"
        size = _counter(folder / "max_energy_range_uj") or 0
        found.setdefault(label, Domain(label, folder / "energy_uj", size, counter))
    return list(found.values())


def _counter(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdigit() else None
