"""Take the nodes of a Slurm allocation as machines of a pool.

Slurm's own commands answer what is lent: `scontrol` names nodes, cores and tasks, `srun` reaches
the nodes. Nothing is submitted here: the user's `sbatch` or `salloc` has done so.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from typing_extensions import override

from phalanx.agent.srun import SrunRoute
from phalanx.errors import SpecError
from phalanx.pool.engine_command import ask_engine
from phalanx.pool.scheduler import Lease, RouteMaker, Scheduler
from phalanx.spec.pool import PoolSpec
from phalanx.spec.scheduler import SlurmSpec


@dataclass(frozen=True)
class SlurmJob:
    """What Slurm says of a running job.

    Attributes:
        number: Its number.
        cores: Allocated cores by node, in Slurm's order.
        num_tasks: Tasks that it asks for, over all nodes.
        cores_per_task: Cores that each of them asks for.
        restarts: How often Slurm has started it again.
    """

    number: int
    cores: dict[str, int]
    num_tasks: int
    cores_per_task: int = 1
    restarts: int = 0

    @property
    def tasks(self) -> dict[str, int]:
        """Return the tasks by node: at least one, and as even as the cores allow."""
        room = {node: max(1, cores // self.cores_per_task) for node, cores in self.cores.items()}
        tasks = dict.fromkeys(self.cores, 1)
        left = min(self.num_tasks, sum(room.values())) - len(tasks)
        while left > 0:
            for node in tasks:
                if left > 0 and tasks[node] < room[node]:
                    tasks[node] += 1
                    left -= 1
        return tasks


class SlurmScheduler(Scheduler):
    """The Slurm that has allocated nodes to the job of a pool."""

    @override
    def machines(self, defaults: Mapping[str, object]) -> list[dict[str, object]]:
        job = read_job(self._job)
        addresses = _addresses(list(job.cores))
        # As `srun python` would find it: the nodes share the environment of this command.
        usual = {} if "python" in defaults else {"python": sys.executable}
        return [
            {
                "host": node,
                "cores": float(job.cores[node]),
                **usual,
                **({} if "slots" in defaults else {"slots": job.tasks[node]}),
                # The address by which Slurm's daemons reach the node, so that others do too.
                **({"address": addresses[node]} if node in addresses else {}),
            }
            for node in job.cores
        ]

    @override
    @contextmanager
    def routes(self, pool: PoolSpec) -> Iterator[RouteMaker]:
        job = self._job
        yield lambda machine: SrunRoute(machine, job=job)

    @override
    def lease(self) -> Lease:
        job = read_job(self._job)
        return Lease(f"slurm {job.number}", job.restarts)

    @override
    def requeue(self) -> str | None:
        assert isinstance(self.spec, SlurmSpec)
        if not self.spec.requeue:
            return None
        try:
            # One that does not run any more was cancelled by somebody, who wants no other start.
            read_job(self._job)
            _scontrol("requeue", str(self._job))
        except SpecError as error:
            return f"job {self._job} is not requeued ({error})"
        return f"Slurm starts job {self._job} again when nodes are free, and the run continues"

    @property
    def _job(self) -> int:
        assert isinstance(self.spec, SlurmSpec)
        own = os.environ.get("SLURM_JOB_ID", "")  # noqa: TID251 (Slurm says it nowhere else)
        if self.spec.job is None and not own.isdecimal():
            raise SpecError(
                "'scheduler: slurm' takes the nodes of a Slurm job, and this command runs in none; "
                "start it with `sbatch` or within `salloc`, or name one with 'scheduler: {name: "
                "slurm, job: 17}'"
            )
        return self.spec.job or int(own)


def read_job(number: int) -> SlurmJob:
    """Ask Slurm what it has allocated to a job.

    Raises:
        SpecError: It knows no such job, or the job does not run.
    """
    facts: dict[str, str] = {}
    cores: Counter[str] = Counter()
    nodes: list[str] = []
    for word in _scontrol("--oneliner", "--details", "show", "job", str(number)).split():
        name, _, value = word.partition("=")
        if name == "Nodes":
            nodes = _host_names(value)
        elif name == "CPU_IDs":
            cores.update(dict.fromkeys(nodes, _count_ids(value)))
        else:
            facts.setdefault(name, value)
    if facts.get("JobState") != "RUNNING" or not cores:
        raise SpecError(
            f"Slurm job {number} is {facts.get('JobState', 'unknown').lower()} and has no nodes to "
            "train on"
        )
    return SlurmJob(
        number=number,
        cores={node: cores[node] for node in _host_names(facts["NodeList"])},
        num_tasks=_whole(facts.get("NumTasks")),
        cores_per_task=_whole(facts.get("CPUs/Task")),
        restarts=_whole(facts.get("Restarts"), least=0),
    )


def _addresses(nodes: list[str]) -> dict[str, str]:
    """Return the address of each node in Slurm's configuration."""
    found = {}
    for line in _scontrol("--oneliner", "show", "node", ",".join(nodes)).splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split())
        if "NodeAddr" in facts:
            found[facts["NodeName"]] = facts["NodeAddr"]
    return found


def _host_names(expression: str) -> list[str]:
    """Expand Slurm's short form of node names, such as `n[1-4,7]`."""
    if "[" not in expression and "," not in expression:
        return [expression]
    return _scontrol("show", "hostnames", expression).split()


def _count_ids(ids: str) -> int:
    """Count the numbers in a list such as `0-3,8`."""
    count = 0
    for part in ids.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def _whole(text: str | None, *, least: int = 1) -> int:
    return max(least, int(text)) if text is not None and text.isdecimal() else least


def _scontrol(*arguments: str) -> str:
    return ask_engine("slurm", "scontrol", *arguments)
