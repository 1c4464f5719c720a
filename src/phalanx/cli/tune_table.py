"""Describe a search as a table: tried shares, their cost, and when the search pays off."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from phalanx.records.tune import FOUND_JOB
from phalanx.report.document import Block, CellFormat, Column, Mark, Table, Value, line, tabulate
from phalanx.report.format import count_noun, format_accuracy, format_duration, shown
from phalanx.study.tune.policy import SYNCHRONOUS, ShareOutcome
from phalanx.study.tune.results import TuneResult
from phalanx.study.tune.search_plan import share_label

_WORDS: dict[str, tuple[str, Mark]] = {
    "meets": ("✓ meets the target", "good"),
    "misses": ("misses the target", ""),
    "dropped": ("below its bar, stopped early", ""),
    "failed": ("✗ failed", "doubt"),
    "open": ("runs missing", "weak"),
}


def search_facts(findings: TuneResult) -> dict[str, Any]:
    """Collect what `phalanx tune show --json` prints.

    `found` is the smallest share that meets the target, null if none does; `best` the recommended
    one, where 1 is the synchronous job. `job_s` is the mean of a setting's whole runs.
    """
    tune, decision, payback = findings.tune, findings.decision, findings.payback
    return {
        "method": tune.method,
        "metric": tune.metric,
        "tolerance": tune.tolerance,
        "is_over": decision.is_over,
        "target": decision.target,
        "found": decision.found,
        "best": findings.best,
        "settings": [
            {
                "share": tried.share,
                "outcome": tried.outcome,
                "accuracies": tried.accuracies,
                "job_s": _job_s(findings, tried),
            }
            for tried in decision.outcomes
        ],
        "runs": payback.num_runs,
        "cost_s": payback.cost_s,
        "cost_in_jobs": payback.cost_in_jobs,
        "saving_s": payback.saving_s,
        "jobs_to_pay": payback.jobs_to_pay,
    }


def describe_step(findings: TuneResult) -> str:
    """Describe the state of a search after a decision in one line."""
    settled = [one for one in findings.decision.outcomes if one.outcome != "open"]
    last = settled[-1] if settled else findings.decision.outcomes[0]
    found = findings.decision.found
    so_far = "no share yet" if found is None else f"best so far {share_label(found)}"
    mean = format_accuracy(last.mean)
    return f"  {share_label(last.share)}: {mean}; {so_far}; {describe_cost(findings)}"


def describe_cost(findings: TuneResult) -> str:
    """Describe cost so far, saving, and when the search pays off."""
    payback = findings.payback
    text = f"cost so far {count_noun(payback.num_runs, 'run')}, {format_duration(payback.cost_s)}"
    if payback.cost_in_jobs is not None:
        text += f" = {payback.cost_in_jobs:.1f} synchronous jobs"
    saving, share = payback.saving_s, payback.saving_share
    if saving is None or share is None:
        return text
    if payback.jobs_to_pay is None:
        return f"{text}; saves no time"
    each = f"saves {format_duration(saving)} ({100 * share:.1f} %) in each later job"
    return f"{text}; {each}, so it pays after {payback.jobs_to_pay:.1f} of them"


def search_blocks(findings: TuneResult) -> list[Block]:
    """Describe the results of a search so far."""
    tune, decision = findings.tune, findings.decision
    target = "" if decision.target is None else f", target {format_accuracy(decision.target)}"
    return [
        line(f"switch share by {tune.method}, {tune.metric}{target}", "lead"),
        _table(findings),
        line(describe_cost(findings)),
        _conclusion(findings),
    ]


def _conclusion(findings: TuneResult) -> Block:
    decision, path, best = findings.decision, findings.study.path, findings.best
    if not decision.is_over:
        return line(f"not finished; continue with `phalanx tune resume {path}`", "doubt")
    if decision.target is None:
        return line("the synchronous job failed, so nothing was compared", "doubt")
    if best != SYNCHRONOUS:
        what = f"switch after {share_label(best)}"
    elif decision.found is None:
        what = "no share is as accurate: stay synchronous"
    else:
        what = "no share saves time: stay synchronous"
    return line(f"{what}; phalanx train {path / FOUND_JOB}", "good")


def _table(findings: TuneResult) -> Table:
    metric = findings.tune.metric
    columns: list[tuple[Column, CellFormat[ShareOutcome]]] = [
        (Column("share", "share", is_text=True), lambda one: shown(one.share, share_label)),
        (Column("runs", "runs"), lambda one: Value(str(len(one.accuracies)), len(one.accuracies))),
        (Column(metric, metric), lambda one: shown(one.mean, format_accuracy)),
        (
            Column("job_s", "time of a job"),
            lambda one: shown(_job_s(findings, one), format_duration),
        ),
        (Column("outcome", "tried", is_text=True), _outcome),
    ]
    return tabulate("settings", findings.decision.outcomes, columns)


def _outcome(tried: ShareOutcome) -> Value:
    if tried.share == SYNCHRONOUS and tried.outcome == "meets":
        return Value("sets the target", "meets")
    words, mark = _WORDS[tried.outcome]
    return Value(words, tried.outcome, mark)


def _job_s(findings: TuneResult, tried: ShareOutcome) -> float | None:
    seconds = findings.whole_s.get(tried.share)
    return fmean(seconds) if seconds else None
