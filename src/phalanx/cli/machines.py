"""Read pools, select machines of them, and turn both into a request for a run.

Shared by `pool`, `plan` and `train`; prints nothing but corrections made to an inventory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from phalanx.cli.options import option
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from phalanx.cli.request import MachineOptions
    from phalanx.launch.base import PoolRequest
    from phalanx.plan.planfile import Plan
    from phalanx.pool.cache import ProbeCache
    from phalanx.pool.inventory import Inventory
    from phalanx.pool.selection import Selection
    from phalanx.records.study import PlannedPool
    from phalanx.spec.pool import PoolSpec

POLICIES = "all, cpu, gpu, energy, fastest\\[:N] or cheapest\\[:N]"

WhereOption = Annotated[
    list[str] | None, option("FILTER", "Such as 'cpus: 4+', 'memory: 8GB+' or label=rack-a.")
]


def read_pool(path: Path) -> PoolSpec:
    """Read a pool file; corrections made to an inventory are reported on standard error."""
    from rich.text import Text

    from phalanx.cli.screen import WARNING_STYLE, open_console
    from phalanx.spec.pool_file import load_pool

    file = load_pool(path)
    console = open_console(stderr=True)
    for note in file.notes:
        console.print(Text(f"corrected: {note}", WARNING_STYLE), soft_wrap=True)
    return file.spec


def open_cache() -> ProbeCache:
    """Open the cache of probe results."""
    from phalanx.cli.settings import cache_root
    from phalanx.pool.cache import ProbeCache

    return ProbeCache(cache_root() / "pool")


def known_inventory(spec: PoolSpec) -> Inventory:
    """Return a pool together with cached probe results."""
    from phalanx.pool.inventory import identity, merge

    cache = open_cache()
    keys = [identity(one, spec.reached_by) for one in spec.machines]
    return merge(spec, {key: probe for key in keys if (probe := cache.read(key)) is not None})


def select_machines(
    spec: PoolSpec, policy: str, where: Sequence[str] | None
) -> tuple[Inventory, Selection]:
    """Return the inventory of a pool, and the machines that policy and filters select."""
    from phalanx.pool.selection import select
    from phalanx.spec.selection import parse_filters, parse_policy

    inventory = known_inventory(spec)
    return inventory, select(inventory, parse_policy(policy), parse_filters(where or ()))


def reduce_pool(spec: PoolSpec, names: Sequence[str]) -> PoolSpec:
    """Return the pool with only these machines, in the order of the file."""
    machines = tuple(one for one in spec.machines if one.title in names)
    return spec.model_copy(update={"machines": machines})


def leave_out(spec: PoolSpec, names: Sequence[str]) -> PoolSpec:
    """Return the pool without these machines.

    Raises:
        SpecError: It has no such machine, or no other.
    """
    from phalanx.spec.names import did_you_mean

    titles = [one.title for one in spec.machines]
    for name in names:
        if name not in titles:
            raise SpecError(
                f"--without {name}: there is no such machine among {', '.join(titles)}"
                f"{did_you_mean(name, titles)}"
            )
    left = reduce_pool(spec, [title for title in titles if title not in names])
    if not left.machines:
        raise SpecError(f"--without {' '.join(names)} leaves no machine of {', '.join(titles)}")
    return left


def request_of_plan(plan: Plan, spec: PoolSpec, source: Path, *, build_env: bool) -> PoolRequest:
    """Request the machines of a plan, each with the processes that the plan assigns to it."""
    from phalanx.launch.base import PoolRequest
    from phalanx.launch.placement import HostAssignment

    return PoolRequest(
        pool=spec,
        source=str(source.resolve()),
        assignments=tuple(
            HostAssignment(
                machine=seat.machine,
                workers=seat.workers,
                threads=seat.threads,
                servers=seat.servers,
                evaluator=seat.evaluator,
            )
            for seat in plan.seats
        ),
        needs_bytes=plan.prediction.memory_bytes,
        build_env=build_env,
    )


def planned_pool(options: MachineOptions) -> PlannedPool | None:
    """Return the machines that the runs of a study take place on; None: this machine."""
    from phalanx.records.study import PlannedPool

    if options.pool is None:
        options.refuse_without_pool()
        return None
    spec = options.choose(options.pool)
    return PlannedPool(
        file=str(options.pool.resolve()),
        machines=[one.title for one in spec.machines],
        build_env=options.build_env,
    )
