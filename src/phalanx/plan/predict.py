"""From a candidate to time, cost, energy and memory, each with a 90 % interval; or why not.

Joins the models of the families. T_total = start-up + warm-up + epochs (samples / speed + the tail
of the epoch) + evaluation; a switch mixes its phases by their shares of the samples. The interval
is that of a log-normal error: what earlier runs of the family were off by, and the error of the fit
of the slowest worker, which are independent. Reference for the mix: Li et al. 2021 (Sync-Switch).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import msgspec

from phalanx.plan.crew import Crew, make_crew
from phalanx.plan.facts import World
from phalanx.plan.memory import memory_fault, memory_needs
from phalanx.plan.placement import Candidate
from phalanx.plan.price import cost_of, energy_of
from phalanx.plan.result import Pace, Prediction, StepParts, around
from phalanx.spec.kinds import kind_of
from phalanx.spec.lockstep import SingleSpec
from phalanx.spec.registry import load
from phalanx.spec.strategy import StrategySpec

Predictor = Callable[[Crew, Any, World], Pace | str]
"""What `StrategyKind.predictor` names; the strategy is of the kind's own class."""

# When a switch comes that chooses its moment by itself: at the first decay of common schedules.
_AUTO_SHARE = 0.5
# Standard deviation of start-up and evaluation, as a share: other programs, disks, file caches.
_BESIDES_ERROR = 0.2


class Refused(msgspec.Struct, frozen=True):
    """A candidate that cannot be, and why."""

    reason: str


class Phase(msgspec.Struct, frozen=True):
    """One strategy of a run, and its share of all samples."""

    strategy: StrategySpec
    share: float


def predict(candidate: Candidate, world: World) -> Prediction | Refused:
    """What a candidate would come to."""
    crew = make_crew(candidate, world)
    if isinstance(crew, str):
        return Refused(crew)
    idle = [hand for hand in crew.hands if hand.batch == 0]
    if idle:
        return Refused(
            f"a batch of {crew.batch} leaves {idle[0].machine} without a sample in each step"
        )
    needs = memory_needs(candidate, world)
    fault = memory_fault(needs, world)
    if fault is not None:
        return Refused(fault)
    phases = phases_of(candidate, world)
    paces: list[tuple[Pace, Crew]] = []
    for phase in phases:
        pace = pace_of(phase.strategy, crew, world)
        if isinstance(pace, str):
            return Refused(pace)
        paces.append((corrected(pace, world), crew))
    return _total(candidate, world, needs, phases, paces)


def pace_of(strategy: StrategySpec, crew: Crew, world: World) -> Pace | str:
    """How fast a strategy goes, before earlier runs correct it; or why there is no telling."""
    # One worker has nobody to exchange with, unless parameters live elsewhere.
    alone = len(crew.hands) == 1 and not strategy.updates_on_servers and not strategy.splits_model
    path = kind_of(SingleSpec() if alone else strategy).predictor
    if not path:
        return f"strategy '{strategy.label()}' brings no predictor, so its speed is not known"
    return cast(Predictor, load(path))(crew, strategy, world)


def corrected(pace: Pace, world: World) -> Pace:
    """The pace as earlier runs of the family teach."""
    known = world.costs.correction(pace.family)
    parts = pace.parts.scaled(known.factor, exchange=known.exchange)
    factor = parts.total_s / pace.parts.total_s
    return msgspec.structs.replace(
        pace,
        samples_per_s=pace.samples_per_s / factor,
        parts=parts,
        tail_s=pace.tail_s * factor,
    )


def phases_of(candidate: Candidate, world: World) -> list[Phase]:
    """The strategies of a run, and how much each does."""
    strategy = candidate.strategy
    assert not strategy.in_process, "plans are made for the native backend"
    resolved = strategy.resolved
    if not resolved:
        return [Phase(strategy, 1.0)]
    begins = [0.0]
    for phase in resolved[1:]:
        if isinstance(phase.at, float):
            begins.append(phase.at)
        elif phase.epoch is not None:
            begins.append(min(1.0, phase.epoch / world.job.epochs))
        else:
            begins.append(_AUTO_SHARE)
    ends = [*begins[1:], 1.0]
    return [
        Phase(phase.strategy, max(0.0, end - begin))
        for phase, begin, end in zip(resolved, begins, ends, strict=True)
    ]


def _total(
    candidate: Candidate,
    world: World,
    needs: dict[str, int],
    phases: list[Phase],
    paces: list[tuple[Pace, Crew]],
) -> Prediction:
    job, costs = world.job, world.costs
    crew = paces[0][1]
    samples = job.samples_per_epoch * job.epochs
    train_s, error, tail_s = 0.0, 0.0, 0.0
    for phase, (pace, _) in zip(phases, paces, strict=True):
        part_s = phase.share * samples / pace.samples_per_s
        train_s += part_s
        tail_s += phase.share * job.epochs * pace.tail_s
        error += part_s * costs.correction(pace.family).error
    error = math.hypot(error / train_s, max(hand.fit.error for hand in crew.hands))
    train_s += tail_s
    batches = samples / crew.batch
    step_s = around(train_s / batches, error)
    warm_s = around(costs.warm_up_s, _BESIDES_ERROR)
    # Evaluation is forward only, and shared out over the workers.
    forwards = sum((1 - hand.fit.backward_share) * hand.fit.per_sample_s for hand in crew.hands)
    evaluate_s = job.evaluated_samples * forwards / len(crew.hands) ** 2
    besides_s = costs.startup_s + job.epochs * costs.checkpoint_s + evaluate_s
    besides_s += (len(phases) - 1) * costs.switch_s
    training_s = step_s * batches + warm_s
    total_s = training_s + around(besides_s, _BESIDES_ERROR)
    return Prediction(
        step_s=step_s,
        samples_per_s=around(samples / train_s, error),
        train_s=training_s,
        total_s=total_s,
        parts=_mixed(phases, [pace for pace, _ in paces]),
        memory_bytes=needs,
        sent_bytes_per_step=sum(
            phase.share * pace.sent_bytes for phase, (pace, _) in zip(phases, paces, strict=True)
        ),
        cost=cost_of(candidate, total_s, world),
        energy_j=energy_of(candidate, paces, total_s, world),
        staleness=max(pace.staleness for pace, _ in paces),
        family=paces[0][0].family if len(paces) == 1 else "switch",
    )


def _mixed(phases: list[Phase], paces: list[Pace]) -> StepParts:
    def mean(name: str) -> float:
        return sum(
            phase.share * float(getattr(pace.parts, name))
            for phase, pace in zip(phases, paces, strict=True)
        )

    return StepParts(
        compute_s=mean("compute_s"),
        communication_s=mean("communication_s"),
        wait_s=mean("wait_s"),
        apply_s=mean("apply_s"),
    )
