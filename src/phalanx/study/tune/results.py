"""Read the results of a search from its directory, and compute its cost and payback time.

Costs are complete runs of the journal, from start to end of their processes, those of the
synchronous job included. A search pays when a job recurs: every later one is shorter by the
difference between the synchronous and the switched job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from phalanx.records.study import StudyDir, Trial
from phalanx.records.tune import TuneManifest, read_tune
from phalanx.report.facts import read_run
from phalanx.report.format import count_noun
from phalanx.study.measure import metric_values
from phalanx.study.tune.policy import SYNCHRONOUS, FinishedTrial, TuneDecision, TuneGoal, decide
from phalanx.study.tune.search_plan import share_label, share_of


@dataclass(frozen=True)
class TuneResult:
    """Results of a search so far."""

    study: StudyDir
    tune: TuneManifest
    decision: TuneDecision
    payback: Payback
    whole_s: dict[float, list[float]]
    """Seconds of every complete run, by share."""

    @property
    def best(self) -> float:
        """The recommended share: the one found, or 1 if none is found or it saves nothing."""
        saving = self.payback.saving_s
        found = self.decision.found
        return found if found is not None and saving is not None and saving > 0 else SYNCHRONOUS


def read_results(study: StudyDir, *, without_failed: bool = False) -> TuneResult:
    """Read the results of a search from its journal."""
    tune = read_tune(study)
    trials = study.trials()
    counted = [trial for trial in trials if not without_failed or trial.state == "finished"]
    ran = list(_ran(study, tune, counted))
    decision = decide(aim_of(tune), ran)
    whole_s: dict[float, list[float]] = {}
    for one, trial in zip(ran, counted, strict=True):
        if one.accuracy is not None and not one.dropped:
            whole_s.setdefault(one.share, []).append(trial.elapsed_s)
    payback = payback_of([trial.elapsed_s for trial in trials], whole_s, decision.found)
    return TuneResult(study, tune, decision, payback, whole_s)


def aim_of(tune: TuneManifest) -> TuneGoal:
    """Convert the settings of a search for the policy."""
    return TuneGoal(
        method="binary" if tune.method == "binary" else "halving",
        runs=tune.runs,
        tolerance=tune.tolerance,
        max_settings=tune.max_settings,
    )


def describe_best(findings: TuneResult) -> str:
    """Describe the result for the head of the job file that a search writes."""
    tune, decision = findings.tune, findings.decision
    runs = count_noun(tune.runs, "run")
    how = f"Found by `phalanx tune switch` ({tune.method}, {runs} of a setting)"
    outcomes = {tried.share: tried for tried in decision.outcomes}
    reference = outcomes[SYNCHRONOUS].mean
    assert reference is not None
    if findings.best == SYNCHRONOUS:
        why = "no share is as accurate" if decision.found is None else "no share saves time"
        return f"{how}:\n{why}, so the job stays synchronous."
    mean = outcomes[findings.best].mean
    assert mean is not None
    saved = findings.payback.saving_share or 0.0
    return (
        f"{how}:\nsynchronous for {share_label(findings.best)} of the samples, {tune.metric} "
        f"{mean:.4f} against {reference:.4f}, {100 * saved:.1f} % less time."
    )


def _ran(study: StudyDir, tune: TuneManifest, trials: Sequence[Trial]) -> Iterator[FinishedTrial]:
    values = metric_values(study, trials, tune.metric)
    for trial in trials:
        accuracy = values.get((trial.cell, trial.repeat))
        dropped = False
        if accuracy is not None and tune.method == "halving":
            # Nothing else ends such a run early: a job with `early_stop` is refused.
            summary = study.run(trial).read_summary()
            dropped = summary is not None and summary.stopped_early
        yield FinishedTrial(share_of(trial), trial.repeat, accuracy, dropped)


def synchronous_curve(study: StudyDir) -> dict[int, float]:
    """Read the validation accuracy of the first synchronous run, by epochs done."""
    trial = next(
        trial for trial in study.trials() if share_of(trial) == SYNCHRONOUS and trial.repeat == 0
    )
    epochs = read_run(study.run(trial)).epochs
    return {one.epoch + 1: one.val_accuracy for one in epochs if one.val_accuracy is not None}


@dataclass(frozen=True)
class Payback:
    """Cost so far, and the saving per later job."""

    num_runs: int
    cost_s: float
    synchronous_s: float | None
    """Mean duration of the synchronous job; None before one has finished."""
    switched_s: float | None
    """Mean duration of the job with the share found; None while none is found."""

    @property
    def cost_in_jobs(self) -> float | None:
        """Cost as a multiple of one synchronous job."""
        return None if not self.synchronous_s else self.cost_s / self.synchronous_s

    @property
    def saving_s(self) -> float | None:
        """Saving per later job; negative if it takes longer."""
        if self.synchronous_s is None or self.switched_s is None:
            return None
        return self.synchronous_s - self.switched_s

    @property
    def saving_share(self) -> float | None:
        """The same as a share of the synchronous job."""
        saving = self.saving_s
        return saving / self.synchronous_s if saving is not None and self.synchronous_s else None

    @property
    def jobs_to_pay(self) -> float | None:
        """Number of later jobs that recover the cost; None: never, or not known yet."""
        saving = self.saving_s
        return self.cost_s / saving if saving is not None and saving > 0 else None


def payback_of(
    all_s: Sequence[float], whole_s: Mapping[float, Sequence[float]], found: float | None
) -> Payback:
    """Compute costs of all runs, and savings from complete runs by share."""
    synchronous = whole_s.get(SYNCHRONOUS, ())
    switched = whole_s.get(found, ()) if found is not None else ()
    return Payback(
        num_runs=len(all_s),
        cost_s=sum(all_s),
        synchronous_s=fmean(synchronous) if synchronous else None,
        switched_s=fmean(switched) if switched else None,
    )
