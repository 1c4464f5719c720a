"""Describe a study as tables: planned cells, results, equivalence gate, failures."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from phalanx.records.study import (
    PlannedRepeats,
    StudyDir,
    StudyManifest,
    Trial,
    on_other_machines,
)
from phalanx.report.document import Block, CellFormat, Column, Table, Value, line, tabulate, text
from phalanx.report.format import (
    NOTHING,
    count_noun,
    format_bytes,
    format_count,
    format_duration,
    format_loss,
    number_field,
    shown,
    text_field,
)
from phalanx.report.gate import GateResult, judge_study
from phalanx.report.stats import Estimate, estimate
from phalanx.study.measure import values_by_seed

_VERDICTS = {
    "equivalent": Value("= equivalent", "equivalent", "good"),
    "different": Value("≠ not equivalent", "different", "doubt"),
    "undecided": Value("? undecided", "undecided", "weak"),
}


def study_facts(study: StudyDir) -> dict[str, object]:
    """Collect what `phalanx study show --json` prints: no records of its runs."""
    manifest = study.manifest()
    gate = _gate_results(study, manifest)
    return {"manifest": manifest, "trials": study.trials(), "gate": gate}


def plan_blocks(manifest: StudyManifest) -> list[Block]:
    """Describe the cells of a study that has not begun."""
    columns: list[tuple[Column, CellFormat[Any]]] = [
        *_axes(manifest),
        (Column("workers", "workers"), lambda cell: shown(cell.job["workers"], str)),
        (Column("global_batch", "batch"), lambda cell: shown(_global_batch(cell.job), str)),
        (Column("epochs", "epochs"), lambda cell: shown(cell.job["epochs"], str)),
        (Column("runs", "runs"), lambda cell: text(_repeats_range(manifest.repeats))),
    ]
    table = tabulate("cells", manifest.cells, columns)
    return [line(manifest.title, "lead"), table, line(_plan_line(manifest))]


def study_blocks(study: StudyDir) -> list[Block]:
    """Describe the results of a study so far."""
    manifest = study.manifest()
    trials = study.trials()
    others = on_other_machines(trials)
    compared = [trial for trial in trials if trial not in others]
    blocks: list[Block] = [line(manifest.title, "lead"), _result_table(study, manifest, compared)]
    if manifest.gate is not None:
        blocks.append(_gate_table(_gate_results(study, manifest), manifest))
    blocks += [
        line(f"✗ {trial.cell} repeat {trial.repeat + 1} failed: {trial.cause}", "doubt")
        for trial in trials
        if trial.state == "failed"
    ]
    blocks += [
        line(
            f"✗ {trial.cell} repeat {trial.repeat + 1} is not compared: it had only "
            f"{', '.join(trial.machines)}",
            "doubt",
        )
        for trial in others
    ]
    return [*blocks, line(_end_line(study, manifest, trials), "note")]


class StudyFacts(msgspec.Struct, kw_only=True):
    """Hold one line of `phalanx study list`."""

    name: str
    title: str
    cells: int
    runs: int
    """Runs that ended, failed ones included."""
    planned: int
    """The least number of runs that the plan asks for."""
    failed: int


def list_facts(study: StudyDir) -> StudyFacts:
    """Read what a list shows of a study."""
    manifest, trials = study.manifest(), study.trials()
    return StudyFacts(
        name=study.path.name,
        title=manifest.title,
        cells=len(manifest.cells),
        runs=len(trials),
        planned=_least(manifest),
        failed=sum(trial.state == "failed" for trial in trials),
    )


def list_table(found: Sequence[StudyFacts]) -> Table:
    """Make one row per study."""
    columns: list[tuple[Column, CellFormat[StudyFacts]]] = [
        text_field("name", "name"),
        (Column("runs", "runs"), lambda one: Value(f"{one.runs} of {one.planned}", one.runs)),
        number_field("failed", "failed"),
        number_field("cells", "cells", keep=1),
        text_field("title", "title", keep=2),
    ]
    return tabulate("studies", found, columns)


def budget_line(num_left: int, budget_s: float, study: Path) -> Block:
    """Say that the budget is why a study ended before its plan was complete, and what goes on."""
    command = f"phalanx study resume {shlex.quote(str(study))} --budget {2 * budget_s:.0f}s"
    left = count_noun(num_left, "run")
    return line(
        f"stopped because of the budget of {format_duration(budget_s)}: {left} of the plan left; "
        f"`{command}` allows as much again",
        "doubt",
    )


def _least(manifest: StudyManifest) -> int:
    return sum(manifest.repeats_of(cell.id).min for cell in manifest.cells)


def format_metric(metric: str, value: float) -> str:
    """Format a number of a summary with its unit."""
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
    """Format a mean with half its interval, or the mean alone of a single run."""
    mean = format_metric(metric, found.mean)
    if found.half_width is None:
        return mean
    if metric.endswith("accuracy"):
        return f"{mean} ± {100 * found.half_width:.2f}"
    relative = found.relative_half_width
    return mean if relative is None else f"{mean} ± {100 * relative:.1f} %"


def _axes(manifest: StudyManifest) -> list[tuple[Column, CellFormat[Any]]]:
    def setting(axis: str) -> CellFormat[Any]:
        return lambda cell: text(cell.settings[axis])

    return [(Column(axis, axis, is_text=True), setting(axis)) for axis in manifest.axes]


def _global_batch(job: dict[str, Any]) -> int:
    return int(job["batch"]["global"] or job["batch"]["per_worker"] * job["workers"])


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
    more = ", ..." if len(manifest.seeds) > 5 else ""
    parts.append(f"seeds {', '.join(str(seed) for seed in manifest.seeds[:5])}{more}")
    return ", ".join(parts)


def _result_table(study: StudyDir, manifest: StudyManifest, trials: Sequence[Trial]) -> Table:
    def runs(cell: Any) -> Value:
        mine = [trial for trial in trials if trial.cell == cell.id]
        failed = sum(trial.state == "failed" for trial in mine)
        good = len(mine) - failed
        return Value(f"{good}" + (f" + {failed} ✗" if failed else ""), good)

    columns: list[tuple[Column, CellFormat[Any]]] = [
        *_axes(manifest),
        (Column("runs", "runs"), runs),
    ]
    has_classes = bool(values_by_seed(study, "test_accuracy"))
    quality = "test_accuracy" if has_classes else "test_loss"
    for metric in (manifest.metric, manifest.gate.metric if manifest.gate else quality):
        by_cell = values_by_seed(study, metric)

        def mean(cell: Any, metric: str = metric, values: Any = by_cell) -> Value:
            found = list(values.get(cell.id, {}).values())
            if not found:
                return Value(NOTHING)
            return Value(format_estimate(metric, estimate(found)), estimate(found).mean)

        columns.append((Column(metric, metric), mean))
    return tabulate("results", manifest.cells, columns)


def _gate_results(study: StudyDir, manifest: StudyManifest) -> list[GateResult]:
    if manifest.gate is None:
        return []
    return judge_study(manifest, values_by_seed(study, manifest.gate.metric))


def _gate_table(results: Sequence[GateResult], manifest: StudyManifest) -> Table:
    gate = manifest.gate
    assert gate is not None
    caption = (
        f"equivalence gate: {gate.metric} within ± {gate.tolerance:g} of {gate.axis}="
        f"{gate.baseline} (cell minus baseline, {100 * (2 * gate.confidence - 1):g} % interval)"
    )
    return tabulate("gate", results, _GATE, caption)


def _interval(result: GateResult) -> Value:
    if result.low is None or result.high is None:
        return Value(NOTHING, (None, None))
    return Value(f"{result.low:+.4f} to {result.high:+.4f}", (result.low, result.high))


def _pairs(result: GateResult) -> Value:
    first, second = result.num_runs
    return text(f"{first} pairs" if result.paired else f"{first} and {second}")


_GATE: list[tuple[Column, CellFormat[GateResult]]] = [
    text_field("cell", "cell"),
    text_field("baseline", "against"),
    (
        Column("difference", "difference", is_text=True),
        lambda one: shown(one.difference, "{:+.4f}".format),
    ),
    (Column("interval", "interval", is_text=True), _interval),
    (Column("runs", "runs", is_text=True), _pairs),
    (Column("verdict", "verdict", is_text=True), lambda one: _VERDICTS[one.verdict]),
]


def _end_line(study: StudyDir, manifest: StudyManifest, trials: Sequence[Trial]) -> str:
    least = _least(manifest)
    line = f"{count_noun(len(trials), 'run')} of at least {least}: {study.path}"
    if len(trials) < least:
        line += f"; continue with `phalanx study resume {shlex.quote(str(study.path))}`"
    return line
