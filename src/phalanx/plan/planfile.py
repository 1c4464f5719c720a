"""Read and write plan.json, which `phalanx train --plan` runs and later compares with.

Holds the whole job with the chosen settings, the assignments, predictions and reasons; nothing else
is needed to run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from phalanx._version import __version__
from phalanx.errors import SpecError
from phalanx.plan.explain import best_options, choice_sentence, reasons, servers_label
from phalanx.plan.facts import ClusterModel
from phalanx.plan.measured import RunMeasures
from phalanx.plan.placement import Seat, job_of
from phalanx.plan.result import Interval, Prediction
from phalanx.plan.search import Option, PlanSearchResult
from phalanx.records.rundir import RunDir, encode_pretty
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping
from phalanx.store.atomic import write_atomically

PLAN = "plan.json"
_ROWS = 40


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate in the table."""

    machines: tuple[str, ...]
    strategy: str
    servers: str
    workers: int
    batches: tuple[int, ...]
    """Batch size of each worker."""
    precision: str
    effect: str
    """Effect on the result: exact, rounded, lossy or stale."""
    prediction: Prediction | None
    refused: str | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen assignment of a job to machines, with predictions and reasons."""

    phalanx: str
    job: dict[str, Any]
    """The job with the chosen settings."""
    goal: str
    deadline_s: float | None
    budget: float | None
    accept: str
    seats: tuple[Seat, ...]
    """Assignments per machine; ranks follow this order."""
    strategy: str
    prediction: Prediction
    sentence: str
    reasons: tuple[str, ...]
    candidates: tuple[PlanRow, ...]
    """The chosen candidate, good alternatives, then refused ones."""
    front: tuple[PlanRow, ...]
    """Pareto front: no other candidate is better in time, cost and energy at once."""
    num_candidates: int
    sources: tuple[str, ...]
    """Sources of the facts."""
    pool: str | None = None
    """The pool file; None: this machine."""

    @property
    def machines(self) -> tuple[str, ...]:
        """Return the machines with an assignment."""
        return tuple(seat.machine for seat in self.seats)


def record_plan(job: JobSpec, findings: PlanSearchResult, cluster: ClusterModel) -> Plan:
    """Build the record of a search result."""
    chosen, objective = findings.chosen, findings.objective
    assert chosen.prediction is not None
    return Plan(
        phalanx=__version__,
        job=dict(to_mapping(job_of(job, chosen.candidate))),
        goal=objective.goal,
        deadline_s=objective.deadline_s,
        budget=objective.budget,
        accept=objective.accept,
        seats=chosen.candidate.seats,
        strategy=chosen.candidate.strategy.label(),
        prediction=chosen.prediction,
        sentence=choice_sentence(findings),
        reasons=tuple(reasons(findings, cluster)),
        candidates=tuple(_row(option) for option in best_options(findings, _ROWS)),
        front=tuple(_row(option) for option in findings.front[:_ROWS]),
        num_candidates=len(findings.options),
        sources=cluster.sources,
    )


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan atomically."""
    write_atomically(path, encode_pretty(plan))


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        SpecError: The file is missing or not a plan.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except OSError as error:
        raise SpecError(f"cannot read the plan {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SpecError(f"{path} is no plan; make one with `phalanx plan -o {path}`") from error


def planned_job(plan: Plan, host: str) -> JobSpec:
    """Return the job of a plan, with the chosen settings.

    Raises:
        SpecError: The plan assigns other machines, but names no pool.
    """
    others = [name for name in plan.machines if name != host]
    if others and plan.pool is None:
        raise SpecError(
            f"the plan gives work to {', '.join(others[:4])}, and this machine is {host}; name "
            "the pool that they are in with --pool"
        )
    return job_from_mapping(plan.job)


def plan_without(plan: Plan, names: Sequence[str]) -> Plan:
    """Return a plan without some machines: the others share their samples, servers and evaluator.

    Predictions remain those of the original plan; the global batch stays.

    Raises:
        SpecError: No worker is left.
    """
    left = [seat for seat in plan.seats if seat.machine not in names]
    gone = [seat for seat in plan.seats if seat.machine in names]
    if not gone:
        return plan
    workers = sum(seat.workers for seat in left)
    if workers == 0:
        raise SpecError(f"without {', '.join(names)} no worker of the plan is left")
    helping = msgspec.structs.replace(
        left[0],
        servers=left[0].servers + sum(seat.servers for seat in gone),
        evaluator=left[0].evaluator or any(seat.evaluator for seat in gone),
    )
    seats = (helping, *left[1:])
    # A user's script says its batch itself.
    place = "program" if plan.job.get("program") else "batch"
    given = plan.job[place]
    if given.get("shares"):
        given = {**given, "shares": [float(size) for seat in seats for size in seat.batches]}
    job = {**plan.job, "workers": workers, place: given}
    return msgspec.structs.replace(plan, job=job, seats=seats)


def plan_of_run(run: RunDir) -> Plan | None:
    """Return the plan that a run carried out, or None."""
    path = run.path / PLAN
    return read_plan(path) if path.exists() else None


def _row(option: Option) -> PlanRow:
    candidate = option.candidate
    return PlanRow(
        machines=option.machines,
        strategy=candidate.strategy.label(),
        servers=servers_label(candidate),
        workers=candidate.num_workers,
        batches=tuple(size for seat in candidate.seats for size in seat.batches),
        precision=candidate.precision,
        effect=option.effect,
        prediction=option.prediction,
        refused=option.refusal,
    )


class PredictedVsMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """One measure of a planned run."""

    measure: str
    unit: str
    predicted: Interval
    measured: float

    @property
    def error(self) -> float:
        """Return measured over predicted, less one."""
        return self.measured / self.predicted.value - 1

    @property
    def is_inside(self) -> bool:
        """Return whether the measured value lies in the 90 % interval."""
        return self.predicted.low <= self.measured <= self.predicted.high


def compare_with_run(
    plan: Plan, summary: Summary, measures: RunMeasures | None = None
) -> list[PredictedVsMeasured]:
    """Compare predictions with a run; measures without a measured value are left out."""
    step_s = summary.global_batch / measures.samples_per_s if measures is not None else None
    prediction = plan.prediction
    pairs: list[tuple[str, str, Interval | None, float | None]] = [
        ("step", "s", prediction.step_s, step_s),
        ("training", "s", prediction.train_s, summary.train_s),
        ("in all", "s", prediction.total_s, summary.elapsed_s),
        ("energy", "J", prediction.energy_j, summary.energy_j),
    ]
    return [
        PredictedVsMeasured(measure=measure, unit=unit, predicted=predicted, measured=measured)
        for measure, unit, predicted, measured in pairs
        if predicted is not None and measured
    ]
