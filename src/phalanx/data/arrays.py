"""Convert stored arrays to the one form of `base.Samples`.

Used by the free-form sources (NPZ, Parquet). Error messages name the file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array, InputArray, Samples
from phalanx.errors import DataError
from phalanx.spec.loss import IGNORED

_MAX_CHANNELS = 4  # grey, grey with alpha, RGB, RGBA


def as_samples(inputs: Array, targets: Array, *, origin: str) -> Samples:
    """Check and convert one chunk of samples, one per row; messages name `origin`."""
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
        raise DataError(
            f"{origin}: inputs of shape {inputs.shape} do not go with targets of shape "
            f"{targets.shape}; both need one row per sample",
            path=origin,
        )
    return Samples(inputs=as_inputs(inputs, origin=origin), targets=as_targets(targets, origin))


def as_inputs(inputs: Array, *, origin: str) -> InputArray:
    """Convert images of bytes to uint8 (N, H, W, C), rows of whole numbers to int32 or int64.

    Anything else that is numeric becomes float32: whole numbers with more axes are quantities, such
    as the counts of a sensor, but rows of them may be token ids, which no float stands for.
    """
    if inputs.dtype.kind not in "buif":
        raise DataError(
            f"{origin}: inputs of type {inputs.dtype} are not numbers; "
            "store them as numbers or as encoded images (PNG, JPEG)",
            path=origin,
        )
    is_image = inputs.dtype == np.uint8 and inputs.ndim in (3, 4)
    if is_image and inputs.ndim == 3:
        inputs = inputs[..., None]
    if inputs.ndim == 4 and _channels_come_first(inputs.shape):
        inputs = np.moveaxis(inputs, 1, 3)
    if is_image:
        return np.ascontiguousarray(inputs)
    if inputs.dtype.kind in "ui" and inputs.ndim <= 2:
        # By type rather than by content: all files of a data set must come out alike.
        rows = inputs.reshape(len(inputs), -1)
        if np.can_cast(inputs.dtype, np.int32):
            return np.ascontiguousarray(rows, dtype=np.int32)
        return np.ascontiguousarray(rows, dtype=np.int64)
    values = np.ascontiguousarray(inputs, dtype=np.float32)
    if values.ndim == 1:
        values = values[:, None]
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))[0])
        raise DataError(
            f"{origin}: row {row} of the inputs holds a value that is not finite; "
            "remove or fill such rows",
            path=origin,
            row=row,
        )
    return values


def as_targets(targets: Array, origin: str) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
    """Convert whole numbers to int64 class labels (of samples or positions), others to float32."""
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.dtype.kind == "f":
        if not np.isfinite(targets).all():
            raise DataError(
                f"{origin}: some targets are not finite; remove or fill such rows", path=origin
            )
        return np.ascontiguousarray(targets, dtype=np.float32)
    if targets.dtype.kind not in "bui":
        raise DataError(
            f"{origin}: targets of type {targets.dtype} and shape {targets.shape} are neither "
            "class labels (whole numbers) nor float values",
            path=origin,
        )
    labels = np.ascontiguousarray(targets, dtype=np.int64)
    # A label per position may say that the position does not count.
    low = labels[labels != IGNORED].min(initial=0) if labels.ndim > 1 else labels.min(initial=0)
    if low < 0:
        raise DataError(
            f"{origin}: label {low} is negative; number the classes from 0", path=origin
        )
    return labels


def _channels_come_first(shape: tuple[int, ...]) -> bool:
    """Return whether (N, a, b, c) is N, C, H, W: few in front, too many for channels at the end."""
    return shape[1] <= _MAX_CHANNELS < shape[3]
