"""Measure stored inputs per channel or feature, and normalise them for a network.

Statistics are computed once, from the whole training part as the files offer it, when the cache is
filled. They do not depend on the split, so every run on a data set normalises alike. Whole numbers
that a network reads as such, token ids for example, are only copied.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, Literal

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


UNMEASURED = Statistics(mean=(0.0,), std=(1.0,), low=(0.0,), high=(0.0,))
"""Of rows that are not normalised."""


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


NormalizerKind = Literal["standard", "centered", "unit", "none"]
NetworkInputs = npt.NDArray[np.float32] | npt.NDArray[np.int64] | npt.NDArray[np.uint8]


class Normalizer:
    """Map a stored value v of channel c to v * scale[c] + shift[c].

    `like` gives shape and type of the stored samples. With `whole_numbers`, stored whole numbers
    are left as they are, whatever the kind; so are `packed` rows of several inputs.
    """

    def __init__(
        self,
        kind: NormalizerKind,
        *,
        statistics: Statistics,
        like: Array,
        whole_numbers: bool = False,
        packed: bool = False,
    ) -> None:
        self._shape = like.shape[1:]
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        """Type of the inputs."""
        if whole_numbers and like.dtype.kind == "i":
            kind, self.dtype = "none", np.dtype(np.int64)
        if packed:
            kind, self.dtype = "none", np.dtype(np.uint8)
        scale, shift = _scale_and_shift(kind, statistics, is_bytes=like.dtype == np.uint8)
        # One entry per value of a sample, so that the loops over a batch are long.
        repeats = int(np.prod(self._shape)) // len(scale)
        self._is_identity = kind == "none"
        self._scale = np.tile(scale, repeats).astype(np.float32)
        self._shift = np.tile(shift, repeats).astype(np.float32)

    @property
    def scale(self) -> npt.NDArray[np.float32]:
        """Factor of each value, in the shape of a sample."""
        return self._scale.reshape(self._shape)

    @property
    def shift(self) -> npt.NDArray[np.float32]:
        """Summand of each value after scaling, in the shape of a sample."""
        return self._shift.reshape(self._shape)

    def cut(self, start: int, stop: int) -> Normalizer:
        """Return the same for samples restricted to columns `start` to `stop`."""
        found = copy(self)
        found._shape = (stop - start,)
        found._scale, found._shift = self._scale[start:stop], self._shift[start:stop]
        return found

    def buffer(self, max_rows: int) -> NetworkInputs:
        """Allocate the result of the largest batch."""
        return np.empty((max_rows, *self._shape), dtype=self.dtype)

    def __call__(self, samples: Array, out: NetworkInputs) -> NetworkInputs:
        """Write the result to the first rows of `out` and return these."""
        result: Array = out[: len(samples)]
        flat = result.reshape(len(samples), self._scale.size)
        np.copyto(flat, samples.reshape(len(samples), self._scale.size))
        if not self._is_identity:
            np.multiply(flat, self._scale, out=flat)
            np.add(flat, self._shift, out=flat)
        return result


def _scale_and_shift(
    kind: NormalizerKind, statistics: Statistics, *, is_bytes: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    mean, std, low, high = map(
        np.array, (statistics.mean, statistics.std, statistics.low, statistics.high)
    )
    base, width = low, high - low
    if is_bytes:  # the range of their type, so that a dark set of images is not brightened
        base, width = np.zeros(len(mean)), np.full(len(mean), 255.0)
    centre, spread = {
        "standard": (mean, std),
        "centered": (mean, width),
        "unit": (base, width),
        "none": (np.zeros(len(mean)), np.ones(len(mean))),
    }[kind]
    spread[spread == 0] = 1.0  # a constant channel carries nothing and must not divide by zero
    return 1.0 / spread, -centre / spread
