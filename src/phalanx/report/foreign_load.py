"""Find runs beside which other programs kept the machine busy; pure.

The use of a whole machine and of the run's own processes is sampled while a run trains; what is
left over is used by others. Times of such a run say more about them than about its method.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.report.facts import RunRecord

MUCH = 0.25
"""Share of a machine that others may use before it is worth a warning."""


def foreign_share(run: RunRecord) -> float | None:
    """Return the largest share of a machine that other programs used; None if not sampled."""
    shares = []
    for machine in (one.use for one in run.resources if one.is_machine):
        if not machine.cores:
            continue
        own = sum(
            one.use.cpu_cores
            for one in run.resources
            if not one.is_machine and one.use.host in ("", machine.host, machine.name)
        )
        shares.append(max(0.0, machine.cpu_cores - own) / machine.cores)
    return max(shares, default=None)


def disturbed(runs: Iterable[RunRecord]) -> dict[str, float]:
    """Return the runs beside which other programs used much of a machine, with that share."""
    found = {run.name: foreign_share(run) for run in runs}
    return {name: share for name, share in found.items() if share is not None and share > MUCH}
