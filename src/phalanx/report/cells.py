"""Group runs into cells of repeats, and name the differences between cells; pure.

Runs whose jobs differ in nothing but name and seed, on the same machines of a pool if they were on
one, make one *cell*. What differs between cells is put under three headings, because readers ask
about them in different ways: the *task* (model and data; nothing is compared across tasks), the
*batch*, and the *method* (strategy, workers and every other setting). A study's axes give the
labels; without a study they are made from the jobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from phalanx.records.study import StudyManifest
from phalanx.report.facts import Material, RunRecord
from phalanx.report.format import count_noun

_NOT_SETTINGS = ("name", "seed")
_TASK_KEYS = (
    *("model.", "loss.", "data.name", "data.limit", "data.validation"),
    "data.args.",
)
# Studies of sensors compare which inputs of a network are read.
_METHOD_KEYS = ("model.args.modalities",)
_BATCH_KEYS = ("batch.",)

Settings = dict[str, object]


class Cell(msgspec.Struct, kw_only=True):
    """Runs of one job with different seeds."""

    id: str
    task: str
    method: str
    batch: str
    job: dict[str, Any]
    global_batch: int
    settings: dict[str, str] = {}
    """Axis to label, in a study."""
    runs: list[RunRecord] = []
    num_failed: int = 0

    @property
    def label(self) -> str:
        """Method and batch, which are unique within a task."""
        return f"{self.method} · {self.batch}"

    @property
    def phrase(self) -> str:
        """The same as part of a sentence."""
        return f"{self.method} with batch {self.batch}"

    @property
    def finished(self) -> list[RunRecord]:
        """The runs whose figures count."""
        return [run for run in self.runs if run.is_finished]

    @property
    def typical(self) -> RunRecord | None:
        """The finished run with the median training time; of two in the middle the quicker."""
        ordered = sorted(
            self.finished, key=lambda run: (run.summary.train_s if run.summary else 0.0, run.name)
        )
        return ordered[(len(ordered) - 1) // 2] if ordered else None

    @property
    def strategy(self) -> str:
        """The strategy's name in the job."""
        return str(self.job["strategy"]["name"])

    @property
    def workers(self) -> int:
        """Processes that compute gradients."""
        return int(self.job["workers"])


def group_runs(material: Material) -> list[Cell]:
    """Group runs into cells, in the order of the study or of the labels; runs sorted by seed."""
    cells = _planned(material) if material.study is not None else _found(material.runs)
    for cell in cells:
        cell.runs.sort(key=lambda run: (run.seed, run.name))
        cell.num_failed += sum(run.state != "finished" for run in cell.runs)
    return [cell for cell in cells if cell.runs or cell.num_failed]


def differences(jobs: Sequence[Mapping[str, Any]]) -> tuple[Settings, list[str]]:
    """Return the settings that all jobs share, and the keys of those that differ.

    A setting that only one kind has, such as `strategy.every`, does not count beside a differing
    name.
    """
    flat = [flatten(job) for job in jobs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    same: Settings = {}
    differing = []
    for key in keys:
        if key in _NOT_SETTINGS:
            continue
        values = {str(one[key]) for one in flat if key in one}
        if len(values) > 1 or (len(values) == 1 and _lacking(key, flat)):
            differing.append(key)
        elif all(key in one for one in flat):
            same[key] = flat[0][key]
    return same, differing


def flatten(job: Mapping[str, Any]) -> Settings:
    """Flatten nested settings to dotted keys."""
    found: Settings = {}
    for key, value in job.items():
        if isinstance(value, dict):
            found |= {f"{key}.{part}": inner for part, inner in flatten(value).items()}
        else:
            found[key] = value
    return found


def tasks_of(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each task, in order."""
    tasks: dict[str, list[Cell]] = {}
    for cell in cells:
        tasks.setdefault(cell.task, []).append(cell)
    return tasks


def _lacking(key: str, flat: Sequence[Settings]) -> bool:
    """Tell whether a key is absent somewhere without a differing name that explains it."""
    if all(key in one for one in flat):
        return False
    parts = key.split(".")
    parents = [".".join(parts[:depth]) for depth in range(1, len(parts))]
    return all(len({str(one.get(f"{parent}.name")) for one in flat}) == 1 for parent in parents)


def _found(runs: Sequence[RunRecord]) -> list[Cell]:
    # The job, together with the machines of its pool.
    settings = [
        run.job
        | ({"machines": sorted(run.manifest.machines)} if run.manifest.pool is not None else {})
        for run in runs
    ]
    _, differing = differences(settings)
    cells: dict[tuple[str, ...], Cell] = {}
    for run, own in zip(runs, settings, strict=True):
        flat = flatten(own)
        # Settings of one kind only (`strategy.every`) belong to the identity as well.
        key = tuple(f"{name}={flat[name]}" for name in sorted(flat) if name not in _NOT_SETTINGS)
        if key not in cells:
            cells[key] = _cell_of(run, flat, differing)
        cells[key].runs.append(run)
    ordered = sorted(cells.values(), key=_order)
    for number, cell in enumerate(ordered, start=1):
        cell.id = str(number)
    return ordered


def _order(cell: Cell) -> tuple[str, bool, list[tuple[float, str]], int]:
    """Sort by task, single-worker cells first, then method (2 before 16) and batch."""
    parts = re.split(r"(\d+(?:\.\d+)?)", cell.method)
    natural = [(float(part), "") if part[:1].isdigit() else (math.inf, part) for part in parts]
    return cell.task, cell.strategy != "single", natural, cell.global_batch


def _cell_of(run: RunRecord, flat: Settings, differing: Sequence[str]) -> Cell:
    global_batch = _global_batch(run.job)
    own = [key for key in differing if key in flat]
    return Cell(
        id="",
        task=_task_label(flat, own),
        method=_method_label(run.job, flat, own),
        batch=str(global_batch),
        job=run.job,
        global_batch=global_batch,
    )


def _is_task(key: str) -> bool:
    return key.startswith(_TASK_KEYS) and not key.startswith(_METHOD_KEYS)


def _global_batch(job: Mapping[str, Any]) -> int:
    batch = job["batch"]
    return int(batch["global"] or batch["per_worker"] * job["workers"])


def _task_label(flat: Settings, differing: Sequence[str]) -> str:
    extra = [
        f"{key} {_text(flat[key])}"
        for key in differing
        if _is_task(key) and key not in ("model.name", "data.name")
    ]
    return ", ".join([f"{flat['model.name']} on {data_label(flat)}", *extra])


def data_label(flat: Settings) -> str:
    """Name the data of a job; a file or folder without the path to it."""
    return str(flat["data.name"]).rstrip("/").rpartition("/")[2]


def _method_label(job: Mapping[str, Any], flat: Settings, differing: Sequence[str]) -> str:
    strategy = strategy_label(job["strategy"])
    parts = []
    if "workers" in differing:
        parts.append(count_noun(int(str(flat["workers"])), "worker"))
    shown = ("strategy.name", "strategy.consistency", "strategy.phases", "workers")
    parts += [
        f"{key.removeprefix('strategy.')} {_text(flat[key])}"
        for key in differing
        if key not in shown and not _is_task(key) and not key.startswith(_BATCH_KEYS)
    ]
    return f"{strategy} ({', '.join(parts)})" if parts else strategy


def strategy_label(strategy: Mapping[str, Any]) -> str:
    """Name a strategy: with the consistency of servers, or the phases of a switch."""
    name = str(strategy["name"]).rpartition(":")[2]
    if "consistency" in strategy:
        return f"{name} {strategy['consistency']}"
    phases = strategy.get("phases") or []
    return " ".join([name, "from", *(_phase_label(phase) for phase in phases)]) if phases else name


def _phase_label(phase: Mapping[str, Any]) -> str:
    label = strategy_label(phase["strategy"])
    for moment, words in (("at", "at"), ("epoch", "at epoch"), ("lr_drop", "at decay")):
        if phase.get(moment) is not None:
            return f"{words} {phase[moment]} to {label}"
    return label


def _planned(material: Material) -> list[Cell]:
    study = material.study
    assert study is not None
    roles = axis_roles(study)
    cells = {}
    for planned in study.cells:
        labels = {
            role: ", ".join(
                _axis_label(axis, planned.settings[axis], roles)
                for axis in study.axes
                if roles[axis] == role
            )
            for role in ("task", "method", "batch")
        }
        global_batch = _global_batch(planned.job)
        flat = flatten(planned.job)
        cells[planned.id] = Cell(
            id=planned.id,
            task=labels["task"] or f"{flat['model.name']} on {data_label(flat)}",
            method=labels["method"] or str(flat["strategy.name"]),
            batch=labels["batch"] or str(global_batch),
            job=planned.job,
            global_batch=global_batch,
            settings=planned.settings,
        )
    for run in material.runs:
        if run.cell in cells:
            cells[run.cell].runs.append(run)
    for trial in material.stillborn:
        cells[trial.cell].num_failed += 1
    return list(cells.values())


def axis_roles(study: StudyManifest) -> dict[str, str]:
    """Tell for each axis of a study whether it changes the task, the batch or the method."""
    return {axis: _role(axis, study) for axis in study.axes}


def _role(axis: str, study: StudyManifest) -> str:
    changed = {
        key
        for one in study.cells
        for other in study.cells
        if one.id < other.id
        and {key for key in one.settings if one.settings[key] != other.settings.get(key)} == {axis}
        for key in differences([one.job, other.job])[1]
    }
    if any(_is_task(key) for key in changed):
        return "task"
    return "batch" if changed and all(key.startswith(_BATCH_KEYS) for key in changed) else "method"


def _axis_label(axis: str, label: str, roles: Mapping[str, str]) -> str:
    """Add the axis to a bare number, except to the batch, which has its own column."""
    bare = label.replace(".", "", 1).replace("-", "", 1).isdigit()
    return f"{axis} {label}" if bare and roles[axis] != "batch" else label


def _text(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_text(one) for one in value) + "]"
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
