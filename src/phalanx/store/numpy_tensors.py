"""Adapt NumPy arrays to the checkpoint store, for backends that do not load torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.errors import StoreError
from phalanx.store.tensors import TensorView

Arrays = dict[str, npt.NDArray[np.float32]]
"""Named arrays, as backends on NumPy keep the state of a network."""

# NumPy has no bfloat16.
_DTYPES: dict[str, npt.DTypeLike] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


class NumpyAdapter:
    """Give the store access to the memory of NumPy arrays."""

    def view(self, tensor: npt.NDArray[Any]) -> TensorView:
        """View the memory of an array; copies it only if it is not contiguous."""
        memory = np.asarray(tensor, order="C").reshape(-1).view(np.uint8).data
        return TensorView(_NAMES[tensor.dtype], tensor.shape, memory)

    def empty(self, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Allocate an array; raises `StoreError` if NumPy lacks the type."""
        if dtype not in _DTYPES:
            raise StoreError(f"NumPy has no numbers of type {dtype}")
        return np.empty(shape, dtype=_DTYPES[dtype])
