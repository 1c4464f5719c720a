"""Adapt torch tensors to the checkpoint store; the only part of it that needs torch."""

from __future__ import annotations

import torch

from phalanx.errors import StoreError
from phalanx.store.base import CheckpointStore
from phalanx.store.tensors import TensorView

TorchStore = CheckpointStore[torch.Tensor]
"""A store of torch tensors."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class TorchAdapter:
    """Give the store access to the memory of torch tensors."""

    def view(self, tensor: torch.Tensor) -> TensorView:
        """View the memory of a tensor; copies it only if it is not contiguous."""
        memory = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        return TensorView(_NAMES[tensor.dtype], tuple(tensor.shape), memory)

    def empty(self, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Allocate a tensor; raises `StoreError` if torch lacks the type."""
        if dtype not in _DTYPES:
            raise StoreError(f"torch has no numbers of type {dtype}")
        return torch.empty(shape, dtype=_DTYPES[dtype])
