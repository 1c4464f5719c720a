"""Count and cut the rows of a batch, whatever it is made of: tensors, arrays, mappings, tuples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from phalanx.errors import DataError


def count_rows(batch: object) -> int:
    """Return the number of samples of a batch: the length of its first tensor, array or list.

    Raises:
        DataError: It holds none.
    """
    found = _first_length(batch)
    if found is None:
        raise DataError(
            f"a batch of session.data() is {type(batch).__name__}; it must hold tensors, arrays or "
            "lists, whose first dimension counts the samples"
        )
    return found


def take_rows(batch: Any, start: int, stop: int) -> Any:
    """Return the rows of a batch from `start` to `stop`; what has no rows stays as it is."""
    return _take(batch, start, stop, count_rows(batch))


def _first_length(batch: object) -> int | None:
    if isinstance(batch, Tensor | np.ndarray):
        return len(batch) if batch.ndim > 0 else None
    if isinstance(batch, Mapping):
        parts: Sequence[object] = list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = batch
        if parts and not isinstance(parts[0], Tensor | np.ndarray | Mapping | list | tuple):
            return len(parts)
    else:
        return None
    return next((n for part in parts if (n := _first_length(part)) is not None), None)


def _take(part: Any, start: int, stop: int, count: int) -> Any:
    if isinstance(part, Tensor | np.ndarray):
        return part[start:stop] if part.ndim > 0 and len(part) == count else part
    if isinstance(part, Mapping):
        taken = {key: _take(value, start, stop, count) for key, value in part.items()}
        return taken if type(part) is dict else type(part)(taken)  # type: ignore[call-arg]
    if isinstance(part, list | tuple):
        if part and not isinstance(part[0], Tensor | np.ndarray | Mapping | list | tuple):
            return part[start:stop] if len(part) == count else part
        inner = [_take(value, start, stop, count) for value in part]
        if hasattr(part, "_fields"):
            return type(part)(*inner)
        return type(part)(inner)
    return part
