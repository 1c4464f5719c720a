"""A search as a table: every share that was tried, what it has cost, and when it will have paid."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from phalanx.cli.screen import BAR_DONE_STYLE, WARNING_STYLE
from phalanx.records.tune import FOUND_JOB
from phalanx.report.format import NOTHING, count_noun, format_accuracy, format_duration
from phalanx.study.findings import Findings
from phalanx.study.search_plan import share_label
from phalanx.study.tune import SYNCHRONOUS, Verdict

_WORDS = {
    "meets": ("✓ meets the target", BAR_DONE_STYLE),
    "misses": ("misses the target", ""),
    "dropped": ("behind at its bar, ended there", ""),
    "failed": ("✗ failed", WARNING_STYLE),
    "open": ("not all runs yet", "dim"),
}


class SettingFacts(msgspec.Struct, kw_only=True):
    """One setting of a search."""

    share: float
    outcome: str
    accuracies: list[float]
    job_s: float | None
    """Mean of its whole runs."""


class SearchFacts(msgspec.Struct, kw_only=True):
    """What `phalanx tune show --json` prints."""

    method: str
    metric: str
    tolerance: float
    is_over: bool
    target: float | None
    found: float | None
    """The smallest share that meets the target; null if none does."""
    best: float
    """The share to go on with; 1: the synchronous job."""
    settings: list[SettingFacts]
    runs: int
    cost_s: float
    cost_in_jobs: float | None
    saving_s: float | None
    jobs_to_pay: float | None


def search_facts(findings: Findings) -> SearchFacts:
    """Everything that is known of a search."""
    tune, decision, payback = findings.tune, findings.decision, findings.payback
    return SearchFacts(
        method=tune.method,
        metric=tune.metric,
        tolerance=tune.tolerance,
        is_over=decision.is_over,
        target=decision.target,
        found=decision.found,
        best=findings.best,
        settings=[
            SettingFacts(
                share=verdict.share,
                outcome=verdict.outcome,
                accuracies=list(verdict.accuracies),
                job_s=_job_s(findings, verdict),
            )
            for verdict in decision.verdicts
        ],
        runs=payback.num_runs,
        cost_s=payback.cost_s,
        cost_in_jobs=payback.cost_in_jobs,
        saving_s=payback.saving_s,
        jobs_to_pay=payback.jobs_to_pay,
    )


def describe_step(findings: Findings) -> Text:
    """Where a search stands after a decision, in one line."""
    settled = [one for one in findings.decision.verdicts if one.outcome != "open"]
    last = settled[-1] if settled else findings.decision.verdicts[0]
    found = findings.decision.found
    so_far = "no share yet" if found is None else f"best so far {share_label(found)}"
    mean = format_accuracy(last.mean)
    return Text(f"  {share_label(last.share)}: {mean}; {so_far}; {describe_cost(findings)}", "dim")


def describe_cost(findings: Findings) -> str:
    """Cost so far, what it saves, and when it pays."""
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


def render_search(findings: Findings) -> Iterator[RenderableType]:
    """What a search came to so far."""
    tune, decision = findings.tune, findings.decision
    target = "" if decision.target is None else f", target {format_accuracy(decision.target)}"
    yield Text(f"switch share by {tune.method}, {tune.metric}{target}", "bold")
    yield _table(findings)
    yield Text(describe_cost(findings))
    path = findings.study.path
    if not decision.is_over:
        yield Text(f"not finished; go on with `phalanx tune resume {path}`", WARNING_STYLE)
    elif decision.target is None:
        yield Text("the synchronous job failed, so nothing was compared", WARNING_STYLE)
    else:
        best = findings.best
        if best != SYNCHRONOUS:
            what = f"switch after {share_label(best)}"
        elif decision.found is None:
            what = "no share is as accurate: stay synchronous"
        else:
            what = "no share saves time: stay synchronous"
        yield Text(f"{what}; phalanx train {path / FOUND_JOB}", BAR_DONE_STYLE)


def _table(findings: Findings) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("share", no_wrap=True)
    for title in ("runs", findings.tune.metric, "time of a job"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for verdict in findings.decision.verdicts:
        words, style = _WORDS[verdict.outcome]
        if verdict.share == SYNCHRONOUS and verdict.outcome == "meets":
            words, style = "sets the target", ""
        job_s = _job_s(findings, verdict)
        table.add_row(
            share_label(verdict.share),
            str(len(verdict.accuracies)),
            format_accuracy(verdict.mean),
            NOTHING if job_s is None else format_duration(job_s),
            Text(words, style),
        )
    return table


def _job_s(findings: Findings, verdict: Verdict) -> float | None:
    seconds = findings.whole_s.get(verdict.share)
    return fmean(seconds) if seconds else None
