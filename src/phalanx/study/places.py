"""Divide the cores of this machine, or the machines of a pool, over the trials of a study.

Trials that run at the same time share nothing, and their places are alike: runs on unequal ones
could not be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.errors import SpecError
from phalanx.records.study import StudyManifest
from phalanx.spec.job import JobSpec
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool_file import load_pool


@dataclass(frozen=True)
class TrialPlace:
    """Where one trial at a time runs."""

    cores: tuple[int, ...]
    """Cores of this machine; with machines, those of the controller."""
    machines: tuple[str, ...] = ()
    """Machines of the pool; empty: the trial runs on this machine."""

    def without(self, lost: Sequence[str]) -> TrialPlace:
        """Return the place without machines that are lost."""
        return replace(self, machines=tuple(one for one in self.machines if one not in lost))


def assign_places(
    manifest: StudyManifest, cores: Sequence[int], jobs: Sequence[JobSpec]
) -> list[TrialPlace]:
    """Divide the pool of a study, or else the cores, into places for trials.

    Raises:
        SpecError: There are not enough cores or like machines for so many trials at a time, or the
            pool has a machine no more.
    """
    if manifest.pool is None:
        sets = assign_core_sets(cores, jobs, manifest.parallel)
        return [TrialPlace(tuple(one)) for one in sets]
    known = {one.title: one for one in load_pool(Path(manifest.pool.file)).spec.machines}
    gone = [name for name in manifest.pool.machines if name not in known]
    if gone:
        raise SpecError(f"{manifest.pool.file} has no machine {', '.join(gone)} any more")
    machines = [known[name] for name in manifest.pool.machines]
    groups = divide_machines(machines, manifest.parallel)
    return [TrialPlace(tuple(cores), tuple(group)) for group in groups]


def divide_machines(machines: Sequence[MachineSpec], parallel: int | str) -> list[list[str]]:
    """Divide machines into groups with the same declared hardware; `auto` makes one group.

    Raises:
        SpecError: They cannot be divided into so many like groups.
    """
    number = 1 if parallel == "auto" else int(parallel)
    kinds: dict[tuple[object, ...], list[str]] = {}
    for one in machines:
        kind = (one.cores, one.memory, one.slots, one.gpu.count, one.gpu.model)
        kinds.setdefault(kind, []).append(one.title)
    if any(len(names) % number for names in kinds.values()):
        raise SpecError(
            f"parallel is {number}, but {', '.join(one.title for one in machines)} cannot be "
            "divided into so many groups with the same hardware (cores, memory, slots, gpu), and "
            "runs on unequal machines cannot be compared; set parallel to 1"
        )
    groups: list[list[str]] = [[] for _ in range(number)]
    for names in kinds.values():
        each = len(names) // number
        for index, group in enumerate(groups):
            group += names[index * each : (index + 1) * each]
    order = [one.title for one in machines]
    return [sorted(group, key=order.index) for group in groups]


def assign_core_sets(
    cores: Sequence[int], jobs: Sequence[JobSpec], parallel: int | str
) -> list[list[int]]:
    """Divide the cores into core sets; each runs one trial at a time.

    Under `auto` the largest job decides their number.

    Raises:
        SpecError: There are more core sets than cores.
    """
    if parallel == "auto":
        number = max(1, len(cores) // max(cores_wanted(job) for job in jobs))
    else:
        number = int(parallel)
    if number > len(cores):
        raise SpecError(
            f"parallel is {number}, but there are only {len(cores)} cores, and runs at the same "
            f"time share none; set it to {len(cores)} or less, or to auto"
        )
    each = len(cores) // number
    # Remaining cores stay idle: runs on core sets of unequal size could not be compared.
    return [list(cores[number * each : (number + 1) * each]) for number in range(number)]


def cores_wanted(job: JobSpec) -> int:
    """Return the number of cores at which no two processes of the job share one."""
    threads = 1 if job.threads == "auto" else job.threads
    return job.workers * threads + job.processes.servers
