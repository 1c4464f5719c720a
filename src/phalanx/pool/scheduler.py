"""Ask the scheduler of a pool for machines, and for the way to each of them.

A pool lists machines that are reached over ssh, or names a scheduler that lends some and reaches
them in its own way. The machines themselves are the same to everything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from phalanx.agent.line import Route
from phalanx.agent.ssh import SshRoute
from phalanx.errors import SpecError
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec
from phalanx.spec.registry import load
from phalanx.spec.scheduler import SCHEDULERS, SchedulerSpec

RouteMaker = Callable[[MachineSpec], Route]
"""Builds the route to a machine of a pool."""


@dataclass(frozen=True)
class Lease:
    """What a scheduler has lent, under a name that stays when it starts the same job again.

    Attributes:
        name: Scheduler and job, such as `slurm 17`.
        restarts: How often the scheduler has started it again.
    """

    name: str
    restarts: int = 0


class Scheduler(ABC):
    """Batch system or cluster engine that lends machines.

    Args:
        spec: Its settings.
    """

    def __init__(self, spec: SchedulerSpec) -> None:
        self.spec = spec

    @abstractmethod
    def machines(self, defaults: Mapping[str, object]) -> list[dict[str, object]]:
        """Return the lent machines, as under `machines` of a pool file.

        Args:
            defaults: Settings under `defaults` of the pool file, which are laid under the machines.

        Raises:
            SpecError: Nothing is lent, or the scheduler is not there.
        """

    @abstractmethod
    def routes(self, pool: PoolSpec) -> AbstractContextManager[RouteMaker]:
        """Prepare the ways to the machines of a pool; they are valid within the block.

        Raises:
            PhalanxError: The scheduler does not lend them.
        """

    def lease(self) -> Lease | None:
        """Return what is lent if the scheduler may start the same command again; else None."""
        return None

    def requeue(self) -> str | None:
        """Ask the scheduler to start the job again later, after SIGTERM ended a run.

        Returns:
            One sentence on what was asked or why it failed; None: nothing was asked.
        """
        return None


def scheduler_of(spec: SchedulerSpec) -> Scheduler:
    """Construct the scheduler that a pool names; asks it nothing.

    Raises:
        SpecError: It cannot be imported, or is none.
    """
    kind = SCHEDULERS.find(spec.name)
    made = load(kind.scheduler)
    if not (isinstance(made, type) and issubclass(made, Scheduler)):
        raise SpecError(f"scheduler '{kind.name}': '{kind.scheduler}' is no Scheduler class")
    return made(spec)


@contextmanager
def open_routes(pool: PoolSpec) -> Iterator[RouteMaker]:
    """Prepare the ways to the machines of a pool; they are valid within the block."""
    if pool.scheduler is None:
        yield lambda machine: SshRoute(machine, pool.ssh_config)
        return
    with scheduler_of(pool.scheduler).routes(pool) as routes:
        yield routes


def lease_of(pool: PoolSpec) -> Lease | None:
    """Return what the scheduler of a pool has lent; None: nothing that it may start again."""
    return None if pool.scheduler is None else scheduler_of(pool.scheduler).lease()
