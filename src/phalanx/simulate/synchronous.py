"""Simulate synchronous workers: the slowest draw determines each step.

Communication is taken from the formula of `plan.network_model`, one value per bucket; jitter, slow
machines and crashes are simulated. A crash ends the attempt: steps since the last checkpoint are
repeated after a restart, as the controller does.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.plan.facts import ClusterModel
from phalanx.plan.predict import throughput_of
from phalanx.plan.workers import WorkerModels
from phalanx.simulate.perturbation import Crash, Perturbation
from phalanx.simulate.run import ComputeTimes, SimulatedRun
from phalanx.spec.strategy import StrategySpec


def simulate_synchronous(
    crew: WorkerModels,
    strategy: StrategySpec,
    world: ClusterModel,
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
    computation = ComputeTimes(crew, perturbations, seed)
    pace = throughput_of(strategy, crew, world)
    assert not isinstance(pace, str), pace
    together = strategy.exchange_every
    besides_s = (pace.parts.communication_s + pace.parts.apply_s) * together
    crashes = sorted(
        (one for one in perturbations if isinstance(one, Crash)), key=lambda one: one.at_s
    )
    now_s, step = 0.0, 0
    computed_s = [0.0] * len(crew.workers)
    done = 0
    while step < num_steps:
        begin_s = now_s
        length = min(together, num_steps - step)
        ends_s = [now_s] * len(crew.workers)
        for _ in range(length):
            for rank, end_s in enumerate(ends_s):
                ends_s[rank] = end_s + computation.next_s(rank, end_s)
        now_s = max(ends_s) + besides_s * length / together
        if crashes and crashes[0].at_s <= now_s:
            crash = crashes.pop(0)
            back_s = crash.back_s if crash.back_s is not None else crash.noticed_s
            now_s = max(begin_s, crash.at_s) + back_s + world.costs.startup_s
            step -= step % checkpoint_steps if checkpoint_steps else step
            continue
        for rank, end_s in enumerate(ends_s):
            computed_s[rank] += end_s - begin_s
        step += length
        done += length
    return SimulatedRun(
        elapsed_s=now_s,
        samples=step * crew.batch,
        updates=step // together if together > 1 else step,
        pushes=done * len(crew.workers),
        lost=(done - step) * len(crew.workers),
        busy=tuple(spent_s / now_s for spent_s in computed_s),
        sent_bytes=pace.sent_bytes * done * len(crew.workers),
    )
