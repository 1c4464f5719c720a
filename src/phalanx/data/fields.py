"""Pack several inputs of samples into rows of bytes, and unpack them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array
from phalanx.errors import DataError
from phalanx.spec.fields import FieldType, InputField

_TYPES: dict[str, FieldType] = {"b": "bool", "f": "float32", "i": "int64", "u": "int64"}


def field_layout(inputs: Mapping[str, Array]) -> tuple[InputField, ...]:
    """Lay out inputs, given as one array each with a row per sample, in the order of their names.

    Raises:
        DataError: An input holds no numbers.
    """
    fields: list[InputField] = []
    offset = 0
    for name, array in inputs.items():
        dtype = "uint8" if array.dtype == np.uint8 else _TYPES.get(array.dtype.kind)
        if dtype is None:
            raise DataError(f"input '{name}' holds {array.dtype}, not numbers; convert it first")
        fields.append(InputField(name, dtype, tuple(array.shape[1:]), offset))
        offset = fields[-1].end
    return tuple(fields)


def pack(inputs: Mapping[str, Array], fields: Sequence[InputField]) -> npt.NDArray[np.uint8]:
    """Return one row of bytes per sample.

    Raises:
        DataError: An input has another shape than its field.
    """
    num_rows = len(next(iter(inputs.values())))
    packed = np.zeros((num_rows, fields[-1].end), dtype=np.uint8)
    for field in fields:
        array = inputs[field.name]
        if len(array) != num_rows or tuple(array.shape[1:]) != field.shape:
            raise DataError(
                f"input '{field.name}' has shape {array.shape} where {num_rows} samples of "
                f"{field.shape} are due; bring all samples to one form"
            )
        rows = np.ascontiguousarray(array, dtype=field.dtype).reshape(num_rows, -1)
        packed[:, field.offset : field.offset + field.num_bytes] = rows.view(np.uint8)
    return packed


def unpack(rows: Array, fields: Sequence[InputField]) -> dict[str, Array]:
    """Return the inputs of packed samples by name; the result is a copy."""
    return {
        field.name: np.ascontiguousarray(rows[:, field.offset : field.offset + field.num_bytes])
        .view(field.dtype)
        .reshape(len(rows), *field.shape)
        for field in fields
    }
