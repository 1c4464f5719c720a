"""Make the chapters `Every run` and `Doubts`: all runs, outliers, failures and warnings."""

from __future__ import annotations

from phalanx.records.study import Trial
from phalanx.report.cells import Cell
from phalanx.report.document import (
    Block,
    Column,
    Section,
    Text,
    Value,
    label,
    number,
    plain,
    table_of,
    text,
)
from phalanx.report.facts import RunRecord
from phalanx.report.foreign_load import MUCH, disturbed
from phalanx.report.format import count_noun
from phalanx.report.measures import MEASURES, shared_digits, value_of
from phalanx.report.parts.results import outliers_of
from phalanx.report.scope import Scope, quality_keys

_SHOWN = ("test_accuracy", "val_accuracy", "train_s", "samples_per_s", "elapsed_s")
_CAUSE_CHARACTERS = 300


def doubts(scope: Scope) -> Section:
    """List outliers, runs that did not finish, single runs and warnings."""
    blocks: list[Block] = [
        *_busy_machines(scope),
        *_outliers(scope),
        *_unfinished(scope),
        *_few(scope),
        *_warnings(scope),
        *_left_out(scope),
    ]
    if not blocks:
        blocks = [Text(lines=["No outliers, no failures, no warnings."])]
    return Section(id="doubts", title="Doubts", blocks=blocks)


def every_run(scope: Scope) -> Section:
    """Tabulate all runs, one per row."""
    runs = [(cell, run) for cell in scope.cells for run in cell.runs]
    keys = quality_keys(scope.cells, _SHOWN)
    odd = {key: {name for cell in scope.cells for name in outliers_of(cell, key)} for key in keys}
    digits = {
        key: shared_digits(MEASURES[key], [value_of(run, key) for _, run in runs]) for key in keys
    }
    rows = []
    for cell, run in runs:
        summary = run.summary
        row = {
            label("run"): text(run.name),
            **scope.place_of(cell),
            Column("seed", "seed"): text(run.seed),
            label("state"): text(run.state, "" if run.is_finished else "doubt"),
            Column("epochs", "epochs"): number(summary.epochs if summary else None, 0),
            **{
                Column(key, MEASURES[key].title, MEASURES[key].unit): _value(
                    run, key, digits[key], run.name in odd[key]
                )
                for key in keys
            },
            Column("attempts", "attempts"): number(summary.attempts if summary else None, 0),
            label("machine"): text(", ".join(run.machines)),
            label("version", "Phalanx"): text(run.manifest.phalanx),
        }
        rows.append(row)
    caption = "Every run. Values marked ! lie far from the others of their cell; they count."
    return Section(id="every-run", title="Every run", blocks=[table_of("runs", caption, rows)])


def _value(run: RunRecord, key: str, digits: int, is_odd: bool) -> Value:
    found = number(value_of(run, key), digits, scale=MEASURES[key].scale)
    return Value(f"! {found.text}", found.raw, "doubt") if is_odd else found


def _busy_machines(scope: Scope) -> list[Block]:
    runs = [run for cell in scope.cells for run in cell.finished]
    found = disturbed(runs)
    if not found:
        return []
    shares = [f"{name} {100 * share:.0f} %" for name, share in sorted(found.items())]
    more = f" and {len(shares) - 8} more" if len(shares) > 8 else ""
    line = (
        f"Other programs used more than {100 * MUCH:.0f} % of a machine during {len(found)} of "
        f"{count_noun(len(runs), 'run')}, so times are not those of an idle machine: "
        f"{', '.join(shares[:8])}{more}."
    )
    return [Text(lines=[line], kind="doubt")]


def _left_out(scope: Scope) -> list[Block]:
    rows = [
        {
            label("run"): text(run.name),
            label("task"): text(f"{run.job['model']['name']} on {run.job['data']['name']}"),
            label("state"): text(run.state, "" if run.is_finished else "doubt"),
            label("cause"): text(_shortened(run.cause)),
        }
        for run in scope.left_out
    ]
    caption = (
        "Runs left out: not finished, no second cell of the same task to compare with, or on other "
        "machines than most runs of the study."
    )
    return [table_of("left-out", caption, rows)] if rows else []


def _outliers(scope: Scope) -> list[Block]:
    lines = []
    for cell in scope.cells:
        for key in quality_keys([cell], _SHOWN):
            measure = MEASURES[key]
            for name in sorted(outliers_of(cell, key)):
                run = next(run for run in cell.runs if run.name == name)
                value = value_of(run, key)
                shown = plain(value, shared_digits(measure, [value]), scale=measure.scale)
                unit = f" {measure.unit}" if measure.unit else ""
                lines.append(
                    f"{scope.name_of(cell)}, seed {run.seed} ({name}): {measure.title} of "
                    f"{shown}{unit} lies far from the other runs of its cell. It is counted."
                )
    intro = "Outliers by the modified z-score (above 3.5; among three or four runs, 10 % off too):"
    return [Text(lines=[intro]), Text(lines=lines, kind="list")] if lines else []


def _unfinished(scope: Scope) -> list[Block]:
    cells = {cell.id: cell for cell in scope.cells}
    broken: list[tuple[Cell, RunRecord | Trial, str | None]] = [
        (cell, run, run.name) for cell in scope.cells for run in cell.runs if not run.is_finished
    ]
    broken += [(cells[trial.cell], trial, None) for trial in scope.material.stillborn]
    rows = [
        {
            label("cell"): text(scope.name_of(cell)),
            Column("seed", "seed"): text(one.seed),
            label("run"): text(name),
            label("state"): text(one.state, "doubt"),
            label("cause"): text(_shortened(one.cause)),
        }
        for cell, one, name in broken
    ]
    caption = "Runs that did not finish; none of their figures is counted anywhere."
    return [table_of("unfinished", caption, rows)] if rows else []


def _few(scope: Scope) -> list[Block]:
    single = [cell for cell in scope.cells if len(cell.finished) == 1]
    if not single:
        return []
    words = (
        "1 cell rests on one run"
        if len(single) == 1
        else f"{len(single)} cells rest on one run each"
    )
    return [Text(lines=[f"{words}: no interval and no test can be given there."])]


def _warnings(scope: Scope) -> list[Block]:
    seen: dict[str, int] = {}
    for cell in scope.cells:
        for run in cell.runs:
            for message in run.warnings:
                seen[message] = seen.get(message, 0) + 1
    lines = [f"{message} ({count_noun(count, 'run')})" for message, count in sorted(seen.items())]
    return (
        [Text(lines=["Warnings that runs gave:"]), Text(lines=lines, kind="list")] if lines else []
    )


def _shortened(cause: str | None) -> str | None:
    if cause is None or len(cause) <= _CAUSE_CHARACTERS:
        return cause
    return f"{cause[:_CAUSE_CHARACTERS]} ..."
