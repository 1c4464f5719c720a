"""How the resources of a run are shown: one row for each process, one for each machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.table import Table

from phalanx.records.log import read_logs
from phalanx.records.rundir import RunDir
from phalanx.records.usage import (
    KINDS,
    ResourceUse,
    host_uses,
    process_uses,
    training_windows,
)
from phalanx.report.format import NOTHING, format_bytes, format_duration

_TITLES = ("", "CPU", "CPU time", "memory peak", "received", "sent", "written", "energy")


class Resources(msgspec.Struct, kw_only=True):
    """What the processes and machines of a run used while it trained; without time series."""

    processes: list[ResourceUse]
    machines: list[ResourceUse]


def read_resources(run: RunDir) -> Resources:
    """Everything that was measured of a run; empty if nothing was."""
    logs = read_logs(run.path / "events", *KINDS)
    windows = training_windows(logs)
    return Resources(
        processes=_without_series(process_uses(logs, windows)),
        machines=_without_series(host_uses(logs, windows)),
    )


def render_resources(resources: Resources) -> Table:
    """Processes above, machines below; CPU of a process in cores, of a machine as its share."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column, title in enumerate(_TITLES):
        table.add_column(title, justify="right" if column else "left", no_wrap=True)
    for use in resources.processes:
        table.add_row(use.name, *_row(use, cpu=f"{use.cpu_cores:.0%}"))
    for use in resources.machines:
        cpu = f"{use.cpu_share:.0%} of {use.cores}" if use.cpu_share is not None else NOTHING
        table.add_row(f"machine {use.name}", *_row(use, cpu=cpu))
    return table


def _row(use: ResourceUse, *, cpu: str) -> Sequence[str]:
    return (
        cpu,
        format_duration(use.cpu_s),
        format_bytes(use.memory_peak_bytes),
        _sum(use.received_bytes),
        _sum(use.sent_bytes),
        format_bytes(use.written_bytes) if use.written_bytes is not None else NOTHING,
        f"{_energy(use.energy_j)} ({use.energy_source})" if use.energy_j is not None else NOTHING,
    )


def _sum(by_interface: Mapping[str, int]) -> str:
    return format_bytes(sum(by_interface.values())) if by_interface else NOTHING


def _energy(joules: float) -> str:
    return f"{joules:.0f} J" if joules < 9999.5 else f"{joules / 1000:,.1f} kJ"


def _without_series(uses: Mapping[str, ResourceUse]) -> list[ResourceUse]:
    return [msgspec.structs.replace(use, series=[]) for use in uses.values()]
