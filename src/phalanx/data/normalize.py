"""Normalise stored values to the inputs of a network, in one multiply and one add.

Whole numbers that a network reads as such, token ids for example, are only copied.
"""

from __future__ import annotations

from copy import copy
from typing import Literal

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array
from phalanx.data.statistics import Statistics

NetworkInputs = npt.NDArray[np.float32] | npt.NDArray[np.int64]


class Normalizer:
    """Map a stored value v of channel c to v * scale[c] + shift[c].

    Args:
        kind: standard, unit or none, as in `DataSpec.normalize`.
        statistics: Of the training part.
        like: Any array of stored samples, for its shape and type.
        whole_numbers: Leave stored whole numbers as they are, whatever the kind.
    """

    def __init__(
        self,
        kind: Literal["standard", "unit", "none"],
        *,
        statistics: Statistics,
        like: Array,
        whole_numbers: bool = False,
    ) -> None:
        self._shape = like.shape[1:]
        self.dtype: np.dtype[np.int64] | np.dtype[np.float32] = np.dtype(np.float32)
        """Type of the inputs."""
        if whole_numbers and like.dtype.kind == "i":
            kind, self.dtype = "none", np.dtype(np.int64)
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
    kind: Literal["standard", "unit", "none"], statistics: Statistics, *, is_bytes: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if kind == "standard":
        centre, spread = np.array(statistics.mean), np.array(statistics.std)
    elif kind == "unit" and is_bytes:
        centre, spread = np.zeros(len(statistics.mean)), np.full(len(statistics.mean), 255.0)
    elif kind == "unit":
        centre = np.array(statistics.low)
        spread = np.array(statistics.high) - centre
    else:
        centre, spread = np.zeros(len(statistics.mean)), np.ones(len(statistics.mean))
    spread[spread == 0] = 1.0  # a constant channel carries nothing and must not divide by zero
    return 1.0 / spread, -centre / spread
