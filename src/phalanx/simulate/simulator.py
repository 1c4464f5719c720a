"""Simulate a candidate of the planner; `scenario` builds candidates for the command.

Covers what the formulas of `plan.predict` do not: queues under changing load, crashes, machines
that slow down, and more workers than there are machines. Equal seeds give equal runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.errors import PlanError
from phalanx.plan.facts import ClusterModel
from phalanx.plan.placement import Candidate
from phalanx.plan.predict import phases_of
from phalanx.plan.workers import WorkerModels, worker_models
from phalanx.simulate.parameter_server import ParameterServerSimulation
from phalanx.simulate.perturbation import Perturbation
from phalanx.simulate.run import SimulatedRun
from phalanx.simulate.synchronous import simulate_synchronous
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.split import SplitSpec
from phalanx.spec.switch import PhaseStrategy


def simulate(
    candidate: Candidate,
    world: ClusterModel,
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
    crew = worker_models(candidate, world)
    if isinstance(crew, str):
        raise PlanError(f"this cannot be simulated: {crew}")
    phases = phases_of(candidate, world)
    return [
        _simulate_phase(
            crew,
            _simulated(phase.strategy),
            world,
            num_rounds=max(1, round(num_rounds * phase.share)),
            perturbations=perturbations,
            seed=seed,
        )
        for phase in phases
    ]


def _simulated(strategy: PhaseStrategy | SplitSpec) -> PhaseStrategy:
    if strategy.splits_model:
        raise PlanError("a split network is not simulated here; its forecast plays the step")
    return strategy


def _simulate_phase(
    crew: WorkerModels,
    strategy: PhaseStrategy,
    world: ClusterModel,
    *,
    num_rounds: int,
    perturbations: Sequence[Perturbation],
    seed: int,
) -> SimulatedRun:
    if strategy.updates_on_servers:
        assert isinstance(strategy, ParameterServerSpec)
        return ParameterServerSimulation(
            crew, strategy, world, num_rounds=num_rounds, perturbations=perturbations, seed=seed
        ).run()
    return simulate_synchronous(
        crew,
        strategy,
        world,
        num_steps=num_rounds,
        perturbations=perturbations,
        seed=seed,
        checkpoint_steps=max(1, world.job.samples_per_epoch // max(1, crew.batch)),
    )
