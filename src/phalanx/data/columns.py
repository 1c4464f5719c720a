"""Restrict a data set to some columns, for workers that need no more of each sample.

In a split run a worker reads the inputs of its parts; the rest of the rows stays on disk.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.data.dataset import Dataset, Part
from phalanx.errors import SpecError


def only_columns(dataset: Dataset, start: int, stop: int) -> Dataset:
    """Return the same samples, each with its columns `start` to `stop` only.

    Raises:
        SpecError: Samples are not flat rows, or have fewer columns.
    """
    shape = dataset.input_shape
    if len(shape) != 1 or stop > shape[0]:
        raise SpecError(
            f"the network reads columns {start} to {stop} of flat samples, but the data has "
            f"samples of shape {shape}"
        )
    return replace(
        dataset,
        train=_cut(dataset.train, start, stop),
        validation=_cut(dataset.validation, start, stop),
        test=_cut(dataset.test, start, stop),
    )


def _cut(part: Part, start: int, stop: int) -> Part:
    return replace(
        part,
        inputs=part.inputs[:, start:stop],
        normalizer=part.normalizer.cut(start, stop),
    )
