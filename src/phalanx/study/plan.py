"""Make the manifest of a study directory from a study file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from phalanx._version import __version__
from phalanx.errors import SpecError
from phalanx.records.study import (
    PlannedCell,
    PlannedGate,
    PlannedPart,
    PlannedPool,
    PlannedRepeats,
    RecommendSettings,
    StudyManifest,
)
from phalanx.report.parts.catalogue import REPORT_PARTS
from phalanx.spec.pool_file import load_pool
from phalanx.spec.registry import load
from phalanx.spec.render import to_mapping
from phalanx.spec.study import GateSpec, StudySpec, parse_duration
from phalanx.spec.study_file import StudyFile
from phalanx.study.matrix import Axis, StudyCell, expand


def plan_study(
    study: StudyFile, *, data_root: Path, cache_root: Path, pool: PlannedPool | None = None
) -> StudyManifest:
    """Expand the matrix, and resolve repeats, seeds, gate and machines.

    `pool` are the machines to run on; None: those that the file names, else this machine.

    Raises:
        SpecError: A cell is no valid job, the gate does not fit the axes, or a part of the report
            cannot use its file.
    """
    spec = study.spec
    axes, cells = expand(study)
    _check_report_parts(study)
    return StudyManifest(
        name=spec.study,
        title=spec.title or spec.study,
        axes={axis.name: axis.labels for axis in axes},
        cells=[
            PlannedCell(id=cell.id, settings=cell.settings, job=to_mapping(cell.job))
            for cell in cells
        ],
        metric=spec.metric,
        repeats=_repeats(spec),
        seeds=_seeds(spec, cells),
        gate=None if spec.gate is None else _gate(spec.gate, axes, study),
        target=spec.target.values,
        report_parts=[
            PlannedPart(name=one.name, file=None if one.file is None else Path(one.file).name)
            for one in spec.report_parts
        ],
        recommend=RecommendSettings(**spec.recommend.model_dump()),
        budget_s=None if spec.budget is None else parse_duration(spec.budget),
        trial_limit_s=None if spec.trial_limit is None else parse_duration(spec.trial_limit),
        parallel=spec.parallel,
        pool=pool or _pool(study),
        wall_s=time.time(),
        versions={"phalanx": __version__},
        data_root=str(data_root.resolve()),
        cache_root=str(cache_root.resolve()),
    )


def amend(
    manifest: StudyManifest,
    *,
    repeats: int | None = None,
    parallel: int | str | None = None,
    budget: str | None = None,
) -> StudyManifest:
    """Return the plan of a resumed study with changed settings; None keeps a setting.

    Raises:
        SpecError: A setting is invalid.
    """
    changes: dict[str, Any] = {}
    if repeats is not None:
        changes["repeats"] = PlannedRepeats(min=repeats, max=repeats)
        changes["seeds"] = _extended(manifest.seeds, repeats)
    if parallel is not None:
        changes["parallel"] = parallel
    if budget is not None:
        changes["budget_s"] = parse_duration(budget)
        if changes["budget_s"] is None:
            raise SpecError(f"--budget {budget!r} is no time; write 90s, 20min or 1h30min")
    return msgspec.structs.replace(manifest, **changes)


def _extended(seeds: Sequence[int], number: int) -> list[int]:
    found = list(seeds)
    candidates = (seed % 2**32 for seed in itertools.count(seeds[-1] + 1))
    while len(found) < number:
        seed = next(candidates)
        if seed not in found:
            found.append(seed)
    return found


def report_files(study: StudyFile) -> list[Path]:
    """Return the files that parts of the report need; they are kept with the study."""
    return [study.folder / one.file for one in study.spec.report_parts if one.file is not None]


def _check_report_parts(study: StudyFile) -> None:
    for one in study.spec.report_parts:
        part = REPORT_PARTS.find(one.name)
        if one.file is not None and part.check:
            cast("Callable[[Path], object]", load(part.check))(study.folder / one.file)


def _pool(study: StudyFile) -> PlannedPool | None:
    if study.spec.pool is None:
        return None
    file = study.folder / study.spec.pool
    machines = [one.title for one in load_pool(file).spec.machines]
    return PlannedPool(file=str(file.resolve()), machines=machines)


def _repeats(spec: StudySpec) -> PlannedRepeats:
    repeats = spec.planned_repeats
    until = repeats.until
    if until is None:
        return PlannedRepeats(min=repeats.min, max=repeats.most)
    width, relative = until.width
    return PlannedRepeats(
        min=repeats.min,
        max=repeats.most,
        metric=until.metric or spec.metric,
        half_width=width,
        relative=relative,
        confidence=until.confidence,
    )


def _seeds(spec: StudySpec, cells: Sequence[StudyCell]) -> list[int]:
    if spec.seeds is not None:
        return list(spec.seeds)
    first = cells[0].job.seed
    return [(first + repeat) % 2**32 for repeat in range(spec.planned_repeats.most)]


def _gate(gate: GateSpec, axes: Sequence[Axis], study: StudyFile) -> PlannedGate:
    name, equals, label = gate.baseline.rpartition("=")
    homes = [(axis.name, gate.baseline) for axis in axes if gate.baseline in axis.labels]
    if not homes and equals:
        homes = [(axis.name, label) for axis in axes if axis.name == name and label in axis.labels]
    if len(homes) == 1:
        return PlannedGate(
            metric=gate.metric,
            tolerance=gate.tolerance,
            axis=homes[0][0],
            baseline=homes[0][1],
            confidence=gate.confidence,
        )
    mark = study.document.mark(("gate", "baseline"))
    known = "; ".join(f"{axis.name}: {', '.join(axis.labels)}" for axis in axes)
    if homes:
        first = homes[0][0]
        raise mark.error(
            f"gate.baseline {gate.baseline!r} is a label of several axes; write "
            f"'{first}={gate.baseline}'"
        )
    raise mark.error(f"gate.baseline {gate.baseline!r} is no label of an axis ({known})")
