"""Implement `phalanx predict`: apply a trained network to samples."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

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

    import numpy as np
    import numpy.typing as npt

    from phalanx.results.trained_run import TrainedRun

EXAMPLES = examples(
    "phalanx predict last",
    "phalanx predict last new-samples.npz -o predictions.csv",
    "phalanx predict last new-samples.npz --newest --outputs",
)


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
    part: Annotated[str, option("NAME", "Part of the data: train, validation or test.")] = "test",
    to: Annotated[
        Path | None, option("FILE", "CSV file \\[default: the terminal].", "--to", "-o")
    ] = None,
    newest: NewestOption = False,
    outputs: Annotated[bool, flag("Add the network's outputs as columns.", "--outputs")] = False,
    runs: RunsOption = None,
) -> None:
    """Predict samples with a trained network, prepared as in its training.

    Targets that the data has are printed beside the predictions.
    """
    from phalanx.store.atomic import write_atomically

    run = open_trained_run(name, runs)
    dataset = run.open_data(data)
    parts = {one.name: one for one in (dataset.train, dataset.validation, dataset.test)}
    if part not in parts:
        raise SpecError(f"there is no part '{part}' (valid: {', '.join(parts)})")
    chosen = parts[part]
    if chosen.num_samples == 0:
        sizes = ", ".join(f"{one.name} {one.num_samples}" for one in parts.values())
        raise SpecError(f"part '{part}' of {dataset.name} has no samples ({sizes}); use --part")
    found = run.predict(chosen, best=False if newest else None)
    rows = _rows(found, chosen.targets[chosen.rows], dataset, outputs=outputs)
    if to is None:
        _write(rows, sys.stdout)
        return
    text = io.StringIO()
    _write(rows, text)
    write_atomically(to, text.getvalue().encode())
    print(f"{len(found):,} predictions: {to}")


def open_trained_run(name: str, runs: Path | None) -> TrainedRun:
    """Open a run whose network is wanted; loads torch, which the command line does without."""
    from phalanx.records.rundir import find_run
    from phalanx.spec.registry import load

    # First: whether there is such a run takes no framework.
    found = find_run(runs_root(runs), name)
    opened = cast("Callable[..., TrainedRun]", load("phalanx.results.trained_run:open_run"))
    return opened(found.path)


def _rows(
    found: npt.NDArray[np.float32], targets: npt.NDArray[Any], dataset: Any, *, outputs: bool
) -> list[list[object]]:
    names = dataset.class_names
    if dataset.is_classification:
        head: list[object] = ["sample", "predicted", "target"]
        chosen = found.argmax(axis=1)
        rows: list[list[object]] = [
            [number, names[one] if names else int(one), names[target] if names else int(target)]
            for number, (one, target) in enumerate(zip(chosen, targets, strict=True))
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
        head += _numbered("output", found.shape[1])
        rows = [[*row, *map(float, one)] for row, one in zip(rows, found, strict=True)]
    return [head, *rows]


def _spaced(labels: npt.NDArray[Any]) -> str:
    """Return the labels of a sample's positions in one cell."""
    return " ".join(map(str, labels.reshape(-1).tolist()))


def _numbered(name: str, width: int) -> list[object]:
    return [name] if width == 1 else [f"{name}_{number}" for number in range(width)]


def _write(rows: list[list[object]], file: TextIO) -> None:
    csv.writer(file, lineterminator="\n").writerows(rows)
