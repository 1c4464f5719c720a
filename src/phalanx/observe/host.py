"""Measure the use of this whole machine since boot.

The figures are the machine's even inside a container, because the kernel shows them there as well;
only the network is the container's. The use of a limited container is reported separately. Figures
that the system does not provide are left out.
"""

from __future__ import annotations

import os
import socket
import time

import psutil

from phalanx.cgroup import cpu_quota, cpu_used, memory_limit, memory_used
from phalanx.observe.energy import EnergyMeter, find_meter
from phalanx.records.events import HostSample, Watching
from phalanx.spec.observe import ObserveSpec


class HostMeter:
    """Meter of the machine that it is constructed on; `energy` overrides the spec's meter."""

    def __init__(self, spec: ObserveSpec, energy: EnergyMeter | None = None) -> None:
        self._host = socket.gethostname()
        self._energy = find_meter(spec) if energy is None else energy
        self._quota, self._limit = cpu_quota(), memory_limit()

    def describe(self) -> Watching:
        """Return the description of the samples that follow."""
        return Watching(
            host=self._host,
            cores=psutil.cpu_count() or 1,
            memory_total_bytes=psutil.virtual_memory().total,
            energy_source=self._energy.source,
            energy_reason=self._energy.reason,
            group_cores=self._quota,
            group_memory_bytes=self._limit,
        )

    def read(self) -> HostSample:
        """Return a sample of this moment."""
        cores = psutil.cpu_times(percpu=True)
        user_s = sum(core.user + core.nice for core in cores)
        system_s = sum(core.system + core.irq + core.softirq for core in cores)
        # A core that waits for a disk is idle.
        idle_s = sum(core.idle + core.iowait for core in cores)
        stolen_s = sum(core.steal for core in cores)
        busy_s = user_s + system_s
        memory = psutil.virtual_memory()
        network = psutil.net_io_counters(pernic=True, nowrap=False)
        disk = _disk()
        limited = self._quota is not None or self._limit is not None
        return HostSample(
            host=self._host,
            cpu_user_s=user_s,
            cpu_system_s=system_s,
            cpu_idle_s=idle_s,
            cpu_stolen_s=stolen_s,
            core_busy_s=[
                core.user + core.nice + core.system + core.irq + core.softirq for core in cores
            ],
            load_1min=os.getloadavg()[0],
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            received_bytes={name: one.bytes_recv for name, one in network.items()},
            sent_bytes={name: one.bytes_sent for name, one in network.items()},
            read_bytes=disk[0] if disk else None,
            written_bytes=disk[1] if disk else None,
            energy_j=self._energy.read(time.monotonic(), busy_s, busy_s + idle_s + stolen_s),
            energy_source=self._energy.source,
            group_cpu_s=cpu_used() if limited else None,
            group_memory_bytes=memory_used() if limited else None,
        )


def _disk() -> tuple[int, int] | None:
    try:
        counters = psutil.disk_io_counters(perdisk=False, nowrap=False)
    except (OSError, NotImplementedError, ValueError):
        # Some containers hide the disks, and old kernels list them in forms that psutil refuses.
        return None
    return (counters.read_bytes, counters.write_bytes) if counters else None
