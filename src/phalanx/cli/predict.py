"""Implement `phalanx predict`: apply a trained network to samples."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import numpy as np

from phalanx.cli.options import (
    NewestOption,
    RunArgument,
    RunsOption,
    argument,
    examples,
    flag,
    option,
)
from phalanx.cli.settings import runs_root
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from phalanx.data.dataset import Dataset, Part
    from phalanx.results.trained_run import TrainedRun

EXAMPLES = examples(
    "phalanx predict last",
    "phalanx predict last new-samples.npz -o predictions.csv",
    "phalanx predict last new-samples.csv --newest --outputs",
)
ALL = "all"


def predict(
    name: RunArgument,
    data: Annotated[
        str | None,
        argument(
            "DATA",
            "Data set or file, stored like the run's own \\[default: the run's].",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        str | None,
        option(
            "NAME",
            "Part of the data: train, validation, test or all \\[default: all of DATA, else test].",
        ),
    ] = None,
    to: Annotated[
        Path | None, option("FILE", "CSV file \\[default: the terminal].", "--to", "-o")
    ] = None,
    newest: NewestOption = False,
    outputs: Annotated[bool, flag("Add the network's outputs as columns.", "--outputs")] = False,
    runs: RunsOption = None,
) -> None:
    """Predict samples with a trained network, prepared as in its training.

    Targets that the data has are printed beside the predictions; a table needs none.
    """
    from phalanx.store.atomic import write_atomically

    run = open_trained_run(name, runs)
    table = run.read_inputs(data) if data is not None else None
    best = False if newest else None
    if table is not None:
        found = run.predict(table, best=best)
        rows = _without_targets(found, run, outputs=outputs)
    else:
        dataset = run.open_data(data)
        chosen = _chosen_parts(dataset, part or ("test" if data is None else ALL))
        found = np.concatenate([run.predict(one, best=best) for one in chosen])
        targets = np.concatenate([one.targets[one.rows] for one in chosen])
        rows = _rows(found, targets, dataset, run.class_names, outputs=outputs)
    if to is None:
        _write(rows, sys.stdout)
        return
    text = io.StringIO()
    _write(rows, text)
    write_atomically(to, text.getvalue().encode())
    print(f"{len(found):,} predictions: {to}")


def _chosen_parts(dataset: Dataset, name: str) -> list[Part]:
    """Return the part of that name; of all samples, one part for each array that holds some."""
    parts = {one.name: one for one in (dataset.train, dataset.validation, dataset.test)}
    if name not in (*parts, ALL):
        raise SpecError(f"there is no part '{name}' (valid: {', '.join((*parts, ALL))})")
    if name == ALL:
        stored: dict[int, Part] = {}
        for one in parts.values():
            known = stored.setdefault(id(one.inputs), one)
            stored[id(one.inputs)] = replace(known, rows=np.union1d(known.rows, one.rows))
        return [one for one in stored.values() if one.num_samples]
    if parts[name].num_samples == 0:
        sizes = ", ".join(f"{one.name} {one.num_samples}" for one in parts.values())
        raise SpecError(f"part '{name}' of {dataset.name} has no samples ({sizes}); use --part")
    return [parts[name]]


def open_trained_run(name: str, runs: Path | None) -> TrainedRun:
    """Open a run whose network is wanted; loads torch, which the command line does without."""
    from phalanx.records.rundir import find_run
    from phalanx.spec.registry import load

    # First: whether there is such a run takes no framework.
    found = find_run(runs_root(runs), name)
    opened = cast("Callable[..., TrainedRun]", load("phalanx.results.trained_run:open_run"))
    return opened(found.path)


def _rows(
    found: npt.NDArray[np.float32],
    targets: npt.NDArray[Any],
    dataset: Dataset,
    names: Sequence[str],
    *,
    outputs: bool,
) -> list[list[object]]:
    if dataset.is_classification:
        head: list[object] = ["sample", "predicted", "target"]
        # Each side by its own names: a file of new samples may lack a class.
        rows: list[list[object]] = [
            [number, _named(one, names), _named(target, dataset.class_names)]
            for number, (one, target) in enumerate(zip(found.argmax(axis=1), targets, strict=True))
        ]
    elif dataset.has_labels:
        head = ["sample", "predicted", "target"]
        axis = -1 if found.shape[:-1] == targets.shape else 1
        rows = [
            [number, _spaced(one), _spaced(target)]
            for number, (one, target) in enumerate(zip(found.argmax(axis), targets, strict=True))
        ]
    else:
        widths = [array.reshape(len(array), -1).shape[1] for array in (found, targets)]
        head = ["sample", *_numbered("predicted", widths[0]), *_numbered("target", widths[1])]
        rows = [
            [number, *map(float, one.reshape(-1)), *map(float, target.reshape(-1))]
            for number, (one, target) in enumerate(zip(found, targets, strict=True))
        ]
    if outputs and dataset.is_classification:
        return _with_outputs([head, *rows], found)
    return [head, *rows]


def _without_targets(
    found: npt.NDArray[np.float32], run: TrainedRun, *, outputs: bool
) -> list[list[object]]:
    if not run.tells_classes_apart:
        rows: list[list[object]] = [["sample", *_numbered("predicted", found.shape[1])]]
        for number, one in enumerate(found):
            rows.append([number, *map(float, one)])
        return rows
    rows = [["sample", "predicted"]]
    rows += [
        [number, _named(one, run.class_names)] for number, one in enumerate(found.argmax(axis=1))
    ]
    return _with_outputs(rows, found) if outputs else rows


def _with_outputs(rows: list[list[object]], found: npt.NDArray[np.float32]) -> list[list[object]]:
    head, *others = rows
    with_values = [[*row, *map(float, one)] for row, one in zip(others, found, strict=True)]
    return [[*head, *_numbered("output", found.shape[1])], *with_values]


def _named(number: Any, names: Sequence[str]) -> object:
    return names[number] if names else int(number)


def _spaced(labels: npt.NDArray[Any]) -> str:
    """Return the labels of a sample's positions in one cell."""
    return " ".join(map(str, labels.reshape(-1).tolist()))


def _numbered(name: str, width: int) -> list[object]:
    return [name] if width == 1 else [f"{name}_{number}" for number in range(width)]


def _write(rows: list[list[object]], file: TextIO) -> None:
    csv.writer(file, lineterminator="\n").writerows(rows)
