"""Compute mean, deviation and range of the inputs per channel or feature, for normalisation.

Computed once, from the whole training part as the files offer it, when the cache is filled. It does
not depend on the split, so every run on a data set normalises alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array

_CHUNK_BYTES = 32 * 2**20  # large enough for long loops, small beside any machine's memory


@dataclass(frozen=True)
class Statistics:
    """One entry per channel (images) or feature (last axis of anything else)."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def measure(inputs: Array) -> Statistics:
    """Measure a whole array of samples without holding more than a chunk of it as floats."""
    if inputs.dtype == np.uint8:
        return _of_bytes(inputs)
    chunks = [chunk for chunk in _chunks(inputs) if len(chunk)]
    total = sum(len(chunk) for chunk in chunks)
    mean = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in chunks) / total
    squares = sum(np.square(chunk - mean).sum(axis=0) for chunk in chunks)
    low = np.min([chunk.min(axis=0) for chunk in chunks], axis=0)
    high = np.max([chunk.max(axis=0) for chunk in chunks], axis=0)
    return _statistics(mean, np.sqrt(squares / total), low, high)


def _of_bytes(inputs: Array) -> Statistics:
    """Compute exact statistics of bytes from the counts of the 256 values."""
    num_channels = inputs.shape[-1]
    counts = np.zeros((num_channels, 256), dtype=np.int64)
    for chunk in _chunks(inputs):
        for channel in range(num_channels):
            counts[channel] += np.bincount(chunk[:, channel], minlength=256)
    values = np.arange(256, dtype=np.float64)
    total = counts.sum(axis=1)
    mean = counts @ values / total
    variance = counts @ np.square(values) / total - np.square(mean)
    seen = counts > 0
    return _statistics(
        mean, np.sqrt(np.maximum(variance, 0)), seen.argmax(1), 255 - seen[:, ::-1].argmax(1)
    )


def _chunks(inputs: Array) -> list[Array]:
    """Yield views of the array as rows of channels."""
    rows = max(1, _CHUNK_BYTES // max(1, inputs[:1].nbytes))
    width = inputs.shape[-1]
    return [inputs[i : i + rows].reshape(-1, width) for i in range(0, len(inputs), rows)]


def _statistics(*rows: npt.NDArray[Any]) -> Statistics:
    mean, std, low, high = (tuple(float(value) for value in row) for row in rows)
    return Statistics(mean=mean, std=std, low=low, high=high)
