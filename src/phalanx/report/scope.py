"""Define the scope of a report: its cells, tolerance, target, baseline and styles.

Made once per report and passed to every part of it. Options of the caller override those of the
study, which override the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from phalanx.errors import SpecError
from phalanx.records.study import RecommendSettings, usual_number
from phalanx.report.cells import Cell, group_runs, tasks_of
from phalanx.report.document import Entries, Swatch, label, text
from phalanx.report.facts import Material, RunRecord
from phalanx.report.measures import MEASURES, Measure, quality_measure, value_of

Preference = Literal["time", "cost", "energy"]
CURVE_MEASURES = ("val_accuracy", "train_accuracy", "val_loss", "train_loss")

# Okabe and Ito (2008): distinct under every common kind of colour blindness. Yellow comes last
# because it is hardly seen on white.
_COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#F0E442",
)  # fmt: skip
_DASHES = ((), (7, 3), (2, 2), (9, 3, 2, 3), (4, 4), (1, 3))
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a report; None: that of the study, else the default."""

    tolerance: float | None = None
    """Loss of accuracy, as a share of 1, that counts as none."""
    prefer: Preference | None = None
    """What the recommendation saves."""
    target: tuple[str, float] | None = None
    """Measure and value, for the time that it takes to get there."""
    baseline: str | None = None
    """Reference of comparisons: a strategy, method, or label of an axis."""
    parts: tuple[str, ...] = ()
    """Further parts: names of installed ones, or `package.module:name`."""


class Style(msgspec.Struct, frozen=True):
    """Colour, dash and shape of a cell in all charts."""

    colour: str
    dash: tuple[int, ...]
    shape: str


class Scope(msgspec.Struct, kw_only=True):
    """The input of every part of a report."""

    material: Material
    cells: list[Cell]
    tasks: dict[str, list[Cell]]
    qualities: dict[str, Measure | None]
    """Measure of quality of each task: a run of another task has no say in it."""
    settings: RecommendSettings
    target: tuple[str, float] | None
    target_was_asked: bool
    baseline: str | None
    confidence: float
    styles: dict[str, Style]
    parts: dict[str, Path | None] = {}
    """Further parts, of the study and of the caller, with the file of each."""
    left_out: list[RunRecord] = []
    """Runs with nothing to be compared with; no figure and no verdict depends on them."""

    @property
    def saved(self) -> Measure:
        """The measure that the recommendation saves."""
        if self.settings.prefer == "energy":
            return MEASURES["energy_j"]
        return MEASURES["machine_s" if self.settings.prefer == "cost" else "train_s"]

    def swatches(self, cells: Sequence[Cell], *, points: bool = False) -> list[Swatch]:
        """Make the legend of some cells."""
        return [
            Swatch(
                label=cell.label,
                colour=self.styles[cell.id].colour,
                dash=() if points else self.styles[cell.id].dash,
                shape=self.styles[cell.id].shape if points else "",
            )
            for cell in cells
        ]

    def place_of(self, cell: Cell) -> Entries:
        """Make the first columns of a row: the task, if there are several, and the cell."""
        task = {label("task"): text(cell.task)} if len(self.tasks) > 1 else {}
        return {**task, label("cell"): text(cell.label)}

    def name_of(self, cell: Cell) -> str:
        """Name a cell in a sentence: with its task, if there are several."""
        return f"{cell.task}, {cell.label}" if len(self.tasks) > 1 else cell.label

    def baseline_of(self, cell: Cell) -> Cell | None:
        """Return the nearest cell of the baseline; None for a baseline cell."""
        own = [other for other in self.tasks[cell.task] if self._is_baseline(other)]
        if not own or cell in own:
            return None
        return min(own, key=lambda other: (other.batch != cell.batch, other.global_batch))

    def _is_baseline(self, cell: Cell) -> bool:
        if self.baseline is None:
            return is_alone(cell)
        words = (cell.strategy, cell.method, cell.label, cell.id, *cell.settings.values())
        return self.baseline in words


def is_alone(cell: Cell) -> bool:
    """Tell whether a cell trains on one worker, the reference of scaling."""
    return cell.strategy == "single" or cell.workers == 1


def open_scope(material: Material, options: Options) -> Scope:
    """Group the runs, and resolve options, study settings and defaults.

    Raises:
        SpecError: The baseline is none of the cells, or the target names no measure.
    """
    study = material.study
    cells = group_runs(material)
    # A study says itself what belongs together, but cannot foresee which machines are lost.
    cells, left_out = _comparable(cells) if study is None else _on_like_machines(cells)
    settings = study.recommend if study is not None else RecommendSettings()
    if options.tolerance is not None:
        settings = msgspec.structs.replace(settings, accuracy_loss=options.tolerance)
    if options.prefer is not None:
        settings = msgspec.structs.replace(settings, prefer=options.prefer)
    baseline = options.baseline
    if baseline is None and study is not None and study.gate is not None:
        baseline = study.gate.baseline
    asked = options.target or (next(iter(study.target.items()), None) if study else None)
    scope = Scope(
        material=material,
        cells=cells,
        tasks=tasks_of(cells),
        qualities={task: quality_measure(own) for task, own in tasks_of(cells).items()},
        settings=settings,
        target=asked or _common_target(cells),
        target_was_asked=asked is not None,
        baseline=baseline,
        confidence=study.repeats.confidence if study is not None else 0.95,
        styles=_styles(cells),
        parts=dict.fromkeys(options.parts) | _planned_parts(material),
        left_out=left_out,
    )
    _check(scope)
    return scope


def _comparable(cells: list[Cell]) -> tuple[list[Cell], list[RunRecord]]:
    """Keep the tasks in which at least two cells can be compared; else all that finished."""
    tasks = tasks_of(cells)
    num_finished = {task: sum(bool(cell.finished) for cell in own) for task, own in tasks.items()}
    for at_least in (2, 1):
        kept = [task for task, number in num_finished.items() if number >= at_least]
        if kept:
            left_out = [run for cell in cells if cell.task not in kept for run in cell.runs]
            return [cell for cell in cells if cell.task in kept], left_out
    return cells, []


def _on_like_machines(cells: list[Cell]) -> tuple[list[Cell], list[RunRecord]]:
    """Leave out the runs of a study that had fewer machines of a pool than most had, or more."""
    finished = [run for cell in cells for run in cell.finished]
    usual = usual_number(len(run.pool_machines) for run in finished)
    left_out = [run for run in finished if len(run.pool_machines) != usual]
    names = {run.name for run in left_out}
    for cell in cells:
        cell.runs = [run for run in cell.runs if run.name not in names]
    return cells, left_out


def _planned_parts(material: Material) -> dict[str, Path | None]:
    if material.study is None or material.study_path is None:
        return {}
    return {
        one.name: None if one.file is None else material.study_path / one.file
        for one in material.study.report_parts
    }


def _check(scope: Scope) -> None:
    if scope.target is not None and scope.target[0] not in (*CURVE_MEASURES, "test_accuracy"):
        known = ", ".join((*CURVE_MEASURES, "test_accuracy"))
        raise SpecError(f"a target is one of {known}, not '{scope.target[0]}'")
    if scope.baseline is not None and not any(scope._is_baseline(cell) for cell in scope.cells):
        known = ", ".join(sorted({cell.method for cell in scope.cells}))
        raise SpecError(f"no runs of the baseline '{scope.baseline}'; there are: {known}")


def _common_target(cells: Sequence[Cell]) -> tuple[str, float] | None:
    """Return the highest whole per cent of validation accuracy that every finished run reached."""
    best = [
        max(
            (point.val_accuracy for point in run.epochs if point.val_accuracy is not None),
            default=0,
        )
        for cell in cells
        for run in cell.finished
    ]
    # An accuracy of 0.29 is stored as 0.28999...: the last digit must not cost a per cent.
    floor = math.floor(100 * min(best, default=0) + 1e-9) / 100
    return ("val_accuracy", floor) if floor > 0 else None


def series_styles(names: Sequence[str]) -> dict[str, Style]:
    """Assign each series a colour and shape of the reports' palette."""
    return {
        name: Style(_COLOURS[index % len(_COLOURS)], (), _SHAPES[index % len(_SHAPES)])
        for index, name in enumerate(names)
    }


def _styles(cells: Sequence[Cell]) -> dict[str, Style]:
    """Assign colour by method, dash and shape by batch; with one method, colour by batch too."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    by_batch = sorted(cells, key=lambda cell: (cell.global_batch, cell.batch))
    batches = list(dict.fromkeys(cell.batch for cell in by_batch))
    tints = methods if len(methods) > 1 else batches
    styles = {}
    for cell in cells:
        tint = tints.index(cell.method if len(methods) > 1 else cell.batch)
        step = batches.index(cell.batch)
        styles[cell.id] = Style(
            _COLOURS[tint % len(_COLOURS)],
            _DASHES[step % len(_DASHES)],
            _SHAPES[step % len(_SHAPES)],
        )
    return styles


def cost_of(seconds: float, settings: RecommendSettings) -> float | None:
    """Return the cost of so many seconds of one machine; None without a price."""
    price = settings.price_per_hour
    return None if price is None else seconds / 3600 * price


def quality_keys(cells: Sequence[Cell], keys: Sequence[str]) -> list[str]:
    """Return the keys that any finished run has a value for; losses if there is no accuracy."""
    known = [key for key in keys if has_values(cells, key)]
    if any(key.endswith("accuracy") for key in known):
        return known
    losses = (key.replace("accuracy", "loss") for key in keys if key.endswith("accuracy"))
    return [*(key for key in losses if has_values(cells, key)), *known]


def has_values(cells: Sequence[Cell], key: str) -> bool:
    """Tell whether any finished run has a measure."""
    return any(value_of(run, key) is not None for cell in cells for run in cell.finished)
