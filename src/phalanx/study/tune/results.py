"""Read the results of a search from its directory, never from a running search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.records.study import StudyDir, Trial
from phalanx.records.tune import TuneManifest, read_tune
from phalanx.report.facts import read_run
from phalanx.report.format import count_noun
from phalanx.study.measure import metric_values
from phalanx.study.tune.payback import Payback, payback_of
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
