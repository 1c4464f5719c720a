"""Merge the declared and the measured facts of a pool's machines; pure.

A declaration limits, a measurement corrects: with 4 of 8 cores declared, 4 are used, and a graphics
card that torch does not see does not count. Each disagreement is reported in one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.pool.facts import HostLink, Probe
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec

# Firmware and graphics reserve some memory, so a machine of 8 GB reports a little less.
_MEMORY_SLACK = 0.9
_CLOCK_LIMIT_S = 1.0


def identity(machine: MachineSpec, reached_by: str | None) -> str:
    """Return the key of a machine for caches and links: how it is reached, and its interpreter.

    Names and prices do not matter, so a machine that is renamed keeps its probe.
    """
    user = f"{machine.user}@" if machine.user else ""
    port = f":{machine.port}" if machine.port else ""
    config = f" by {reached_by}" if reached_by else ""
    return f"{user}{machine.host.lower()}{port} {machine.python}{config}"


@dataclass(frozen=True)
class Member:
    """One machine of a pool: its declaration, and its probe if there is one."""

    spec: MachineSpec
    identity: str
    probe: Probe | None = None

    @property
    def title(self) -> str:
        """Return the name for tables and messages."""
        return self.spec.title

    @property
    def cores(self) -> float | None:
        """Return the usable cores; None: neither declared nor measured."""
        measured = self.probe.looks.cores if self.probe else None
        return _least(self.spec.cores, measured)

    @property
    def memory_bytes(self) -> int | None:
        """Return the usable memory; None: neither declared nor measured."""
        measured = self.probe.looks.memory_bytes if self.probe else None
        least = _least(self.spec.memory, measured)
        return None if least is None else int(least)

    @property
    def num_gpus(self) -> int:
        """Return the number of graphics cards: as probed, else as declared."""
        seen = self.probe.looks.gpus if self.probe else None
        return self.spec.gpu.count if seen is None else len(seen)

    @property
    def gflops(self) -> float | None:
        """Return the measured GEMM speed on the usable cores; None: not measured."""
        if self.probe is None or self.probe.speed is None:
            return None
        cores = self.cores or self.probe.looks.cores
        return self.probe.speed.gemm_all_gflops * min(1.0, cores / self.probe.looks.cores)

    @property
    def disk_free_bytes(self) -> int | None:
        """Return the free disk space at the working directory; None: not measured."""
        return self.probe.looks.disk_free_bytes if self.probe else None


@dataclass(frozen=True)
class Inventory:
    """All machines of a pool, in file order."""

    name: str
    members: tuple[Member, ...]

    def link(self, start: Member, end: Member) -> HostLink | None:
        """Return the measured link from one machine to another, or None."""
        return start.probe.links.get(end.identity) if start.probe else None


def merge(pool: PoolSpec, probes: Mapping[str, Probe]) -> Inventory:
    """Merge declarations and probes.

    Args:
        pool: The declarations.
        probes: Probes by machine identity; some or all may be missing.
    """
    keys = [identity(one, pool.reached_by) for one in pool.machines]
    members = zip(pool.machines, keys, strict=True)
    return Inventory(pool.pool, tuple(Member(one, key, probes.get(key)) for one, key in members))


def differences(inventory: Inventory) -> list[str]:
    """Return the disagreements between declaration and probe, or between machines, as sentences."""
    found = [text for member in inventory.members for text in _own_differences(member)]
    probed = [(one.title, one.probe.looks) for one in inventory.members if one.probe is not None]
    for name in ("python", "torch", "phalanx"):
        versions: dict[str, list[str]] = {}
        for title, looks in probed:
            version = getattr(looks, name)
            if name == "python" and version is not None:
                version = ".".join(version.split(".")[:2])
            versions.setdefault(version or "none", []).append(title)
        if len(versions) > 1:
            each = "; ".join(f"{version}: {', '.join(who)}" for version, who in versions.items())
            found.append(f"versions of {name} differ ({each})")
    return found


def _own_differences(member: Member) -> list[str]:
    spec, probe = member.spec, member.probe
    if probe is None:
        return []
    looks, found = probe.looks, []
    if spec.cores is not None and spec.cores > looks.cores:
        found.append(f"{spec.cores:g} cores are declared, {looks.cores:g} were found")
    if spec.memory is not None and spec.memory * _MEMORY_SLACK > looks.memory_bytes:
        declared, seen = spec.memory / 1e9, looks.memory_bytes / 1e9
        found.append(f"{declared:.1f} GB of memory are declared, {seen:.1f} GB were found")
    if looks.gpus is not None and len(looks.gpus) != spec.gpu.count:
        found.append(
            f"{spec.gpu.count} graphics cards are declared, {len(looks.gpus)} can be computed on"
        )
    if abs(probe.clock.offset_s) > _CLOCK_LIMIT_S + probe.clock.error_s:
        found.append(f"its clock is {probe.clock.offset_s:+.1f} s off")
    return [f"{member.title}: {text}" for text in found]


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)
