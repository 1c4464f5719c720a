"""A study as tables: what is planned, what its cells came to, what the gate says, what failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phalanx.cli.screen import BAR_DONE_STYLE, WARNING_STYLE
from phalanx.records.study import PlannedRepeats, StudyDir, StudyManifest, Trial
from phalanx.report.format import (
    NOTHING,
    count_noun,
    format_bytes,
    format_count,
    format_duration,
    format_loss,
)
from phalanx.report.gate import GateResult, judge_study
from phalanx.report.stats import Estimate, estimate
from phalanx.study.measure import values_by_seed

_VERDICTS = {
    "equivalent": ("=", BAR_DONE_STYLE, "equivalent"),
    "different": ("≠", WARNING_STYLE, "not equivalent"),
    "undecided": ("?", "dim", "undecided"),
}


class StudyFacts(msgspec.Struct, kw_only=True):
    """What `phalanx study show --json` prints."""

    manifest: StudyManifest
    trials: list[Trial]
    gate: list[GateResult]


def study_facts(study: StudyDir) -> StudyFacts:
    """Everything that a study directory says, without the runs' own records."""
    manifest = study.manifest()
    return StudyFacts(manifest=manifest, trials=study.trials(), gate=_gate_results(study, manifest))


def render_plan(manifest: StudyManifest) -> RenderableType:
    """The cells of a study that has not begun."""
    table = _table(manifest)
    for title in ("workers", "batch", "epochs", "runs"):
        table.add_column(title, justify="right", no_wrap=True)
    for cell in manifest.cells:
        batch = cell.job["batch"]
        workers = cell.job["workers"]
        size = batch["global"] or batch["per_worker"] * workers
        shown = (workers, size, cell.job["epochs"], _repeats_range(manifest.repeats))
        table.add_row(*cell.settings.values(), *(str(value) for value in shown))
    return Group(Text(manifest.title, "bold"), table, Text(_plan_line(manifest)))


def render_study(study: StudyDir) -> Iterator[RenderableType]:
    """What a study came to so far."""
    manifest = study.manifest()
    trials = study.trials()
    yield Text(manifest.title, "bold")
    yield _result_table(study, manifest, trials)
    if manifest.gate is not None:
        yield _gate_table(_gate_results(study, manifest), manifest)
    failed = [trial for trial in trials if trial.state == "failed"]
    for trial in failed:
        line = f"✗ {trial.cell} repeat {trial.repeat + 1} failed: {trial.cause}"
        yield Text(line, WARNING_STYLE)
    yield Text(_end_line(study, manifest, trials), "dim")


def format_metric(metric: str, value: float) -> str:
    """A number of a summary with its unit."""
    if metric == "bytes_sent":
        return format_bytes(value)
    if metric.endswith("per_s"):
        return f"{format_count(value)}/s"
    if metric.endswith("_s"):
        return format_duration(value)
    if metric.endswith("accuracy"):
        return f"{100 * value:.2f} %"
    return format_loss(value) if metric.endswith("loss") else format_count(value)


def format_estimate(metric: str, found: Estimate) -> str:
    """A mean with half its interval; the mean alone where one run says no more."""
    mean = format_metric(metric, found.mean)
    if found.half_width is None:
        return mean
    if metric.endswith("accuracy"):
        return f"{mean} ± {100 * found.half_width:.2f}"
    relative = found.relative_half_width
    return mean if relative is None else f"{mean} ± {100 * relative:.1f} %"


def _table(manifest: StudyManifest) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for axis in manifest.axes:
        table.add_column(axis, no_wrap=True)
    return table


def _repeats_range(repeats: PlannedRepeats) -> str:
    return str(repeats.min) if repeats.min == repeats.max else f"{repeats.min} to {repeats.max}"


def _plan_line(manifest: StudyManifest) -> str:
    number = len(manifest.cells)
    repeats = manifest.repeats
    least, most = number * repeats.min, number * repeats.max
    runs = count_noun(least, "run") if least == most else f"{least} to {count_noun(most, 'run')}"
    parts = [count_noun(number, "cell"), runs]
    if repeats.half_width is not None:
        width = f"{100 * repeats.half_width:g} %" if repeats.relative else f"{repeats.half_width:g}"
        parts.append(f"until {repeats.metric} is known to ± {width}")
    if manifest.budget_s is not None:
        parts.append(f"budget {format_duration(manifest.budget_s)}")
    parts.append(f"seeds {', '.join(str(seed) for seed in manifest.seeds[:5])}" + _more(manifest))
    return ", ".join(parts)


def _more(manifest: StudyManifest) -> str:
    return ", ..." if len(manifest.seeds) > 5 else ""


def _result_table(study: StudyDir, manifest: StudyManifest, trials: Sequence[Trial]) -> Table:
    metrics = [manifest.metric]
    metrics += [manifest.gate.metric] if manifest.gate is not None else ["test_accuracy"]
    by_metric = {metric: values_by_seed(study, metric) for metric in metrics}
    table = _table(manifest)
    for title in ("runs", *by_metric):
        table.add_column(title, justify="right", no_wrap=True)
    for cell in manifest.cells:
        mine = [trial for trial in trials if trial.cell == cell.id]
        failed = sum(trial.state == "failed" for trial in mine)
        runs = f"{len(mine) - failed}" + (f" + {failed} ✗" if failed else "")
        shown = []
        for metric, values in by_metric.items():
            found = list(values.get(cell.id, {}).values())
            shown.append(format_estimate(metric, estimate(found)) if found else NOTHING)
        table.add_row(*cell.settings.values(), runs, *shown)
    return table


def _gate_results(study: StudyDir, manifest: StudyManifest) -> list[GateResult]:
    if manifest.gate is None:
        return []
    return judge_study(manifest, values_by_seed(study, manifest.gate.metric))


def _gate_table(results: Sequence[GateResult], manifest: StudyManifest) -> RenderableType:
    gate = manifest.gate
    assert gate is not None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("cell", "against", "difference", "interval", "runs", "verdict"):
        table.add_column(title, no_wrap=True)
    for result in results:
        glyph, style, word = _VERDICTS[result.verdict]
        interval = NOTHING
        if result.low is not None and result.high is not None:
            interval = f"{result.low:+.4f} to {result.high:+.4f}"
        difference = NOTHING if result.difference is None else f"{result.difference:+.4f}"
        pairs = (
            f"{result.num_runs[0]} pairs" if result.paired else "{} and {}".format(*result.num_runs)
        )
        table.add_row(
            result.cell,
            result.baseline,
            difference,
            interval,
            pairs,
            Text(f"{glyph} {word}", style),
        )
    title = (
        f"equivalence gate: {gate.metric} within ± {gate.tolerance:g} of {gate.axis}="
        f"{gate.baseline} (cell minus baseline, {100 * (2 * gate.confidence - 1):g} % interval)"
    )
    return Group(Text(title), table)


def _end_line(study: StudyDir, manifest: StudyManifest, trials: Sequence[Trial]) -> str:
    least = sum(manifest.repeats_of(cell.id).min for cell in manifest.cells)
    line = f"{count_noun(len(trials), 'run')} of at least {least}: {study.path}"
    if len(trials) < least:
        line += f"; go on with `phalanx study resume {study.path}`"
    return line
