"""Build simulations from a few figures: number of workers, speed, perturbations.

One worker per virtual machine, each a copy of a known one: either explicit figures of equal
machines (`Figures`), or calibrated and probed ones (a `ClusterModel` of the planner). Dedicated
servers have separate machines. The batch per worker is constant, so more workers make larger global
batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from phalanx.errors import SpecError
from phalanx.plan.facts import (
    ClusterModel,
    ComputeFit,
    JobFacts,
    LinkFacts,
    MachineFacts,
    ModelFacts,
    NetworkFacts,
)
from phalanx.plan.placement import Candidate, Seat
from phalanx.simulate.perturbation import Crash, Perturbation, SlowMachine, Straggling
from phalanx.simulate.run import SimulatedRun
from phalanx.simulate.simulator import simulate
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.strategy import StrategySpec

DEFAULT_STRATEGIES: tuple[StrategySpec, ...] = (
    AllreduceSpec(),
    LocalSgdSpec(),
    ParameterServerSpec(consistency="bsp"),
    ParameterServerSpec(consistency="ssp"),
    ParameterServerSpec(consistency="async", dispatch="dynamic"),
)
"""Strategies compared by default."""
# Machines of explicit figures: large enough that only the given figures limit them.
_CORES = 4
_MEMORY_BYTES = 64 << 30


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Explicit figures of equal machines."""

    compute_s: float
    """Forward and backward of one worker's batch."""
    num_parameters: int
    bandwidth_bytes_per_s: float = 1.17e8
    """Per port; the default is the payload rate of 1 Gbit/s."""
    latency_s: float = 2e-4
    """One-way latency."""
    jitter: float = 0.1
    """Coefficient of variation of a step's time."""


class Stragglers(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the machines is slow, always or in random spells."""

    share: float
    factor: float
    """Slowdown factor."""
    normal_s: float | None = None
    """Mean time between two slow periods; None: always slow."""
    slow_s: float | None = None
    """Mean duration of a slow period."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a simulation other than strategy and machines."""

    workers: int
    batch: int
    """Batch size per worker."""
    rounds: int = 20
    """Mean number of steps per worker."""
    stragglers: Stragglers | None = None
    crashes: tuple[Crash, ...] = ()
    seed: int = 1


class SimulatedStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one strategy in a scenario; totals over its phases."""

    strategy: str
    workers: int
    elapsed_s: float
    samples: int
    samples_per_s: float
    updates: int
    updates_per_s: float
    staleness_mean: float
    staleness_max: int
    waiting_share: float
    """Share of the workers' time in exchanges and waiting."""
    server_busy_share: float | None
    """Utilisation of the busiest server; None without servers."""
    dropped: int
    lost: int
    """Gradients lost to crashes."""
    sent_bytes: float
    staleness: dict[int, int] = {}
    """Count of applied gradients by staleness."""


def run_scenario(
    scenario: Scenario, strategies: Sequence[StrategySpec], known: ClusterModel | Figures
) -> list[SimulatedStrategy]:
    """Simulate each strategy in a scenario.

    Raises:
        SpecError: A crash names a worker that does not exist.
        PlanError: A strategy cannot be simulated, or the machines' speed is unknown.
    """
    for crash in scenario.crashes:
        if not 0 <= crash.rank < scenario.workers:
            raise SpecError(
                f"there is no worker {crash.rank} to crash; workers are 0 to {scenario.workers - 1}"
            )
    template = cluster_of(known, scenario) if isinstance(known, Figures) else known
    found = []
    for strategy in strategies:
        servers = strategy.processes(scenario.workers).servers
        cluster = replicate(template, scenario.workers + servers)
        candidate = place(strategy, list(cluster.machines), scenario, cluster)
        runs = simulate(
            candidate,
            cluster,
            num_rounds=scenario.rounds,
            perturbations=_perturbations(scenario, [seat.machine for seat in candidate.seats]),
            seed=scenario.seed,
        )
        found.append(_summarise(strategy.label(), scenario.workers, runs))
    return found


def cluster_of(figures: Figures, scenario: Scenario) -> ClusterModel:
    """Model one machine by explicit figures; one epoch is the whole simulation."""
    fit = ComputeFit(
        fixed_s=0.0,
        per_sample_s=figures.compute_s / scenario.batch,
        jitter=figures.jitter,
        threads=_CORES,
        error=0.0,
    )
    machine = MachineFacts(name="m", cores=_CORES, memory_bytes=_MEMORY_BYTES, fits=(fit,))
    link = LinkFacts(
        latency_s=figures.latency_s, bandwidth_bytes_per_s=figures.bandwidth_bytes_per_s
    )
    return ClusterModel(
        machines={machine.name: machine},
        model=ModelFacts(num_parameters=figures.num_parameters),
        job=JobFacts(
            global_batch=scenario.batch,
            per_worker=True,
            samples_per_epoch=scenario.batch * scenario.workers * scenario.rounds,
            epochs=1,
        ),
        network=NetworkFacts(between=link),
        sources=("explicit figures",),
    )


def replicate(cluster: ClusterModel, count: int) -> ClusterModel:
    """Copy the machines of a cluster in turn up to a count, with their links."""
    originals = list(cluster.machines.values())
    origin: dict[str, str] = {}
    machines: dict[str, MachineFacts] = {}
    for number in range(count):
        one = originals[number % len(originals)]
        turn = number // len(originals)
        name = one.name if turn == 0 else f"{one.name}-{turn + 1}"
        origin[name] = one.name
        machines[name] = msgspec.structs.replace(one, name=name)
    if not cluster.network.pairs:
        return msgspec.structs.replace(cluster, machines=machines)
    links = {name: _links(name, origin, cluster.network) for name in machines}
    network = msgspec.structs.replace(cluster.network, pairs=links)
    return msgspec.structs.replace(cluster, machines=machines, network=network)


def _links(name: str, origin: Mapping[str, str], network: NetworkFacts) -> dict[str, LinkFacts]:
    """Return the links of a copy to all others; copies of one machine share its fastest link."""
    own = origin[name]
    fastest = LinkFacts(
        latency_s=network.between.latency_s, bandwidth_bytes_per_s=network.port(own)
    )
    return {
        other: fastest if start == own else network.link(own, start)
        for other, start in origin.items()
        if other != name
    }


def place(
    strategy: StrategySpec, machines: Sequence[str], scenario: Scenario, cluster: ClusterModel
) -> Candidate:
    """Place one worker on each machine, and dedicated servers on the remaining ones."""
    dedicated = strategy.processes(scenario.workers).servers
    colocated = strategy.uses_servers and dedicated == 0
    seats = [
        Seat(
            machine=name,
            batches=(scenario.batch,),
            threads=cluster.machines[name].threads(1),
            servers=int(colocated),
        )
        for name in machines[: scenario.workers]
    ]
    seats += [Seat(machine=name, servers=1) for name in machines[scenario.workers :]]
    return Candidate(seats=tuple(seats), strategy=strategy)


def _perturbations(scenario: Scenario, machines: Sequence[str]) -> list[Perturbation]:
    """Choose the slow machines at random among those of the workers."""
    found: list[Perturbation] = list(scenario.crashes)
    slow = scenario.stragglers
    if slow is None:
        return found
    count = max(1, round(slow.share * scenario.workers))
    rng = np.random.default_rng((scenario.seed, 11))
    for index in sorted(rng.permutation(scenario.workers)[:count].tolist()):
        if slow.normal_s is None or slow.slow_s is None:
            found.append(SlowMachine(machine=machines[index], factor=slow.factor))
        else:
            found.append(
                Straggling(
                    machine=machines[index],
                    factor=slow.factor,
                    normal_s=slow.normal_s,
                    slow_s=slow.slow_s,
                )
            )
    return found


def _summarise(label: str, workers: int, runs: Sequence[SimulatedRun]) -> SimulatedStrategy:
    elapsed_s = sum(run.elapsed_s for run in runs)
    samples, updates = sum(run.samples for run in runs), sum(run.updates for run in runs)
    staleness: Counter[int] = Counter()
    for run in runs:
        staleness.update(run.staleness)
    gradients = staleness.total()
    busy = [share for run in runs for share in run.server_busy]
    return SimulatedStrategy(
        strategy=label,
        workers=workers,
        elapsed_s=elapsed_s,
        samples=samples,
        samples_per_s=samples / elapsed_s,
        updates=updates,
        updates_per_s=updates / elapsed_s,
        staleness_mean=sum(v * n for v, n in staleness.items()) / gradients if gradients else 0.0,
        staleness_max=max(staleness, default=0),
        waiting_share=sum(run.waiting_share * run.elapsed_s for run in runs) / elapsed_s,
        server_busy_share=max(busy) if busy else None,
        dropped=sum(run.dropped for run in runs),
        lost=sum(run.lost for run in runs),
        sent_bytes=sum(run.sent_bytes for run in runs),
        staleness=dict(sorted(staleness.items())),
    )
