"""Search the best candidate for a goal within limits, and explain refusals.

Objective: time, cost or energy, or for `balanced` the product of all that are known, which weights
each equally in per cent. A deadline or budget must hold at the upper end of the 90 % interval.
Where all machine sets can be enumerated the result is the optimum over all variants; otherwise the
best of promising sets, improved by local search one machine at a time. Among candidates within two
per cent of the best, which predictions cannot distinguish, the fewest machines win.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from phalanx.errors import PlanError, SpecError
from phalanx.plan.facts import ClusterModel
from phalanx.plan.placement import Candidate, job_of
from phalanx.plan.predict import predict
from phalanx.plan.result import Prediction
from phalanx.plan.subsets import ALL_SETS_UP_TO, Names, machine_sets, neighbours
from phalanx.plan.variants import EFFECTS, Variant, variants
from phalanx.report.format import format_duration
from phalanx.spec.job import JobSpec
from phalanx.spec.strategy import Effect

Goal = Literal["time", "cost", "energy", "balanced"]
GOALS: tuple[Goal, ...] = ("time", "cost", "energy", "balanced")

INDISTINCT = 0.02
_IMPROVED_SETS = 3
_MOST_ROUNDS = 10
# With more machines than this, only variants that may be chosen are predicted.
_SHOW_ALL_UP_TO = 12


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """Goal and limits of a search."""

    goal: Goal = "time"
    deadline_s: float | None = None
    budget: float | None = None
    accept: Effect = "rounded"
    """Largest accepted effect on the result."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted candidate."""

    candidate: Candidate
    effect: Effect
    prediction: Prediction | None
    refusal: str | None = None

    @property
    def machines(self) -> Names:
        """Return its machines."""
        return tuple(seat.machine for seat in self.candidate.seats)


class PlanSearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search."""

    objective: Objective
    options: tuple[Option, ...]
    """All predicted candidates, best first, refused ones last."""
    chosen: Option
    front: tuple[Option, ...]
    """Pareto front in time, cost and energy; fastest first."""
    complete: bool
    """Whether every machine set was enumerated."""


def search(
    job: JobSpec, cluster: ClusterModel, objective: Objective, *, limit: int = ALL_SETS_UP_TO
) -> PlanSearchResult:
    """Find the best candidate, enumerating at most `limit` machine sets.

    Raises:
        PlanError: No candidate meets the limits, or the goal needs facts that are unknown.
    """
    _check_goal(cluster, objective)
    predicted = _PredictedOptions(job, cluster, objective)
    sets, complete = machine_sets(cluster, limit=limit)
    for names in sets:
        predicted.add(names)
    if not complete:
        predicted.improve()
    options = predicted.ranked()
    feasible = [option for option in options if option.refusal is None]
    if not feasible:
        raise PlanError(_nothing(options, objective))
    return PlanSearchResult(
        objective=objective,
        options=tuple(options),
        chosen=choose(feasible, objective.goal),
        front=tuple(front(feasible)),
        complete=complete,
    )


class _PredictedOptions:
    """Candidates predicted so far."""

    def __init__(self, job: JobSpec, cluster: ClusterModel, objective: Objective) -> None:
        self._job, self._cluster, self._objective = job, cluster, objective
        self._options: dict[Names, list[Option]] = {}
        self._faults: dict[tuple[object, ...], str | None] = {}
        machines = cluster.machines.values()
        self._measure = measure_of(
            objective.goal,
            priced=all(one.price_per_hour is not None for one in machines),
            metered=all(one.watts_full is not None for one in machines),
        )
        small = len(cluster.machines) <= _SHOW_ALL_UP_TO
        accepted = EFFECTS[: EFFECTS.index(objective.accept) + 1]
        self._effects: Sequence[Effect] = EFFECTS if small else accepted

    def add(self, names: Names) -> list[Option]:
        """Predict all variants on a machine set."""
        if names not in self._options:
            found = variants(names, self._job, self._cluster, effects=self._effects)
            self._options[names] = [self._option(variant) for variant in found]
        return self._options[names]

    def improve(self) -> None:
        """Move from the best machine sets to better neighbours until none is left."""
        for _ in range(_MOST_ROUNDS):
            before = self._best_of(self._options)
            best = sorted(self._options, key=lambda names: self._best_of([names]))[:_IMPROVED_SETS]
            for names in best:
                for other in neighbours(names, self._cluster):
                    self.add(other)
            if self._best_of(self._options) >= before:
                return

    def ranked(self) -> list[Option]:
        """Return all options, best first, refused ones last."""
        options = [option for own in self._options.values() for option in own]
        measure = self._measure
        return sorted(options, key=lambda one: (one.refusal is not None, measure(one)))

    def _best_of(self, sets: Iterable[Names]) -> float:
        options = [
            option
            for names in sets
            for option in self._options[names]
            if option.prediction is not None and option.refusal is None
        ]
        return min((self._measure(option) for option in options), default=math.inf)

    def _option(self, variant: Variant) -> Option:
        candidate, effect = variant.candidate, variant.effect
        predicted: Prediction | None = None
        refusal = self._job_fault(candidate)
        if refusal is None:
            found = predict(candidate, self._cluster)
            if isinstance(found, str):
                refusal = found
            else:
                predicted = found
                refusal = _effect_refusal(variant, found, self._objective)
                refusal = refusal or _limit_refusal(found, self._objective)
        return Option(candidate=candidate, effect=effect, prediction=predicted, refusal=refusal)

    def _job_fault(self, candidate: Candidate) -> str | None:
        """Return why the job cannot run as the candidate, or None; cached per kind of candidate."""
        if any(size == 0 for seat in candidate.seats for size in seat.batches):
            # Infeasible by the prediction, which gives a better reason.
            return None
        key = (candidate.strategy, candidate.num_workers, candidate.precision)
        if key not in self._faults:
            try:
                job_of(self._job, candidate)
                self._faults[key] = None
            except SpecError as error:
                self._faults[key] = str(error)
        return self._faults[key]


def choose(options: Sequence[Option], goal: Goal) -> Option:
    """Return the best option for a goal; of indistinguishable ones, that with fewest machines."""
    predictions = [one.prediction for one in options if one.prediction is not None]
    measure = measure_of(
        goal,
        priced=all(one.cost is not None for one in predictions),
        metered=all(one.energy_j is not None for one in predictions),
    )
    least = min(measure(option) for option in options)
    # Measures are logarithms, so the tolerance applies to the product of all of them.
    close = [option for option in options if measure(option) <= least + math.log1p(INDISTINCT)]
    return min(
        close,
        key=lambda one: (len(one.machines), EFFECTS.index(one.effect), measure(one), one.machines),
    )


def front(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other one dominates in all known measures."""
    points = [(_point(option), option) for option in options]
    points.sort(key=lambda pair: pair[0])
    kept: list[tuple[tuple[float, ...], Option]] = []
    for point, option in points:
        # An earlier point that is no worse in any measure dominates this one.
        if not any(all(map(operator.le, other, point)) for other, _ in kept):
            kept.append((point, option))
    return [option for _, option in kept]


def _point(option: Option) -> tuple[float, ...]:
    prediction = option.prediction
    assert prediction is not None
    cost, energy = prediction.cost, prediction.energy_j
    return (
        prediction.total_s.value,
        cost.value if cost is not None else 0.0,
        energy.value if energy is not None else 0.0,
    )


def measure_of(goal: Goal, *, priced: bool, metered: bool) -> Callable[[Option], float]:
    """Return the function to minimise: the logarithm of the goal's measure.

    `balanced` includes cost and energy where they are known of every option.
    """

    def measure(option: Option) -> float:
        if option.prediction is None:
            return math.inf
        time_s, cost, energy_j = _point(option)
        match goal:
            case "time":
                return math.log(time_s)
            case "cost":
                # Free machines are compared by time.
                return math.log(cost) if cost > 0 else math.log(time_s) - 1e3
            case "energy":
                return math.log(energy_j) if energy_j > 0 else math.inf
            case "balanced":
                known = ((priced, cost), (metered, energy_j))
                return math.log(time_s) + sum(math.log(v) for use, v in known if use and v > 0)

    return measure


def _check_goal(cluster: ClusterModel, objective: Objective) -> None:
    machines = list(cluster.machines.values())
    priced = any(machine.price_per_hour is not None for machine in machines)
    metered = any(machine.watts_full is not None for machine in machines)
    if (objective.goal == "cost" or objective.budget is not None) and not priced:
        raise PlanError(
            "no machine has a price: cost and budget need 'price_per_hour' in the pool file"
        )
    if objective.goal == "energy" and not metered:
        raise PlanError(
            "no machine declares its power: the goal energy needs 'watts_idle' and 'watts_full' "
            "in the pool file"
        )


def _effect_refusal(variant: Variant, predicted: Prediction, objective: Objective) -> str | None:
    if EFFECTS.index(variant.effect) <= EFFECTS.index(objective.accept):
        return None
    if variant.effect == "rounded":
        return "rounds to bf16; --accept rounded allows it"
    if variant.effect == "lossy":
        return "sends parts of gradients later; --accept lossy allows it"
    if predicted.staleness > 0:
        return f"gradients about {predicted.staleness:.1f} updates old; --accept stale allows it"
    return "replicas drift apart between averages; --accept stale allows it"


def _limit_refusal(predicted: Prediction, objective: Objective) -> str | None:
    total_s, cost = predicted.total_s, predicted.cost
    if objective.goal == "cost" and cost is None:
        return "a machine without a price"
    if objective.goal == "energy" and predicted.energy_j is None:
        return "a machine without declared power"
    if objective.deadline_s is not None and total_s.high > objective.deadline_s:
        return (
            f"may take {format_duration(total_s.high)}, beyond the deadline of "
            f"{format_duration(objective.deadline_s)}"
        )
    if objective.budget is not None:
        if cost is None:
            return "a machine without a price, with a budget to keep"
        if cost.high > objective.budget:
            return f"may cost {cost.high:.2f}, beyond the budget of {objective.budget:.2f}"
    return None


def _nothing(options: Sequence[Option], objective: Objective) -> str:
    """Explain why there is no plan, and what would make one possible."""
    known = [one for one in options if one.prediction is not None]
    if not known:
        reason = options[0].refusal if options else "there is no machine"
        return f"no plan is possible: {reason}"
    accepted = [
        one for one in known if EFFECTS.index(one.effect) <= EFFECTS.index(objective.accept)
    ] or known
    fastest = min(accepted, key=lambda one: _point(one)[0]).prediction
    assert fastest is not None
    text = f"no plan meets this: the fastest may take {format_duration(fastest.total_s.high)}"
    costs = [one.prediction.cost.high for one in accepted if one.prediction and one.prediction.cost]
    if costs and objective.budget is not None:
        text += f", the cheapest may cost {min(costs):.2f}"
    if objective.deadline_s is not None:
        text += f"; the deadline is {format_duration(objective.deadline_s)}"
    if objective.budget is not None:
        text += f"; the budget is {objective.budget:.2f}"
    return text
