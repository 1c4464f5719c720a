"""Simulate a candidate of the planner; `scenario` builds candidates for the command.

Covers what the formulas of `plan.predict` do not: queues under changing load, crashes, machines
that slow down, and more workers than there are machines. Equal seeds give equal runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.errors import PlanError
from phalanx.plan.facts import ClusterModel
from phalanx.plan.placement import Candidate
from phalanx.plan.predict import phases_of, throughput_of
from phalanx.plan.workers import WorkerModels, worker_models
from phalanx.simulate.parameter_server import ParameterServerSimulation
from phalanx.simulate.perturbation import Crash, Perturbation
from phalanx.simulate.run import ComputeTimes, SimulatedRun
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.strategy import StrategySpec


def simulate(
    candidate: Candidate,
    cluster: ClusterModel,
    *,
    num_rounds: int,
    perturbations: Sequence[Perturbation] = (),
    seed: int = 1,
) -> list[SimulatedRun]:
    """Simulate a candidate; a switch returns one run per phase.

    Times of perturbations count from the start of each phase.

    Raises:
        PlanError: The speed of a worker is unknown.
    """
    group = worker_models(candidate, cluster)
    if isinstance(group, str):
        raise PlanError(f"this cannot be simulated: {group}")
    runs = []
    for phase in phases_of(candidate, cluster):
        strategy, rounds = phase.strategy, max(1, round(num_rounds * phase.share))
        if strategy.splits_model:
            raise PlanError("a split network is not simulated here; its forecast plays the step")
        if strategy.updates_on_servers:
            assert isinstance(strategy, ParameterServerSpec)
            simulation = ParameterServerSimulation(
                group, strategy, cluster, num_rounds=rounds, perturbations=perturbations, seed=seed
            )
            runs.append(simulation.run())
            continue
        every = max(1, cluster.job.samples_per_epoch // max(1, group.batch))
        runs.append(
            simulate_synchronous(
                group,
                strategy,
                cluster,
                num_steps=rounds,
                perturbations=perturbations,
                seed=seed,
                checkpoint_steps=every,
            )
        )
    return runs


def simulate_synchronous(
    group: WorkerModels,
    strategy: StrategySpec,
    cluster: ClusterModel,
    *,
    num_steps: int,
    perturbations: Sequence[Perturbation] = (),
    seed: int = 1,
    checkpoint_steps: int | None = None,
) -> SimulatedRun:
    """Simulate single, all-reduce or local SGD.

    `num_steps` excludes those repeated after a crash; without `checkpoint_steps` a crash repeats
    all.
    """
    computation = ComputeTimes(group, perturbations, seed)
    throughput = throughput_of(strategy, group, cluster)
    assert not isinstance(throughput, str), throughput
    together = strategy.exchange_every
    besides_s = (throughput.parts.communication_s + throughput.parts.apply_s) * together
    crashes = sorted(
        (one for one in perturbations if isinstance(one, Crash)), key=lambda one: one.at_s
    )
    now_s, step = 0.0, 0
    computed_s = [0.0] * len(group.workers)
    done = 0
    while step < num_steps:
        begin_s = now_s
        length = min(together, num_steps - step)
        ends_s = [now_s] * len(group.workers)
        for _ in range(length):
            for rank, end_s in enumerate(ends_s):
                ends_s[rank] = end_s + computation.next_s(rank, end_s)
        now_s = max(ends_s) + besides_s * length / together
        if crashes and crashes[0].at_s <= now_s:
            crash = crashes.pop(0)
            back_s = crash.back_s if crash.back_s is not None else crash.noticed_s
            now_s = max(begin_s, crash.at_s) + back_s + cluster.costs.startup_s
            step -= step % checkpoint_steps if checkpoint_steps else step
            continue
        for rank, end_s in enumerate(ends_s):
            computed_s[rank] += end_s - begin_s
        step += length
        done += length
    return SimulatedRun(
        elapsed_s=now_s,
        samples=step * group.batch,
        updates=step // together if together > 1 else step,
        pushes=done * len(group.workers),
        lost=(done - step) * len(group.workers),
        busy=tuple(spent_s / now_s for spent_s in computed_s),
        sent_bytes=throughput.sent_bytes * done * len(group.workers),
    )
